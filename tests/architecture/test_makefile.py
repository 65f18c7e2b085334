"""`make` sets itself up: run for real, with stand-ins for Python and pip so that no package is fetched."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# New enough, and makes an "environment" whose pip notes its calls and fails while a file named `broken` exists.
PYTHON = """#!/bin/sh
case "$*" in
  *ensurepip*) exit {ensurepip} ;;
  *version_info*) exit {too_old} ;;
  "-m venv "*)
    echo venv >>calls
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho pip >>calls\\nsleep 0.1\\n[ ! -e broken ]\\n' >"$3/bin/pip"
    chmod +x "$3/bin/pip" ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "requirements.lock"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def python(clone: Path, *, ensurepip: bool = True, too_old: bool = False) -> str:
    path = clone / "python-stand-in"
    path.write_text(PYTHON.format(ensurepip=int(not ensurepip), too_old=int(too_old)))
    path.chmod(0o755)
    return f"PYTHON={path}"


def make(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *words], cwd=clone, env=_environment(), capture_output=True, text=True)


def calls(clone: Path) -> list[str]:
    path = clone / "calls"
    return path.read_text().split() if path.exists() else []


def test_make_alone_lists_every_target(clone: Path) -> None:
    targets = set(re.findall(r"^\.PHONY: (\S+)$", (clone / "Makefile").read_text(), re.MULTILINE))
    assert {"install", "demo", "check", "test", "drills", "format", "lock", "clean"} <= targets
    listed = dict(re.findall(r"^  make (\S+) +(\S.*)$", make(clone).stdout, re.MULTILINE))
    assert listed.keys() == targets


def test_the_drills_are_run_by_their_own_target_only(clone: Path) -> None:
    make(clone, "install", python(clone))
    runs = {target: re.findall("bin/pytest(.*)", make(clone, "-n", target).stdout) for target in ("test", "drills")}
    assert [words.split() for words in runs["drills"]] == [["tests/drills"]]
    rest = [words for words in runs["test"] if "tests/unit tests/" not in words]
    assert len(rest) == 1
    assert "--ignore=tests/drills" in rest[0].split()


def test_install_is_done_once(clone: Path) -> None:
    assert make(clone, "install", python(clone)).returncode == 0
    assert calls(clone) == ["venv", "pip", "pip"]
    assert make(clone, "install", python(clone)).returncode == 0
    assert calls(clone) == ["venv", "pip", "pip"]


def test_a_new_lock_is_installed_into_the_same_environment(clone: Path) -> None:
    make(clone, "install", python(clone))
    later = (clone / ".venv/.installed").stat().st_mtime + 10
    os.utime(clone / "requirements.lock", (later, later))
    assert make(clone, "install", python(clone)).returncode == 0
    assert calls(clone) == ["venv", "pip", "pip", "pip", "pip"]


def test_an_environment_left_half_made_is_made_anew(clone: Path) -> None:
    (clone / "broken").touch()
    assert make(clone, "install", python(clone)).returncode == 2
    assert not (clone / ".venv/.installed").exists()
    (clone / ".venv/left_over").touch()
    (clone / "broken").unlink()
    assert "starting again" in make(clone, "install", python(clone)).stdout
    assert not (clone / ".venv/left_over").exists()
    assert calls(clone) == ["venv", "pip", "venv", "pip", "pip"]


def test_an_environment_that_somebody_made_is_kept_and_completed(clone: Path) -> None:
    make(clone, "install", python(clone))
    (clone / ".venv/.installed").unlink()
    (clone / ".venv/theirs").touch()
    assert make(clone, "install", python(clone)).returncode == 0
    assert (clone / ".venv/theirs").exists()
    assert (clone / ".venv/.installed").exists()


def test_two_makes_at_once_install_once(clone: Path) -> None:
    words = ["make", "install", python(clone)]
    both = [
        subprocess.Popen(words, cwd=clone, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert calls(clone) == ["venv", "pip", "pip"]


def test_no_python_is_told_with_what_was_looked_for(clone: Path) -> None:
    answer = make(clone, "install", "PYTHON=python-of-nowhere")
    assert answer.returncode == 2
    assert "needs Python 3.11 or newer" in answer.stderr
    assert "python-of-nowhere" in answer.stderr
    assert "PYTHON=/path/to/python3" in answer.stderr


def test_a_python_that_is_too_old_is_passed_over(clone: Path) -> None:
    assert "needs Python 3.11 or newer" in make(clone, "install", python(clone, too_old=True)).stderr
    assert calls(clone) == []


def test_a_python_without_venv_is_told_with_the_package_to_install(clone: Path) -> None:
    answer = make(clone, "install", python(clone, ensurepip=False))
    assert answer.returncode == 2
    assert "lacks the modules venv and ensurepip" in answer.stderr
    assert "apt install python3-venv" in answer.stderr
    assert not (clone / ".venv").exists()


def _environment() -> dict[str, str]:
    """Without what an outer make hands on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
