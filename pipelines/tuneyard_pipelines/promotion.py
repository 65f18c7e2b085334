"""ASHA by promotion (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"): which leg comes next.

A rung is a share of the full budget. A trial runs from one rung to the next as a leg and ends there; the best
1/reduction_factor of all trials that have a score at a rung go on. Nobody is paused, so nothing has to be woken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from tuneyard_pipelines.journal import SweepState, TrialState

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Rules:
    """rungs: rising shares of the budget, the last 1.0; trials: how many points are asked for."""

    rungs: Sequence[float]
    reduction_factor: int
    trials: int
    mode: Mode


@dataclass(frozen=True)
class Go:
    """Send this trial to this rung."""

    trial: str
    rung: int


class Else(Enum):
    """What to do when no leg is ready: ask for a new point, wait for a running leg, or end."""

    NEW = "new"
    WAIT = "wait"
    DONE = "done"


def next_leg(state: SweepState, rules: Rules, *, exhausted: bool) -> Go | Else:
    """What to do next; `exhausted`: there is no new point left. Pure.

    In this order: legs that were cut off, the highest promotion, a new point; when all that is over and no trial has
    reached the full budget, the best one goes on to it.
    """
    trials = [trial for trial in state.trials.values() if trial.outcome is None]
    for trial in trials:
        if trial.pending is not None and not trial.running:
            return Go(trial.id, trial.pending)
        if trial.rung is None and trial.pending is None:
            return Go(trial.id, 0)
    top = len(rules.rungs) - 1
    for rung in reversed(range(top)):
        for trial in _promotable(state.trials.values(), rung, rules):
            if trial.outcome is None and trial.rung == rung and trial.pending is None:
                return Go(trial.id, rung + 1)
    if len(state.trials) < rules.trials and not exhausted:
        return Else.NEW
    if any(trial.running for trial in trials):
        return Else.WAIT
    candidates = [trial for trial in trials if trial.score is not None]
    if candidates and winner(state.trials, rules) is None:
        best = ranked(candidates, rules.mode, rung=max(trial.rung or 0 for trial in candidates))[0]
        return Go(best.id, (best.rung or 0) + 1)
    return Else.DONE


def ranked(trials: Iterable[TrialState], mode: Mode, *, rung: int) -> list[TrialState]:
    """Trials that reached `rung`, best score there first, equal scores by number; those without a score come last."""
    at = [(trial, score_at(trial, rung)) for trial in trials if any(leg.rung == rung for leg in trial.legs)]
    return [trial for trial, score in sorted(at, key=lambda pair: (_cost(pair[1], mode), pair[0].number))]


def winner(trials: Mapping[str, TrialState], rules: Rules) -> TrialState | None:
    """The best among the trials that had their full budget."""
    full = ranked(trials.values(), rules.mode, rung=len(rules.rungs) - 1)
    return next((trial for trial in full if trial.score is not None), None)


def score_at(trial: TrialState, rung: int) -> float | None:
    return next((leg.score for leg in trial.legs if leg.rung == rung), None)


def _promotable(trials: Iterable[TrialState], rung: int, rules: Rules) -> list[TrialState]:
    at = ranked(trials, rules.mode, rung=rung)
    return [trial for trial in at[: len(at) // rules.reduction_factor] if score_at(trial, rung) is not None]


def _cost(score: float | None, mode: Mode) -> float:
    if score is None or not math.isfinite(score):
        return math.inf
    return score if mode == "min" else -score
