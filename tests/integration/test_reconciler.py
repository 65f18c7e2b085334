"""What MLflow shows as running with nothing behind it is closed, and said; a real MLflow, a cluster on paper."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_stand_in import Cluster
from driven_sweep import DrivenSweep
from mlflow import MlflowClient
from tiny_sweep import runs_of

from tuneyard.jobs import Job
from tuneyard.reconciler import AWAY_S, EVERY_S, Reconciler
from tuneyard.store import Entry, Store
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.errors import UnreachableError

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.open(f"sqlite:///{tmp_path / 'queue.db'}")
    made.migrate()
    return made


def left_by_a_dead_driver(make_sweep: Callable[..., DrivenSweep]) -> DrivenSweep:
    made = make_sweep()
    made.begin()
    made.start(made.create(1))
    return made


def statuses(uri: str, made: DrivenSweep) -> set[str]:
    return {run.info.status for run in runs_of(uri, made.folder).values()}


def test_r1_open_runs_without_a_driver_are_closed_and_again_when_they_are_opened_behind_our_back(
    store: Store, tmp_path: Path, mlflow_uri: str, client: MlflowClient, make_sweep: Callable[..., DrivenSweep]
) -> None:
    made, now_s = left_by_a_dead_driver(make_sweep), [0.0]
    reconciler = Reconciler(store, Cluster(tmp_path), tmp_path, lambda: 5, lambda: now_s[0])  # type: ignore[arg-type]
    reconciler.step(None, ray_answers=True)
    assert statuses(mlflow_uri, made) == {"FAILED"}
    assert [event.what for event in store.events(made.folder.sweep_id)] == ["closed"]
    for run in runs_of(mlflow_uri, made.folder).values():
        client.update_run(run.info.run_id, status="RUNNING")
    reconciler.step(None, ray_answers=True)
    assert statuses(mlflow_uri, made) == {"RUNNING"}, "its time has not come again"
    now_s[0] += EVERY_S
    reconciler.step(None, ray_answers=True)
    assert statuses(mlflow_uri, made) == {"FAILED"}


def test_r1_the_end_of_a_driver_is_said_while_mlflow_is_away_and_mlflow_is_told_once_it_answers(
    store: Store,
    tmp_path: Path,
    mlflow_uri: str,
    make_sweep: Callable[..., DrivenSweep],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, now_s = left_by_a_dead_driver(make_sweep), [0.0]
    reconciler = Reconciler(store, Cluster(tmp_path), tmp_path, lambda: 5, lambda: now_s[0])  # type: ignore[arg-type]
    with monkeypatch.context() as away:
        away.setattr("tuneyard_pipelines.tracking.connect", _away)
        reconciler.step(None, ray_answers=True)
    ended = made.folder.state().ended
    assert ended is not None
    assert ended.state == "lost"
    assert [event.what for event in store.events(made.folder.sweep_id)] == ["closed"]
    assert not runs_of(mlflow_uri, made.folder)
    now_s[0] += AWAY_S
    reconciler.step(None, ray_answers=True)
    assert statuses(mlflow_uri, made) == {"FAILED"}


def _away(uri: str) -> None:
    raise UnreachableError(f"MLflow at {uri} does not answer")


def test_r1_runs_of_a_sweep_whose_folder_was_removed_are_killed(
    store: Store, tmp_path: Path, mlflow_uri: str, client: MlflowClient, make_sweep: Callable[..., DrivenSweep]
) -> None:
    made, other = left_by_a_dead_driver(make_sweep), left_by_a_dead_driver(make_sweep)
    reconciler = Reconciler(store, Cluster(tmp_path), tmp_path, lambda: 5, lambda: 0.0)  # type: ignore[arg-type]
    reconciler.step(None, ray_answers=True)
    for run in runs_of(mlflow_uri, made.folder).values():
        client.update_run(run.info.run_id, status="RUNNING")
    job = Job(made.folder.sweep_id)
    store.submit(Entry(job, "n", "ann", 50, 1, "", Shape(1, 0, 1)), "ann", 1)
    shutil.rmtree(made.folder.path)
    again = Reconciler(store, Cluster(tmp_path), tmp_path, lambda: 5, lambda: 0.0)  # type: ignore[arg-type]
    again.step(None, ray_answers=True)
    runs = runs_of(mlflow_uri, made.folder).values()
    assert {run.info.status for run in runs} == {"KILLED"}
    assert {run.data.tags["tuneyard.reason"] for run in runs} == {"the sweep's folder was removed"}
    assert statuses(mlflow_uri, other) == {"FAILED"}
