"""What goes wrong in a trial, under real Ray: each fault ends its trial with its outcome, and no other trial.

One sweep holds one trial for each fault, so that Ray's workers are started once.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import ray
import torch
from mlflow.entities import Run
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.tracking import connect

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.integration


class AtStep(pl.Callback):
    """Calls `fault` before optimiser step number `step`."""

    def __init__(self, step: int, fault: Callable[[pl.LightningModule], None]) -> None:
        self.step, self.fault = step, fault

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        if trainer.global_step == self.step:
            self.fault(pl_module)


class NanAtFirst(pl.Callback):
    """Lets the first two validations see broken weights."""

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.weights = {key: value.clone() for key, value in pl_module.state_dict().items()}
        if trainer.global_step <= 4:
            poison(pl_module)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        pl_module.load_state_dict(self.weights)


class Silent(pl.Callback):
    """Keeps the module from reporting its validation."""

    def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        pl_module.on_validation_epoch_end = lambda: None


def raise_error(module: pl.LightningModule) -> None:
    raise RuntimeError("the disk of this node is on fire")


def poison(module: pl.LightningModule) -> None:
    for parameter in module.parameters():
        parameter.data.fill_(math.nan)


def hang_here(module: pl.LightningModule) -> None:
    time.sleep(600)


def grow(module: pl.LightningModule) -> None:
    held = []
    while True:
        held.append(torch.ones(16 << 20))
        time.sleep(0.02)


def kill_once(marker: Path, number: int) -> Callable[[pl.LightningModule], None]:
    def fault(module: pl.LightningModule) -> None:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), number)
            time.sleep(600)

    return fault


@dataclass(frozen=True)
class Outcome:
    """A sweep that has ended: its folder, its state, its runs in MLflow by trial."""

    folder: SweepFolder
    state: SweepState
    runs: dict[str, Run]
    uri: str

    def history(self, trial: str, key: str) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for metric in connect(self.uri).get_metric_history(self.runs[trial].info.run_id, key):
            found.setdefault(metric.step, []).append(metric.value)
        return found


DIVERGING = ("t005", "t010", "t011", "t012")


@pytest.fixture(scope="module")
def faulty(run: Any, mlflow_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    markers = tmp_path_factory.mktemp("faults")

    def callbacks(leg: Leg) -> Sequence[pl.Callback]:
        faults: dict[str, pl.Callback] = {
            "t002": AtStep(3, raise_error),
            "t003": AtStep(5, kill_once(markers / "killed", signal.SIGKILL)),
            "t009": AtStep(5, kill_once(markers / "terminated", signal.SIGTERM)),
            "t004": NanAtFirst(),
            **{diverging: AtStep(1, poison) for diverging in DIVERGING},
            "t006": Silent(),
            "t007": AtStep(3, hang_here),
            "t008": AtStep(3, grow),
        }
        return [faults[leg.trial]] if leg.trial in faults else []

    spec = tiny(
        model__num_heads=[1, 2, 4],
        model__sequence_length=[24, 32, 40, 48],
        resources__memory_per_worker="1800MiB",
        resources__stall_timeout="12s",
        register={"name": "faulty"},
    )
    folder, state = run(spec, callbacks)
    return Outcome(folder, state, runs_of(mlflow_uri, folder), mlflow_uri)


def test_a_fault_ends_its_own_trial_only(faulty: Outcome) -> None:
    assert {trial.id: trial.outcome for trial in faulty.state.trials.values()} == {
        "t001": "completed",
        "t002": "error",
        "t003": "completed",
        "t004": "completed",
        "t005": "diverged",
        "t006": "no_metric",
        "t007": "stalled",
        "t008": "out_of_memory",
        "t009": "completed",
        "t010": "diverged",
        "t011": "diverged",
        "t012": "diverged",
    }
    assert faulty.state.ended is not None
    assert faulty.state.ended.state == "finished"
    assert faulty.runs["parent"].info.status == "FINISHED"
    assert len(faulty.runs) == 13
    for trial in faulty.state.trials.values():
        run = faulty.runs[trial.id]
        assert run.data.tags["tuneyard.outcome"] == trial.outcome
        assert run.info.status == ("FINISHED" if trial.outcome == "completed" else "FAILED")


def test_r1_an_exception_is_tried_once_more_and_then_named(faulty: Outcome) -> None:
    assert len(faulty.state.trials["t002"].failures) == 2
    assert "on fire" in faulty.runs["t002"].data.tags["tuneyard.reason"]


@pytest.mark.parametrize("trial", ["t003", "t009"], ids=["SIGKILL", "SIGTERM"])
def test_r1_a_killed_trial_goes_on_from_its_checkpoint(faulty: Outcome, trial: str) -> None:
    assert [failure.outcome for failure in faulty.state.trials[trial].failures] == ["error"]
    history = faulty.history(trial, "val/loss")
    assert sorted(history) == [2, 4, 6, 8]
    assert all(len(values) == 1 for values in history.values())


def test_r3_a_validation_that_is_nan_is_never_the_best(faulty: Outcome) -> None:
    score = faulty.state.trials["t004"].score
    assert score is not None
    assert math.isfinite(score)
    best = checkpoints.best(checkpoints.whole(faulty.folder.trial("t004")), "min")
    assert best is not None
    assert best.facts.step in (6, 8)
    history = faulty.history("t004", "val/loss")
    assert math.isnan(history[2][0])
    assert math.isfinite(history[8][0])


def test_r3_nan_to_the_end_is_diverged_and_not_tried_again(faulty: Outcome) -> None:
    assert len(faulty.state.trials["t005"].failures) == 1
    assert "loss nan" in faulty.runs["t005"].data.tags["tuneyard.reason"]


def test_r4_with_a_third_of_nan_trials_the_sweep_finishes_and_another_wins(faulty: Outcome) -> None:
    assert 3 * len(DIVERGING) == len(faulty.state.trials)
    assert faulty.state.registered is not None
    assert faulty.state.registered.trial in ("t001", "t003", "t004", "t009")


def test_r5_a_trial_without_the_metric_says_so(faulty: Outcome) -> None:
    assert "val/loss was never reported" in faulty.state.trials["t006"].message


def test_r6_the_stack_of_a_hang_is_kept(faulty: Outcome) -> None:
    client, run_id = connect(faulty.uri), faulty.runs["t007"].info.run_id
    stacks = [file.path for file in client.list_artifacts(run_id, "a1") if "stack" in file.path]
    assert len(stacks) == 2, "one for each try"
    assert all("hang_here" in Path(client.download_artifacts(run_id, stack)).read_text() for stack in stacks)


def test_r7_memory_without_end_names_the_limit(faulty: Outcome) -> None:
    assert len(faulty.state.trials["t008"].failures) == 1
    assert "resources.memory_per_worker" in faulty.state.trials["t008"].message
