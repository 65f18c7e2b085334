"""A trial of two workers that is ended in its midst: by Ctrl-C both save and go, and by `sweep stop` they validate."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml
from tiny_sweep import runs_of, tiny
from waiting import until

from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.metrics import MetricReader

pytestmark = pytest.mark.integration

TUNEYARD = Path(sys.executable).with_name("tuneyard")
STEPS, EVERY = 1_000, 500
SPEC = tiny(
    model__num_heads=1,
    model__sequence_length=24,
    training__max_steps=STEPS,
    training__batch_tokens=128,
    training__evaluations=STEPS // EVERY,
    resources__workers=2,
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A folder with the spec; what was started in it is gone in the end."""
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC.model_dump(mode="json", by_alias=True, exclude_unset=True)))
    yield tmp_path
    for process in marked(tmp_path):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def start(project: Path, *command: str) -> subprocess.Popen[str]:
    environment = os.environ | {"TUNEYARD_TEST_MARK": str(project)}
    return subprocess.Popen(
        [TUNEYARD, *command], cwd=project, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def marked(project: Path) -> list[psutil.Process]:
    """The driver, its cluster, and every worker that there is of it."""

    def mark(process: psutil.Process) -> str:
        try:
            return str(process.environ().get("TUNEYARD_TEST_MARK", ""))
        except psutil.Error:
            return ""

    return [process for process in psutil.process_iter() if mark(process) == str(project)]


def steps(folder: SweepFolder) -> list[int]:
    return [m.step for m in MetricReader(folder, "t001").new(folder.state()) if m.key == "train/loss"]


def test_r10_r11_two_workers_save_where_they_are_and_go_on_there(project: Path) -> None:
    first = start(project, "sweep", "run", "spec.yaml")
    [header] = until(lambda: list((project / ".tuneyard/sweeps").glob("*/sweep.json")))
    folder = SweepFolder(header.parent)
    until(lambda: len(steps(folder)) >= 5)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate()
    assert first.returncode == 130, said
    until(lambda: not marked(project))
    [saved] = checkpoints.whole(folder.trial("t001"))
    assert 0 < saved.facts.step < EVERY, "in the midst of a stretch"
    assert saved.facts.metrics == {}

    second = start(project, "sweep", "resume", folder.sweep_id)
    said, _ = second.communicate()
    assert second.returncode == 0, said
    assert folder.state().trials["t001"].outcome == "completed"
    assert steps(folder) == list(range(10, STEPS + 1, 10))
    until(lambda: not marked(project))
    runs = runs_of(f"sqlite:///{project / '.tuneyard/mlflow.db'}", folder)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len(runs) == 2


def test_q11_a_stopped_trial_of_two_workers_is_validated_and_scored(project: Path) -> None:
    driver = start(project, "sweep", "run", "spec.yaml")
    [header] = until(lambda: list((project / ".tuneyard/sweeps").glob("*/sweep.json")))
    folder = SweepFolder(header.parent)
    until(lambda: len(steps(folder)) >= 2)
    asked = start(project, "sweep", "stop", folder.sweep_id)
    asked.communicate()
    said, _ = driver.communicate()
    assert (asked.returncode, driver.returncode) == (0, 0), said
    trial = folder.state().trials["t001"]
    assert (trial.outcome, trial.score is not None) == ("cancelled", True)
    assert folder.state().scored is not None
    until(lambda: not marked(project))
