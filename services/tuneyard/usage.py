"""What users and projects have used of the cluster since some time: hours of training, GPU-hours, and what failed.

Counted is how long trials trained, each with the GPUs that it holds meanwhile; not how long they waited. A trial that
began before that time counts as if it had trained last of all, and its GPUs been idle then: at most as long as it was
there since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from tuneyard.store import Store, SweepUse
from tuneyard.sweeps import terms

By = Literal["user", "project"]
WAYS: tuple[By, ...] = get_args(By)
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Used:
    """By one user, or for one project. All hours are of the same trials; `idle_gpu_hours` are some of `gpu_hours`."""

    name: str
    sweeps: int
    trials: int
    trial_hours: float
    gpu_hours: float
    idle_gpu_hours: float
    failed_trial_hours: float


@dataclass(frozen=True)
class Usage:
    """Who used most stands first."""

    by: By
    since_ms: int
    until_ms: int
    rows: tuple[Used, ...]


def usage(store: Store, by: By, *, since_ms: int, now_ms: int) -> Usage:
    """Of all sweeps of the queue that ran since then. A sweep's project is its tag `project`, else its name."""
    groups: dict[str, list[SweepUse]] = {}
    for use in store.used(since_ms, now_ms):
        groups.setdefault(use.owner if by == "user" else terms(use.spec_text).project or use.name, []).append(use)
    rows = (_used(name, uses) for name, uses in groups.items())
    order = sorted(rows, key=lambda row: (-row.gpu_hours, -row.trial_hours, row.name))
    return Usage(by, since_ms, now_ms, tuple(order))


def _used(name: str, uses: Sequence[SweepUse]) -> Used:
    return Used(
        name=name,
        sweeps=len(uses),
        trials=sum(use.trials for use in uses),
        trial_hours=sum(use.trained_ms for use in uses) / HOUR_MS,
        gpu_hours=sum(use.gpu_ms for use in uses) / HOUR_MS,
        idle_gpu_hours=sum(use.idle_gpu_ms for use in uses) / HOUR_MS,
        failed_trial_hours=sum(use.failed_ms for use in uses) / HOUR_MS,
    )
