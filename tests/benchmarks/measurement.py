"""What a benchmark answers, and how two things are compared on a machine that others use, too."""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tuneyard_pipelines import data
from tuneyard_pipelines.journal import Header, SweepFolder
from tuneyard_pipelines.spec import SweepSpec


@dataclass(frozen=True)
class Measured:
    """A ratio, which must be `at_least` or `at_most` its bound; what it was made of stands in `details`."""

    ratio: float
    bound: float
    side: Literal["at_least", "at_most"]
    details: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        """A ratio that is not a number keeps no bound."""
        return self.ratio >= self.bound if self.side == "at_least" else self.ratio <= self.bound

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratio": round(self.ratio, 4) if math.isfinite(self.ratio) else None,  # JSON knows numbers only
            "bound": self.bound,
            "side": self.side,
            "ok": self.ok,
            "details": dict(self.details),
        }


def as_json(measured: Mapping[str, Measured]) -> str:
    """One object, by name."""
    return json.dumps({name: result.to_dict() for name, result in measured.items()}, indent=1)


def exit_code(measured: Mapping[str, Measured]) -> int:
    """1 when a bound is missed."""
    return 0 if all(result.ok for result in measured.values()) else 1


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """The median, the quartiles around it, and the number of values: how far single values are to be trusted."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {
        "median": round(middle, digits),
        "quartile_1": round(low, digits),
        "quartile_3": round(high, digits),
        "values": len(values),
    }


def accepted(home: Path, spec: SweepSpec) -> SweepFolder:
    """The folder of a sweep whose legs can be run without a driver, its data prepared."""
    prepared = data.prepare(spec.data, spec.seed, home / "data", spec.task)
    folder = SweepFolder(home / "sweeps" / "bench")
    folder.create(
        Header(
            sweep_id="bench",
            spec=spec,
            spec_text="",
            home=home,
            data=prepared.folder,
            data_fingerprint=prepared.fingerprint,
            tracking_uri="",
            created_ms=0,
            versions={},
        )
    )
    return folder


class QuietClock:
    """Seconds of the calling thread, without those in which it could have run and other processes had the cores.

    Waiting for a disk, a lock or a sleep counts. On a machine of one's own it is the wall's clock; on a busy one that
    one would measure the neighbours. Linux only: the kernel's count of the time on the run queue.
    """

    def __init__(self) -> None:
        self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def now_s(self) -> float:
        queued_ns = int(os.pread(self._file, 100, 0).split()[1])
        return time.perf_counter() - queued_ns / 1e9
