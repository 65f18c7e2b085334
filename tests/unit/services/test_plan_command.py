"""`tuneyard sweep plan` in this process: what it prints and makes, its exit code, and what it loads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tuneyard_pipelines import calibration
from tuneyard_pipelines.errors import TuneyardError

Cli = Callable[..., SimpleNamespace]
EXAMPLES = Path(__file__).parents[3] / "examples"


def test_gpt3_is_planned_and_does_not_fit_here(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "plan", str(EXAMPLES / "gpt3.yaml"), "--no-calibrate")
    assert (done.code, done.err) == (2, "")
    assert "model      174,604,259,328 parameters, " in done.out
    assert "problem    does not fit here: the smallest model needs 2,601.8 GiB for its weights" in done.out
    plain = cli("sweep", "plan", str(EXAMPLES / "gpt3.yaml"), "--no-calibrate", "--json")
    assert plain.code == 2
    assert json.loads(plain.out)["variants"][0]["smallest"]["parameters"] == 174_604_259_328
    assert list(tmp_path.iterdir()) == [], "a plan makes nothing"


def test_what_cannot_fit_is_not_measured(cli: Cli, tmp_path: Path) -> None:
    assert cli("sweep", "plan", str(EXAMPLES / "gpt3.yaml")).code == 2
    assert list(tmp_path.iterdir()) == []


def test_characters_that_were_only_sampled_are_marked(cli: Cli, tmp_path: Path) -> None:
    done = cli("sweep", "plan", str(EXAMPLES / "dates.yaml"), "--no-calibrate", "--set", "training.learning_rate=0.001")
    assert done.code == 0
    assert [line.split()[1][0] for line in done.out.splitlines() if line.startswith(("smallest", "largest"))] == [
        "~",
        "~",
    ]
    assert "\ntime " not in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("example", ["gpt3.yaml", "dates.yaml"])
def test_a_plan_without_a_measurement_loads_nothing_heavy(tmp_path: Path, example: str) -> None:
    heavy = ["torch", "pytorch_lightning", "ray", "mlflow", "datasets", "optuna", "pandas", "tuneyard_modules"]
    script = (
        "import sys\ntry:\n    from tuneyard.cli import main; main()\nfinally:\n"
        f"    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    words = ("sweep", "plan", str(EXAMPLES / example), "--no-calibrate")
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr == "[]\n"
    assert "parameters, " in done.stdout


def test_a_machine_that_cannot_be_measured_is_planned_without_a_time(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **more: object) -> None:
        raise TuneyardError("the speed of training could not be measured: too slow")

    monkeypatch.setattr(calibration, "measure", fail)
    done = cli("sweep", "plan", str(EXAMPLES / "stdlib.yaml"))
    assert done.code == 0
    assert done.err == "warning: no forecast of the time: the speed of training could not be measured: too slow\n"
    assert "limit      wall_clock 20m" in done.out
    assert "time " not in done.out
