"""Promotion by rungs as a pure function: what holds whatever finishes first, fails, or is cut off."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines import promotion
from tuneyard_pipelines.journal import (
    AttemptStarted,
    LegCut,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepState,
    TrialCreated,
    TrialEnded,
    TrialState,
)
from tuneyard_pipelines.promotion import Else, Go, Rules, next_leg

Score = Callable[[int, int], float | None]
THREE = (1 / 9, 1 / 3, 1.0)


@dataclass
class Sweep:
    """Legs that finish in a random order; every choice of `next_leg` is checked as it is made."""

    rules: Rules
    score: Score
    slots: int
    chance: random.Random
    points: int = 10**6
    fails: float = 0.0
    cuts: float = 0.0
    state: SweepState = field(default_factory=lambda: SweepState().after(AttemptStarted(1, 0, "node-1", {}, {})))
    legs: Counter[tuple[str, int]] = field(default_factory=Counter)
    cut_off: set[tuple[str, int]] = field(default_factory=set)
    last_resorts: int = 0

    def run(self) -> Sweep:
        exhausted = False
        while True:
            running = [trial for trial in self.state.trials.values() if trial.running]
            if running and self.chance.random() < self.cuts:
                self.cut(running)
                continue
            step: Go | Else = Else.WAIT
            if len(running) < self.slots:
                step = next_leg(self.state, self.rules, exhausted=exhausted)
            if step is Else.NEW and len(self.state.trials) == self.points:
                exhausted = True
            elif step is Else.NEW:
                assert len(self.state.trials) < self.rules.trials
                number = len(self.state.trials) + 1
                self.state = self.state.after(TrialCreated(f"t{number}", number, "", {}, 0))
                self.start(Go(f"t{number}", 0))
            elif isinstance(step, Go):
                self.check(step, bool(running), exhausted)
                self.start(step)
            elif step is Else.WAIT:
                assert running, "nobody is there to wait for"
                self.finish(self.chance.choice(running))
            else:
                assert not running
                return self

    def start(self, go: Go) -> None:
        self.legs[go.trial, go.rung] += 1
        self.cut_off.discard((go.trial, go.rung))
        self.state = self.state.after(LegStarted(go.trial, self.state.attempt, go.rung, 0))

    def finish(self, trial: TrialState) -> None:
        assert trial.pending is not None
        attempt, rung = self.state.attempt, trial.pending
        if self.chance.random() < self.fails:
            self.state = self.state.after(LegFailed(trial.id, attempt, rung, "error", "", 0))
            if len(trial.failures) >= 1:
                self.state = self.state.after(TrialEnded(trial.id, "error", "", 0))
            else:
                self.cut_off.add((trial.id, rung))
            return
        score, share = self.score(trial.number, rung), self.rules.rungs[rung]
        self.state = self.state.after(LegEnded(trial.id, attempt, rung, share, 0, 0, score, {}, 0))
        if rung == len(self.rules.rungs) - 1:
            self.state = self.state.after(TrialEnded(trial.id, "completed", "", 0))

    def cut(self, running: list[TrialState]) -> None:
        """The driver dies and another takes its place."""
        self.cut_off |= {(trial.id, trial.pending or 0) for trial in running}
        self.state = self.state.after(AttemptStarted(self.state.attempt + 1, 0, "node-1", {}, {}))

    def check(self, go: Go, busy: bool, exhausted: bool) -> None:
        trial = self.state.trials[go.trial]
        assert trial.outcome is None
        assert not trial.running
        if self.cut_off:
            assert (go.trial, go.rung) in self.cut_off, "what was cut off goes first"
            return
        assert self.legs[go.trial, go.rung] == 0, "never twice"
        assert trial.rung == go.rung - 1, "one rung after the other"
        at = {t.id: leg.score for t in self.state.trials.values() for leg in t.legs if leg.rung == go.rung - 1}
        own = at[go.trial]
        assert own is not None
        sign = 1 if self.rules.mode == "max" else -1
        better = sum(1 for score in at.values() if score is not None and sign * score > sign * own)
        if better < len(at) // self.rules.reduction_factor:
            return
        self.last_resorts += 1
        assert not busy
        assert exhausted or len(self.state.trials) == self.rules.trials
        assert promotion.winner(self.state.trials, self.rules) is None

    @property
    def scored_and_alive(self) -> list[TrialState]:
        return [t for t in self.state.trials.values() if t.outcome in (None, "completed") and t.score is not None]


@st.composite
def sweeps(draw: st.DrawFn, *, fails: bool = False, cuts: bool = False) -> Sweep:
    factor = draw(st.integers(2, 4))
    rungs = tuple(float(factor) ** -k for k in reversed(range(draw(st.integers(1, 4)))))
    scores = st.none() | st.floats(-3, 3).map(lambda value: round(value, 1))
    table: dict[tuple[int, int], float | None] = {}
    chance = random.Random(draw(st.integers(0, 2**32)))
    palette = draw(st.lists(scores, min_size=1, max_size=8))

    def score(number: int, rung: int) -> float | None:
        return table.setdefault((number, rung), chance.choice(palette))

    rules = Rules(rungs, factor, draw(st.integers(1, 25)), draw(st.sampled_from(["min", "max"])))
    return Sweep(
        rules,
        score,
        slots=draw(st.integers(1, 5)),
        chance=chance,
        points=draw(st.sampled_from([3, 10, 10**6])),
        fails=draw(st.sampled_from([0.1, 0.5])) if fails else 0.0,
        cuts=draw(st.sampled_from([0.05, 0.2])) if cuts else 0.0,
    )


@settings(max_examples=100, deadline=None)
@given(st.one_of(sweeps(), sweeps(fails=True), sweeps(cuts=True), sweeps(fails=True, cuts=True)))
def test_whatever_finishes_first_the_sweep_ends_with_its_winner_at_the_full_budget(sweep: Sweep) -> None:
    state = sweep.run().state
    assert len(state.trials) == min(sweep.rules.trials, sweep.points)
    assert all(sweep.legs[trial, 0] >= 1 for trial in state.trials), "everyone is tried at the first rung"
    assert all(trial.outcome is not None or trial.pending is None for trial in state.trials.values())
    winner = promotion.winner(state.trials, sweep.rules.mode)
    assert (winner is not None) == bool(sweep.scored_and_alive)
    if winner is not None:
        assert winner.rung == len(sweep.rules.rungs) - 1
        sign = 1 if sweep.rules.mode == "max" else -1
        full = [t.score for t in state.trials.values() if t.rung == winner.rung and t.score is not None]
        assert winner.score is not None
        assert sign * winner.score == max(sign * score for score in full)


def test_r4_a_third_of_all_trials_without_a_score_spoils_nothing() -> None:
    for mode, seed in itertools.product(("min", "max"), range(20)):
        rules = Rules(THREE, 3, 27, "min" if mode == "min" else "max")
        sweep = Sweep(rules, lambda number, rung: None if number % 3 == 0 else number - 14.0, 3, random.Random(seed))
        state = sweep.run().state
        winner = promotion.winner(state.trials, rules.mode)
        assert winner is not None
        assert winner.id == ("t1" if mode == "min" else "t26")
        assert not any(trial.rung for trial in state.trials.values() if trial.number % 3 == 0)
        assert sweep.last_resorts == 0


def test_without_a_scheduler_every_trial_gets_its_full_budget() -> None:
    for seed in range(20):
        rules = Rules((1.0,), 3, 10, "max")
        sweep = Sweep(rules, lambda number, rung: float(number % 7), slots=4, chance=random.Random(seed))
        state = sweep.run().state
        assert [trial.outcome for trial in state.trials.values()] == ["completed"] * 10
        winner = promotion.winner(state.trials, rules.mode)
        assert winner is not None
        assert winner.id == "t6", "whatever the order in which they finished"


def test_too_few_for_a_promotion_the_best_goes_on_alone() -> None:
    sweep = Sweep(Rules(THREE, 3, 2, "max"), lambda number, rung: float(number), slots=2, chance=random.Random(0))
    state = sweep.run().state
    assert [trial.rung for trial in state.trials.values()] == [0, 2]
    assert sweep.last_resorts == 2


def test_when_nobody_has_a_score_the_sweep_ends_without_a_winner() -> None:
    sweep = Sweep(Rules(THREE, 3, 9, "max"), lambda number, rung: None, slots=2, chance=random.Random(0))
    state = sweep.run().state
    assert {trial.rung for trial in state.trials.values()} == {0}
    assert promotion.winner(state.trials, sweep.rules.mode) is None


def test_promotions_come_before_new_points_and_the_highest_first() -> None:
    rules = Rules(THREE, 3, 99, "max")
    state = after_rungs([[1.0], [2.0], [3.0, 3.0], [4.0, 4.0], [5.0, 5.0]])
    assert next_leg(state, rules, exhausted=False) == Go("t5", 2)
    state = state.after(LegStarted("t5", 1, 2, 0))
    assert next_leg(state, rules, exhausted=False) is Else.NEW
    assert next_leg(state, rules, exhausted=True) is Else.WAIT
    state = after_rungs([[1.0], [2.0], [3.0]])
    assert next_leg(state, rules, exhausted=False) == Go("t3", 1)
    both = after_rungs([[10.0], *([float(n)] for n in range(2, 7)), [7.0, 7.0], [8.0, 8.0], [9.0, 9.0]])
    assert next_leg(both, rules, exhausted=False) == Go("t9", 2)
    assert next_leg(both.after(LegStarted("t9", 1, 2, 0)), rules, exhausted=False) == Go("t1", 1)


def test_a_leg_that_was_cut_off_comes_before_all_else() -> None:
    state = after_rungs([[1.0], [2.0], [3.0]]).after(LegStarted("t1", 1, 1, 0))
    state = state.after(AttemptStarted(2, 0, "node-1", {}, {}))
    assert next_leg(state, Rules(THREE, 3, 99, "max"), exhausted=False) == Go("t1", 1)


def test_a_trial_whose_first_leg_never_began_is_begun() -> None:
    state = after_rungs([[1.0]]).after(TrialCreated("t2", 2, "", {}, 0))
    assert next_leg(state, Rules(THREE, 3, 2, "max"), exhausted=False) == Go("t2", 0)


@pytest.mark.parametrize(("mode", "order"), [("max", [4, 3, 1, 2, 5, 6, 7]), ("min", [1, 2, 3, 4, 5, 6, 7])])
def test_r17_zero_and_negative_scores_are_ranked_and_the_worst_are_those_without(
    mode: Literal["min", "max"], order: list[int]
) -> None:
    values = {
        "max": [-1.0, -2.0, 0.0, 1.0, None, math.nan, -math.inf],
        "min": [-2.0, 0.0, 0.0, 1.0, None, None, math.inf],
    }
    state = after_rungs([[value] for value in values[mode]])
    for seed in range(10):
        trials = list(state.trials.values())
        random.Random(seed).shuffle(trials)
        assert [trial.number for trial in promotion.ranked(trials, mode, rung=0)] == order


def test_ranking_is_by_the_score_at_that_rung() -> None:
    state = after_rungs([[1.0, 9.0], [2.0, 8.0], [3.0]])
    assert [t.number for t in promotion.ranked(state.trials.values(), "max", rung=0)] == [3, 2, 1]
    assert [t.number for t in promotion.ranked(state.trials.values(), "max", rung=1)] == [1, 2]


def stopped_itself(trial: str, rung: int, share: float, score: float) -> LegCut:
    return LegCut(trial, 1, rung, share, 0, 0, score, {}, 0, final=True)


def test_a_trial_that_stopped_itself_goes_no_further_and_counts_as_full() -> None:
    rules = Rules(THREE, 3, 3, "max")
    state = after_rungs([[1.0], [2.0], [3.0]]).after(LegStarted("t3", 1, 1, 0))
    state = state.after(stopped_itself("t3", 1, 0.2, 3.5))
    assert next_leg(state, rules, exhausted=False) is Else.DONE, "even before its end is written down"
    state = state.after(TrialEnded("t3", "stopped_early", "", 0))
    assert next_leg(state, rules, exhausted=False) is Else.DONE
    assert promotion.winner(state.trials, "max") == state.trials["t3"]
    assert [t.number for t in promotion.standings(state.trials.values(), {"": THREE}, "max")] == [3, 2, 1]
    others = replace(rules, trials=9)
    more = state.after(TrialCreated("t4", 4, "", {}, 0)).after(LegEnded("t4", 1, 0, THREE[0], 0, 0, 9.0, {}, 0))
    assert next_leg(more, others, exhausted=False) == Go("t4", 1), "its rung is as it was for the others"


def test_without_a_scheduler_all_may_stop_themselves() -> None:
    rules = Rules((1.0,), 3, 2, "min")
    state = SweepState().after(AttemptStarted(1, 0, "node-1", {}, {}))
    for number, score in ((1, 0.5), (2, 0.4)):
        state = state.after(TrialCreated(f"t{number}", number, "", {}, 0)).after(LegStarted(f"t{number}", 1, 0, 0))
        state = state.after(stopped_itself(f"t{number}", 0, 0.3, score))
        state = state.after(TrialEnded(f"t{number}", "stopped_early", "", 0))
    assert next_leg(state, rules, exhausted=False) is Else.DONE
    winner = promotion.winner(state.trials, "min")
    assert winner is not None
    assert winner.id == "t2"


def test_a_failed_trial_counts_at_its_rung_and_goes_no_further() -> None:
    state = after_rungs([[1.0], [2.0], [3.0]])
    failed = replace(state.trials["t3"], outcome="error")
    state = replace(state, trials={**state.trials, "t3": failed})
    rules = Rules(THREE, 3, 3, "max")
    assert next_leg(state, rules, exhausted=False) == Go("t2", 1), "the next best goes on as the last resort"


def after_rungs(scores: list[list[float | None]]) -> SweepState:
    """Trials t1, t2, ... with their scores at rungs 0, 1, ..."""
    state = SweepState().after(AttemptStarted(1, 0, "node-1", {}, {}))
    for number, at in enumerate(scores, start=1):
        state = state.after(TrialCreated(f"t{number}", number, "", {}, 0))
        for rung, score in enumerate(at):
            state = state.after(LegEnded(f"t{number}", 1, rung, THREE[rung], 0, 0, score, {}, 0))
    return state
