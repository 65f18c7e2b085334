"""What importing the light parts really loads: wall 3 as the interpreter sees it, and what `tuneyard --help` costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "pytorch_lightning", "torchmetrics", "ray", "datasets", "tokenizers", "optuna", "tuneyard_modules"}
HELP_RATIO = 3.0


def open_rooms() -> list[str]:
    """The modules of tuneyard_pipelines that the contract `rooms` opens to the service."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (rooms,) = (contract for contract in contracts if contract["id"] == "rooms")
    opened = {line.split(" -> ")[1] for line in rooms["ignore_imports"]} - {"**"}
    return sorted(opened)


def loaded_by(statements: str, *words: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statements`, with `words` as its arguments."""
    tell = "\nfinally:\n    print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    script = f"import sys\ntry:\n    {statements}{tell}"
    answer = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    return set(answer.stderr.split())


@pytest.mark.parametrize("module", open_rooms())
def test_what_is_open_to_the_service_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}") & HEAVY == set()


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["sweep", "run", "--help"], ["model", "predict", "--help"]]
)
def test_help_loads_neither_training_nor_mlflow(words: list[str]) -> None:
    loaded = loaded_by("from tuneyard.cli import main; main()", *words)
    assert "tuneyard" in loaded
    assert loaded & (HEAVY | {"mlflow", "pandas"}) == set()


def test_the_public_api_is_imported_when_it_is_asked_for() -> None:
    assert loaded_by("import tuneyard") & (HEAVY | {"tuneyard_pipelines", "pydantic"}) == set()
    assert loaded_by("from tuneyard import SweepSpec; SweepSpec.at") & HEAVY == set()
    assert {"tuneyard_pipelines"} <= loaded_by("from tuneyard import run_sweep, load_model")


def test_a_model_is_registered_without_torch() -> None:
    """MLflow runs this file twice to log it."""
    assert "torch" not in loaded_by("import tuneyard_pipelines.registration, tuneyard_pipelines.mlflow_model")


def test_an_unknown_public_name_is_told_with_those_that_exist() -> None:
    import tuneyard

    with pytest.raises(AttributeError, match=r"no attribute 'Sweeps'; it has Client, Progress, Sweep, .*run_sweep"):
        tuneyard.__getattr__("Sweeps")
    assert set(dir(tuneyard)) == set(tuneyard.__all__)


def test_help_is_quick() -> None:
    """Measured against its bare library: machines differ, and so does one machine from hour to hour."""
    command = Path(sys.executable).with_name("tuneyard")
    bare_s, help_s = zip(
        *((_cpu_s(sys.executable, "-c", "import typer"), _cpu_s(command, "--help")) for _ in range(3)), strict=True
    )
    assert min(help_s) <= HELP_RATIO * min(bare_s)


def _cpu_s(*command: str | Path) -> float:
    """Processor time of a command, user and system, its children included."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime
