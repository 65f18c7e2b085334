"""The supervisor over small programs: what dies starts again, what it left is ended, and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from waiting import until

from tuneyard.supervisor import MARK, Part, Supervisor, left_over, lives, members
from tuneyard_pipelines.errors import TuneyardError

pytestmark = pytest.mark.integration

# Starts a child that hears no SIGTERM, writes both numbers, and waits.
PARENT = """
import os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(9999)"], stdout=subprocess.PIPE)
child.stdout.readline()
pathlib.Path(sys.argv[1] + ".new").write_text(f"{os.getpid()} {child.pid}")
os.replace(sys.argv[1] + ".new", sys.argv[1])
time.sleep(9999)
"""  # noqa: E501
OVER_ALL = """
import pathlib, sys, threading
from tuneyard.supervisor import Part, Supervisor
folder = pathlib.Path(sys.argv[1])
part = Part("one", (sys.executable, "-c", sys.argv[2], str(folder / "pids")), {}, folder / "one.log", lambda: (folder / "pids").exists)
supervisor = Supervisor([part], "mark", say=print, changed=lambda: None)
supervisor.start(threading.Event())
supervisor.watch(threading.Event())
"""  # noqa: E501


class Watched:
    """A supervisor that runs in a thread of its own, over one part."""

    def __init__(self, part: Part) -> None:
        self.said: list[str] = []
        self.over = threading.Event()
        self.supervisor = Supervisor([part], "mark", say=self.said.append, changed=lambda: None)
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def _work(self) -> None:
        if self.supervisor.start(self.over):
            self.supervisor.watch(self.over)
        self.supervisor.end("one", threading.Event())

    def end(self) -> None:
        self.over.set()
        self._thread.join()


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(part(tmp_path, PARENT, str(tmp_path / "pids")))
    yield made
    made.end()


def part(folder: Path, script: str, *arguments: str, **changes: object) -> Part:
    command = (sys.executable, "-c", script, *arguments)
    ready = folder / "pids"
    values = {"watcher": lambda: ready.exists, "environment": dict(os.environ), "log": folder / "one.log", **changes}
    return Part(name="one", command=command, **values)  # type: ignore[arg-type]


def pids(folder: Path) -> tuple[int, int]:
    parent, child = (folder / "pids").read_text().split()
    return int(parent), int(child)


def gone(*found: int) -> Callable[[], bool]:
    return lambda: not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in found)


def test_what_dies_starts_again_once_all_that_it_left_is_ended(tmp_path: Path, watched: Watched) -> None:
    watched.start()
    until(lambda: watched.supervisor.standings()[0].state == "ready")
    parent, child = pids(tmp_path)
    (tmp_path / "pids").unlink()
    os.kill(parent, signal.SIGKILL)
    until((tmp_path / "pids").exists)
    assert gone(parent, child)()
    again = pids(tmp_path)
    until(lambda: watched.supervisor.standings()[0].state == "ready")
    standing = watched.supervisor.standings()[0]
    assert (standing.pid, standing.restarts) == (again[0], 1)
    assert f"one (process {parent}) ended with exit code -9; again in 1 s" in watched.said
    watched.end()
    assert gone(*again)()
    assert watched.supervisor.standings()[0].state == "ended"


def test_a_part_that_does_not_start_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor(
        [part(tmp_path, "import sys; print('no such disk'); sys.exit(7)")], "mark", say=print, changed=lambda: None
    )
    with pytest.raises(TuneyardError, match=r"one ended with exit code 7 before .*one\.log:\n  no such disk"):
        supervisor.start(threading.Event())
    supervisor.end("one", threading.Event())


def test_one_told_to_end_while_it_starts_starts_no_more(tmp_path: Path) -> None:
    over = threading.Event()
    supervisor = Supervisor(
        [part(tmp_path, "import time; time.sleep(9999)")], "mark", say=print, changed=lambda: over.set()
    )
    assert not supervisor.start(over)
    supervisor.end("one", threading.Event())
    assert supervisor.pid("one") is None


def test_parts_are_told_to_end_when_the_supervisor_is_killed_and_the_rest_is_found(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", OVER_ALL, str(tmp_path), PARENT])
    until((tmp_path / "pids").exists)
    parent, child = pids(tmp_path)
    started = psutil.Process(parent).create_time()
    assert lives(parent, started)
    assert {one.pid for one in left_over(parent, started, "mark")} == {parent, child}
    assert left_over(parent, started - 60, "mark") == []
    process.kill()
    process.wait()
    until(gone(parent))
    assert [one.pid for one in left_over(parent, started, "mark")] == [child]
    assert left_over(parent, started, "of another platform") == []
    (left,) = members(parent)
    assert left.environ()[MARK] == "mark"
    left.kill()
    until(gone(child))
