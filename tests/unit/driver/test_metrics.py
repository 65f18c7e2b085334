"""Metrics on disk: the first value of a key and step counts, and orphans of a dead driver add nothing."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tuneyard_pipelines.journal import AttemptStarted, Journal, SweepFolder
from tuneyard_pipelines.metrics import MetricFile, MetricReader, MetricValue

TRIAL = "t001"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(SweepFolder(tmp_path))
    begin(journal)
    return journal


def begin(journal: Journal) -> None:
    attempt = journal.state.attempt + 1
    journal.append(AttemptStarted(attempt, 1, "node-1", {}, journal.folder.seals()))


def write(journal: Journal, attempt: int, *values: tuple[str, int, float], trial: str = TRIAL) -> None:
    file = MetricFile(journal.folder.attempt(trial, attempt) / "metrics.jsonl")
    file.write(MetricValue(key, step, value, 1_000 + step) for key, step, value in values)
    file.close()


def read(journal: Journal, trial: str = TRIAL) -> list[tuple[str, int, float]]:
    return [(m.key, m.step, m.value) for m in MetricReader(journal.folder, trial).new(journal.state)]


def test_values_are_read_back_with_their_times(journal: Journal) -> None:
    write(journal, 1, ("val/loss", 3, 0.1))
    assert MetricReader(journal.folder, TRIAL).new(journal.state) == [MetricValue("val/loss", 3, 0.1, 1_003)]


@pytest.mark.parametrize("value", [0.0, -0.0, -1.5, 1e300, 5e-324, math.inf, -math.inf, math.nan])
def test_r17_any_number_survives_the_round_trip(journal: Journal, value: float) -> None:
    write(journal, 1, ("val/loss", 1, value))
    [(_, _, found)] = read(journal)
    assert found == value or (math.isnan(found) and math.isnan(value))
    assert math.copysign(1, found) == math.copysign(1, value)


def test_new_lines_only_and_whole_ones(journal: Journal) -> None:
    reader = MetricReader(journal.folder, TRIAL)
    assert reader.new(journal.state) == []
    write(journal, 1, ("a", 1, 1.0))
    assert [m.step for m in reader.new(journal.state)] == [1]
    path = journal.folder.attempt(TRIAL, 1) / "metrics.jsonl"
    with path.open("a") as out:
        out.write('{"key": "a", "step": 2, "val')
    assert reader.new(journal.state) == []
    with path.open("a") as out:
        out.write('ue": 2.0, "time": 5}\n')
    assert [m.step for m in reader.new(journal.state)] == [2]


def test_a_file_that_was_torn_goes_on_with_a_line_of_its_own(journal: Journal) -> None:
    write(journal, 1, ("a", 1, 1.0))
    with (journal.folder.attempt(TRIAL, 1) / "metrics.jsonl").open("a") as out:
        out.write('{"key": "a", "st')
    write(journal, 1, ("a", 2, 2.0))
    assert read(journal) == [("a", 1, 1.0), ("a", 2, 2.0)]


@pytest.mark.parametrize(
    "garbage", ["{}", '{"key": "a", "step": 1}', '{"key": "a", "step": 1, "value": "much", "time": 1}', "nonsense", "7"]
)
def test_a_damaged_line_hides_none_of_the_others(journal: Journal, garbage: str) -> None:
    write(journal, 1, ("a", 1, 1.0))
    with (journal.folder.attempt(TRIAL, 1) / "metrics.jsonl").open("a") as out:
        out.write(garbage + "\n")
    write(journal, 1, ("a", 2, 2.0))
    assert read(journal) == [("a", 1, 1.0), ("a", 2, 2.0)]


def test_the_first_value_of_a_key_and_step_counts(journal: Journal) -> None:
    write(journal, 1, ("a", 1, 1.0), ("a", 2, 2.0), ("a", 2, 2.5), ("b", 2, 9.0))
    begin(journal)
    write(journal, 2, ("a", 2, -2.0), ("a", 3, 3.0))
    assert read(journal) == [("a", 1, 1.0), ("a", 2, 2.0), ("b", 2, 9.0), ("a", 3, 3.0)]


def test_an_orphan_adds_nothing_to_a_sealed_file(journal: Journal) -> None:
    write(journal, 1, ("a", 1, 1.0))
    reader = MetricReader(journal.folder, TRIAL)
    for _ in range(2):  # also when the next attempt sees the longer file
        begin(journal)
        write(journal, 1, ("a", 2, -2.0))
        assert read(journal) == [("a", 1, 1.0)]
    assert [m.value for m in reader.new(journal.state)] == [1.0]


def test_a_file_is_sealed_in_the_middle_of_a_line(journal: Journal) -> None:
    write(journal, 1, ("a", 1, 1.0))
    path = journal.folder.attempt(TRIAL, 1) / "metrics.jsonl"
    with path.open("a") as out:
        out.write('{"key": "a", "step": 2, ')
    begin(journal)
    with path.open("a") as out:
        out.write('"value": 2.0, "time": 1}\n')
    assert read(journal) == [("a", 1, 1.0)]


def test_a_file_that_an_orphan_began_after_the_seal_counts_for_nothing(journal: Journal) -> None:
    begin(journal)
    write(journal, 1, ("a", 1, 1.0))
    assert read(journal) == []
    begin(journal)
    assert read(journal) == []


def test_an_attempt_in_between_is_sealed_by_the_next(journal: Journal) -> None:
    begin(journal)
    write(journal, 2, ("a", 1, 1.0))
    begin(journal)
    write(journal, 2, ("a", 2, 2.0))
    write(journal, 3, ("a", 3, 3.0))
    assert read(journal) == [("a", 1, 1.0), ("a", 3, 3.0)]


@pytest.mark.parametrize(
    "name",
    [
        *("val/MAP@10", "loss[d=1]", "", "a" * 300, "a" * 251, "val/loss\n", "größe", "tab\t"),
        *(".", "..", "a//b", "/a", "a/", "a/./b", "../a", "..a", "a/../b", "//a"),
    ],
)
def test_r12_a_name_that_mlflow_cannot_hold_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = MetricFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metric name") as caught:
        file.write([MetricValue(name, 1, 1.0, 1)])
    assert repr(name[:80]) in str(caught.value)
    file.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


@pytest.mark.parametrize("name", ["a:b", "val/exact_match", "a b", "a.b-c_d", "a" * 250, "x/..y", ".hidden"])
def test_r12_a_name_that_is_taken_is_kept_as_it_is(journal: Journal, name: str) -> None:
    write(journal, 1, (name, 1, 1.0))
    assert read(journal) == [(name, 1, 1.0)]
