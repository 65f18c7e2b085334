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

from tuneyard_pipelines.journal import EARLY, FAILURES, FULL, SweepState, TrialState

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Rules:
    """Of one variant. rungs: rising shares of the budget, the last 1.0; trials: how many points are asked for.

    retried_ms: trials that failed before this moment are run again; gone: trials that have no checkpoint to go on from.
    """

    rungs: Sequence[float]
    reduction_factor: int
    trials: int
    mode: Mode
    retried_ms: int = 0
    gone: frozenset[str] = frozenset()


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
    """What to do next among the trials of one variant; `exhausted`: there is no new point left. Pure.

    In this order: legs that were cut off, the highest promotion, a new point; when all that is over and no trial has
    reached the full budget, the best one goes on to it. Trials that ended early take part like those that wait, but for
    those that stopped themselves: they count as if they had had their full budget.
    """
    trials = [trial for trial in state.trials.values() if _may_go_on(trial, rules)]
    for trial in trials:
        if trial.pending is not None and not trial.running and trial.id not in rules.gone:
            return Go(trial.id, trial.pending)
        if trial.rung is None and trial.pending is None:
            return Go(trial.id, 0)
    promotable = {trial.id for trial in trials if trial.pending is None} - rules.gone
    for rung in reversed(range(len(rules.rungs) - 1)):
        for trial in _promotable(state.trials.values(), rung, rules):
            if trial.id in promotable and trial.rung == rung:
                return Go(trial.id, rung + 1)
    if len(state.trials) < rules.trials and not exhausted:
        return Else.NEW
    if any(trial.running for trial in trials):
        return Else.WAIT
    candidates = [trial for trial in trials if trial.id in promotable and trial.score is not None]
    if candidates and winner(state.trials, rules.mode) is None:
        best = ranked(candidates, rules.mode, rung=max(trial.rung or 0 for trial in candidates))[0]
        return Go(best.id, (best.rung or 0) + 1)
    return Else.DONE


def spent(state: SweepState, rules: Rules) -> float:
    """Full budgets that the trials of a variant have used or were sent to use; the variant with the least goes next."""
    return sum(
        max(trial.share, rules.rungs[trial.pending] if trial.running and trial.pending is not None else 0.0)
        for trial in state.trials.values()
    )


def ranked(trials: Iterable[TrialState], mode: Mode, *, rung: int) -> list[TrialState]:
    """Trials that reached `rung`, best score there first, equal scores by number; those without a score come last."""
    at = [(trial, score_at(trial, rung)) for trial in trials if any(leg.rung == rung for leg in trial.legs)]
    return [trial for trial, score in sorted(at, key=lambda pair: (cost(pair[1], mode), pair[0].number))]


def winner(trials: Mapping[str, TrialState], mode: Mode) -> TrialState | None:
    """The best among the trials that had their full budget or stopped themselves before, of whatever variant."""
    ended = [trial for trial in trials.values() if trial.share >= FULL or trial.final]
    return _best([trial for trial in ended if trial.outcome not in FAILURES], mode)


def best_so_far(trials: Mapping[str, TrialState], mode: Mode) -> TrialState | None:
    """The best of all trials that did not fail, however far they came: what is left of a sweep that was ended."""
    return _best([trial for trial in trials.values() if trial.outcome not in FAILURES], mode)


def standings(trials: Iterable[TrialState], rungs: Mapping[str, Sequence[float]], mode: Mode) -> list[TrialState]:
    """All trials, best first: by the highest rung they reached (`rungs` by variant), then by score, then by number.

    Those that stopped themselves stand at the highest rung; those that failed come last.
    """

    def level(trial: TrialState) -> float:
        if trial.final:
            return 1.0
        return 0.0 if trial.rung is None else rungs[trial.variant][trial.rung]

    def order(trial: TrialState) -> tuple[bool, float, float, int]:
        return trial.outcome in FAILURES, -level(trial), cost(trial.score, mode), trial.number

    return sorted(trials, key=order)


def _best(trials: Sequence[TrialState], mode: Mode) -> TrialState | None:
    scored = [trial for trial in trials if math.isfinite(cost(trial.score, mode))]
    return min(scored, key=lambda trial: (cost(trial.score, mode), trial.number), default=None)


def _may_go_on(trial: TrialState, rules: Rules) -> bool:
    if trial.outcome in FAILURES:
        return (trial.ended_ms or 0) < rules.retried_ms
    return not trial.final and (trial.outcome is None or trial.outcome in EARLY)


def score_at(trial: TrialState, rung: int) -> float | None:
    return next((leg.score for leg in trial.legs if leg.rung == rung), None)


def _promotable(trials: Iterable[TrialState], rung: int, rules: Rules) -> list[TrialState]:
    at = ranked(trials, rules.mode, rung=rung)
    return [trial for trial in at[: len(at) // rules.reduction_factor] if score_at(trial, rung) is not None]


def cost(score: float | None, mode: Mode) -> float:
    """What a score counts in an order that rises from the best; one that is missing or not finite is the worst."""
    if score is None or not math.isfinite(score):
        return math.inf
    return score if mode == "min" else -score
