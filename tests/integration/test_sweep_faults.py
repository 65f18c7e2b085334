"""What goes wrong in a trial, under real Ray: each fault ends that trial with its outcome, and nothing else."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import ray
import torch
from mlflow import MlflowClient
from tiny_sweep import tiny
from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.tracking import connect
from tuneyard_pipelines.trial import Leg

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.integration

Run = Callable[..., tuple[SweepFolder, SweepState]]


class AtStep(pl.Callback):
    """Calls `fault` before optimiser step number `step`."""

    def __init__(self, step: int, fault: Any) -> None:
        self.step, self.fault = step, fault

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        if trainer.global_step == self.step:
            self.fault(pl_module)


def in_trial(trial: str, callback: pl.Callback) -> Any:
    """A maker of callbacks for `drive` that puts `callback` into one trial."""
    return lambda leg: [callback] if leg.trial == trial else []


def children(uri: str, folder: SweepFolder) -> dict[str, Any]:
    client: MlflowClient = connect(uri)
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id], f"tags.`tuneyard.sweep_id` = '{folder.sweep_id}'")
    return {run.data.tags.get("tuneyard.trial_id", "parent"): run for run in runs}


def test_r1_an_exception_in_a_step_fails_its_trial_alone(run: Run, mlflow_uri: str) -> None:
    def fault(module: pl.LightningModule) -> None:
        raise RuntimeError("the disk of this node is on fire")

    folder, state = run(tiny(), in_trial("t002", AtStep(3, fault)))
    outcomes = {trial.id: trial.outcome for trial in state.trials.values()}
    assert outcomes == {"t001": "completed", "t002": "error", "t003": "completed", "t004": "completed"}
    assert len(state.trials["t002"].failures) == 2, "a failed leg is tried once more"
    runs = children(mlflow_uri, folder)
    assert runs["t002"].info.status == "FAILED"
    assert runs["t002"].data.tags["tuneyard.outcome"] == "error"
    assert "on fire" in runs["t002"].data.tags["tuneyard.reason"]
    assert runs["parent"].info.status == "FINISHED"
    assert len(runs) == 5


def test_r1_a_killed_trial_goes_on_from_its_checkpoint(run: Run, mlflow_uri: str, tmp_path: Path) -> None:
    marker = tmp_path / "killed"

    def fault(module: pl.LightningModule) -> None:
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    folder, state = run(tiny(model__num_heads=1), in_trial("t001", AtStep(5, fault)))
    assert [trial.outcome for trial in state.trials.values()] == ["completed", "completed"]
    assert [failure.outcome for failure in state.trials["t001"].failures] == ["error"]
    history = connect(mlflow_uri).get_metric_history(children(mlflow_uri, folder)["t001"].info.run_id, "val/loss")
    assert [metric.step for metric in sorted(history, key=lambda m: m.step)] == [2, 4, 6, 8]


def test_r3_a_validation_that_is_nan_is_never_the_best(run: Run, mlflow_uri: str) -> None:
    class NanAtFirst(pl.Callback):
        def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.weights = {key: value.clone() for key, value in pl_module.state_dict().items()}
            if trainer.global_step <= 4:
                for parameter in pl_module.parameters():
                    parameter.data.fill_(math.nan)

        def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            pl_module.load_state_dict(self.weights)

    spec = tiny(model__num_heads=1, model__sequence_length=48)
    folder, state = run(spec, in_trial("t001", NanAtFirst()))
    trial = state.trials["t001"]
    assert trial.outcome == "completed"
    assert trial.score is not None
    assert math.isfinite(trial.score)
    best = checkpoints.best(checkpoints.whole(folder.trial("t001")), "min")
    assert best is not None
    assert best.facts.step in (6, 8)
    run_id = children(mlflow_uri, folder)["t001"].info.run_id
    values = {m.step: m.value for m in connect(mlflow_uri).get_metric_history(run_id, "val/loss")}
    assert math.isnan(values[2])
    assert math.isfinite(values[8])


def test_r4_a_third_of_the_trials_diverges_and_the_sweep_finishes(run: Run, mlflow_uri: str) -> None:
    def poison(module: pl.LightningModule) -> None:
        for parameter in module.parameters():
            parameter.data.fill_(math.nan)

    def callbacks(leg: Leg) -> Sequence[pl.Callback]:
        return [AtStep(1, poison)] if leg.trial in ("t002", "t005") else []

    spec = tiny(
        model__num_heads=[1, 2, 4],
        search__scheduler={"type": "asha", "min_share": 0.25, "reduction_factor": 2},
        search__algorithm="tpe",
        search__trials=6,
        register={"name": "r4"},
    )
    folder, state = run(spec, callbacks)
    outcomes = [trial.outcome for trial in state.trials.values()]
    assert [outcomes[1], outcomes[4]] == ["diverged", "diverged"]
    assert state.ended is not None
    assert state.ended.state == "finished"
    assert state.registered is not None
    assert state.registered.trial not in ("t002", "t005")
    assert "completed" in outcomes
    runs = children(mlflow_uri, folder)
    assert {runs["t002"].info.status, runs["t005"].info.status} == {"FAILED"}
    assert not state.trials["t002"].failures[1:], "a point that diverges is not tried again"


def test_r5_a_trial_without_the_metric_ends_as_no_metric(run: Run, mlflow_uri: str) -> None:
    class Silent(pl.Callback):
        def on_fit_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            pl_module.on_validation_epoch_end = lambda: None

    folder, state = run(tiny(model__num_heads=1), in_trial("t001", Silent()))
    assert [trial.outcome for trial in state.trials.values()] == ["no_metric", "completed"]
    assert children(mlflow_uri, folder)["t001"].info.status == "FAILED"
    assert "val/loss was never reported" in state.trials["t001"].message


def test_r6_a_trial_that_hangs_is_ended_and_its_stack_kept(run: Run, mlflow_uri: str) -> None:
    def hang_here(module: pl.LightningModule) -> None:
        time.sleep(600)

    spec = tiny(model__num_heads=1, resources__stall_timeout="6s", search__retries=0)
    folder, state = run(spec, in_trial("t001", AtStep(3, hang_here)))
    assert [trial.outcome for trial in state.trials.values()] == ["stalled", "completed"]
    run_id = children(mlflow_uri, folder)["t001"].info.run_id
    client = connect(mlflow_uri)
    names = [file.path for file in client.list_artifacts(run_id, "a1")]
    assert "a1/stack.txt" in names
    stack = Path(client.download_artifacts(run_id, "a1/stack.txt")).read_text()
    assert "hang_here" in stack


def test_r7_a_trial_that_outgrows_its_memory_dies_alone(run: Run, mlflow_uri: str) -> None:
    def grow(module: pl.LightningModule) -> None:
        held = []
        while True:
            held.append(torch.ones(16 << 20))
            time.sleep(0.02)

    spec = tiny(resources__memory_per_worker="1800MiB")
    folder, state = run(spec, in_trial("t002", AtStep(3, grow)))
    outcomes = {trial.id: trial.outcome for trial in state.trials.values()}
    assert outcomes == {"t001": "completed", "t002": "out_of_memory", "t003": "completed", "t004": "completed"}
    assert len(state.trials["t002"].failures) == 1
    assert "resources.memory_per_worker" in state.trials["t002"].message
    assert children(mlflow_uri, folder)["t002"].info.status == "FAILED"
