"""Legs of one trial, one after the other in this process: cut anywhere, they are the unbroken run."""

from __future__ import annotations

import errno
import gc
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from tiny_sweep import tiny

from tuneyard_modules.translation import TranslationModule
from tuneyard_pipelines import checkpoints, data, pictures
from tuneyard_pipelines.checkpoints import Checkpoint
from tuneyard_pipelines.journal import AttemptStarted, Header, Journal, SweepFolder
from tuneyard_pipelines.leg import NO_SPACE, Leg, LegResult
from tuneyard_pipelines.metrics import MetricReader, MetricValue
from tuneyard_pipelines.trial import run_leg

pytestmark = pytest.mark.integration

TRIAL = "t001"
SPEC = tiny(
    training__max_steps=18,
    search__scheduler={"type": "asha", "min_share": 0.11, "reduction_factor": 3},
    resources__memory_per_worker="64GiB",  # this process holds much else
)
RUNG_STEPS = (2, 6, 18)
VALIDATED = {2, 5, 6, 9, 14, 18}  # the rungs, and four evaluations of 18 steps


@dataclass
class Begun(pl.Callback):
    """Notes from which step each training went on."""

    steps: list[int] = field(default_factory=list)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.steps.append(trainer.global_step)


class BlindAfter(pl.Callback):
    """Lets validations after optimiser step `step` see broken weights, so that the best checkpoint is an older one."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.weights = {key: value.clone() for key, value in pl_module.state_dict().items()}
        if trainer.global_step > self.step:
            with torch.no_grad():
                next(pl_module.parameters()).fill_(torch.nan)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.load_state_dict(self.weights)


@dataclass
class Trial:
    """A sweep's folder under its first attempt, and one trial of it."""

    folder: SweepFolder

    def run(self, rung: int, *callbacks: pl.Callback) -> LegResult:
        return run_leg(
            Leg(str(self.folder.path), TRIAL, {"model.num_heads": 2, "model.sequence_length": 48}, 1, rung), callbacks
        )

    @property
    def checkpoints(self) -> list[Checkpoint]:
        return checkpoints.whole(self.folder.trial(TRIAL))

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        state: dict[str, Any] = torch.load(self.checkpoints[-1].state, weights_only=True)
        return state["state_dict"]

    @property
    def log(self) -> str:
        return (self.folder.attempt(TRIAL, 1) / "trial.log").read_text()

    def metrics(self) -> list[MetricValue]:
        return MetricReader(self.folder, TRIAL).new(self.folder.state())

    def values(self) -> dict[tuple[str, int], float]:
        """What depends neither on the clock nor on the process."""
        varying = ("train/tokens_per_second", "system/memory_bytes")
        return {(m.key, m.step): m.value for m in self.metrics() if m.key not in varying}


def make(home: Path, sweep_id: str) -> Trial:
    prepared = data.prepare(SPEC.data, SPEC.seed, home / "data")
    folder = SweepFolder(home / "sweeps" / sweep_id)
    folder.create(
        Header(sweep_id, SPEC, "text", home, prepared.folder, prepared.fingerprint, "http://127.0.0.1:9", 1, {})
    )
    Journal(folder).append(AttemptStarted(1, 1, "node-1", {}, {}))
    return Trial(folder)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("legs")


@pytest.fixture(scope="module")
def unbroken(home: Path) -> Trial:
    trial = make(home, "unbroken")
    result = trial.run(rung=2)
    assert (result.outcome, result.step, result.share) == (None, 18, 1.0), result.message
    assert {m.step for m in trial.metrics() if m.key == "val/loss"} == VALIDATED
    return trial


def test_r8_a_trial_cut_into_rungs_is_the_unbroken_trial(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "rungs"), Begun()
    results = [trial.run(rung, begun) for rung in range(3)]
    assert begun.steps == [0, *RUNG_STEPS[:-1]]
    assert [result.step for result in results] == list(RUNG_STEPS)
    assert trial.checkpoints[-1].facts == unbroken.checkpoints[-1].facts
    assert trial.weights.keys() == unbroken.weights.keys()
    assert all(torch.equal(trial.weights[name], weight) for name, weight in unbroken.weights.items())
    assert trial.values() == unbroken.values()
    assert results[-1] == unbroken.run(rung=2)


def test_a_leg_that_has_reached_its_rung_is_answered_at_once(home: Path) -> None:
    trial, begun = make(home, "again"), Begun()
    first = trial.run(1, begun)
    before = trial.metrics()
    for rung in (1, 0):
        assert trial.run(rung, begun) == first
    assert begun.steps == [0], "trained once only"
    assert trial.metrics() == before


def test_r9_a_leg_goes_on_from_the_older_checkpoint_when_the_newest_is_cut_short(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "damaged"), Begun()
    assert trial.run(1, BlindAfter(step=2)).outcome is None
    older, newest = trial.checkpoints
    assert (older.facts.step, newest.facts.step) == (2, 6)
    os.truncate(newest.state, newest.state.stat().st_size // 2)

    result = trial.run(2, begun)
    assert (result.outcome, result.step, result.share) == (None, 18, 1.0), result.message
    assert begun.steps == [2], "from the older one that is whole"
    assert f"WARNING checkpoint {newest.path} is damaged and not used" in trial.log
    assert all(torch.equal(trial.weights[name], weight) for name, weight in unbroken.weights.items())
    written = (trial.folder.attempt(TRIAL, 1) / "metrics.jsonl").read_text()
    assert written.count('"val/loss", "step": 6,') == 2, "steps 3 to 6 were made twice"
    counted = Counter((m.key, m.step) for m in trial.metrics())
    assert set(counted.values()) == {1}
    assert {step for key, step in counted if key == "val/loss"} == VALIDATED


def test_r9_without_a_whole_checkpoint_a_leg_begins_anew(home: Path, unbroken: Trial) -> None:
    trial, begun = make(home, "none"), Begun()
    trial.run(0)
    [only] = trial.checkpoints
    os.truncate(only.state, 10)
    result = trial.run(2, begun)
    assert (result.outcome, begun.steps) == (None, [0])
    assert f"WARNING checkpoint {only.path} is damaged and not used" in trial.log
    assert trial.values() == unbroken.values()


def test_a_leg_frees_what_it_made_and_does_not_look_at_the_libraries(home: Path) -> None:
    def modules() -> int:
        return sum(type(one) is TranslationModule for one in gc.get_objects())

    trial = make(home, "freed")
    gc.collect()
    before = modules()
    gc.disable()
    try:
        assert trial.run(0).outcome is None
        assert modules() == before
    finally:
        gc.enable()
    assert gc.get_freeze_count() > 0


@pytest.mark.parametrize("cause", [OSError("cannot open resource"), ValueError("no such glyph")])
def test_what_cannot_be_drawn_costs_no_trial(home: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception) -> None:
    def fail(*args: Any) -> None:
        raise cause

    monkeypatch.setattr(pictures, "attention", fail)
    trial = make(home, f"drawn-{type(cause).__name__}")
    assert trial.run(0).outcome is None
    assert "cannot be shown" in (trial.folder.attempt(TRIAL, 1) / "trial.log").read_text()


def test_a_full_disk_while_drawing_is_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures, "attention", fail)
    assert make(home, "full-drawing").run(0).outcome == NO_SPACE


def test_a_leg_whose_sweep_cannot_be_read_is_an_error_and_no_exception(tmp_path: Path) -> None:
    result = run_leg(Leg(str(tmp_path / "gone"), TRIAL, {}, 1, 0))
    assert result.outcome == "error"
    assert "sweep.json cannot be read" in result.message


def test_a_disk_that_takes_no_more_is_not_the_trials_fault(home: Path) -> None:
    class Full(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "state.ckpt")

    trial = make(home, "full")
    result = trial.run(0, Full())
    assert (result.outcome, result.message) == (NO_SPACE, "[Errno 28] No space left on device: 'state.ckpt'")
    assert trial.run(0).outcome is None, "with space again it goes on"
