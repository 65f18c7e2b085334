"""Windows over documents: what each shows and counts, in full; the order's promises; scores by document."""

from __future__ import annotations

import math
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import torch
from encoded import encoded_split

from tuneyard_pipelines.data import BOS, EOS, PAD
from tuneyard_pipelines.data.stream import Budget, Cursor
from tuneyard_pipelines.data.tokens import EncodedSplit, TokenWriter
from tuneyard_pipelines.data.windows import WindowStream, evaluation_windows, per_document, unknown_bits

ONE_PASS = Budget("epochs", 1)


def encoded(*documents: list[int]) -> EncodedSplit:
    return encoded_split(text=documents)


def numbered(*lengths: int) -> EncodedSplit:
    """Documents of these lengths; token n of all, the end tokens not counted, is 10 + n."""
    bounds = np.cumsum([0, *lengths]).tolist()
    return encoded(*(list(range(10 + start, 10 + end)) for start, end in pairwise(bounds)))


def stream(documents, budget=ONE_PASS, *, sequence_length=5, batch_tokens=20, seed=1) -> WindowStream:
    return WindowStream(documents, sequence_length=sequence_length, batch_tokens=batch_tokens, seed=seed, budget=budget)


def rows(batches) -> list[tuple[list[int], list[int]]]:
    return [row for batch in batches for row in zip(batch.tokens_BT.tolist(), batch.next_BT.tolist(), strict=True)]


def counted(batches) -> list[int]:
    return [token for _, following in rows(batches) for token in following if token != PAD]


TEXT = numbered(3, 0, 2)
WHOLE = [10, 11, 12, EOS, EOS, 13, 14, EOS]


def test_evaluation_in_full():
    assert rows(evaluation_windows(TEXT, sequence_length=4, batch_tokens=100, stride=3)) == [
        ([BOS, 10, 11, 12], [10, 11, 12, EOS]),
        ([12, EOS, EOS, 13], [PAD, EOS, 13, 14]),
        ([EOS, EOS, 13, 14], [PAD, PAD, PAD, EOS]),
    ]


def test_evaluation_of_a_text_that_fits_a_window():
    [batch] = evaluation_windows(TEXT, sequence_length=100, batch_tokens=10)
    assert rows([batch]) == [([BOS, *WHOLE[:-1]], WHOLE)]
    assert batch.tokens == 8
    assert batch.share == 0.0
    assert batch.tokens_BT.dtype == batch.next_BT.dtype == torch.int64


@pytest.mark.parametrize("length", [1, 2, 7])
def test_the_stride_is_half_a_window_by_default(length):
    text = numbered(20, 9)
    stride = max(1, length // 2)
    found = evaluation_windows(text, sequence_length=length, batch_tokens=3 * length)
    assert rows(found) == rows(evaluation_windows(text, sequence_length=length, batch_tokens=1, stride=stride))
    assert {batch.tokens_BT.shape[0] for batch in found[:-1]} == {3}


@pytest.mark.parametrize("stride", [0, 6, -1])
def test_a_stride_that_leaves_gaps(stride):
    with pytest.raises(ValueError, match=f"a stride of {stride} tokens; a window of 5"):
        evaluation_windows(TEXT, sequence_length=5, batch_tokens=10, stride=stride)


def test_one_pass_in_full():
    """Whatever the phase, the windows put in order are the text, and each shows what comes before."""
    found = sorted(rows(stream(TEXT, sequence_length=3, batch_tokens=3).between(Cursor(), 1.0)), key=_place)
    assert counted_rows(found) == WHOLE
    for tokens, following in found:
        size = sum(token != PAD for token in following)
        first = _place((tokens, following))
        assert [*tokens[:size]] == [BOS, *WHOLE][first : first + size]
        assert [*tokens[size:]] == [*following[size:]] == [PAD] * (len(tokens) - size)


def _place(row: tuple[list[int], list[int]]) -> int:
    """Where a window begins in WHOLE: its tokens occur there only once."""
    following = [token for token in row[1] if token != PAD]
    places = [n for n in range(len(WHOLE)) if WHOLE[n : n + len(following)] == following]
    before = [n for n in places if [BOS, *WHOLE][n] == row[0][0]]
    return before[0]


def counted_rows(found) -> list[int]:
    return [token for _, following in found for token in following if token != PAD]


def test_short_windows_are_padded_and_not_dropped():
    text = numbered(21)
    for seed in range(10):
        batches = list(stream(text, seed=seed, batch_tokens=10).between(Cursor(), 1.0))
        assert sorted(counted(batches)) == sorted([*range(10, 31), EOS])
        assert sum(batch.tokens for batch in batches) == 22
        assert {batch.tokens_BT.shape[0] for batch in batches[:-1]} == {2}


def test_passes_and_seeds_differ_in_phase_and_order():
    text = numbered(2000)
    batches = list(stream(text, Budget("epochs", 2), sequence_length=50).between(Cursor(), 1.0))
    half = next(n for n, batch in enumerate(batches) if batch.share >= 0.5)
    firsts = [[following[0] for _, following in rows(part)] for part in (batches[:half], batches[half:])]
    assert sorted(firsts[0]) != sorted(firsts[1]), "the same phase"
    assert firsts[0] != sorted(firsts[0]), "no shuffle"
    assert rows(stream(text, sequence_length=50).between(Cursor(), 1.0)) == rows(batches[:half])
    assert rows(stream(text, sequence_length=50, seed=2).between(Cursor(), 1.0)) != rows(batches[:half])


def test_every_phase_is_met():
    """Each of the first tokens begins a window in some pass."""
    text = numbered(200)
    begun = {row[1][0] for seed in range(40) for row in rows(stream(text, seed=seed).between(Cursor(), 1.0))}
    assert {*range(10, 16)} <= begun


@pytest.mark.parametrize(("batch_tokens", "windows"), [(4, 1), (5, 1), (14, 2), (50, 10)])
def test_a_batch_holds_what_its_tokens_allow_and_one_window_at_least(batch_tokens, windows):
    first = next(stream(numbered(99), batch_tokens=batch_tokens).between(Cursor(), 1.0))
    assert first.tokens_BT.shape == (windows, 5)


def test_tokens_of_a_pass_are_those_of_the_text_with_end_tokens():
    found = stream(TEXT)
    assert found.tokens_per_pass == len(WHOLE)
    batches = list(found.between(Cursor(), 1.0))
    assert found.share(Cursor(len(batches), sum(batch.tokens for batch in batches))) == 1.0


def test_sums_by_document():
    text = numbered(3, 0, 2)
    windows = evaluation_windows(text, sequence_length=3, batch_tokens=6, stride=1)
    values = np.array(counted(windows), dtype=np.float64)
    assert per_document(text, values).tolist() == [10 + 11 + 12 + EOS, EOS, 13 + 14 + EOS]
    with pytest.raises(ValueError, match="7 values for a text of 8 tokens"):
        per_document(text, values[:-1])


def test_unknown_characters_cost_a_guess_among_all():
    assert unknown_bits(3) == pytest.approx(3 * math.log2(1_114_112))
    assert unknown_bits(0) == 0.0


def test_a_large_text_is_mapped_and_not_copied(tmp_path):
    """24,000 documents of 500 tokens, written in parts."""
    with TokenWriter(tmp_path / "train", ["text"], 260) as writer:
        for start in range(0, 24_000, 1000):
            writer.append(range(start, start + 1000), {"text": [[7] * 500] * 1000})
    tracemalloc.start()
    try:
        mapped = EncodedSplit.open(tmp_path / "train", ["text"])
        found = stream(mapped, sequence_length=128, batch_tokens=4096)
        assert found.tokens_per_pass == 24_000 * 501
        assert next(found.between(Cursor(), 1.0)).tokens > 3000
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
