"""Splits: whole, apart, stable, of the size asked for, or refused with the counts."""

from __future__ import annotations

import pytest
from held_data import split

from tuneyard_pipelines.data import DataError, dates, splits
from tuneyard_pipelines.data.splits import TRAIN, Ledger


def lines(count: int) -> list[tuple[str, str]]:
    return [(f"source {number}", f"target {number}") for number in range(count)]


parts = split


def side_of(pairs, positions) -> dict[tuple[str, str], str]:
    return {pairs[position]: name for name, members in positions.items() for position in members}


def test_shares_are_met():
    positions = parts(lines(1000), validation=0.05, test=0.2)
    assert {name: len(members) for name, members in positions.items()} == {"train": 750, "validation": 50, "test": 200}


def test_every_date_is_in_one_split_only():
    pairs = dates.generate(5000, seed=1)
    positions = parts(pairs)
    for side in (0, 1):
        texts = [{pairs[position][side] for position in positions[name]} for name in ("train", "validation", "test")]
        assert not texts[0] & texts[1]
        assert not texts[0] & texts[2]
        assert not texts[1] & texts[2]


def test_a_chain_of_shared_texts_stays_together():
    chain = [(f"s{number // 2}", f"t{(number + 1) // 2}") for number in range(40)]
    positions = parts(lines(400) + chain)
    assert len({side_of(lines(400) + chain, positions)[pair] for pair in chain}) == 1


def test_a_group_larger_than_a_share_is_trained_on():
    hub = [("the same", f"other {number}") for number in range(300)]
    positions = parts(lines(700) + hub, validation=0.1, test=0.1)
    assert set(range(700, 1000)) <= set(positions["train"])
    assert len(positions["validation"]) == len(positions["test"]) == 100


def test_the_seed_decides():
    assert parts(lines(200), seed=1) == parts(lines(200), seed=1)
    assert parts(lines(200), seed=1)["test"] != parts(lines(200), seed=2)["test"]


def test_more_lines_and_another_order_move_few():
    before = side_of(lines(1000), parts(lines(1000)))
    more = lines(1020)[::-1]
    after = side_of(more, parts(more))
    assert sum(before[pair] != after[pair] for pair in before) <= 10


def test_pairs_are_split_as_they_always_were():
    """What was trained on before must not move into a test split now."""
    positions = parts([*lines(60), ("source 3", "other"), ("x", "target 59")])
    assert positions["test"] == [1, 12, 23, 45, 47, 54]
    assert positions["validation"] == [11, 20, 21, 37, 40, 53]


def test_shares_of_documents_are_of_their_sizes():
    sizes = [1 + number * 37 % 101 for number in range(500)]
    keys = [(f"text {number}",) for number in range(500)]
    positions = parts(keys, validation=0.1, test=0.2, sizes=sizes)
    got = {name: sum(sizes[member] for member in members) / sum(sizes) for name, members in positions.items()}
    assert got == pytest.approx({"train": 0.7, "validation": 0.1, "test": 0.2}, abs=0.002)


def test_documents_of_a_module_and_equal_documents_stay_together():
    keys = [(f"text {number}", f"module {number % 40}") for number in range(200)]
    keys += [("text 7", "alone"), ("another", "alone")]
    side = {keys[place]: name for name, places in parts(keys).items() for place in places}
    for number in range(40):
        assert len({name for (_, module), name in side.items() if module == f"module {number}"}) == 1
    assert side["another", "alone"] == side["text 7", "module 7"]


@pytest.mark.parametrize("pairs", [lines(3), [("same", f"t{number}") for number in range(100)]])
def test_an_empty_split_is_refused_with_counts(pairs):
    with pytest.raises(DataError, match=r"pairs\.tsv: the (train|validation|test) split is empty") as caught:
        parts(pairs)
    assert f"{len(pairs)} pairs: train {len(pairs)}, validation 0, test 0" in str(caught.value)
    assert "data.split" in str(caught.value)


def test_numbers_of_examples_are_held_back():
    positions = parts(lines(1000), validation=30, test=7)
    assert {name: len(members) for name, members in positions.items()} == {"train": 963, "validation": 30, "test": 7}


def test_given_splits_stay_and_the_other_one_is_made():
    given = [None] * 300 + ["validation"] * 20
    positions = parts(lines(320), validation=None, test=0.1, given=given)
    assert positions["validation"] == list(range(300, 320))
    assert len(positions["test"]) == 32
    assert max(positions["test"]) < 300


def test_what_shares_a_text_with_a_given_split_is_trained_on_and_counted(tmp_path):
    pairs = [*lines(200), ("source 3", "other"), ("else", "target 4")]
    ledger = Ledger(tmp_path / "ledger", 1)
    for number, pair in enumerate(pairs):
        ledger.append(pair, 1, "validation" if number >= 200 else None)
    made = ledger.assign(validation=None, test=0.9 / 2)
    assert made.shared == 2
    assert made.codes[3] == made.codes[4] == TRAIN
    assert made.counts["validation"] == 2


def test_examples_that_stood_before_are_counted(tmp_path):
    ledger = Ledger(tmp_path / "ledger", 1)
    for pair in [*lines(50), *lines(3), *lines(2)]:
        ledger.append(pair, 1)
    assert ledger.assign(validation=0.1, test=0.1).duplicates == 5


def test_many_groups_are_taken_in_parts_as_in_one(monkeypatch):
    keys = [(f"text {number % 700}",) for number in range(1000)]
    whole = parts(keys, validation=0.1, test=0.2)
    monkeypatch.setattr(splits, "_PART", 64)
    assert parts(keys, validation=0.1, test=0.2) == whole
