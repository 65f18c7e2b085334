"""Who drives a sweep: a lease in its folder, kept alive by a heartbeat, so that two drivers never write one journal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from tuneyard_pipelines.errors import RefusedError
from tuneyard_pipelines.journal import write_atomic

HEARTBEAT_S = 5.0
DEAD_AFTER_S = 60.0


@dataclass(frozen=True)
class Holder:
    """The process that drives; `started` (seconds since the epoch) tells it from a later one of the same id."""

    host: str
    pid: int
    started: float
    heartbeat: float

    def alive(self, now: float) -> bool:
        """On this host the process itself is looked for; elsewhere the heartbeat is all that is known."""
        if self.host == socket.gethostname():
            try:
                process = psutil.Process(self.pid)
                return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - self.started) < 2
            except psutil.NoSuchProcess:
                return False
        return now - self.heartbeat < DEAD_AFTER_S


class Lease:
    """Held by this process until `release`, or until another takes it after this one was silent for `DEAD_AFTER_S`."""

    def __init__(self, path: Path, holder: Holder) -> None:
        self._path, self._holder = path, holder
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    @classmethod
    def take(cls, folder: Path) -> Lease:
        """Raises RefusedError while another process drives this sweep. What a dead driver left half done is removed."""
        path = folder / "lease"
        now = time.time()
        with _locked(path):
            present = read(path)
            if present is not None and present.alive(now):
                raise RefusedError(
                    f"sweep {folder.name} is driven by process {present.pid} on {present.host} "
                    f"(seen {now - present.heartbeat:.0f} s ago); wait for its end, or stop it with Ctrl-C there"
                )
            _clear(folder)
            mine = Holder(socket.gethostname(), os.getpid(), psutil.Process().create_time(), now)
            write_atomic(path, json.dumps(asdict(mine)))
        return cls(path, mine)

    def held(self) -> bool:
        """Whether this process still drives; another may have taken over while this one was silent."""
        present = read(self._path)
        mine = (self._holder.host, self._holder.pid, self._holder.started)
        return present is not None and (present.host, present.pid, present.started) == mine

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        with _locked(self._path):
            if self.held():
                self._path.unlink()

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            with contextlib.suppress(OSError), _locked(self._path):  # a full disk costs a beat, not the lease
                if not self.held():
                    return
                self._holder = replace(self._holder, heartbeat=time.time())
                write_atomic(self._path, json.dumps(asdict(self._holder)))


def read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def driven(folder: Path) -> bool:
    """Whether a living process drives the sweep of this folder now."""
    holder = read(folder / "lease")
    return holder is not None and holder.alive(time.time())


def free(folder: Path, *, surely_gone: bool = False) -> bool:
    """Whether nobody drives it; a dead driver's lease is removed, so that the next one that is seen is another's.

    `surely_gone`: one of another host is known to be dead, whatever its heartbeat, which is all that this host sees,
    says yet.
    """
    path = folder / "lease"
    if not path.exists():
        return True
    with _locked(path):
        present = read(path)
        known = surely_gone and present is not None and present.host != socket.gethostname()
        if present is not None and not known and present.alive(time.time()):
            return False
        path.unlink(missing_ok=True)
        return True


def end(folder: Path) -> None:
    """Tell the process that drives it, if it is one of this host, to come to its end."""
    holder = read(folder / "lease")
    if holder is not None and holder.host == socket.gethostname() and holder.alive(time.time()):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(holder.pid).terminate()


def _clear(folder: Path) -> None:
    """Tune's own files, and what `write_atomic` had not put in its place yet."""
    for left in folder.glob("tune-*"):
        shutil.rmtree(left, ignore_errors=True)
    for left in folder.glob(".*.*"):
        if left.suffix[1:].isdecimal():
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_name("lease.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
