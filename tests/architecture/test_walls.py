"""The walls between the packages hold, and each of them notices when it is broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("services/tuneyard", "pipelines/tuneyard_pipelines", "lightning_modules/tuneyard_modules")


def lint_imports(root: Path, *contracts: str) -> subprocess.CompletedProcess[str]:
    """Runs import-linter on the packages under `root`, wherever else they are installed."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache"]
    options = [option for contract in contracts for option in ("--contract", contract)]
    path = os.pathsep.join(str((root / package).parent) for package in PACKAGES)
    return subprocess.run(
        [*command, *options], cwd=root, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A copy of the three packages and their contracts, to break walls in."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_wall_holds() -> None:
    report = lint_imports(ROOT)
    assert report.returncode == 0, report.stdout + report.stderr


def test_the_copy_is_what_is_judged(scratch: Path) -> None:
    assert lint_imports(scratch).returncode == 0
    (scratch / "pipelines/tuneyard_pipelines/intruder.py").write_text("import tuneyard\n")
    assert "tuneyard_pipelines.intruder -> tuneyard" in lint_imports(scratch).stdout


# Of each wall: a folder behind it, and what must not be imported there.
BREAKS = {
    "layers": [
        ("pipelines/tuneyard_pipelines", "tuneyard.cli"),
        ("lightning_modules/tuneyard_modules", "tuneyard_pipelines.catalog"),
        ("lightning_modules/tuneyard_modules", "tuneyard.cli"),
    ],
    "modules": [
        ("lightning_modules/tuneyard_modules", library)
        for library in ("ray", "mlflow", "datasets", "fastapi", "httpx", "sqlalchemy", "typer", "pydantic_settings")
    ],
    "service": [
        ("services/tuneyard/cli", library)
        for library in ("torch", "pytorch_lightning", "ray", "datasets", "tuneyard_modules.attention")
    ],
    "rooms": [
        ("services/tuneyard", "tuneyard_pipelines.trial"),
        ("services/tuneyard/cli", "tuneyard_pipelines.sweep"),
        ("services/tuneyard/cli", "tuneyard_pipelines.data"),
    ],
    "pipelines": [
        ("pipelines/tuneyard_pipelines/data", library) for library in ("fastapi", "starlette", "sqlalchemy", "typer")
    ],
    "outside": [(package, folder) for package in PACKAGES for folder in ("infra", "tests")],
}


@pytest.mark.parametrize("wall", BREAKS)
def test_a_broken_wall_is_noticed(scratch: Path, wall: str) -> None:
    intruders = []
    for number, (folder, module) in enumerate(BREAKS[wall]):
        place = folder.split("/", 1)[1].replace("/", ".")
        (scratch / folder / f"at_once_{number}.py").write_text(f"import {module}\n")
        (scratch / folder / f"later_{number}.py").write_text(f"def later() -> None:\n    import {module}\n")
        intruders += [f"{place}.at_once_{number} -> {module} ", f"{place}.later_{number} -> {module} "]
    report = lint_imports(scratch, wall)
    assert report.returncode == 1, report.stdout + report.stderr
    assert [intruder for intruder in intruders if intruder not in report.stdout] == []


def test_torch_behind_an_open_room_is_noticed(scratch: Path) -> None:
    (scratch / "services/tuneyard/intruder.py").write_text("from tuneyard_pipelines import catalog\n")
    with (scratch / "pipelines/tuneyard_pipelines/catalog.py").open("a") as catalog:
        catalog.write("\n\ndef later() -> None:\n    import torch\n")
    report = lint_imports(scratch, "service")
    assert report.returncode == 1, report.stdout + report.stderr
    assert "tuneyard_pipelines.catalog -> torch " in report.stdout


def test_a_new_module_of_the_pipelines_is_closed_to_the_service(scratch: Path) -> None:
    (scratch / "pipelines/tuneyard_pipelines/newcomer.py").write_text("")
    (scratch / "services/tuneyard/intruder.py").write_text("from tuneyard_pipelines import newcomer\n")
    assert lint_imports(scratch, "rooms").returncode == 1


def test_only_the_named_door_may_train(scratch: Path) -> None:
    (scratch / "services/tuneyard/local.py").write_text("import torch\nfrom tuneyard_pipelines import sweep\n")
    assert lint_imports(scratch, "service", "rooms").returncode == 0
