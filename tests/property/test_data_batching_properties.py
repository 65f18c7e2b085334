"""The stream under any cutting: the same batches as without, each pair once a pass, and a share that adds up."""

from __future__ import annotations

import functools
from collections import Counter
from itertools import pairwise

from encoded import encoded_split
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines.data.batching import BatchStream, Budget, Cursor
from tuneyard_pipelines.data.tokens import EncodedSplit

MANY = [(number * 7 % 11 + 1, number * 5 % 9 + 1) for number in range(70)]


@functools.cache
def encoded(lengths: tuple[tuple[int, int], ...]) -> EncodedSplit:
    return encoded_split(source=[[4] * source for source, _ in lengths], target=[[5] * target for _, target in lengths])


BUDGETS = st.one_of(
    st.builds(Budget, st.just("tokens"), st.integers(1, 800)),
    st.builds(Budget, st.just("steps"), st.integers(1, 40)),
    st.builds(Budget, st.just("epochs"), st.one_of(st.integers(1, 4), st.floats(0.05, 3))),
)
STREAMS = st.builds(
    lambda lengths, length, tokens, seed, budget: BatchStream(
        encoded(tuple(lengths)), sequence_length=length, batch_tokens=tokens, seed=seed, budget=budget
    ),
    st.lists(st.sampled_from(MANY), min_size=1, max_size=25).map(lambda lengths: [(1, 1), *lengths]),
    st.integers(2, 14),
    st.integers(8, 200),
    st.integers(0, 2**40),
    BUDGETS,
)


def facts(batch):
    return batch.ids, batch.source_BS.tolist(), batch.target_BT.tolist(), batch.tokens, batch.share


def after(cursor, batches):
    return Cursor(cursor.position + len(batches), cursor.tokens + sum(batch.tokens for batch in batches))


@settings(deadline=None, max_examples=30)
@given(STREAMS, st.lists(st.floats(0, 1.2), max_size=6))
def test_r8_any_legs_give_the_batches_of_the_unbroken_stream(stream, marks):
    whole = list(stream.between(Cursor(), 1.0))
    legs, cursor = [], Cursor()
    for mark in [*sorted(min(mark, 1.0) for mark in marks), 1.0]:
        leg = list(stream.between(cursor, mark))
        cursor = after(cursor, leg)
        legs += leg
        assert stream.share(cursor) >= mark
    assert list(map(facts, legs)) == list(map(facts, whole))


@settings(deadline=None, max_examples=30)
@given(STREAMS, st.data())
def test_r8_any_batch_can_be_the_first_of_a_leg(stream, data):
    """Wherever a leg is cut off (a crash, not a mark), the next one goes on with the very next batch."""
    whole = list(stream.between(Cursor(), 1.0))
    done = data.draw(st.integers(0, len(whole)))
    rest = list(stream.between(after(Cursor(), whole[:done]), 1.0))
    assert list(map(facts, rest)) == list(map(facts, whole[done:]))


@settings(deadline=None, max_examples=30)
@given(STREAMS)
def test_r8_each_kept_pair_once_a_pass_and_tokens_add_up(stream):
    seen: Counter[int] = Counter()
    tokens = 0
    for batch in stream.between(Cursor(), 1.0):
        seen.update(batch.ids)
        tokens += batch.tokens
        assert max(seen.values()) - min((seen[one] for one in seen), default=0) <= 1
        if tokens % stream.tokens_per_pass == 0:
            assert len(seen) == stream.kept
            assert set(seen.values()) == {tokens // stream.tokens_per_pass}


@settings(deadline=None, max_examples=30)
@given(STREAMS)
def test_the_share_rises_and_reaches_one_at_the_last_batch(stream):
    whole = list(stream.between(Cursor(), 1.0))
    shares = [batch.share for batch in whole]
    assert shares[0] == 0.0
    assert all(earlier < later for earlier, later in pairwise(shares))
    assert shares == [stream.share(after(Cursor(), whole[:done])) for done in range(len(whole))]
    assert shares[-1] < 1.0 <= stream.share(after(Cursor(), whole))
