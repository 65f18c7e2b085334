"""What is shipped: the wheel's packages, dependencies that do without torch, and a lock that pins all of it."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PACKAGES = {"tuneyard", "tuneyard_pipelines", "tuneyard_modules"}
TRAINING_ONLY = {"torch", "pytorch-lightning", "torchmetrics", "ray", "datasets", "tokenizers", "safetensors", "babel"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (path,) = folder.glob("tuneyard-*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_three_packages_and_no_generic_name(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_module_and_the_typing_marks(wheel: zipfile.ZipFile) -> None:
    roots = [ROOT / "services", ROOT / "pipelines", ROOT / "lightning_modules"]
    modules = {str(path.relative_to(root)) for root in roots for path in root.rglob("*.py")}
    assert modules | {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile, metadata: Message) -> None:
    import tuneyard

    assert metadata["Version"] == tuneyard.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    (scripts,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    assert "tuneyard = tuneyard.cli:main" in wheel.read(scripts).decode()


def test_without_extras_nothing_brings_torch(metadata: Message) -> None:
    without_extras = [entry for entry in map(Requirement, metadata.get_all("Requires-Dist", [])) if _wanted(entry, "")]
    assert without_extras
    assert _closure(without_extras) & TRAINING_ONLY == set()


def test_what_is_declared_is_what_is_imported() -> None:
    graph = grimp.build_graph(*PACKAGES, include_external_packages=True, cache_dir=None)
    everything = set[str]().union(*(graph.find_upstream_modules(package, as_package=True) for package in PACKAGES))
    for behind_the_door in graph.find_modules_directly_imported_by("tuneyard.local"):
        graph.remove_import(importer="tuneyard.local", imported=behind_the_door)
    service = graph.find_upstream_modules("tuneyard", as_package=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base, train = (
        {canonicalize_name(Requirement(line).name) for line in lines}
        for lines in (project["dependencies"], project["optional-dependencies"]["train"])
    )
    assert _libraries(service) == base
    assert _libraries(everything) == base | train


def test_the_lock_pins_everything_once_and_nothing_else() -> None:
    lines = _lock()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!]+", line)] == []
    names = [canonicalize_name(line.partition("==")[0]) for line in lines]
    assert len(names) == len(set(names))
    brought = [name for name in names if name.startswith("nvidia-") and name != "nvidia-ml-py"]
    assert not brought, "torch brings those that fit it"
    assert "torch==2.13.0" in lines


def test_the_lock_covers_every_dependency_and_agrees_with_what_is_installed(metadata: Message) -> None:
    locked = {
        canonicalize_name(name): Version(version) for name, _, version in (line.partition("==") for line in _lock())
    }
    declared = [
        entry
        for entry in map(Requirement, metadata.get_all("Requires-Dist", []))
        if any(_wanted(entry, extra) for extra in ("", "train", "dev"))
    ]
    needed = {name for name in _closure(declared) if not name.startswith(("nvidia-", "cuda-", "triton"))}
    assert needed - locked.keys() == set()
    for entry in declared:
        assert locked[canonicalize_name(entry.name)] in entry.specifier
    installed = {name: Version(importlib.metadata.version(name)) for name in needed}
    assert {name for name in needed if installed[name].public != locked[name].public} == set()


def _libraries(modules: set[str]) -> set[str]:
    """The distributions that `modules` outside of ours come from."""
    homes = importlib.metadata.packages_distributions()
    outside = {name for name in modules if name.partition(".")[0] not in PACKAGES | sys.stdlib_module_names}
    # pydantic_core is pydantic's own half; MLflow's three distributions fill one package.
    names = {
        "pydantic" if name == "pydantic_core" else "mlflow" if name == "mlflow" else homes[name][0] for name in outside
    }
    return {canonicalize_name(name) for name in names}


def _lock() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def _wanted(entry: Requirement, extra: str) -> bool:
    return entry.marker is None or entry.marker.evaluate({"extra": extra})


def _closure(entries: list[Requirement]) -> set[str]:
    """Names of all distributions that `entries` bring, by the metadata of those installed."""
    seen: set[tuple[str, str]] = set()
    names: set[str] = set()
    todo = list(entries)
    while todo:
        entry = todo.pop()
        names.add(canonicalize_name(entry.name))
        for extra in ("", *entry.extras):
            if (entry.name, extra) not in seen:
                seen.add((entry.name, extra))
                brings = map(Requirement, importlib.metadata.requires(entry.name) or [])
                todo += [brought for brought in brings if _wanted(brought, extra)]
    return names
