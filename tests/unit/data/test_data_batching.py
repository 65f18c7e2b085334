"""Batches: shapes, token counts, the order's promises, and what is too long."""

from __future__ import annotations

import time

import pytest
import torch
from encoded import encoded_split

from tuneyard_pipelines.data import BOS, EOS, PAD, DataError
from tuneyard_pipelines.data.batching import BatchStream, Budget, Cursor, eval_batches
from tuneyard_pipelines.data.tokens import EncodedSplit


def encoded(lengths: list[tuple[int, int]]) -> EncodedSplit:
    """Pair number n has the id 1000 + n and tokens from 4 + n on."""
    return encoded_split(
        [1000 + number for number in range(len(lengths))],
        source=[list(range(4 + number, 4 + number + source)) for number, (source, _) in enumerate(lengths)],
        target=[list(range(9 + number, 9 + number + target)) for number, (_, target) in enumerate(lengths)],
    )


ONE_PASS = Budget("epochs", 1)


def stream(lengths, budget=ONE_PASS, *, sequence_length=100, batch_tokens=60, seed=1) -> BatchStream:
    return BatchStream(
        encoded(lengths), sequence_length=sequence_length, batch_tokens=batch_tokens, seed=seed, budget=budget
    )


LENGTHS = [(1 + number % 13, 1 + number % 7) for number in range(200)]


def test_one_batch_in_full():
    (batch,) = stream([(3, 1), (1, 2)]).between(Cursor(), 1.0)
    rows = {
        identifier: (source, target)
        for identifier, source, target in zip(
            batch.ids, batch.source_BS.tolist(), batch.target_BT.tolist(), strict=True
        )
    }
    assert rows == {
        1000: ([4, 5, 6, EOS], [BOS, 9, EOS, PAD]),
        1001: ([5, EOS, PAD, PAD], [BOS, 10, 11, EOS]),
    }
    assert batch.source_BS.dtype == batch.target_BT.dtype == torch.int64
    assert batch.tokens == (3 + 1 + 1 + 2) + 4
    assert batch.share == 0.0


def test_tokens_are_unpadded_and_within_the_limit():
    for batch in stream(LENGTHS).between(Cursor(), 1.0):
        unpadded = (batch.source_BS != PAD).sum() + (batch.target_BT != PAD).sum() - len(batch.ids)
        assert batch.tokens == unpadded <= 60


def test_a_batch_is_filled_to_the_last_token():
    batches = list(stream([(5, 5)] * 10, batch_tokens=24).between(Cursor(), 1.0))
    assert [batch.tokens for batch in batches] == [24] * 5


def test_similar_lengths_go_together():
    batches = list(stream(LENGTHS).between(Cursor(), 1.0))
    tokens = sum(batch.tokens for batch in batches)
    for batch in batches:
        lengths = [sum(LENGTHS[identifier - 1000]) + 2 for identifier in batch.ids]
        assert max(lengths) <= 2 * min(lengths)
    assert len(batches) < 1.2 * tokens / 60  # and yet they are full


def test_company_is_mixed():
    """Not one length a batch: texts of one length are often of one kind."""
    batches = list(stream(LENGTHS * 5, batch_tokens=200).between(Cursor(), 1.0))
    kinds = [len({sum(LENGTHS[(identifier - 1000) % 200]) for identifier in batch.ids}) for batch in batches]
    assert sum(kinds) / len(kinds) > 3


def test_passes_differ_in_order_and_company_and_so_do_seeds():
    same = [(5, 5)] * 50
    one = [batch.ids for batch in stream(same, Budget("epochs", 2)).between(Cursor(), 1.0)]
    half = len(one) // 2
    assert one[:half] != one[half:]
    assert {frozenset(ids) for ids in one[:half]} != {frozenset(ids) for ids in one[half:]}
    assert one != [batch.ids for batch in stream(same, Budget("epochs", 2), seed=2).between(Cursor(), 1.0)]


def test_batches_come_in_no_order_of_length():
    sizes = [batch.source_BS.shape[1] for batch in stream(LENGTHS).between(Cursor(), 1.0)]
    assert sizes != sorted(sizes)
    assert sizes != sorted(sizes, reverse=True)


def test_too_long_pairs_are_left_out_and_counted():
    found = stream([(9, 1), (1, 9), (10, 1), (1, 10), (30, 30)], sequence_length=10)
    assert (found.kept, found.too_long) == (2, 3)
    assert sorted(i for batch in found.between(Cursor(), 1.0) for i in batch.ids) == [1000, 1001]


def test_nothing_kept():
    with pytest.raises(DataError, match=r"model\.sequence_length: .* fits 5 tokens; the shortest needs 9 .*Raise"):
        stream([(8, 2), (3, 10)], sequence_length=5)


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    batches = list(stream([(5, 5), (90, 90), (5, 5), (91, 90)]).between(Cursor(), 1.0))
    assert sorted(sorted(batch.ids) for batch in batches) == [[1000, 1002], [1001], [1003]]


@pytest.mark.parametrize(
    ("budget", "steps"),
    [(Budget("steps", 7), 7), (Budget("epochs", 3), None), (Budget("tokens", 500), None)],
)
def test_budget_ends_at_its_unit(budget, steps):
    found = stream(LENGTHS, budget)
    batches = list(found.between(Cursor(), 1.0))
    end = Cursor(len(batches), sum(batch.tokens for batch in batches))
    assert found.share(end) >= 1.0 > batches[-1].share
    if budget.unit == "tokens":
        assert end.tokens - batches[-1].tokens < 500 <= end.tokens
    elif steps is None:
        assert end.tokens == 3 * found.tokens_per_pass
        assert found.share(end) == 1.0
    else:
        assert len(batches) == steps


@pytest.mark.parametrize("budget", [Budget("steps", 7, 3), Budget("epochs", 2, 3), Budget("tokens", 500, 3)])
def test_a_step_over_several_batches_is_never_cut(budget):
    found = stream(LENGTHS, budget)
    batches = list(found.between(Cursor(), 1.0))
    assert len(batches) % 3 == 0
    assert batches[-3].share < 1.0, "no step begins after the budget"
    assert budget.unit != "steps" or (len(batches), batches[-3].share) == (21, 6 / 7)
    cursor, parts = Cursor(), []
    for mark in (0.1, 0.5, 0.51, 1.0):
        part = list(found.between(cursor, mark))
        assert len(part) % 3 == 0
        parts += part
        cursor = Cursor(len(parts), sum(batch.tokens for batch in parts))
        assert found.share(cursor) >= mark
    assert [batch.ids for batch in parts] == [batch.ids for batch in batches]


def test_part_of_an_epoch():
    found = stream(LENGTHS, Budget("epochs", 0.5))
    batches = list(found.between(Cursor(), 1.0))
    tokens = sum(batch.tokens for batch in batches)
    assert tokens - batches[-1].tokens < found.tokens_per_pass / 2 <= tokens


def test_nothing_comes_after_the_mark():
    found = stream(LENGTHS, Budget("steps", 10))
    assert list(found.between(Cursor(5, 0), 0.5)) == []
    assert list(found.between(Cursor(12, 0), 1.0)) == []


def test_far_positions_are_reached_fast():
    found = stream(LENGTHS, Budget("steps", 10**9))
    in_a_pass = len(list(stream(LENGTHS).between(Cursor(), 1.0)))
    started = time.process_time()
    assert next(found.between(Cursor(300 * in_a_pass, 0), 1.0)).ids
    assert time.process_time() - started < 1.0


def test_evaluation_has_every_pair_once_cut_to_the_length():
    lengths = [(9, 9), (10, 1), (1, 10), (50, 50), (2, 2)]
    batches, cut = eval_batches(encoded(lengths), sequence_length=10, batch_tokens=40)
    assert cut == 3
    rows = {
        identifier: (source, target)
        for batch in batches
        for identifier, source, target in zip(
            batch.ids, batch.source_BS.tolist(), batch.target_BT.tolist(), strict=True
        )
    }
    assert sorted(rows) == [1000, 1001, 1002, 1003, 1004]
    assert rows[1003] == ([*range(7, 16), EOS], [BOS, *range(12, 21), EOS])
    assert [token for token in rows[1004][0] if token] == [8, 9, EOS]
    assert all(batch.tokens <= 40 for batch in batches)
    assert all(batch.source_BS.shape[1] <= 10 and batch.target_BT.shape[1] <= 11 for batch in batches)


def test_evaluation_cuts_nothing_that_fits():
    assert eval_batches(encoded(LENGTHS), sequence_length=14, batch_tokens=100)[1] == 0


def test_a_pass_is_planned_fast():
    found = stream([(number % 5 + 1, 1) for number in range(20_000)], batch_tokens=4096)
    started = time.process_time()
    next(found.between(Cursor(), 1.0))
    assert time.process_time() - started < 0.3
