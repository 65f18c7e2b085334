"""One process that starts others, starts again what dies, and ends them one by one.

    waiting -> starting -> ready -> (dies) -> waiting -> starting ...      ended, once it is told to end

Each part leads a session of its own, in which all that it starts stay, but who leaves on purpose as a sweep's driver
does. So a signal of the terminal reaches no part, and what a dead part leaves behind is found by its session. The
number of a session is not given again while anyone is in it, and who has died is reaped after the rest of its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from tuneyard_pipelines.errors import TuneyardError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # before a part that died starts again
HEALTHY_S = 60.0  # a part that was ready for so long has not died of how it starts
START_S = 180.0  # that long may the first start take
LOOK_S = 0.2
KILL_S = 10.0
MARK = "TUNEYARD_PLATFORM"  # in the environment of all parts: which platform they are of
LAST_LINES = 15

# The part is told to end when the supervisor dies, by whatever. Set in a process of its own, since code that runs
# between fork and exec may hang where the supervisor has threads.
_TIED = (
    "import ctypes, os, signal, sys; ctypes.CDLL(None).prctl(1, signal.SIGTERM); "  # 1: PR_SET_PDEATHSIG
    "os.getppid() == int(sys.argv[1]) and os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True)
class Part:
    """What is to run. `watcher` is called at each start, and gives what says whether that one answers; it may block."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    watcher: Callable[[], Callable[[], bool]]
    address: str = ""
    after: tuple[str, ...] = ()  # parts that must be ready before it is started for the first time
    grace_s: float = 10.0  # between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Standing:
    """How a part stands; `pid` and `started` (seconds since the epoch) are those of its last process."""

    name: str
    state: str
    since_ms: int
    restarts: int
    address: str
    pid: int | None = None
    started: float | None = None


class Supervisor:
    """The parts of one platform. Not for use by several threads; the thread that starts parts must outlive them."""

    def __init__(
        self, parts: Sequence[Part], mark: str, *, say: Callable[[str], None], changed: Callable[[], None]
    ) -> None:
        """`say` is told in words what happens, `changed` that `standings` has."""
        self._say = say
        self._hands = [_Hand(part, mark, changed) for part in parts]

    def standings(self) -> list[Standing]:
        return [hand.standing() for hand in self._hands]

    def start(self, over: threading.Event) -> bool:
        """Start all; whether they are ready, which they are not where `over` came first.

        Raises TuneyardError with the end of a part's log when that ends before it is ready, or takes too long.
        """
        began_s = time.monotonic()
        told: set[str] = set()
        while not over.wait(LOOK_S):
            ready = {hand.part.name for hand in self._hands if hand.ready}
            for hand in self._hands:
                name = hand.part.name
                if hand.process is None and ready.issuperset(hand.part.after):
                    hand.start()
                elif hand.process is not None and (code := hand.process.exit_code()) is not None:
                    raise _failed(hand.part, f"ended with exit code {code} before the platform was ready")
                elif name in ready - told:
                    told.add(name)
                    hand.turn("ready")
                    self._say(f"{name} is ready after {time.monotonic() - began_s:.0f} s")
            if len(ready) == len(self._hands):
                return True
            if time.monotonic() - began_s > START_S:
                hand = next(hand for hand in self._hands if not hand.ready)
                raise _failed(hand.part, f"was not ready within {START_S:.0f} s")
        return False

    def watch(self, over: threading.Event) -> None:
        """Start again what dies, until `over`."""
        while not over.wait(LOOK_S):
            for hand in self._hands:
                self._look(hand)

    def end(self, name: str, hurry: threading.Event) -> None:
        """End one for good, at once where `hurry`; one that does not run stays so."""
        hand = self.hand(name)
        if hand.process is not None:
            self._say(f"ending {name}")
            hand.process.end(hand.part.grace_s, hurry)
        hand.turn("ended")

    def pid(self, name: str) -> int | None:
        """Of its process, while that runs."""
        process = self.hand(name).process
        return None if process is None or process.exit_code() is not None else process.pid

    def hand(self, name: str) -> _Hand:
        return next(hand for hand in self._hands if hand.part.name == name)

    def _look(self, hand: _Hand) -> None:
        now_s, name = time.monotonic(), hand.part.name
        if hand.process is None:
            if now_s >= hand.not_before_s:
                self._start_again(hand)
            return
        code = hand.process.exit_code()
        if code is None:
            if hand.ready and hand.state == "starting":
                hand.turn("ready")
                self._say(f"{name} is ready again")
            return
        healthy_s = now_s - hand.ready_s if hand.ready_s is not None else 0.0
        hand.pause_s = next_pause_s(hand.pause_s, healthy_s)
        self._say(f"{name} (process {hand.process.pid}) ended with exit code {code}; again in {hand.pause_s:.0f} s")
        hand.process.end(0.0, threading.Event())
        hand.process, hand.not_before_s = None, now_s + hand.pause_s
        hand.turn("waiting")

    def _start_again(self, hand: _Hand) -> None:
        hand.restarts += 1
        try:
            process = hand.start()
        except OSError as cause:  # no memory, no room for its log: the others go on, and it may work later
            hand.pause_s = next_pause_s(hand.pause_s, 0.0)
            hand.not_before_s = time.monotonic() + hand.pause_s
            self._say(f"{hand.part.name} could not be started ({cause}); again in {hand.pause_s:.0f} s")
        else:
            self._say(f"{hand.part.name} starts again as process {process.pid}")


class _Hand:
    """The supervisor's hand on one part."""

    def __init__(self, part: Part, mark: str, changed: Callable[[], None]) -> None:
        self.part, self._mark, self._changed = part, mark, changed
        self.process: Process | None = None
        self.state, self.restarts, self.pause_s = "waiting", 0, 0.0
        self.not_before_s = 0.0
        self.ready_s: float | None = None
        self._since_ms = _now_ms()

    @property
    def ready(self) -> bool:
        return self.ready_s is not None

    def start(self) -> Process:
        answers = self.part.watcher()
        with self.part.log.open("ab") as log:
            process = self.process = Process(self.part.command, {**self.part.environment, MARK: self._mark}, log)
        self.ready_s = None
        self.turn("starting")
        threading.Thread(target=self._await, args=(process, answers), daemon=True).start()
        return process

    def turn(self, state: str) -> None:
        self.state, self._since_ms = state, _now_ms()
        self._changed()

    def standing(self) -> Standing:
        part, process = self.part, self.process
        known = (process.pid, process.started) if process is not None and self.state != "ended" else (None, None)
        return Standing(part.name, self.state, self._since_ms, self.restarts, part.address, *known)

    def _await(self, process: Process, answers: Callable[[], bool]) -> None:
        """In a thread of its own, since asking may block."""
        while self.process is process and process.exit_code() is None:
            if answers():
                if self.process is process:
                    self.ready_s = time.monotonic()
                return
            time.sleep(LOOK_S)


class Process:
    """A program that leads a session of its own and is told to end should this process die."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> None:
        tied = (sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command)
        self._popen = subprocess.Popen(
            tied,
            env=environment,
            cwd=Path(log.name).parent,  # not where somebody's own modules might be found first
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self.started = psutil.Process(self.pid).create_time()
        self._exit_code: int | None = None

    def exit_code(self) -> int | None:
        """None while it runs; of one that a signal ended the negative number. Its number stays taken until `end`."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        if self._exit_code is None:
            with contextlib.suppress(ChildProcessError):  # `end` has just reaped it
                found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is not None:
                    by_itself = found.si_code == os.CLD_EXITED
                    self._exit_code = found.si_status if by_itself else -found.si_status
        return self._exit_code

    def end(self, grace_s: float, hurry: threading.Event) -> None:
        """Have it end, then all of its session: killed after `grace_s`, or at once where `hurry`."""
        if self._popen.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while self.exit_code() is None and time.monotonic() < deadline_s and not hurry.wait(0.05):
            pass
        kill_session(self.pid)
        self._popen.wait()


def members(session: int) -> list[psutil.Process]:
    """All that run in a session."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getsid(pid) == session:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def kill_session(session: int) -> None:
    """Kill until nobody is left, for what is killed may just have started another."""
    deadline_s = time.monotonic() + KILL_S
    while (left := members(session)) and time.monotonic() < deadline_s:
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=0.5)


def left_over(pid: int, started: float, mark: str) -> list[psutil.Process]:
    """What still runs of a part whose supervisor is gone: nobody where its number has gone to somebody else."""
    found = members(pid)
    leader = next((process for process in found if process.pid == pid), None)
    if leader is not None:
        return found if same(leader, started) else []
    return found if any(_marked(process, mark) for process in found) else []


def same(process: psutil.Process, started: float) -> bool:
    """Whether it is the process that began then, and not a later one of the same number."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - started) < 2
    except psutil.NoSuchProcess:
        return False


def lives(pid: int, started: float) -> bool:
    try:
        return same(psutil.Process(pid), started)
    except psutil.NoSuchProcess:
        return False


def next_pause_s(before_s: float, healthy_s: float) -> float:
    """How long a part that died waits: twice as long each time, until it was ready for a minute."""
    if healthy_s >= HEALTHY_S or not before_s:
        return FIRST_PAUSE_S
    return min(2 * before_s, LONGEST_PAUSE_S)


def last_lines(log: Path, count: int = LAST_LINES) -> str:
    """The end of a log, indented; of a long one no more than that is read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 20_000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"  {line[:500]}" for line in [line for line in lines if line.strip()][-count:])


def _marked(process: psutil.Process, mark: str) -> bool:
    """Some rename themselves, which overwrites their environment; others of the same session do not."""
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):
        return False


def _failed(part: Part, how: str) -> TuneyardError:
    return TuneyardError(f"{part.name} {how}; the last lines of {part.log}:\n{last_lines(part.log)}")


def _now_ms() -> int:
    return int(time.time() * 1000)
