"""A sweep that is ended early, extended, added to and retried, under real Ray, through its folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import ray
from mlflow import MlflowClient
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines import checkpoints, control, evidence, sweep
from tuneyard_pipelines.control import Add, Extend, Resume, Retry, Stop
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.spec import Point

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.integration
Run = Callable[..., tuple[SweepFolder, SweepState]]
LONG = {"training__max_steps": 100_000, "training__evaluations": 1}


class Asks(pl.Callback):
    """Puts a request into the sweep's folder in the first steps of a leg."""

    def __init__(self, leg: Leg, request: control.Request) -> None:
        self.leg, self.request = leg, request
        self.steps = 0

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        self.steps += 1
        if self.steps == 3:
            control.ask(SweepFolder(Path(self.leg.folder)), [self.request])


class Fails(pl.Callback):
    def on_train_batch_start(self, *args: Any) -> None:
        raise RuntimeError("not today")


def one_fails_one_stops(leg: Leg) -> Sequence[pl.Callback]:
    """First t001 fails and t002 asks for a stop; in the second attempt t002 asks for one trial more."""
    if leg.attempt == 1:
        return [Fails()] if leg.trial == "t001" else [Asks(leg, Stop(1))]
    return [Asks(leg, Extend(1, 3))] if leg.trial == "t002" and leg.attempt == 2 else []


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


@dataclass(frozen=True)
class Story:
    """One sweep after each of three attempts, and the point that was added for the last."""

    folder: SweepFolder
    stopped: SweepState
    resumed: SweepState
    added: SweepState
    point: Point


@pytest.fixture(scope="module")
def story(run: Run) -> Story:
    spec = tiny(
        training__max_steps=300,
        search__trials=2,
        search__algorithm="random",
        search__retries=0,
        search__max_concurrent_trials=1,
        register={"name": "asked"},
    )
    folder, stopped = run(spec, one_fails_one_stops)
    control.ask(folder, [Resume(2), Retry(sweep.now_ms())])
    resumed = sweep.drive(folder, one_fails_one_stops)
    points = [{"model.num_heads": heads, "model.sequence_length": length} for heads in (1, 2) for length in (24, 48)]
    point = next(point for point in points if point not in [trial.point for trial in resumed.trials.values()])
    control.ask(folder, [Add(point, "", 5)])
    return Story(folder, stopped, resumed, sweep.drive(folder), point)


def test_a_stopped_sweep_is_finished_with_the_best_it_had(story: Story, client: MlflowClient) -> None:
    state = story.stopped
    assert ended(state) == ("finished", "stopped by its user")
    assert state.ended is not None
    assert state.ended.heard == 1
    assert [trial.outcome for trial in state.trials.values()] == ["error", "cancelled"]
    assert state.trials["t002"].cut is not None, "it was evaluated once more"
    assert state.scored is not None
    assert state.scored.trial == "t002"
    assert client.get_model_version("asked", "1").tags["tuneyard.trial_id"] == "t002"


def test_what_was_cut_failed_or_asked_for_meanwhile_is_run(story: Story) -> None:
    state = story.resumed
    assert ended(state) == ("finished", "")
    assert state.ended is not None
    assert state.ended.heard == 4
    assert [trial.outcome for trial in state.trials.values()] == ["completed"] * 3
    assert [trial.attempts for trial in state.trials.values()] == [(1, 2), (1, 2), (2,)]
    assert [leg.step for leg in state.trials["t002"].legs] == [300], "it went on from its last evaluation"


def test_a_point_is_added_to_a_sweep_that_has_ended(story: Story, mlflow_uri: str, client: MlflowClient) -> None:
    state = story.added
    assert [trial.point for trial in state.trials.values()][3:] == [story.point]
    assert [trial.attempts for trial in state.trials.values()] == [(1, 2), (1, 2), (2,), (3,)]
    runs = runs_of(mlflow_uri, story.folder)
    assert len(runs) == 5
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {run.data.tags["tuneyard.outcome"] for name, run in runs.items() if name != "parent"} == {"completed"}
    history = client.get_metric_history(runs["t002"].info.run_id, "val/loss")
    assert len({metric.step for metric in history}) == len(history)
    assert state.registered is not None
    assert state.scored is not None
    found = evidence.read(story.folder.evidence(state.scored.trial))
    assert found is not None
    assert found.model == state.scored.model == state.registered.model, (
        "of these very weights, not of those at the stop"
    )
    assert state.registered.trial == state.scored.trial == min(state.trials.values(), key=lambda t: t.score or 0).id


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
