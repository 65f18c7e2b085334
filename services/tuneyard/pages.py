"""What the service answers and its client reads, besides what the store and the sweeps have names for."""

from __future__ import annotations

from dataclasses import dataclass

from tuneyard.accounts import Token
from tuneyard.store import Pause, TrialRow
from tuneyard.sweeps import Listed
from tuneyard.webhooks import Hook


@dataclass(frozen=True)
class SweepPage:
    """Some sweeps, newest first; `after` is where the next page goes on, None on the last."""

    sweeps: tuple[Listed, ...]
    after: str | None


@dataclass(frozen=True)
class TrialPage:
    """Some trials of a sweep, and how many there are in all."""

    trials: tuple[TrialRow, ...]
    total: int


@dataclass(frozen=True)
class QueueNow:
    """What has a driver, what waits in the order in which it may start, and why nothing is started at present."""

    active: tuple[Listed, ...]
    waiting: tuple[Listed, ...]
    paused: Pause | None


@dataclass(frozen=True)
class Made:
    """A new token; `secret` is its text, which is told this once."""

    token: Token
    secret: str


@dataclass(frozen=True)
class MadeHook:
    """A new webhook; `secret` is what its deliveries are signed with, which is told this once."""

    hook: Hook
    secret: str
