"""Batches that are shared: by workers at once, or in turns; together they train on what one trains on alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from encoded import encoded_split

from tuneyard_modules.masked_lm import MaskedSettings
from tuneyard_modules.translation import TranslationBatch
from tuneyard_pipelines.data import PAD
from tuneyard_pipelines.data.batching import BatchStream
from tuneyard_pipelines.data.stream import ALONE, Budget, Cursor, Sharing, Stream
from tuneyard_pipelines.data.windows import MaskedStream, WindowStream

TWO_PASSES = Budget("epochs", 2)
PAIRS = encoded_split(
    source=[list(range(4 + number, 5 + number + number % 13)) for number in range(60)],
    target=[list(range(9 + number, 10 + number + number % 7)) for number in range(60)],
)
TEXT = encoded_split(text=[list(range(4 + number, 5 + number + number % 9)) for number in range(50)])


def pairs(sharing: Sharing) -> Stream[Any]:
    return BatchStream(PAIRS, sequence_length=20, batch_tokens=60, seed=1, budget=TWO_PASSES, sharing=sharing)


def windows(sharing: Sharing) -> Stream[Any]:
    return WindowStream(TEXT, sequence_length=5, batch_tokens=25, seed=1, budget=TWO_PASSES, sharing=sharing)


def masked(sharing: Sharing) -> Stream[Any]:
    settings, how = MaskedSettings(mask_id=90), {"batch_tokens": 120, "seed": 1, "budget": TWO_PASSES}
    return MaskedStream(TEXT, settings, sequence_length=30, **how, sharing=sharing)


def rows(batch: Any) -> Counter[tuple[tuple[int, ...], ...]]:
    """What each row shows and what is to be told, padding apart, where there is something to be told."""
    shown, told = list(batch)[-4:-2]
    if isinstance(batch, TranslationBatch):
        told = told[:, 1:]
    pairs = zip(shown.tolist(), told.tolist(), strict=True)
    return Counter(tuple(_unpadded(side) for side in row) for row in pairs if any(row[1]))


def _unpadded(row: Sequence[int]) -> tuple[int, ...]:
    last = max((place for place, token in enumerate(row) if token != PAD), default=-1)
    return tuple(row[: last + 1])


@pytest.mark.parametrize("make", [pairs, windows, masked])
@pytest.mark.parametrize(("workers", "split"), [(2, 1), (1, 2), (3, 2), (40, 1), (1, 40)])
def test_all_pieces_of_a_batch_are_the_batch(make: Callable[[Sharing], Stream[Any]], workers: int, split: int) -> None:
    whole = list(make(ALONE).between(Cursor(), 1.0))
    shared = [list(make(Sharing(workers, rank, split)).between(Cursor(), 1.0)) for rank in range(workers)]
    assert {len(pieces) for pieces in shared} == {len(whole) * split}
    for number, batch in enumerate(whole):
        turns = [[pieces[number * split + turn] for pieces in shared] for turn in range(split)]
        assert sum((rows(piece) for turn in turns for piece in turn), Counter()) == rows(batch)
        assert {piece.share for turn in turns for piece in turn} == {batch.share}
        assert all(len({piece.tokens for piece in turn}) == 1 for turn in turns), "the workers count alike"
        assert sum(turn[0].tokens for turn in turns) == batch.tokens


@pytest.mark.parametrize("make", [pairs, windows, masked])
def test_a_shared_stream_goes_on_where_it_was_left(make: Callable[[Sharing], Stream[Any]]) -> None:
    sharing = Sharing(workers=2, rank=1, split=2)
    stream = make(sharing)
    before = list(stream.between(Cursor(), 0.5))
    cursor = Cursor(len(before) // sharing.split, sum(piece.tokens for piece in before))
    after = list(stream.between(cursor, 1.0))
    assert [rows(piece) for piece in before + after] == [rows(piece) for piece in stream.between(Cursor(), 1.0)]


def test_masks_are_others_in_every_pass_and_at_every_place() -> None:
    told = [tuple(map(tuple, batch.target_BT.tolist())) for batch in masked(ALONE).between(Cursor(), 1.0)]
    assert len(set(told)) == len(told) > 4
