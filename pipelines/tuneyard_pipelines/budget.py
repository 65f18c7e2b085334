"""When a sweep must come to its end before all is done: its budget is used up, or its user wants it to; pure."""

from __future__ import annotations

from collections.abc import Callable

from tuneyard_pipelines.control import Finish, Wishes
from tuneyard_pipelines.journal import SweepState, TrialState
from tuneyard_pipelines.spec import Budget

SAVE_S = 15.0
"""How long trials may take to save a last checkpoint when their driver is told to end."""
HARD_STOP_S = 120.0
"""A trial that has not come to its end so long after it was told is ended by its watchdog."""


def reason_to_end(
    budget: Budget,
    state: SweepState,
    wishes: Wishes,
    now_ms: int,
    *,
    gpus: Callable[[TrialState], float] = lambda trial: 0.0,
) -> Finish | None:
    """Why the present attempt must end now, or None.

    The wall clock counts from the attempt's start; `gpus(trial)` is how many it holds while it trains.
    """
    if wishes.stopped:
        return Finish("cancelled", "stopped by its user", now_ms)
    began_ms = state.attempts[-1].time_ms if state.attempts else now_ms
    if budget.wall_clock_s is not None and now_ms - began_ms >= 1000 * budget.wall_clock_s:
        return Finish("out_of_budget", f"budget.wall_clock ({budget.wall_clock}) was used up", now_ms)
    if budget.trial_hours is not None and trained_ms(state, now_ms) >= 3_600_000 * budget.trial_hours:
        return Finish("out_of_budget", f"budget.trial_hours ({budget.trial_hours:g}) was used up", now_ms)
    if budget.gpu_hours is not None and gpu_ms(state, now_ms, gpus) >= 3_600_000 * budget.gpu_hours:
        return Finish("out_of_budget", f"budget.gpu_hours ({budget.gpu_hours:g}) was used up", now_ms)
    return None


def trained_ms(state: SweepState, now_ms: int) -> int:
    """How long all trials have trained together, legs that run now included."""
    return sum(_trained_ms(trial, now_ms) for trial in state.trials.values())


def gpu_ms(state: SweepState, now_ms: int, gpus: Callable[[TrialState], float]) -> float:
    """How long GPUs have been held by trials that trained, those that run now included; `gpus(trial)`: how many."""
    return sum(gpus(trial) * _trained_ms(trial, now_ms) for trial in state.trials.values())


def _trained_ms(trial: TrialState, now_ms: int) -> int:
    return trial.trained_ms + (max(0, now_ms - trial.started_ms) if trial.running else 0)
