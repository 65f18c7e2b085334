"""Ends its own process when it makes no step for too long, outgrows its memory or its time, and leaves why on disk.

A stall is watched by faulthandler's own thread, which needs no Python to run: it works while a call into C hangs,
writes every thread's stack and exits. Memory is the resident set of the process, looked at several times a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import psutil

STACK, MEMORY, ENDED = "stack.txt", "out_of_memory.txt", "ended.json"  # of rank 1: stack.rank1.txt, and so on
IDLE_GPU = "idle_gpu.json"  # `gpus.GpuWatch` writes it
LOOKS_A_SECOND = 10
LOOK_S = 1 / LOOKS_A_SECOND


class Watchdog:
    """Use as a context around a leg; call `alive` at every step."""

    def __init__(
        self,
        folder: Path,
        *,
        stall_timeout_s: float,
        memory_bytes: int,
        overdue: Callable[[], tuple[str, str] | None] = lambda: None,
        rank: int = 0,
    ) -> None:
        """`overdue` tells outcome and reason once the leg must be over; it is asked about once a second.

        `rank`: which of the workers that share the folder this process is.
        """
        self._folder, self._stall_timeout_s, self._memory_bytes = folder, stall_timeout_s, memory_bytes
        self._overdue, self._rank = overdue, rank
        self._armed_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._stack = self._file(STACK).open("w")
        self.alive()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._stack.close()
        self._file(STACK).unlink()
        self._over.set()
        self._thread.join()

    def alive(self) -> None:
        """Training is moving; cheap enough for every step (the timer is set anew a few times within the timeout)."""
        now = time.monotonic()
        if now - self._armed_s > min(1.0, self._stall_timeout_s / 10):
            faulthandler.dump_traceback_later(self._stall_timeout_s, exit=True, file=self._stack)
            self._armed_s = now

    def _watch(self) -> None:
        process = psutil.Process()
        looks = 0
        while not self._over.wait(self._pause_s()):
            looks += 1
            if looks % LOOKS_A_SECOND == 0 and (why := self._ask_whether_overdue()) is not None:
                self._end(ENDED, json.dumps(why))
            held = process.memory_info()
            used = held.rss - held.shared  # memory-mapped data belongs to nobody
            if used > self._memory_bytes:
                text = (
                    f"the trial's process grew to {used / 2**20:,.0f} MiB, past resources.memory_per_worker "
                    f"({self._memory_bytes / 2**20:,.0f} MiB); raise it, or make the model, batch_tokens or "
                    "sequence_length smaller"
                )
                self._end(MEMORY, text)

    def _ask_whether_overdue(self) -> tuple[str, str] | None:
        try:
            return self._overdue()
        except (OSError, ValueError):  # a shared disk that hiccups
            return None

    def _end(self, name: str, text: str) -> None:
        """Leave the last words, if the disk takes them, and go."""
        with contextlib.suppress(OSError):
            self._file(name).write_text(text)
        os._exit(1)

    def _file(self, name: str) -> Path:
        return by_rank(self._folder, name, self._rank)

    def _pause_s(self) -> float:
        """Until the next look; past the moment of a dump, which may crash on a thread that runs Python meanwhile."""
        left_s = self._armed_s + self._stall_timeout_s - time.monotonic()
        return left_s + 1.0 if 0 < left_s < 2 * LOOK_S else LOOK_S


def by_rank(folder: Path, name: str, rank: int) -> Path:
    """A worker's own file of that name."""
    return folder / (f".rank{rank}.".join(name.split(".")) if rank else name)


def at_work(folder: Path) -> bool:
    """Whether a watchdog watches a leg in this trial's folder, or was killed as it did."""
    return (folder / STACK).exists()


def last_words(folder: Path) -> tuple[str, str] | None:
    """Outcome and reason that the watchdog left in a trial's folder when it ended the process; None if it did not.

    Of several workers, those of the first that has some: memory before a stall, since the others wait for one that is
    gone. They are said once, so that they never explain the end of a later process: the stacks are put away under a
    name of their own.
    """
    ended, memory, stacks = (_left(folder, name) for name in (ENDED, MEMORY, STACK))
    told: tuple[str, str] | None = None
    if ended:
        outcome, reason = json.loads(ended[0].read_text())
        told = outcome, reason
    elif memory:
        told = "out_of_memory", memory[0].read_text()
    for file in (*ended, *memory):
        file.unlink()
    kept = [_put_away(stack) for stack in stacks]
    if told is None and kept:
        told = "stalled", f"no step for resources.stall_timeout; the stacks are in {', '.join(map(str, kept))}"
    return told


def idle_gpu_ms(folder: Path) -> int:
    """For how long a leg held GPUs that were idle, in milliseconds of all of them; said once."""
    files = _left(folder, IDLE_GPU)
    idle_ms = 0
    for file in files:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # of a process that was killed
            idle_ms += int(json.loads(file.read_text())["gpu_ms"])
        file.unlink(missing_ok=True)
    return idle_ms


def _left(folder: Path, name: str) -> list[Path]:
    """The files of that name, by rank, that hold something."""
    stem, suffix = name.split(".")
    found = [folder / name, *sorted(folder.glob(f"{stem}.rank*.{suffix}"))]
    return [file for file in found if file.exists() and file.stat().st_size]


def _put_away(stack: Path) -> Path:
    name, *rank, suffix = stack.name.split(".")
    return stack.rename(stack.with_name(".".join([f"{name}-{int(stack.stat().st_mtime)}", *rank, suffix])))
