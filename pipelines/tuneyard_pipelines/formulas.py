"""What our own architectures cost by closed formula, and the shape of such formulas for others.

D model width, F feed-forward width, L layers, S sequence length, V target vocabulary; a FLOP is an addition or a
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


def _sizes(values: Values) -> tuple[int, int, int, int]:
    """D, F, L, S."""
    names = ("d_model", "d_ff", "num_layers", "sequence_length")
    d, f, layers, s = (values[f"model.{name}"] for name in names)
    return d, f, layers, s


def _positions(values: Values) -> int:
    d, _, _, s = _sizes(values)
    return s * d if values["model.positions"] == "learned" else 0


def _transformer_parameters(values: Values, sizes: VocabSizes) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    encoder_layer = 2 * norm + attention + feed_forward
    decoder_layer = 3 * norm + 2 * attention + feed_forward
    embeddings = (sizes.target + (sizes.source or 0)) * d
    return embeddings + 2 * _positions(values) + layers * (encoder_layer + decoder_layer) + 2 * norm


def _transformer_forward_flops(values: Values, sizes: VocabSizes) -> int:
    """Half of what a source and a target token take together: in three attentions, two feed-forwards, one output."""
    d, f, layers, s = _sizes(values)
    return layers * 3 * _attention_flops(d, s) // 2 + layers * 4 * d * f + d * sizes.target


def _transformer_kept_floats(values: Values) -> int:
    """Of a source and a target token: in each layer 8 D + F and 14 D + F, and 4 D of the final norms.

    A norm keeps its input and, for what follows, its output; an attention query, key, value and context; a feed-forward
    what its ReLU lets through. On a CPU dropout keeps a mask of floats after the embedding and each sub-layer.
    """
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (22 * d + 2 * f + 5 * d * masks) + 4 * d + 2 * d * masks


def _gpt_parameters(values: Values, sizes: VocabSizes) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    return sizes.target * d + _positions(values) + layers * (2 * norm + attention + feed_forward) + norm


def _gpt_forward_flops(values: Values, sizes: VocabSizes) -> int:
    d, f, layers, s = _sizes(values)
    return layers * (_attention_flops(d, s) + 4 * d * f) + 2 * d * sizes.target


def _gpt_kept_floats(values: Values) -> int:
    """As above, but that a GELU keeps its input, too."""
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (8 * d + 2 * f + 2 * d * masks) + 2 * d + d * masks


def _attention_flops(d: int, s: int) -> int:
    """Of one token: query, key, value and output, its scores with S tokens and the sum of their values."""
    return 8 * d * d + 4 * s * d


def _ngram_forward_flops(values: Values, sizes: VocabSizes) -> int:
    """A multiplication and an addition for each word and each shorter n-gram: an interpolation, not a product."""
    order: int = values["model.order"]
    return 2 * order * sizes.target


def _nplm_parameters(values: Values, sizes: VocabSizes) -> int:
    context, d, f = _context(values)
    return sizes.target * d + (context * d + 1) * f + (f + 1) * sizes.target


def _nplm_forward_flops(values: Values, sizes: VocabSizes) -> int:
    context, d, f = _context(values)
    return 2 * context * d * f + 2 * f * sizes.target


def _nplm_kept_floats(values: Values) -> int:
    """The embeddings side by side and the hidden layer, each again and with a mask where there is dropout."""
    context, d, f = _context(values)
    masks: bool = values["model.dropout"] > 0
    return (context * d + f) * (1 + 2 * masks)


def _context(values: Values) -> tuple[int, int, int]:
    """Tokens of the context, D, F."""
    return values["model.order"] - 1, values["model.d_model"], values["model.d_ff"]


def _cbow_parameters(values: Values, sizes: VocabSizes) -> int:
    d: int = values["model.d_model"]
    return 2 * with_mask(sizes) * d


def _cbow_forward_flops(values: Values, sizes: VocabSizes) -> int:
    d: int = values["model.d_model"]
    return 2 * d * with_mask(sizes)


def _cbow_kept_floats(values: Values) -> int:
    """The mean."""
    d: int = values["model.d_model"]
    return d


TRANSFORMER = Formulas(2, _transformer_parameters, _transformer_forward_flops, _transformer_kept_floats)
GPT = Formulas(1, _gpt_parameters, _gpt_forward_flops, _gpt_kept_floats)
NGRAM = Formulas(1, lambda values, sizes: 0, _ngram_forward_flops, lambda values: 0)
NPLM = Formulas(1, _nplm_parameters, _nplm_forward_flops, _nplm_kept_floats)
CBOW = Formulas(1, _cbow_parameters, _cbow_forward_flops, _cbow_kept_floats)
