"""What n-grams and bags of words cost.

What a counted n-gram holds is not in it, for it follows from the text: order + 1 numbers of 8 bytes for every different
n-gram, and about as many again while probabilities are asked for.

D width of an embedding, F width of the hidden layer.
"""

from __future__ import annotations

from tuneyard_pipelines.formulas.shape import Formulas, Values, VocabSizes, with_mask


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
    """The embeddings side by side and the hidden layer; dropout adds a mask of both, and the hidden layer again."""
    context, d, f = _context(values)
    masks: bool = values["model.dropout"] > 0
    return context * d * (1 + masks) + f * (1 + 2 * masks)


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


NGRAM = Formulas(1, lambda values, sizes: 0, _ngram_forward_flops, lambda values: 0)
NPLM = Formulas(1, _nplm_parameters, _nplm_forward_flops, _nplm_kept_floats)
CBOW = Formulas(1, _cbow_parameters, _cbow_forward_flops, _cbow_kept_floats)
