"""What architectures cost by closed formula; no torch.

A FLOP is an addition or a multiplication, so that a multiply-add is two. `values` are the dotted keys of a point as
`catalog.complete` gives them.

A token is an unpadded one in a sequence of S. Of an encoder-decoder it is half a source and half a target token: both
sides are taken to be equally long, and what a pair costs is shared among its 2 S tokens.
"""

from __future__ import annotations

from tuneyard_pipelines.formulas.baselines import CBOW, NGRAM, NPLM
from tuneyard_pipelines.formulas.recurrent import CONV, GRU, LSTM, RNN, SEQ2SEQ
from tuneyard_pipelines.formulas.shape import Formulas, Values, VocabSizes, with_mask
from tuneyard_pipelines.formulas.transformers import BERT, GPT, TRANSFORMER

__all__ = [
    "BERT",
    "CBOW",
    "CONV",
    "GPT",
    "GRU",
    "LSTM",
    "NGRAM",
    "NPLM",
    "RNN",
    "SEQ2SEQ",
    "TRANSFORMER",
    "Formulas",
    "Values",
    "VocabSizes",
    "with_mask",
]
