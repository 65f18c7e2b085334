"""What a formula is told, and what the formulas of an architecture tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class VocabSizes:
    """How many ids the vocabularies of a model have, special ones included: that of its targets, which is the only one
    of a language model, and that of its sources, None where they share the targets'.
    """

    target: int
    source: int | None = None


@dataclass(frozen=True)
class Formulas:
    """The formulas of one architecture.

    `forward_flops` is of one token; `kept_floats` of one token of each of an example's `sequences`: the numbers that
    the backward pass needs of it, but for logits.
    """

    sequences: int
    parameters: Callable[[Values, VocabSizes], int]
    forward_flops: Callable[[Values, VocabSizes], int]
    kept_floats: Callable[[Values], int]


def with_mask(sizes: VocabSizes) -> int:
    """Ids of a masked language model: those of the text, and the mask as the last."""
    return sizes.target + 1
