"""Which examples a training batch holds, as a pure function of seed and pass. No torch: a plan asks for it, too."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tuneyard_pipelines.data.tokens import Ints

_LENGTH_MIX = 1.5  # about the largest ratio of lengths in a batch


def pair_batches(tokens: Ints, kept: Ints, *, batch_tokens: int, seed: int, number: int) -> list[Ints]:
    """The pairs of each batch of pass `number`, in training order, from the `tokens` of all and the places `kept`.

    Sorted by length times a random factor, cut into batches of at most `batch_tokens`, the batches shuffled.
    """
    rng = np.random.default_rng([seed, number])
    stirred = tokens[kept] * rng.uniform(1.0, _LENGTH_MIX, len(kept))
    order = kept[np.argsort(stirred)]
    batches = slices(order, cut(tokens[order], batch_tokens))
    return [batches[batch] for batch in rng.permutation(len(batches))]


def window_batches(
    stream_tokens: int, *, sequence_length: int, batch_tokens: int, seed: int, number: int
) -> list[Ints]:
    """The first token of each window of each batch of pass `number`; one before the stream, at -k, lacks k tokens.

    A batch holds batch_tokens // sequence_length windows, one at least.
    """
    rng = np.random.default_rng([seed, number])
    phase = int(rng.integers(sequence_length))
    starts = np.arange(phase - sequence_length if phase else 0, stream_tokens, sequence_length)
    rng.shuffle(starts)
    windows = max(1, batch_tokens // sequence_length)
    return [starts[first : first + windows] for first in range(0, len(starts), windows)]


def cut(tokens: Ints, batch_tokens: int) -> list[int]:
    """Bounds of batches over pairs in order: each as many as fit, at least one."""
    total = np.cumsum(tokens)
    bounds = [0]
    while bounds[-1] < len(tokens):
        before = total[bounds[-1]] - tokens[bounds[-1]]
        fitting = int(np.searchsorted(total, before + batch_tokens, side="right"))
        bounds.append(max(fitting, bounds[-1] + 1))
    return bounds


def slices(order: Ints, bounds: list[int]) -> list[Ints]:
    """The parts of `order` between neighbouring bounds."""
    return [order[start:end] for start, end in itertools.pairwise(bounds)]
