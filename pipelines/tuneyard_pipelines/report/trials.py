"""What a report is made of: the sweep's trials as plain values, their order, and which of them can be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tuneyard_pipelines.catalog import Mode
from tuneyard_pipelines.journal import FAILURES, FULL
from tuneyard_pipelines.promotion import cost as cost
from tuneyard_pipelines.ranges import Scalar

if TYPE_CHECKING:
    import plotly.graph_objects as go

CurvePoint = tuple[int, float, float]  # step, tokens, value


@dataclass(frozen=True)
class Trial:
    """One logical trial.

    point: its varied keys, dotted; values: all its keys, also those that are the same for every trial.
    state: waiting, running, or its outcome. share: of its budget, 0 to 1; scores: share -> best score up to there.
    final: it stopped itself before its whole budget, which would not have made it better.
    """

    id: str
    number: int
    name: str
    point: Mapping[str, Scalar]
    values: Mapping[str, Scalar]
    state: str
    variant: str = ""
    message: str = ""
    score: float | None = None
    share: float = 0.0
    tokens: int = 0
    parameters: int | None = None
    seconds: float | None = None
    final: bool = False
    scores: Mapping[float, float | None] = field(default_factory=dict)
    curves: Mapping[str, Sequence[CurvePoint]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return self.state in FAILURES

    @property
    def scored(self) -> bool:
        return self.score is not None and math.isfinite(self.score)

    @property
    def full(self) -> bool:
        """Whether it had its whole budget."""
        return self.share >= FULL


@dataclass(frozen=True)
class Sweep:
    """A sweep to report. `forecast` and `measured`: quantity -> amount, such as seconds and tokens."""

    name: str
    sweep_id: str
    metric: str
    mode: Mode
    trials: Sequence[Trial]
    forecast: Mapping[str, float] | None = None
    measured: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0

    @property
    def variants(self) -> list[str]:
        """The names of its variants, in the order of their first trials; none when it has no two."""
        names = list(dict.fromkeys(trial.variant for trial in self.trials))
        return names if len(names) > 1 else []


@dataclass(frozen=True)
class Table:
    """Cells as plain text."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """`name`: stem of its file; `caption`: how to read it. `table`: what stands beside the picture, or is all of it."""

    name: str
    title: str
    caption: str
    figure: go.Figure
    table: Table | None = None


@dataclass(frozen=True)
class Omitted:
    """A figure that cannot be drawn, and why."""

    name: str
    title: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """Trials whose scores are from one share of the budget, in the order of their numbers."""

    share: float
    trials: tuple[Trial, ...]
    scores: tuple[float, ...]

    @property
    def place(self) -> str:
        """`the full budget` or `11 % of the budget`."""
        return "the full budget" if self.share >= FULL else f"{100 * self.share:.2g} % of the budget"


def ordered(sweep: Sweep) -> list[Trial]:
    """Full budgets and what is final by score, then lesser budgets by share and score, without a score, failed ones."""
    return sorted(sweep.trials, key=lambda trial: (*_standing(trial, sweep.mode), trial.number))


def ranks(sweep: Sweep) -> dict[str, int]:
    """Trial id -> rank from 1, of the scored trials that did not fail; equals share one."""
    found: dict[str, int] = {}
    standings: dict[tuple[int, float, float], int] = {}
    for place, trial in enumerate((trial for trial in ordered(sweep) if trial.scored and not trial.failed), start=1):
        found[trial.id] = standings.setdefault(_standing(trial, sweep.mode), place)
    return found


def comparable(sweep: Sweep) -> Comparison:
    """The trials that have a score at the share of the budget where most have one; of several such, the highest.

    Under successive halving that is the lowest rung: a score from a longer training would compare budgets, not points.
    """
    at: dict[float, list[tuple[Trial, float]]] = {}
    for trial in sorted(sweep.trials, key=lambda trial: trial.number):
        for share, score in (trial.scores or {trial.share: trial.score}).items():
            if score is not None and math.isfinite(score):
                at.setdefault(round(share, 6), []).append((trial, score))
    if not at:
        return Comparison(1.0, (), ())
    share, found = max(at.items(), key=lambda entry: (len(entry[1]), entry[0]))
    return Comparison(share, tuple(trial for trial, _ in found), tuple(score for _, score in found))


def number(value: float) -> str:
    """Four digits that count, with thousands parted."""
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2,000 trials`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _standing(trial: Trial, mode: Mode) -> tuple[int, float, float]:
    group = 3 if trial.failed else 2 if not trial.scored else 0 if trial.full or trial.final else 1
    return group, 0.0 if group == 0 else -trial.share, cost(trial.score, mode)
