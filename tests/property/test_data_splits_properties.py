"""Whatever texts are shared: the splits are a partition and no text stands in two of them."""

from __future__ import annotations

from held_data import split
from hypothesis import given
from hypothesis import strategies as st

from tuneyard_pipelines.data import DataError
from tuneyard_pipelines.data.splits import SPLITS

PAIRS = st.lists(st.tuples(st.integers(0, 60).map(str), st.integers(0, 60).map(str)), min_size=1, max_size=80)


@given(PAIRS, st.integers(0, 3))
def test_a_partition_without_leaks(pairs, seed):
    try:
        positions = split(pairs, validation=0.2, test=0.2, seed=seed)
    except DataError:
        return
    assert sorted(position for name in SPLITS for position in positions[name]) == list(range(len(pairs)))
    for side in (0, 1):
        texts = [{pairs[position][side] for position in positions[name]} for name in SPLITS]
        assert sum(map(len, texts)) == len(set.union(*texts))
    assert max(len(positions[name]) for name in ("validation", "test")) <= round(0.2 * len(pairs))
