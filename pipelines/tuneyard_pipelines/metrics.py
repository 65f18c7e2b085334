"""A trial's metrics on disk: one value a line, written by the trial's process and read as they grow."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneyard_pipelines.journal import SweepFolder, SweepState, Tail, end_torn_line

NAME = re.compile(r"[\w/.: -]{1,250}", re.ASCII)
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@dataclass(frozen=True)
class MetricValue:
    """One line of `metrics.jsonl`; step counts optimiser updates of the trial, over all its legs."""

    key: str
    step: int
    value: float
    time_ms: int


class MetricFile:
    """The trial's process writes its metrics here. Not finite values are kept as the words NaN, Infinity, -Infinity."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        end_torn_line(path)
        self._out = path.open("a", buffering=1 << 16)

    def write(self, metrics: Iterable[MetricValue]) -> None:
        """Raises ValueError for a name that MLflow cannot hold: a changed name could merge with another series."""
        for metric in metrics:
            if not _storable(metric.key):
                raise ValueError(
                    f"metric name {metric.key[:80]!r}: 1 to 250 letters, digits and / _ - . : or space are allowed, "
                    "and no part between slashes that is empty, . or .."
                )
            value = metric.value if math.isfinite(metric.value) else _NOT_FINITE[str(metric.value)]
            record = {"key": metric.key, "step": metric.step, "value": value, "time": metric.time_ms}
            self._out.write(json.dumps(record) + "\n")
        self._out.flush()  # people watch

    def close(self) -> None:
        os.fsync(self._out.fileno())
        self._out.close()


class MetricReader:
    """A trial's metrics over all attempts: new lines at each call, the first value of a key and step only."""

    def __init__(self, folder: SweepFolder, trial: str) -> None:
        self.folder, self.trial = folder, trial
        self._tails: dict[int, Tail] = {}
        self._seen: set[tuple[str, int]] = set()

    def new(self, state: SweepState) -> list[MetricValue]:
        found: list[MetricValue] = []
        for attempt in range(1, state.attempt + 1):
            path = self.folder.attempt(self.trial, attempt) / "metrics.jsonl"
            tail = self._tails.setdefault(attempt, Tail(path))
            sealed = state.sealed.get(str(path.relative_to(self.folder.path)), 0 if attempt < state.attempt else None)
            for record in tail.lines(limit=sealed):
                metric = _metric(record)
                if metric is not None and (metric.key, metric.step) not in self._seen:
                    self._seen.add((metric.key, metric.step))
                    found.append(metric)
        return found


def _storable(name: str) -> bool:
    """MLflow's own rule."""
    parts = {"", ".", ".."} & set(name.split("/"))
    return NAME.fullmatch(name) is not None and not name.startswith("..") and not parts


def _metric(record: Mapping[str, Any]) -> MetricValue | None:
    """None for a line that holds something else."""
    try:
        return MetricValue(str(record["key"]), int(record["step"]), float(record["value"]), int(record["time"]))
    except (KeyError, TypeError, ValueError):
        return None
