"""Masks in texts as people write them: `[MASK]` stands for one token to be told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from tuneyard_pipelines.data import TextTokenizer

MASK = "[MASK]"


def read(tokenizer: TextTokenizer, text: str, mask_id: int) -> list[int]:
    """The tokens of a text, `mask_id` for each mask in it. What stands between two masks is cut on its own."""
    first, *others = text.split(MASK)
    ids = tokenizer.encode(first)
    for part in others:
        ids += [mask_id, *tokenizer.encode(part)]
    return ids


def written(tokenizer: TextTokenizer, ids: Sequence[int], mask_id: int) -> str:
    """The text of tokens, with its masks."""
    parts = [
        MASK * len(run) if masked else tokenizer.continuation(run)
        for masked, run in ((masked, list(run)) for masked, run in groupby(ids, key=lambda token: token == mask_id))
    ]
    return "".join(parts)
