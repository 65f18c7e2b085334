"""A sweep that is ended early, extended, added to and retried, under real Ray, through its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import pytorch_lightning as pl
import ray
from mlflow import MlflowClient
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines import checkpoints, control, sweep
from tuneyard_pipelines.control import Add, Extend, Resume, Retry, Stop
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.leg import Leg

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
Run = Callable[..., tuple[SweepFolder, SweepState]]
LONG = {"training__max_steps": 100_000, "training__evaluations": 1}


class Asks(pl.Callback):
    """Puts a request into the sweep's folder at a step of one trial."""

    def __init__(self, leg: Leg, request: control.Request) -> None:
        self.leg, self.request = leg, request

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == 3:
            from pathlib import Path

            control.ask(SweepFolder(Path(self.leg.folder)), [self.request])


class Fails(pl.Callback):
    def on_train_batch_start(self, *args: Any) -> None:
        raise RuntimeError("not today")


def stop_in_the_first(leg: Leg) -> Sequence[pl.Callback]:
    return [Asks(leg, Stop(1))] if leg.trial == "t001" and leg.attempt == 1 else []


def extend_in_the_first(leg: Leg) -> Sequence[pl.Callback]:
    return [Asks(leg, Extend(2, 1))] if leg.trial == "t001" else []


def fail_the_first(leg: Leg) -> Sequence[pl.Callback]:
    return [Fails()] if leg.trial == "t001" and leg.attempt == 1 else []


def ended(state: SweepState) -> tuple[str, str]:
    assert state.ended is not None
    return state.ended.state, state.ended.message


def test_s10_a_budget_shorter_than_one_pass_ends_with_a_last_evaluation(run: Run, mlflow_uri: str) -> None:
    folder, state = run(tiny(**LONG, budget__wall_clock="1s"))
    assert ended(state) == ("finished", "budget.wall_clock (1s) was used up")
    trained = [trial for trial in state.trials.values() if trial.cut is not None]
    assert trained, "what had begun was evaluated once more"
    for trial in trained:
        assert (trial.outcome, trial.legs) == ("out_of_budget", ())
        assert trial.score is not None
        assert 0 < trial.share < 0.01
    assert state.scored is not None, "the best so far is scored"
    assert state.scored.trial == min(trained, key=lambda trial: trial.score or 0.0).id
    runs = runs_of(mlflow_uri, folder)
    assert {runs[trial.id].info.status for trial in trained} == {"KILLED"}
    assert {runs[trial.id].data.tags["tuneyard.outcome"] for trial in trained} == {"out_of_budget"}
    assert runs["parent"].info.status == "FINISHED"
    assert "val/loss" in runs[trained[0].id].data.metrics


def test_s10_without_any_validation_there_is_no_result_and_it_says_so(run: Run) -> None:
    spec = tiny(**LONG, search__trials=1, search__algorithm="random", budget__trial_hours=1e-9)

    def fail(leg: Leg) -> Sequence[pl.Callback]:
        return [Fails()]

    _, state = run(spec, fail)
    kind, message = ended(state)
    assert kind == "failed"
    assert message.startswith("budget.trial_hours (1e-09) was used up before any trial had a validation: no result")
    assert state.scored is None


def test_a_stopped_sweep_keeps_its_best_and_goes_on_when_it_is_asked_to(
    run: Run, client: MlflowClient, mlflow_uri: str
) -> None:
    spec = tiny(training__max_steps=400, search__trials=2, search__algorithm="random", register={"name": "stopped"})
    folder, state = run(spec, stop_in_the_first)
    assert ended(state) == ("finished", "stopped by its user")
    assert state.ended is not None
    assert state.ended.heard == 1
    assert state.trials["t001"].outcome == "cancelled"
    assert state.trials["t001"].cut is not None
    assert state.scored is not None
    assert state.registered is not None
    assert client.get_model_version("stopped", "1").tags["tuneyard.trial_id"] == state.scored.trial

    control.ask(folder, [Resume(2)])
    sweep.drive(folder)
    state = folder.state()
    assert ended(state) == ("finished", "")
    assert [trial.outcome for trial in state.trials.values()] == ["completed", "completed"]
    assert [leg.step for leg in state.trials["t001"].legs] == [400], "it went on from its last evaluation"
    assert state.scored is not None
    runs = runs_of(mlflow_uri, folder)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    history = client.get_metric_history(runs["t001"].info.run_id, "val/loss")
    assert len({metric.step for metric in history}) == len(history)


def test_trials_that_are_asked_for_while_it_runs_are_tried(run: Run) -> None:
    folder, state = run(tiny(search__trials=1, search__algorithm="random"), extend_in_the_first)
    assert ended(state) == ("finished", "")
    assert len(state.trials) == 3
    assert state.ended is not None
    assert state.ended.heard == 1

    point = next(
        point
        for heads in (1, 2)
        for length in (24, 48)
        if (point := {"model.num_heads": heads, "model.sequence_length": length})
        not in [trial.point for trial in state.trials.values()]
    )
    control.ask(folder, [Add(point, "", 5)])
    again = sweep.drive(folder)
    assert [trial.point for trial in again.trials.values()][3:] == [point]
    assert again.trials["t004"].outcome == "completed"
    assert [trial.attempts for trial in again.trials.values()] == [(1,), (1,), (1,), (2,)]


def test_what_failed_is_tried_again_when_it_is_asked_for(run: Run, mlflow_uri: str) -> None:
    spec = tiny(search__trials=2, search__algorithm="random", search__retries=0)
    folder, state = run(spec, fail_the_first)
    assert state.trials["t001"].outcome == "error"
    sweep.drive(folder)
    assert folder.state().trials["t001"].outcome == "error", "without being asked nothing is run again"
    control.ask(folder, [Retry(sweep.now_ms())])
    sweep.drive(folder)
    state = folder.state()
    assert [trial.outcome for trial in state.trials.values()] == ["completed", "completed"]
    runs = runs_of(mlflow_uri, folder)
    assert runs["t001"].info.status == "FINISHED"
    assert runs["t001"].data.tags["tuneyard.outcome"] == "completed"


def test_r18_checkpoints_never_pass_the_quota_and_the_best_are_kept(run: Run) -> None:
    spec = tiny(search__metric="val/loss", budget__checkpoint_bytes="1MiB", search__max_concurrent_trials=2)
    folder, state = run(spec)
    assert {trial.outcome for trial in state.trials.values()} == {"completed"}
    files = [path for path in folder.path.glob("trials/*/a*/checkpoints/**/*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2**20
    assert state.scored is not None
    best = checkpoints.best(checkpoints.whole(folder.trial(state.scored.trial)), "min")
    assert best is not None
    gone = [trial for trial in state.trials if not checkpoints.any_left(folder.trial(trial))]
    assert gone, "the quota was too small for all of them"
