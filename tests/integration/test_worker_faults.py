"""What befalls one of the two workers of a trial, under real Ray and ASHA: the trial goes on, or ends with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import faulty_workers
import psutil
import pytest
import ray
from mlflow.entities import Run
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines import control, worker_group
from tuneyard_pipelines.control import Finish
from tuneyard_pipelines.journal import SweepFolder, SweepState, TrialState
from tuneyard_pipelines.leg import LEFT, Leg, LegResult
from tuneyard_pipelines.spec import Resources
from tuneyard_pipelines.tracking import connect

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Faulty:
    """The sweep of `faulty_workers`, at its end."""

    folder: SweepFolder
    state: SweepState
    runs: dict[str, Run]
    uri: str
    free: str
    left: list[psutil.Process]

    def failures(self, trial: str) -> list[tuple[str, str]]:
        return [(failure.outcome, failure.message) for failure in self.state.trials[trial].failures]


@pytest.fixture(scope="module")
def faulty(mlflow_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    home, markers = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("markers")
    script = [sys.executable, faulty_workers.__file__, str(home), mlflow_uri, str(markers)]
    marked = os.environ | {"TUNEYARD_TEST_MARK": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(script, env=marked, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    folder = SweepFolder(home / "sweeps" / faulty_workers.SWEEP)
    left = [process for process in psutil.process_iter() if str(home) in _mark(process)]
    runs = runs_of(mlflow_uri, folder)
    return Faulty(folder, folder.state(), runs, mlflow_uri, (home / "free").read_text(), left)


def _mark(process: psutil.Process) -> str:
    try:
        return process.environ().get("TUNEYARD_TEST_MARK", "")
    except psutil.Error:
        return ""


def at_the_top(trial: TrialState) -> bool:
    return trial.outcome == "completed"


def test_twelve_trials_of_two_workers_end_clean_on_four_cores(faulty: Faulty) -> None:
    assert faulty.state.ended is not None
    assert faulty.state.ended.state == "finished", faulty.state.ended.message
    outcomes = {trial.id: trial.outcome for trial in faulty.state.trials.values()}
    assert len(outcomes) == 12
    assert outcomes.pop("t003") == "error"
    assert set(outcomes.values()) == {"completed", "stopped_early"}
    assert 3 <= sum(map(at_the_top, faulty.state.trials.values())) <= 6, "about the best third"
    assert faulty.free == "4.0", "every core is given back"
    assert not faulty.left
    assert not list(faulty.folder.path.glob("tune-*"))
    assert faulty.state.registered is not None


def test_r1_a_worker_that_is_killed_ends_the_other_one_and_the_trial_goes_on(faulty: Faulty) -> None:
    for trial, rank in (("t002", 1), ("t005", 0)):
        [(outcome, message)] = faulty.failures(trial)
        assert outcome == "error"
        assert f"worker {rank} of 2 (ranks from 0) is gone without a word" in message
        steps = {m.step for m in connect(faulty.uri).get_metric_history(faulty.runs[trial].info.run_id, "val/loss")}
        assert {3, 4} <= steps


def test_an_error_of_one_worker_is_told_as_its_own_and_not_as_that_of_those_it_left(faulty: Faulty) -> None:
    failures = faulty.failures("t003")
    assert failures == [("error", "RuntimeError: the disk of this node is on fire")] * 2
    assert "on fire" in faulty.runs["t003"].data.tags["tuneyard.reason"]


@pytest.mark.parametrize("trial", ["t004", "t007"], ids=["in the midst", "before it joins"])
def test_r6_a_worker_that_hangs_is_told_with_its_stack_and_the_trial_goes_on(faulty: Faulty, trial: str) -> None:
    [(outcome, message)] = faulty.failures(trial)
    assert (outcome, "no step for resources.stall_timeout" in message) == ("stalled", True), message
    stacks = list(faulty.folder.attempt(trial, 1).glob("stack-*.txt"))
    assert stacks
    if trial == "t004":
        assert any("in hang" in stack.read_text() for stack in stacks)


def test_a_worker_that_outgrows_its_memory_has_smaller_batches_from_then_on(faulty: Faulty) -> None:
    [(outcome, message)] = faulty.failures("t006")
    assert outcome == "out_of_memory"
    assert message.endswith("it goes on with every batch in 2 parts")


def test_r14_a_trial_of_two_workers_is_one_run_with_the_system_metrics_of_both(faulty: Faulty) -> None:
    assert len(faulty.runs) == 13
    history = connect(faulty.uri).get_metric_history(faulty.runs["t001"].info.run_id, "val/loss")
    assert len(history) == len({metric.step for metric in history})
    assert faulty.runs["t001"].data.params["resources.workers"] == "2"


@ray.remote(num_cpus=1)
class Holds:
    """One of the two cores."""

    def there(self) -> bool:
        return True


def a_leg(home: Path) -> tuple[Leg, Resources]:
    """Of a sweep that is not there: its workers fail as soon as they begin."""
    spec = tiny(model__num_heads=1, model__sequence_length=24, resources__workers=2, resources__stall_timeout="15s")
    leg = Leg(str(home), "t001", {}, 1, 0)
    leg.attempt_folder.mkdir(parents=True)
    return leg, spec.at({}).resources


def test_a_group_that_is_not_complete_in_time_is_given_up(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "_wait_for_room", lambda leg, resources: None)
    leg, resources = a_leg(tmp_path)
    holds = Holds.remote()
    assert ray.get(holds.there.remote())
    try:
        result = worker_group.train(leg, resources, "min", str(tmp_path / "train"), None)
    finally:
        ray.kill(holds)
    assert result.outcome == "error"
    assert "the group of 2 workers did not begin, within resources.stall_timeout (15s)" in result.message


def test_a_group_waits_for_room_as_long_as_it_takes(cluster: None, tmp_path: Path) -> None:
    leg, resources = a_leg(tmp_path)
    holds = Holds.remote()
    assert ray.get(holds.there.remote())
    began = threading.Event()
    waiting = threading.Thread(target=lambda: (worker_group._wait_for_room(leg, resources), began.set()))
    waiting.start()
    assert not began.wait(2.0)
    control.finish(SweepFolder(tmp_path), leg.attempt, Finish("cancelled", "stopped by its user", 1))
    waiting.join()
    told = worker_group.train(leg, resources, "min", str(tmp_path / "train"), None)
    assert (told.outcome, told.message) == ("cancelled", "stopped by its user"), "it does not begin any more"
    (tmp_path / "finish.a1").unlink()
    began.clear()
    waiting = threading.Thread(target=lambda: (worker_group._wait_for_room(leg, resources), began.set()))
    waiting.start()
    assert not began.wait(2.0)
    ray.kill(holds)
    waiting.join()
    assert began.is_set()


def test_what_lies_between_workers_is_told_as_that(tmp_path: Path) -> None:
    leg, resources = a_leg(tmp_path)

    def tell(rank: int, outcome: str | None, said: str) -> None:
        path = leg.attempt_folder / f"result.rank{rank}.json"
        path.write_text(json.dumps(LegResult(outcome, said, score=1.0).to_dict()))
        os.utime(path, (2 - rank, 2 - rank))

    tell(0, LEFT, "later")
    tell(1, LEFT, "NCCL error: duplicate GPU")
    result = worker_group._why(leg, resources, "min", RuntimeError("x"))
    assert (result.outcome, result.message) == ("error", "the 2 workers lost each other: NCCL error: duplicate GPU")
    tell(0, None, "")
    tell(1, None, "")
    well = worker_group._why(leg, resources, "min", RuntimeError("x"))
    assert (well.outcome, well.score) == (None, 1.0), "what they did is done, however they were ended"


def test_workers_that_all_die_at_once_had_begun(tmp_path: Path) -> None:
    leg, resources = a_leg(tmp_path)
    for name in ("stack.txt", "stack.rank1.txt"):  # as watchdogs leave them whose processes are killed
        (leg.attempt_folder / name).touch()
    (leg.attempt_folder / "stack-7.rank1.txt").write_text("of an earlier stall")
    result = worker_group._why(leg, resources, "min", RuntimeError("x"))
    assert (result.outcome, "worker 0, 1 of 2 (ranks from 0) is gone" in result.message) == ("error", True)
    for name in ("stack.txt", "stack.rank1.txt"):
        (leg.attempt_folder / name).unlink()
    assert "did not begin" in worker_group._why(leg, resources, "min", RuntimeError("x")).message
