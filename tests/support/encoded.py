"""Encoded splits from plain lists."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuneyard_pipelines.data.tokens import EncodedSplit, TokenLists


def encoded_split(ids: Sequence[int] | None = None, **columns: Sequence[Sequence[int]]) -> EncodedSplit:
    """A split of these texts by column, each a list of token ids; without `ids`, examples are numbered from 0."""
    lists = {
        name: TokenLists(
            np.array([token for text in texts for token in text], dtype=np.uint16),
            np.cumsum([0, *map(len, texts)], dtype=np.int64),
        )
        for name, texts in columns.items()
    }
    count = len(next(iter(columns.values())))
    return EncodedSplit(np.array(range(count) if ids is None else ids, dtype=np.int64), lists)
