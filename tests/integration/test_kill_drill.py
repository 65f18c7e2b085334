"""One sweep of twelve trials, disturbed at every turn and resumed, against the same sweep left alone.

    tuneyard sweep run       Ctrl-C at three trials
    tuneyard sweep resume    driver killed -9 at six; `sweep list` looks at it
    tuneyard sweep resume    one worker killed -9; runs to its end

All from inside a project that has packages called pipelines, services and lightning_modules of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from mlflow.entities import Run
from tiny_sweep import runs_of, tiny
from waiting import until

from tuneyard_pipelines import promotion
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.tracking import connect

pytestmark = pytest.mark.e2e

TUNEYARD = Path(sys.executable).with_name("tuneyard")
TRIALS = 12
SPEC = tiny(
    name="drill",
    model__num_heads=[1, 2, 4],
    training__learning_rate={"loguniform": [1e-3, 1e-2]},
    search__algorithm="random",
    search__trials=TRIALS,
    register={"name": "drill"},
)


@dataclass
class Drill:
    """What was seen at each stage."""

    folder: SweepFolder
    uri: str
    environment: dict[str, str]
    project: Path
    exit_codes: dict[str, int] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    runs: dict[str, dict[str, Run]] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)
    state: SweepState = field(default_factory=SweepState)

    def look(self, stage: str) -> None:
        self.runs[stage] = runs_of(self.uri, self.folder)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drill]:
    project = tmp_path_factory.mktemp("project")
    for name in ("pipelines", "services", "lightning_modules"):
        (project / name).mkdir()
        (project / name / "__init__.py").write_text("raise ImportError('not ours')\n")
    (project / "spec.yaml").write_text(yaml.safe_dump(SPEC.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    home = project / ".tuneyard"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    started: list[psutil.Process] = []
    try:
        first = _start(["sweep", "run", "spec.yaml"], project, environment, started)
        sweeps = _wait(lambda: list((home / "sweeps").glob("*/sweep.json")), first)
        seen = Drill(SweepFolder(sweeps[0].parent), f"sqlite:///{home / 'mlflow.db'}", environment, project)
        _wait(lambda: _ended(seen) >= 3, first)
        os.killpg(first.pid, signal.SIGINT)
        _finish(seen, "interrupted", first)

        second = _start(["sweep", "resume", seen.folder.sweep_id], project, environment, started)
        _wait(lambda: _ended(seen) >= 6, second)
        second.kill()
        _finish(seen, "killed", second)
        listing = subprocess.run([TUNEYARD, "sweep", "list", "--json"], cwd=project, env=environment, **CAPTURED)
        seen.listed = json.loads(listing.stdout)
        seen.look("killed")

        third = _start(["sweep", "resume", seen.folder.sweep_id], project, environment, started)
        _wait(lambda: _ended(seen) >= 7, third)
        _wait(lambda: _busy_workers(third.pid), third)[0].kill()
        _finish(seen, "finished", third)
        seen.state = seen.folder.state()
        yield seen
    finally:
        for process in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def test_r11_ctrl_c_stops_the_trials_closes_the_runs_and_exits_with_130(drill: Drill) -> None:
    assert drill.exit_codes["interrupted"] == 130, drill.output["interrupted"]
    assert f"tuneyard sweep resume {drill.folder.sweep_id}" in drill.output["interrupted"]
    runs = drill.runs["interrupted"]
    assert runs["parent"].info.status == "KILLED"
    statuses = Counter((run.info.status, run.data.tags.get("tuneyard.outcome")) for run in _trials(runs).values())
    assert set(statuses) <= {("FINISHED", "completed"), ("KILLED", "cancelled")}
    assert statuses["FINISHED", "completed"] >= 3


def test_r1_the_next_look_closes_what_a_killed_driver_left(drill: Drill) -> None:
    assert drill.exit_codes["killed"] == -signal.SIGKILL
    assert [(sweep["sweep_id"], sweep["state"]) for sweep in drill.listed] == [(drill.folder.sweep_id, "lost")]
    runs = drill.runs["killed"]
    assert {run.info.status for run in runs.values()} <= {"FINISHED", "FAILED", "KILLED"}
    assert runs["parent"].info.status == "FAILED"
    lost = [run for run in _trials(runs).values() if run.info.status == "FAILED"]
    assert lost
    assert all(run.data.tags["tuneyard.outcome"] == "error" for run in lost)


def test_r2_resumed_it_has_one_parent_and_a_child_for_each_trial_with_one_value_a_step(drill: Drill) -> None:
    assert drill.exit_codes["finished"] == 0, drill.output["finished"]
    runs = drill.runs["finished"]
    assert len(runs) == TRIALS + 1
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert {run.data.tags["mlflow.parentRunId"] for run in _trials(runs).values()} == {runs["parent"].info.run_id}
    client = connect(drill.uri)
    for run in _trials(runs).values():
        for key in ("val/loss", "val/exact_match"):
            steps = [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
            assert sorted(steps) == [2, 4, 6, 8], (run.info.run_name, key)


def test_r2_the_searcher_goes_on_with_distinct_points(drill: Drill) -> None:
    points = [tuple(trial.point.items()) for trial in drill.state.trials.values()]
    assert len(points) == len(set(points)) == TRIALS


def test_r2_the_points_and_the_winner_are_those_of_the_undisturbed_sweep(
    drill: Drill, run: Callable[..., tuple[SweepFolder, SweepState]]
) -> None:
    _, undisturbed = run(SPEC.model_copy(update={"registration": None}))
    expected, found = undisturbed.trials, drill.state.trials
    assert {name: trial.point for name, trial in found.items()} == {
        name: trial.point for name, trial in expected.items()
    }
    assert {name: trial.score for name, trial in found.items()} == {
        name: trial.score for name, trial in expected.items()
    }
    best = promotion.winner(expected, SPEC.mode)
    assert best is not None
    assert drill.state.registered is not None
    assert drill.state.registered.trial == best.id


def test_r1_the_killed_worker_was_at_a_leg_which_was_tried_again(drill: Drill) -> None:
    failures = [failure for trial in drill.state.trials.values() for failure in trial.failures]
    assert [failure.outcome for failure in failures] == ["error"]
    assert "gone without a word" in failures[0].message


def test_r13_what_differs_by_attempt_stands_in_tags(drill: Drill) -> None:
    runs = drill.runs["finished"]
    attempts = json.loads(runs["parent"].data.tags["tuneyard.attempts"])
    assert [attempt["attempt"] for attempt in attempts] == [1, 2, 3]
    for trial in drill.state.trials.values():
        params = runs[trial.id].data.params
        assert {key: params[key] for key in trial.point} == {key: str(value) for key, value in trial.point.items()}
        tried = json.loads(runs[trial.id].data.tags["tuneyard.attempts"])
        assert [attempt["attempt"] for attempt in tried] == list(trial.attempts)


def test_s15_packages_of_the_users_project_are_not_touched(drill: Drill) -> None:
    assert drill.state.scored is not None, "the sweep above ran, workers and all, inside such a project"
    assert "not ours" not in "".join(drill.output.values())


def test_the_registered_model_predicts_through_mlflow_as_through_the_command_line(drill: Drill) -> None:
    texts = ["3 March 2024", "2024年3月3日"]
    said = subprocess.run(
        [TUNEYARD, "model", "predict", "drill@candidate", *texts, "--json"],
        cwd=drill.project,
        env=drill.environment,
        **CAPTURED,
    )
    code = (
        "import json, mlflow, sys; mlflow.set_tracking_uri(sys.argv[1]);"
        "print(json.dumps(list(mlflow.pyfunc.load_model('models:/drill@candidate').predict(sys.argv[2:]))))"
    )
    pickle_free = {**drill.environment, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    through = subprocess.run(
        [sys.executable, "-c", code, drill.uri, *texts], cwd=drill.project, env=pickle_free, **CAPTURED
    )
    assert said.returncode == 0, said.stderr
    assert through.returncode == 0, through.stderr
    assert [row["prediction"] for row in json.loads(said.stdout)] == json.loads(through.stdout)


CAPTURED: dict[str, Any] = {"capture_output": True, "text": True, "check": False}


def _start(
    arguments: list[str], project: Path, environment: dict[str, str], started: list[psutil.Process]
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [TUNEYARD, *arguments],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    started.append(psutil.Process(process.pid))
    return process


def _finish(seen: Drill, stage: str, process: subprocess.Popen[str]) -> None:
    seen.output[stage], _ = process.communicate()
    seen.exit_codes[stage] = process.returncode
    seen.look(stage)


def _ended(seen: Drill) -> int:
    return sum(trial.outcome is not None for trial in seen.folder.state().trials.values())


def _wait(condition: Callable[[], Any], process: subprocess.Popen[str]) -> Any:
    """Poll until the condition holds; the process must be alive meanwhile."""

    def alive() -> None:
        assert process.poll() is None, process.communicate()[0]

    return until(condition, meanwhile=alive)


def _busy_workers(driver: int) -> list[psutil.Process]:
    """Trial processes that hold a metric file open: they are at a leg."""
    busy = []
    for process in psutil.Process(driver).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(file.path.endswith("metrics.jsonl") for file in process.open_files()):
                busy.append(process)
    return [process for process in busy if process.pid != driver]


def _trials(runs: dict[str, Run]) -> dict[str, Run]:
    return {name: run for name, run in runs.items() if name != "parent"}
