"""How a sweep and its trials stand: what MLflow's runs, tables and reports show of them; pure.

the trial is                  status in MLflow     tuneyard.outcome
at a leg                      RUNNING              -
waiting for its next leg      SCHEDULED            -
completed, stopped_early      FINISHED             the same
diverged, ..., error          FAILED               the same
cancelled, out_of_budget      KILLED               the same
at a leg, its driver lost     FAILED               error
unfinished, sweep interrupted KILLED               cancelled
"""

from __future__ import annotations

from dataclasses import dataclass

from tuneyard_pipelines import promotion
from tuneyard_pipelines.journal import CUT, FAILURES, Header, SweepState, TrialState


@dataclass(frozen=True)
class Shown:
    """What a run shows: status, and why it ended."""

    status: str
    outcome: str | None = None
    reason: str = ""


def trial_shown(trial: TrialState, sweep: SweepState) -> Shown:
    """The table at the head of this file; pure."""
    if trial.outcome:
        status = "FAILED" if trial.outcome in FAILURES else "KILLED" if trial.outcome in CUT else "FINISHED"
        return Shown(status, trial.outcome, trial.message)
    if sweep.ended is None:
        return Shown("RUNNING" if trial.running else "SCHEDULED")
    if sweep.ended.state == "lost" and trial.running:
        return Shown("FAILED", "error", sweep.ended.message)
    return Shown("KILLED", "cancelled", sweep.ended.message)


def sweep_shown(sweep: SweepState) -> Shown:
    if sweep.ended is None:
        return Shown("RUNNING")
    status = {"finished": "FINISHED", "interrupted": "KILLED"}.get(sweep.ended.state, "FAILED")
    return Shown(status, sweep.ended.state, sweep.ended.message)


def leader(header: Header, state: SweepState) -> TrialState | None:
    """The one that was scored, or before there is one, the best at the highest rung that any trial has reached."""
    if state.scored is not None and state.ended is not None:
        return state.trials[state.scored.trial]
    best = next(iter(standings(header, state)), None)
    return best if best is not None and best.score is not None else None


def standings(header: Header, state: SweepState) -> list[TrialState]:
    """All trials, best first."""
    rungs = {name: variant.rungs() for name, variant in header.spec.by_variant.items()}
    return promotion.standings(state.trials.values(), rungs, header.spec.mode)
