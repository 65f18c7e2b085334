"""Windows of any length over any text: every token counted once, after the text before it, and legs cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from encoded import encoded_split
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines.data import BOS, EOS, PAD
from tuneyard_pipelines.data.stream import Budget, Cursor
from tuneyard_pipelines.data.tokens import EncodedSplit
from tuneyard_pipelines.data.windows import WindowStream, evaluation_windows, per_document

LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any)
BUDGETS = st.one_of(
    st.builds(Budget, st.just("tokens"), st.integers(1, 300)),
    st.builds(Budget, st.just("steps"), st.integers(1, 40)),
    st.builds(Budget, st.just("epochs"), st.one_of(st.integers(1, 4), st.floats(0.05, 3))),
)


def text(lengths: list[int]) -> tuple[EncodedSplit, list[int]]:
    """Documents, and their stream; no two tokens but EOS are equal, so that each tells its place."""
    bounds = np.cumsum([100, *lengths]).tolist()
    documents = [list(range(start, end)) for start, end in pairwise(bounds)]
    return encoded_split(text=documents), [token for document in documents for token in (*document, EOS)]


@st.composite
def streams(draw):
    lengths = draw(LENGTHS)
    table, whole = text(lengths)
    made = WindowStream(
        table,
        sequence_length=draw(st.integers(1, 40)),
        batch_tokens=draw(st.integers(1, 120)),
        seed=draw(st.integers(0, 2**40)),
        budget=draw(BUDGETS),
    )
    return made, whole


def rows(batches):
    return [row for batch in batches for row in zip(batch.tokens_BT.tolist(), batch.next_BT.tolist(), strict=True)]


def facts(batch):
    return batch.tokens_BT.tolist(), batch.next_BT.tolist(), batch.tokens, batch.share


def after(cursor, batches):
    return Cursor(cursor.position + len(batches), cursor.tokens + sum(batch.tokens for batch in batches))


@settings(max_examples=100)
@given(LENGTHS, st.integers(1, 40), st.integers(1, 40), st.integers(1, 200))
def test_each_token_is_counted_once_after_the_text_before_it(lengths, length, stride, batch_tokens):
    table, whole = text(lengths)
    stride = min(stride, length)
    batches = evaluation_windows(table, sequence_length=length, batch_tokens=batch_tokens, stride=stride)
    place = 0
    for tokens, following in rows(batches):
        first = next(n for n, token in enumerate(following) if token != PAD)
        assert PAD not in following[first:]
        assert len(tokens) <= length
        for n in range(first, len(following)):
            assert following[n] == whole[place]
            assert tokens[: n + 1] == [BOS, *whole][place - n : place + 1]
            assert place < length or n + 1 > length - stride
            place += 1
    assert place == len(whole) == sum(batch.tokens for batch in batches)
    assert all(batch.tokens_BT.numel() <= max(batch_tokens, length) for batch in batches)
    sums = per_document(table, np.concatenate([batch.next_BT[batch.next_BT != PAD].numpy() for batch in batches]))
    assert sums.tolist() == [sum(document) + EOS for document in table["text"]]


@settings(max_examples=60)
@given(streams())
def test_a_pass_counts_each_token_once_after_the_text_before_it(made):
    stream, whole = made
    passes: list[list[int]] = [[]]
    for tokens, following in rows(stream.between(Cursor(), 1.0)):
        size = sum(token != PAD for token in following)
        assert following[size:] == tokens[size:] == [PAD] * (len(following) - size)
        for n in range(size - 1):
            assert tokens[n + 1] == following[n]
        if following[0] != EOS:
            place = whole.index(following[0])
            assert tokens[:size] == [BOS, *whole][place : place + size]
            assert following[:size] == whole[place : place + size]
        if len(passes[-1]) == len(whole):
            passes.append([])
        passes[-1] += following[:size]
        assert len(passes[-1]) <= len(whole)
    assert all(sorted(one) == sorted(whole) for one in passes if len(one) == len(whole))


@settings(max_examples=60)
@given(streams(), st.data())
def test_any_batch_can_be_the_first_of_a_leg(made, data):
    stream, _ = made
    whole = list(stream.between(Cursor(), 1.0))
    done = data.draw(st.integers(0, len(whole)))
    rest = list(stream.between(after(Cursor(), whole[:done]), 1.0))
    assert list(map(facts, rest)) == list(map(facts, whole[done:]))


@settings(max_examples=60)
@given(streams(), st.lists(st.floats(0, 1.2), max_size=6))
def test_any_legs_give_the_batches_of_the_unbroken_stream(made, marks):
    stream, _ = made
    whole = list(stream.between(Cursor(), 1.0))
    legs, cursor = [], Cursor()
    for mark in [*sorted(min(mark, 1.0) for mark in marks), 1.0]:
        leg = list(stream.between(cursor, mark))
        cursor = after(cursor, leg)
        legs += leg
        assert stream.share(cursor) >= mark
    assert list(map(facts, legs)) == list(map(facts, whole))
