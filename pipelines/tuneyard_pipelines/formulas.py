"""What our own architectures cost by closed formula, and the shape of such formulas for others.

D model width, F feed-forward width, L layers, S sequence length, V vocabulary; a FLOP is an addition or a
multiplication, so that a multiply-add is two. `values` are the dotted keys of a point as `catalog.complete` gives them.

A token is an unpadded one in a sequence of S. Of an encoder-decoder it is half a source and half a target token: both
sides are taken to be equally long, and what a pair costs is shared among its 2 S tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]


@dataclass(frozen=True)
class Formulas:
    """The formulas of one architecture.

    `forward_flops` is of one token; `kept_floats` of one token of each of an example's `sequences`: the numbers that
    the backward pass needs of it, but for logits.
    """

    sequences: int
    parameters: Callable[[Values, int], int]
    forward_flops: Callable[[Values, int], int]
    kept_floats: Callable[[Values], int]


def _sizes(values: Values) -> tuple[int, int, int, int]:
    """D, F, L, S."""
    names = ("d_model", "d_ff", "num_layers", "sequence_length")
    d, f, layers, s = (values[f"model.{name}"] for name in names)
    return d, f, layers, s


def _positions(values: Values) -> int:
    d, _, _, s = _sizes(values)
    return s * d if values["model.positions"] == "learned" else 0


def _transformer_parameters(values: Values, vocab_size: int) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    encoder_layer = 2 * norm + attention + feed_forward
    decoder_layer = 3 * norm + 2 * attention + feed_forward
    return vocab_size * d + 2 * _positions(values) + layers * (encoder_layer + decoder_layer) + 2 * norm


def _transformer_forward_flops(values: Values, vocab_size: int) -> int:
    """Half of what a source and a target token take together: in three attentions, two feed-forwards, one output."""
    d, f, layers, s = _sizes(values)
    return layers * 3 * _attention_flops(d, s) // 2 + layers * 4 * d * f + d * vocab_size


def _transformer_kept_floats(values: Values) -> int:
    """Of a source and a target token: in each layer 8 D + F and 14 D + F, and 4 D of the final norms.

    A norm keeps its input and, for what follows, its output; an attention query, key, value and context; a feed-forward
    what its ReLU lets through. On a CPU dropout keeps a mask of floats after the embedding and each sub-layer.
    """
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (22 * d + 2 * f + 5 * d * masks) + 4 * d + 2 * d * masks


def _gpt_parameters(values: Values, vocab_size: int) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    return vocab_size * d + _positions(values) + layers * (2 * norm + attention + feed_forward) + norm


def _gpt_forward_flops(values: Values, vocab_size: int) -> int:
    d, f, layers, s = _sizes(values)
    return layers * (_attention_flops(d, s) + 4 * d * f) + 2 * d * vocab_size


def _gpt_kept_floats(values: Values) -> int:
    """As above, but that a GELU keeps its input, too."""
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (8 * d + 2 * f + 2 * d * masks) + 2 * d + d * masks


def _attention_flops(d: int, s: int) -> int:
    """Of one token: query, key, value and output, its scores with S tokens and the sum of their values."""
    return 8 * d * d + 4 * s * d


TRANSFORMER = Formulas(2, _transformer_parameters, _transformer_forward_flops, _transformer_kept_floats)
GPT = Formulas(1, _gpt_parameters, _gpt_forward_flops, _gpt_kept_floats)
