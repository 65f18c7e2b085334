"""A sweep's folder as the report reads it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from driven_sweep import DrivenSweep, driven_sweep

from tuneyard_pipelines import cost
from tuneyard_pipelines.catalog import GUESSED_CHARACTERS
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.report import TRAINING, from_folder, write


@pytest.fixture
def driven(tmp_path: Path) -> DrivenSweep:
    sweep = driven_sweep(home=tmp_path, sweep_id="5eed0001", name="dates", overrides=(), uri="sqlite://", data=None)
    sweep.begin()
    return sweep


def test_a_trial_is_read_with_its_rungs_and_values(driven: DrivenSweep) -> None:
    first = driven.create(1, heads=4)
    driven.start(first)
    driven.reach(first, 0, 0.25, step=10)
    driven.start(first, 1)
    driven.reach(first, 1, 0.5, step=20)
    driven.end(first, "stopped_early")
    second = driven.create(2, heads=8)
    driven.start(second)
    driven.fail(second, 0, "out_of_memory", "needed 9 GiB")
    driven.end(second, "out_of_memory", "needed 9 GiB")
    driven.close("finished")

    sweep = from_folder(driven.folder)
    assert (sweep.name, sweep.sweep_id, sweep.metric, sweep.mode, sweep.seed) == (
        "dates",
        "5eed0001",
        "val/exact_match",
        "max",
        3,
    )
    early, failed = sweep.trials
    assert (early.id, early.number, early.point, early.state) == ("t001", 1, {"model.num_heads": 4}, "stopped_early")
    assert early.scores == {1 / 9: 0.25, 1 / 3: 0.5}
    assert (early.score, early.share, early.tokens) == (0.5, pytest.approx(1 / 3), 2000)
    assert (early.values["model.num_heads"], early.values["model.d_model"], early.values["model.d_ff"]) == (4, 16, 64)
    assert early.seconds == pytest.approx(0.002)
    assert (failed.failed, failed.message, failed.score, failed.share) == (True, "needed 9 GiB", None, 0.0)
    assert sweep.measured["seconds from start to end"] == pytest.approx(0.011)
    assert (sweep.measured["tokens"], sweep.measured["trials"]) == (2000, 2)


def test_parameters_are_those_of_the_formula(driven: DrivenSweep) -> None:
    driven.create(1, heads=4)
    (known,) = from_folder(driven.folder).trials
    assert known.parameters == cost.parameters(known.values, VocabSizes(GUESSED_CHARACTERS))


def test_the_time_of_training_follows_from_tokens_and_speed(driven: DrivenSweep) -> None:
    driven.create(1)
    driven.start("t001")
    for step, speed in ((1, 10.0), (2, 500.0), (3, 500.0)):
        driven.measure("t001", step, {"train/tokens_per_second": speed})
    driven.reach("t001", 0, 0.25)
    assert from_folder(driven.folder).measured[TRAINING] == pytest.approx(1000 / 500.0)


def test_curves_stand_over_tokens_also_between_two_counts_and_over_attempts(driven: DrivenSweep) -> None:
    trial = driven.create(1)
    driven.start(trial)
    driven.measure(trial, 2, {"train/loss": 3.0, "train/tokens": 200.0, "train/grad_norm": 1.0})
    driven.measure(trial, 3, {"val/exact_match": 0.1, "val/bleu": 1.0})
    driven.measure(trial, 4, {"train/loss": math.nan, "train/tokens": 600.0})
    driven.close("interrupted")
    driven.begin()
    driven.start(trial)
    driven.measure(trial, 4, {"train/loss": 9.0})
    driven.measure(trial, 6, {"train/loss": math.inf})
    (read,) = from_folder(driven.folder).trials
    assert read.curves.keys() == {"train/loss", "val/exact_match"}
    assert read.curves["val/exact_match"] == [(3, 400.0, 0.1)]
    losses = read.curves["train/loss"]
    assert [(step, tokens) for step, tokens, _ in losses] == [(2, 200.0), (4, 600.0), (6, 1000.0)]
    assert losses[0][2] == 3.0
    assert math.isnan(losses[1][2])
    assert math.isinf(losses[2][2])


@pytest.mark.parametrize(
    ("ended", "shown"),
    [(None, ["running", "waiting"]), ("interrupted", ["cancelled"] * 2), ("lost", ["error", "cancelled"])],
)
def test_a_trial_that_was_open_when_its_sweep_ended_says_how(
    driven: DrivenSweep, ended: str | None, shown: list[str]
) -> None:
    driven.start(driven.create(1))
    driven.create(2)
    if ended:
        driven.close(ended, "why")
    trials = from_folder(driven.folder).trials
    assert [trial.state for trial in trials] == shown
    assert all(trial.message == ("why" if ended else "") for trial in trials)


def test_a_sweep_that_has_not_begun_and_one_at_work_are_reported(driven: DrivenSweep, tmp_path: Path) -> None:
    write(from_folder(driven.folder), tmp_path / "empty")
    driven.start(driven.create(1))
    assert "1 running" in write(from_folder(driven.folder), tmp_path / "running")[0].read_text()


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the folder of a sweep"):
        from_folder(SweepFolder(tmp_path))
