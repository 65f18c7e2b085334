"""Encoded splits from plain lists."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tuneyard_pipelines.data.tokens import EncodedSplit


def encoded_split(ids: Sequence[int] | None = None, **columns: Sequence[Sequence[int]]) -> EncodedSplit:
    """A split of these texts by column, each a list of token ids; without `ids`, examples are numbered from 0."""
    made = EncodedSplit.of(columns)
    return made if ids is None else dataclasses.replace(made, ids=np.array(ids, dtype=np.int64))
