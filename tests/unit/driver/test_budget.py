"""When a sweep must end: pure of its journal, its requests and the time."""

from __future__ import annotations

import pytest

from tuneyard_pipelines.budget import gpu_ms, reason_to_end, trained_ms
from tuneyard_pipelines.control import Finish, Wishes
from tuneyard_pipelines.journal import (
    AttemptStarted,
    Event,
    LegCut,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepState,
    TrialCreated,
    TrialEnded,
)
from tuneyard_pipelines.spec import Budget

NOTHING = Wishes()


def begun(attempt: int, time_ms: int) -> AttemptStarted:
    return AttemptStarted(attempt, time_ms, "node-1", {}, {})


def created(number: int, time_ms: int) -> TrialCreated:
    return TrialCreated(f"t{number}", number, "", {}, time_ms)


def ended(trial: str, time_ms: int, rung: int = 0) -> LegEnded:
    return LegEnded(trial, 1, rung, 0.5, 0, 0, 1.0, {}, time_ms)


def after(*events: Event) -> SweepState:
    state = SweepState()
    for event in events:
        state = state.after(event)
    return state


def test_without_a_limit_there_is_no_end() -> None:
    state = after(begun(1, 0), created(1, 0), LegStarted("t1", 1, 0, 0))
    assert reason_to_end(Budget(), state, NOTHING, 10**15) is None


def test_a_stop_comes_before_all_limits() -> None:
    spent = after(begun(1, 0))
    stopped = reason_to_end(Budget(wall_clock="1s"), spent, Wishes(stopped=True), 5_000)
    assert stopped == Finish("cancelled", "stopped by its user", 5_000)
    assert reason_to_end(Budget(), SweepState(), Wishes(stopped=True), 1) == Finish(
        "cancelled", "stopped by its user", 1
    )


def test_the_wall_clock_begins_anew_with_every_attempt() -> None:
    budget = Budget(wall_clock="2m")
    first = after(begun(1, 1_000), created(1, 1_000))
    assert reason_to_end(budget, first, NOTHING, 120_999) is None
    end = reason_to_end(budget, first, NOTHING, 121_000)
    assert end == Finish("out_of_budget", "budget.wall_clock (2m) was used up", 121_000)
    second = first.after(begun(2, 500_000))
    assert reason_to_end(budget, second, NOTHING, 619_999) is None
    assert reason_to_end(budget, second, NOTHING, 620_000) is not None
    assert reason_to_end(budget, SweepState(), NOTHING, 10**9) is None, "what has not begun uses nothing"


def test_trial_hours_add_up_over_trials_that_run_at_once() -> None:
    budget = Budget(trial_hours=0.001)  # 3.6 s
    state = after(begun(1, 0), created(1, 0), created(2, 0), LegStarted("t1", 1, 0, 0), LegStarted("t2", 1, 0, 1_000))
    assert trained_ms(state, 2_000) == 3_000
    assert reason_to_end(budget, state, NOTHING, 2_299) is None
    end = reason_to_end(budget, state, NOTHING, 2_300)
    assert end == Finish("out_of_budget", "budget.trial_hours (0.001) was used up", 2_300)
    assert trained_ms(state, 0) == 0, "a clock that is behind takes nothing away"


def test_gpu_hours_count_every_gpu_that_a_trial_holds() -> None:
    budget = Budget(gpu_hours=0.002)  # 7.2 s
    state = after(begun(1, 0), created(1, 0), created(2, 0), LegStarted("t1", 1, 0, 0), LegStarted("t2", 1, 0, 800))
    gpus = {"t1": 4.0, "t2": 0.5}
    assert gpu_ms(state, 1_800, lambda trial: gpus[trial.id]) == 4 * 1_800 + 0.5 * 1_000
    assert reason_to_end(budget, state, NOTHING, 1_688, gpus=lambda trial: gpus[trial.id]) is None
    end = reason_to_end(budget, state, NOTHING, 1_689, gpus=lambda trial: gpus[trial.id])
    assert end == Finish("out_of_budget", "budget.gpu_hours (0.002) was used up", 1_689)
    assert reason_to_end(budget, state, NOTHING, 10**9) is None, "without GPUs none is used"


def test_trial_hours_add_up_over_legs_whatever_their_end() -> None:
    state = after(
        begun(1, 0),
        created(1, 0),
        LegStarted("t1", 1, 0, 100),
        ended("t1", 300),
        LegStarted("t1", 1, 1, 1_000),
        LegFailed("t1", 1, 1, "error", "", 1_050),
        LegStarted("t1", 1, 1, 2_000),
        LegCut("t1", 1, 1, 0.7, 0, 1, 1.0, {}, 2_007),
        TrialEnded("t1", "cancelled", "", 2_100),
    )
    assert state.trials["t1"].trained_ms == 200 + 50 + 7
    assert trained_ms(state, 10**9) == 257, "what is over grows no more"
    again = state.after(begun(2, 5_000)).after(LegStarted("t1", 2, 1, 6_000))
    assert trained_ms(again, 6_010) == 267


def test_a_leg_that_was_cut_before_its_first_checkpoint_has_trained_too() -> None:
    state = after(begun(1, 0), created(1, 0), LegStarted("t1", 1, 0, 100), TrialEnded("t1", "cancelled", "", 350))
    assert (trained_ms(state, 10**9), state.trials["t1"].running) == (250, False)


def test_of_an_attempt_that_died_counts_what_the_journal_saw() -> None:
    dead = after(
        begun(1, 0),
        created(1, 0),
        created(2, 0),
        LegStarted("t1", 1, 0, 100),
        LegStarted("t2", 1, 0, 200),
        ended("t2", 700),
    )
    assert trained_ms(dead.after(begun(2, 10**9)), 10**9 + 5) == (700 - 100) + (700 - 200)


@pytest.mark.parametrize(("written", "seconds"), [("90s", 90), ("1h30m", 5400), ("2d", 172_800)])
def test_the_wall_clock_is_read_in_its_units(written: str, seconds: int) -> None:
    budget = Budget(wall_clock=written)
    state = after(begun(1, 0))
    assert reason_to_end(budget, state, NOTHING, 1000 * seconds - 1) is None
    assert reason_to_end(budget, state, NOTHING, 1000 * seconds) is not None
