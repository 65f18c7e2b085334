"""The watchdog in real processes, since ending the process is what it does."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneyard_pipelines.watchdog import MEMORY, STACK, Watchdog, last_words

NO_LIMIT = 1 << 50
HEAD = """
import ctypes, sys, time
from pathlib import Path
import psutil
from tuneyard_pipelines.watchdog import Watchdog
folder, start = Path(sys.argv[1]), psutil.Process().memory_info().rss
"""

Run = Callable[[str], subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", HEAD + code, str(tmp_path)], capture_output=True, text=True, check=False
        )

    return run


@pytest.mark.parametrize(
    "hang",
    [
        "time.sleep(60)",
        "ctypes.PyDLL(None).sleep(60)",  # holds the interpreter's lock: no Python thread runs meanwhile
    ],
    ids=["in python", "in c, with the lock"],
)
def test_r6_a_stall_leaves_every_stack_and_ends_the_process(tmp_path: Path, run: Run, hang: str) -> None:
    # Between two looks at the memory: faulthandler may crash on the stack of a thread that is running Python.
    begun = time.monotonic()
    done = run(f"""
def step_that_hangs():
    {hang}

with Watchdog(folder, stall_timeout_s=0.45, memory_bytes={NO_LIMIT}):
    step_that_hangs()
""")
    assert done.returncode == 1
    assert time.monotonic() - begun < 30
    stack = (tmp_path / STACK).read_text()
    assert "step_that_hangs" in stack
    assert stack.count("hread 0x") == 2, "the main thread and the watchdog's own"
    said = last_words(tmp_path)
    (kept,) = tmp_path.glob("stack-*.txt")
    assert said == ("stalled", f"no step for resources.stall_timeout; the stacks are in {kept}")
    assert kept.read_text() == stack
    assert last_words(tmp_path) is None, "said once"


def test_as_long_as_steps_are_made_nothing_happens_and_nothing_stays(tmp_path: Path, run: Run) -> None:
    done = run(f"""
with Watchdog(folder, stall_timeout_s=0.5, memory_bytes={NO_LIMIT}) as watchdog:
    for _ in range(20):
        time.sleep(0.05)
        watchdog.alive()
time.sleep(0.7)  # and nothing fires afterwards
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    assert last_words(tmp_path) is None


def test_r7_memory_past_the_limit_leaves_why_and_ends_the_process(tmp_path: Path, run: Run) -> None:
    done = run("""
with Watchdog(folder, stall_timeout_s=60, memory_bytes=start + (64 << 20)):
    kept = []
    for _ in range(600):
        kept.append(b"x" * (1 << 20))
        time.sleep(0.002)
    time.sleep(30)
""")
    assert done.returncode == 1
    said = last_words(tmp_path)
    assert said is not None
    outcome, reason = said
    assert outcome == "out_of_memory"
    assert "past resources.memory_per_worker" in reason
    assert not (tmp_path / MEMORY).exists(), "said once"


def test_memory_within_the_limit_is_left_alone(tmp_path: Path, run: Run) -> None:
    done = run("""
with Watchdog(folder, stall_timeout_s=60, memory_bytes=start + (256 << 20)):
    kept = b"x" * (32 << 20)
    time.sleep(0.5)
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_an_exception_passes_and_nothing_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="odd"), Watchdog(tmp_path / "a1", stall_timeout_s=60, memory_bytes=NO_LIMIT):
        raise ValueError("odd")
    assert list((tmp_path / "a1").iterdir()) == []


def test_what_an_earlier_leg_left_is_not_said_again(tmp_path: Path) -> None:
    (tmp_path / MEMORY).write_text("grew")
    assert last_words(tmp_path) == ("out_of_memory", "grew")
    with Watchdog(tmp_path, stall_timeout_s=60, memory_bytes=NO_LIMIT):
        assert last_words(tmp_path) is None
    assert last_words(tmp_path) is None
    assert last_words(tmp_path / "nowhere") is None
