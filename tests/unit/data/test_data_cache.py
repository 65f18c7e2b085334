"""The cache's limit: the longest unused goes first, what is held, needed, recent or being made stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuneyard_pipelines.data import folders
from tuneyard_pipelines.data.cache import collect

NOW_S = 2_000_000.0


def made(cache: Path, number: int, kib: int = 10) -> Path:
    """Prepared data of a size, used number seconds after a million."""

    def fill(partial: Path) -> dict[str, object]:
        (partial / "texts").write_bytes(b"x" * (kib << 10))
        return {}

    folder = cache / f"{number:020x}"
    folders.build(folder, fill)
    os.utime(folder / "manifest.json", (1e6 + number, 1e6 + number))
    return folder


def test_the_longest_unused_goes_first(tmp_path):
    one, two, three = (made(tmp_path, number) for number in (3, 1, 2))
    found = collect(tmp_path, 25 << 10, now_s=NOW_S)
    assert (one.is_dir(), two.exists(), three.is_dir()) == (True, False, True)
    assert found.removed == 1
    assert found.removed_bytes == pytest.approx(10 << 10, abs=300)
    assert collect(tmp_path, 25 << 10, now_s=NOW_S).removed == 0


def test_what_is_needed_held_or_recent_stays(tmp_path):
    needed, held, recent, other = (made(tmp_path, number) for number in range(1, 5))
    folders.build(recent, lambda partial: pytest.fail("it is there"))  # marks it as used now
    script = (
        "import pathlib, sys\nfrom tuneyard_pipelines.data import folders\n"
        "with folders.held(pathlib.Path(sys.argv[1])):\n  print('held', flush=True)\n  sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(held)],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        now_s = (recent / "manifest.json").stat().st_mtime + 1
        assert collect(tmp_path, 0, now_s=now_s, keep=[needed]).removed == 1
        assert [folder.is_dir() for folder in (needed, held, recent, other)] == [True, True, True, False]
    finally:
        holder.kill()
        holder.communicate()
    assert collect(tmp_path, 0, now_s=now_s, keep=[needed]).removed == 1
    assert not held.exists()


def test_what_a_killed_preparation_left_goes_and_other_things_stay(tmp_path):
    left = tmp_path / f"{7:020x}.partial"
    left.mkdir()
    (left / "read").write_bytes(b"x" * 5000)
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "a").write_bytes(b"x" * 5000)
    found = collect(tmp_path, 1 << 30, now_s=NOW_S)
    assert (found.removed, found.removed_bytes) == (1, 5000)
    assert not left.exists()
    assert (tmp_path / "hub" / "a").exists()
    assert collect(tmp_path / "missing", 0, now_s=NOW_S).removed == 0


def test_data_that_was_removed_is_prepared_again(tmp_path):
    folder = made(tmp_path, 1)
    collect(tmp_path, 0, now_s=NOW_S)
    assert folders.read(folder) is None
    assert made(tmp_path, 1) == folder
    assert folders.read(folder) == {}


def test_files_that_go_while_they_are_measured(tmp_path):
    made(tmp_path, 1)
    (tmp_path / f"{1:020x}" / "gone").symlink_to(tmp_path / "nowhere")
    assert collect(tmp_path, 1 << 30, now_s=NOW_S).before_bytes == pytest.approx(10 << 10, abs=300)
