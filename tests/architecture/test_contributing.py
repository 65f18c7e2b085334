"""CONTRIBUTING.md knows every folder, and what it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGES = ("services/tuneyard", "pipelines/tuneyard_pipelines", "lightning_modules/tuneyard_modules")


def folders() -> set[str]:
    """Every folder of the packages, and every top or second folder beside them, that holds a file."""
    inside = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    beside = {
        ROOT / top / path.relative_to(ROOT / top).parts[0]
        for top in ("tests", "infra")
        for path in (ROOT / top).glob("*/*")
    }
    pages = {path.parent for top in ("examples", "docs") for path in (ROOT / top).glob("*.*")}
    return {str(path.relative_to(ROOT)) for path in inside | beside | pages if path.name != "__pycache__"}


def test_every_folder_has_a_sentence() -> None:
    told = set(re.findall(r"^\| `(.+)/` \| \S", TEXT, re.MULTILINE))
    assert folders() - told == set(), "a new folder needs a sentence in CONTRIBUTING.md"


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`([\w./]+\.(?:py|md|yaml|toml|lock))`", TEXT))
    places = ("", "services/", "pipelines/", "lightning_modules/", "examples/", *(f"{place}/" for place in PACKAGES))
    assert named
    assert {
        name for name in named if not any((ROOT / place / name).exists() for place in (*places, f"{PACKAGES[1]}/data/"))
    } == set()


def test_every_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", TEXT, re.MULTILINE)) <= targets
