"""Data for training: sources, splits, tokenizers, prepared folders. `batching` and `windows` need torch."""

from __future__ import annotations

from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.prepare import EncodedData, PreparedData, count_vocabulary, encode, prepare
from tuneyard_pipelines.data.sources import pinned
from tuneyard_pipelines.data.text_tokenizer import BOS, EOS, PAD, UNK, TextTokenizer

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "UNK",
    "DataError",
    "EncodedData",
    "PreparedData",
    "TextTokenizer",
    "count_vocabulary",
    "encode",
    "pinned",
    "prepare",
]
