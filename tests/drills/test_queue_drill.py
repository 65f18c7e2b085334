"""A sweep of twenty trials whose platform is killed -9 part by part, against the same sweep left alone.

    trials ended   killed -9         comes back
     3             MLflow            started again; what was measured meanwhile arrives
     8             driver            by the dispatcher, as attempt 2
    10             a trial's worker  by the driver; the trial goes on from its checkpoint
    12             Ray               started again; attempt 3
    14             PostgreSQL        started again; the driver does not notice, the dispatcher waits
    16             dispatcher        started again once the driver was killed, too; attempt 4

The queue is in PostgreSQL, MLflow is a server, Ray is a head with its Jobs, each a process of its own.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psutil
import pytest
from mlflow.entities import Run
from mlflow_server import MlflowServer
from postgres import Postgres
from queue_platform import Platform, platform_in
from tiny_sweep import runs_of, tiny
from waiting import until

from tuneyard.jobs import ENDED
from tuneyard.store import Entry
from tuneyard_pipelines import promotion, tracking
from tuneyard_pipelines.journal import SweepFolder, SweepState

pytestmark = pytest.mark.e2e

TRIALS = 20
STEPS, EVALUATIONS = 600, 4  # a trial takes seconds, so that no kill comes after the last one
SPEC = tiny(
    name="drill",
    model__num_heads=[1, 2, 4],
    training__learning_rate={"loguniform": [1e-3, 1e-2]},
    training__max_steps=STEPS,
    training__evaluations=EVALUATIONS,
    search__algorithm="random",
    search__trials=TRIALS,
    search__max_concurrent_trials=2,
    register={"name": "drill"},
)
CLOSED_S = 15  # while the dispatcher lives
RETURNED_S = 90  # after the return of one that was killed


@dataclass
class Drill:
    """The platform, the disturbed sweep, and what was seen after each kill: times in seconds."""

    platform: Platform
    mlflow: MlflowServer
    postgres: Postgres
    sweep: Entry
    closed_s: dict[str, float] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    runs: dict[str, dict[str, Run]] = field(default_factory=dict)
    undisturbed: Entry | None = None

    @property
    def folder(self) -> SweepFolder:
        return self.platform.queue.folder(self.sweep.job.sweep_id)

    def wait_for_trials(self, ended: int) -> None:
        self.platform.wait(lambda: self.platform.ended_trials(self.sweep) >= ended)

    def driver(self) -> psutil.Process:
        """Once it is there: the one before may just have been killed."""
        found: psutil.Process = self.platform.wait(lambda: self.platform.driver(self.sweep))
        return found

    def look(self, stage: str) -> None:
        self.runs[stage] = runs_of(self.platform.uri, self.folder)
        self.attempts[stage] = self.platform.entry(self.sweep).job.attempt

    def closed(self, stage: str) -> None:
        """Once no run is open, or another driver is behind those that are."""
        began_s = time.monotonic()

        def nothing_false() -> bool:
            runs = runs_of(self.platform.uri, self.folder)
            return not _open(runs) or self.platform.driver(self.sweep) is not None

        self.platform.wait(nothing_false)
        self.closed_s[stage] = time.monotonic() - began_s
        self.look(stage)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    mlflow = MlflowServer(tmp_path_factory.mktemp("mlflow"))
    postgres = Postgres()
    try:
        with platform_in(tmp_path_factory.mktemp("home"), database=postgres.url(), uri=mlflow.uri) as platform:
            drill = Drill(platform, mlflow, postgres, platform.queue.submit(SPEC))
            platform.dispatch()
            for ended, kill in KILLS.items():
                drill.wait_for_trials(ended)
                assert platform.ended_trials(drill.sweep) <= TRIALS - 3, "too late for a kill in the sweep's midst"
                kill(drill)
            platform.wait_for(drill.sweep, *ENDED)
            drill.look("ended")
            drill.undisturbed = platform.queue.submit(SPEC)
            platform.wait_for(drill.undisturbed, *ENDED)
            platform.stop_dispatching(signal.SIGTERM)
            yield drill
    finally:
        postgres.stop()
        mlflow.stop()


def _kill_mlflow(drill: Drill) -> None:
    before = drill.platform.ended_trials(drill.sweep)
    drill.mlflow.stop()
    drill.platform.wait(lambda: tracking.outage(drill.folder))
    drill.wait_for_trials(before + 1)
    drill.mlflow.start()
    drill.platform.wait(lambda: tracking.outage(drill.folder) is None)
    drill.look("MLflow")


def _kill_driver(drill: Drill) -> None:
    driver = drill.driver()
    driver.kill()
    _gone(driver)
    drill.closed("driver")


def _kill_worker(drill: Drill) -> None:
    drill.platform.wait(lambda: drill.platform.at_a_leg(drill.sweep))[0].kill()
    drill.platform.wait(lambda: _failures(drill.folder.state()))
    drill.look("worker")


def _kill_ray(drill: Drill) -> None:
    driver = drill.driver()
    drill.platform.head.kill()
    _gone(driver)
    drill.closed("Ray")
    drill.platform.wait_for(drill.sweep, "queued")
    drill.platform.head.start()


def _kill_postgres(drill: Drill) -> None:
    before = drill.platform.ended_trials(drill.sweep)
    drill.postgres.kill()
    drill.wait_for_trials(before + 1)
    drill.postgres.start()
    drill.look("PostgreSQL")


def _kill_dispatcher(drill: Drill) -> None:
    before, driver = drill.platform.ended_trials(drill.sweep), drill.driver()
    drill.platform.stop_dispatching(signal.SIGKILL)
    drill.wait_for_trials(before + 1)
    drill.look("dispatcher")
    driver.kill()
    _gone(driver)
    assert _open(runs_of(drill.platform.uri, drill.folder)), "nobody is there to close them"
    drill.platform.dispatch()
    drill.closed("dispatcher and driver")


KILLS: dict[int, Callable[[Drill], None]] = {
    3: _kill_mlflow,
    8: _kill_driver,
    10: _kill_worker,
    12: _kill_ray,
    14: _kill_postgres,
    16: _kill_dispatcher,
}


def test_q3_q4_q5_each_loss_of_the_driver_made_one_more_attempt_and_no_other_loss_did(drill: Drill) -> None:
    assert [drill.attempts[stage] for stage in ("MLflow", "worker", "PostgreSQL", "dispatcher")] == [1, 2, 3, 3]
    ended = drill.platform.entry(drill.sweep).job
    assert (ended.state, ended.reason, ended.attempt) == ("succeeded", "", 4), ended.message
    returned = [event.reason for event in drill.platform.events(drill.sweep) if event.after == "queued"][1:]
    assert returned == ["driver_lost", "cluster_lost", "driver_lost"]


@pytest.mark.parametrize(
    ("stage", "within_s"), [("driver", CLOSED_S), ("Ray", CLOSED_S), ("dispatcher and driver", RETURNED_S)]
)
def test_r1_nothing_runs_falsely(drill: Drill, stage: str, within_s: float) -> None:
    assert drill.closed_s[stage] <= within_s, drill.closed_s


def test_r1_what_each_lost_driver_left_was_closed_before_the_next_one_came(drill: Drill) -> None:
    order = [event.what for event in drill.platform.events(drill.sweep) if event.what in ("closed", "started")]
    assert order == ["started", "closed", "started", "closed", "started", "closed", "started"]


def test_r1_the_killed_worker_was_at_a_leg_which_was_tried_again(drill: Drill) -> None:
    failures = _failures(drill.folder.state())
    assert ["gone without a word" in message for message in failures] == [True], failures


@pytest.mark.parametrize("stage", ["MLflow", "driver", "worker", "Ray", "PostgreSQL", "dispatcher"])
def test_after_each_kill_no_run_is_twice_and_those_that_had_ended_are_kept(drill: Drill, stage: str) -> None:
    runs = drill.runs[stage]
    assert "parent" in runs
    assert len(runs) <= TRIALS + 1
    final = drill.runs["ended"]
    assert {name: run.info.run_id for name, run in runs.items()} == {name: final[name].info.run_id for name in runs}
    finished = [name for name, run in runs.items() if run.info.status == "FINISHED"]
    assert {final[name].info.end_time for name in finished} == {runs[name].info.end_time for name in finished}


def test_r2_in_the_end_there_are_one_parent_and_twenty_children_with_one_value_a_step(drill: Drill) -> None:
    runs = drill.runs["ended"]
    assert runs.keys() == {"parent", *drill.folder.state().trials}
    assert len(runs) == TRIALS + 1
    assert Counter(run.info.status for run in runs.values()) == {"FINISHED": TRIALS + 1}
    client = tracking.connect(drill.platform.uri)
    parent = runs.pop("parent")
    for run in runs.values():
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        for key in run.data.metrics:
            steps = [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
            assert len(steps) == len(set(steps)), (run.info.run_name, key)
            if key == "val/loss":
                assert sorted(steps) == [STEPS * turn // EVALUATIONS for turn in range(1, EVALUATIONS + 1)]


def test_r2_the_points_the_scores_and_the_winner_are_those_of_the_undisturbed_sweep(drill: Drill) -> None:
    assert drill.undisturbed is not None
    entry = drill.platform.entry(drill.undisturbed)
    assert (entry.job.state, entry.job.attempt) == ("succeeded", 1), entry.job.message
    expected, found = drill.platform.queue.folder(entry.job.sweep_id).state(), drill.folder.state()
    for what in ("point", "score"):
        assert {name: getattr(trial, what) for name, trial in found.trials.items()} == {
            name: getattr(trial, what) for name, trial in expected.trials.items()
        }
    best = promotion.winner(expected.trials, SPEC.mode)
    assert best is not None
    assert found.registered is not None
    assert found.registered.trial == best.id


def _gone(process: psutil.Process) -> None:
    """Once it has ended, however long its parent takes to hear of it."""
    until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def _open(runs: dict[str, Run]) -> list[str]:
    return [name for name, run in runs.items() if run.info.status in ("RUNNING", "SCHEDULED")]


def _failures(state: SweepState) -> list[str]:
    """What went wrong at the trials' legs while their driver lived."""
    return [failure.message for trial in state.trials.values() for failure in trial.failures]
