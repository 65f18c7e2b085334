"""What people ask of a sweep, running or not: lines in its folder, which the driver follows.

    control.jsonl    one request a line, appended by the command line, never taken away     `Request` below
    finish.aN        attempt N is coming to its end, and why: written by its driver, read by its trials

What is asked for in all follows from the whole file, so that a request is followed once however often it is read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from tuneyard_pipelines.journal import SweepFolder, Tail, end_torn_line, write_atomic
from tuneyard_pipelines.spec import Point


@dataclass(frozen=True)
class Stop:
    """Come to an end with what is there: a last validation of what trains, then the best is scored and registered."""

    time_ms: int


@dataclass(frozen=True)
class Extend:
    """So many more trials."""

    trials: int
    time_ms: int


@dataclass(frozen=True)
class Add:
    """This point, too; checked by who asks."""

    point: Point
    variant: str
    time_ms: int


@dataclass(frozen=True)
class Retry:
    """Run again what has failed so far."""

    time_ms: int


@dataclass(frozen=True)
class Resume:
    """Go on, although it was stopped."""

    time_ms: int


Request = Stop | Extend | Add | Retry | Resume
_REQUESTS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Stop, Extend, Add, Retry, Resume)}


@dataclass(frozen=True)
class Wishes:
    """All that was asked for. `more`: trials beyond those of the spec, without the added points; `heard`: requests.

    `stopped`: nothing was asked for after the last stop.
    """

    more: int = 0
    added: tuple[tuple[str, Point], ...] = ()
    retried_ms: int = 0
    stopped: bool = False
    heard: int = 0

    def after(self, request: Request) -> Wishes:
        new = replace(self, stopped=isinstance(request, Stop), heard=self.heard + 1)
        match request:
            case Extend():
                return replace(new, more=self.more + request.trials)
            case Add() if (request.variant, request.point) not in self.added:
                return replace(new, added=(*self.added, (request.variant, request.point)))
            case Retry():
                return replace(new, retried_ms=request.time_ms)
            case _:
                return new


class Inbox:
    """The wishes of a sweep, kept up to date by `read`."""

    def __init__(self, folder: SweepFolder) -> None:
        self._tail = Tail(folder.control)
        self.wishes = Wishes()

    def read(self) -> Wishes:
        for record in self._tail.lines():
            if (request := _request(record)) is not None:
                self.wishes = self.wishes.after(request)
        return self.wishes


def wishes(folder: SweepFolder) -> Wishes:
    """All that was asked of a sweep so far."""
    return Inbox(folder).read()


def ask(folder: SweepFolder, requests: Iterable[Request]) -> None:
    """Put requests where the driver finds them, on disk when this returns."""
    with folder.control.open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)  # let go of when it is closed
        end_torn_line(folder.control)
        for request in requests:
            out.write(json.dumps({"ask": type(request).__name__.lower(), **asdict(request)}) + "\n")
        out.flush()
        os.fsync(out.fileno())


Outcome = Literal["cancelled", "out_of_budget", "interrupted"]


@dataclass(frozen=True)
class Finish:
    """Why an attempt comes to its end before all is done, and since when; `outcome` is that of trials in a leg.

    What is interrupted goes on later: its legs end with a checkpoint and no validation, and are no end of any trial.
    """

    outcome: Outcome
    reason: str
    time_ms: int

    @property
    def interrupts(self) -> bool:
        return self.outcome == "interrupted"


def finish(folder: SweepFolder, attempt: int, why: Finish) -> None:
    """Tell the trials of an attempt to come to an end."""
    write_atomic(_finish_file(folder, attempt), json.dumps(asdict(why)))


def finishing(folder: SweepFolder, attempt: int) -> Finish | None:
    """Whether the attempt is coming to its end."""
    try:
        return Finish(**json.loads(_finish_file(folder, attempt).read_text()))
    except FileNotFoundError:
        return None


def _finish_file(folder: SweepFolder, attempt: int) -> Path:
    return folder.path / f"finish.a{attempt}"


def _request(record: dict[str, Any]) -> Request | None:
    """None for a line that holds something else."""
    kind = _REQUESTS.get(str(record.pop("ask", "")))
    if kind is None or {f.name for f in fields(kind)} != record.keys():
        return None
    takes: dict[str, type] = {"trials": int, "point": dict, "variant": str, "time_ms": int}
    if any(type(value) is not takes[name] for name, value in record.items()) or record.get("trials", 1) < 1:
        return None
    request: Request = kind(**record)
    return request
