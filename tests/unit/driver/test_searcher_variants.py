"""Several variants in one search, and what a search goes on with when more is asked for."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray.tune.search import Searcher

from tuneyard_pipelines import checkpoints, control, promotion
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.control import Add, Extend, Retry
from tuneyard_pipelines.journal import AttemptStarted, Journal, SweepFolder, TrialEnded, TrialState
from tuneyard_pipelines.leg import Leg, LegResult
from tuneyard_pipelines.searcher import LegSearcher

MakeFolder = Callable[..., SweepFolder]
Score = Callable[[TrialState, int], float | None]
TWO = (
    "variants={early: {model: {num_layers: [1, 2, 3]}}, late: {model: {num_layers: [4, 5, 6]}}}",
    "search.trials=18",
)


class Driver:
    """An attempt without Tune: `slots` legs at once, which end in an order of chance; a clock that ticks when read."""

    clock = itertools.count(10)

    def __init__(self, folder: SweepFolder, score: Score, slots: int = 1, seed: int = 0) -> None:
        self.folder, self.score, self.slots, self.chance = folder, score, slots, random.Random(seed)
        self.journal = Journal(folder)
        self.number = self.journal.state.attempt + 1
        self.journal.append(AttemptStarted(self.number, self.now_ms(), "node-1", {}, folder.seals()))
        self.spec = folder.header().spec
        self.searcher = LegSearcher(self.journal, self.spec, self.number, self.now_ms)
        self.running: dict[str, Leg] = {}
        self._names = (f"tune-{number}" for number in itertools.count(1))

    def now_ms(self) -> int:
        return next(self.clock)

    def legs(self) -> Iterator[Leg]:
        """Every leg as it begins, until there is none left."""
        while True:
            suggested: Any = None
            if len(self.running) < self.slots:
                name = next(self._names)
                suggested = self.searcher.suggest(name)
                if isinstance(suggested, dict):
                    self.running[name] = Leg(**suggested["leg"])
                    yield self.running[name]
                    continue
            if not self.running:
                assert suggested == Searcher.FINISHED, "nobody is there to wait for"
                return
            self.end(self.chance.choice(list(self.running)))

    def go_on(self) -> list[Leg]:
        return list(self.legs())

    def end(self, name: str, result: LegResult | None = None) -> None:
        leg = self.running.pop(name)
        if result is None:
            share = self.spec.variant(leg.variant).rungs()[leg.rung]
            result = LegResult(share=share, tokens=10, step=1, score=self.score(self.trial(leg.trial), leg.rung))
            facts = Facts(1, 1, 10, share, result.score, {})
            checkpoints.save(leg.attempt_folder / "checkpoints", facts, lambda path: path.touch())
        self.searcher.on_trial_complete(name, {"leg": json.dumps(result.to_dict())})

    def trial(self, trial: str) -> TrialState:
        return self.journal.state.trials[trial]

    def close(self) -> None:
        """What the driver writes down when nothing is left to run."""
        for trial in self.journal.state.trials.values():
            if trial.outcome is None:
                self.journal.append(TrialEnded(trial.id, "stopped_early", "", self.now_ms()))

    @property
    def reached(self) -> Counter[tuple[str, int]]:
        """How many trials of each variant reached each rung."""
        return Counter((t.variant, leg.rung) for t in self.journal.state.trials.values() for leg in t.legs)


def rising(trial: TrialState, rung: int) -> float:
    return float(trial.number)


def deceiving(trial: TrialState, rung: int) -> float:
    """One variant looks better until the last rung, where it is worse."""
    return {"early": (0.9, 0.8, 0.5), "late": (0.1, 0.3, 0.7)}[trial.variant][rung] + trial.number / 1000


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
def test_s13_variants_are_compared_fairly(make_folder: MakeFolder, algorithm: str, slots: int) -> None:
    driver = Driver(make_folder(*TWO, f"search.algorithm={algorithm}"), deceiving, slots, seed=slots)
    for leg in driver.legs():
        trial = driver.trial(leg.trial)
        assert leg.variant == trial.variant
        assert driver.spec.variant(leg.variant).at(trial.point), "a point of its own variant"
        if leg.rung == 0:
            continue
        mine = [t for t in driver.journal.state.trials.values() if t.variant == leg.variant]
        at = sorted((t.legs[leg.rung - 1].score or 0 for t in mine if len(t.legs) >= leg.rung), reverse=True)
        alone = len(mine) == 9 and not any(t.outcome == "completed" for t in mine)
        rank = at.index(trial.legs[-1].score or 0)
        assert rank < len(at) // 3 or alone, "promoted among its own"
    trials = driver.journal.state.trials.values()
    assert Counter(t.variant for t in trials) == {"early": 9, "late": 9}
    for variant in ("early", "late"):
        own = [t for t in trials if t.variant == variant]
        assert driver.reached[variant, 0] == 9
        assert driver.reached[variant, 1] >= 3
        assert driver.reached[variant, 2] >= 1, "the best of each variant has its full budget"
        assert {t.id for t in own if t.outcome == "completed"} == {t.id for t in own if t.share == 1.0}
        assert len({tuple(t.point.items()) for t in own}) == 9
    winner = promotion.winner(driver.journal.state.trials, driver.spec.mode)
    assert winner is not None
    assert winner.variant == "late", "whatever it looked like at the lower rungs"
    assert winner.score == max(t.score or 0 for t in trials if t.outcome == "completed")


def test_s13_the_next_leg_is_of_the_variant_that_has_used_the_least(make_folder: MakeFolder) -> None:
    driver = Driver(make_folder(*TWO, "search.algorithm=random"), lambda trial, rung: -trial.number)
    used: Counter[str] = Counter()
    done: Counter[str] = Counter()
    chosen = []
    for leg in driver.legs():
        other = {"early": "late", "late": "early"}[leg.variant]
        if done[other] < 13:  # 9 + 3 + 1 legs
            assert used[leg.variant] <= used[other] + 1e-9
        rungs = driver.spec.variant(leg.variant).rungs()
        used[leg.variant] += rungs[leg.rung] - (rungs[leg.rung - 1] if leg.rung else 0)
        done[leg.variant] += 1
        chosen.append(leg.variant)
    assert chosen[:8] == ["early", "late"] * 4
    assert done == {"early": 13, "late": 13}
    assert used["early"] == pytest.approx(used["late"])


def test_s13_a_variant_with_a_smaller_budget_ladder_is_not_kept_waiting(make_folder: MakeFolder) -> None:
    """One that has a single point, and with that one rung, goes to its full budget at once."""
    driver = Driver(
        make_folder(
            "variants={one: {model: {num_heads: 2, num_layers: 1, sequence_length: 24}}, all: {}}", "search.trials=18"
        ),
        rising,
    )
    legs = driver.go_on()
    assert [(leg.variant, leg.rung) for leg in legs if leg.variant == "one"] == [("one", 0)]
    assert driver.trial(next(leg.trial for leg in legs if leg.variant == "one")).outcome == "completed"
    assert driver.reached["all", 0] == 9
    assert driver.searcher.exhausted


@pytest.mark.parametrize("seed", range(6))
def test_chance_and_failures_leave_every_variant_its_due(make_folder: MakeFolder, seed: int) -> None:
    """Legs fail, attempts die: no leg is run twice that came to its end, no variant takes another's trials."""
    chance = random.Random(seed)
    folder = make_folder(*TWO, f"search.algorithm={chance.choice(['random', 'tpe'])}", "search.retries=1")
    finished: Counter[tuple[str, int]] = Counter()
    palette = [chance.choice([None, 0.0, -1.0, 0.5, 1.0]) for _ in range(40)]
    driver = Driver(folder, lambda trial, rung: palette[trial.number], chance.randint(1, 4), seed)
    alive = True
    while alive:
        alive = False
        for leg in driver.legs():
            assert finished[leg.trial, leg.rung] == 0
            if chance.random() < 0.2:
                name = next(name for name, running in driver.running.items() if running == leg)
                driver.end(name, LegResult("error", "no luck"))
            if chance.random() < 0.05:
                alive = True  # another attempt takes over
                break
        finished = Counter((t.id, leg.rung) for t in folder.state().trials.values() for leg in t.legs)
        if alive:
            driver = Driver(folder, driver.score, driver.slots, chance.randint(0, 99))
    assert max(finished.values()) == 1
    for name in ("early", "late"):
        own = folder.state().of(name).trials
        assert len(own) == 9
        able = [t for t in own.values() if t.outcome in (None, "completed") and t.score is not None]
        assert not able or promotion.winner(own, "max") is not None, "the best of each variant has its full budget"


def test_more_trials_are_shared_equally_and_an_added_point_is_its_variants_own(make_folder: MakeFolder) -> None:
    driver = Driver(make_folder(*TWO), rising)
    driver.go_on()
    driver.close()
    point = {"model.num_heads": 4, "model.num_layers": 6, "model.sequence_length": 48}
    there = [tuple(t.point.items()) for t in driver.journal.state.of("late").trials.values()]
    point = next(
        p
        for p in ({**point, "model.num_layers": n, "model.sequence_length": s} for n in (4, 5, 6) for s in (24, 48))
        if tuple(p.items()) not in there
    )
    control.ask(driver.folder, [Extend(4, 1), Add(point, "late", 2), Add(point, "late", 3)])
    again = Driver(driver.folder, rising)
    first = next(again.legs())
    again.go_on()
    assert Counter(t.variant for t in again.journal.state.trials.values()) == {"early": 11, "late": 12}
    assert [t.point for t in again.journal.state.trials.values()].count(point) == 1
    assert first.trial not in driver.journal.state.trials
    assert again.searcher.heard == 3


def test_a_request_is_followed_while_the_search_runs(make_folder: MakeFolder) -> None:
    driver = Driver(make_folder("search.trials=3"), rising)
    for number, _ in enumerate(driver.legs()):
        if number == 1:
            assert not driver.searcher.asked_meanwhile()
            control.ask(driver.folder, [Extend(2, 1)])
            assert driver.searcher.asked_meanwhile()
    assert not driver.searcher.asked_meanwhile()
    assert len(driver.journal.state.trials) == 5


def worse_later(trial: TrialState, rung: int) -> float:
    return -float(trial.number)


def test_trials_that_stopped_early_go_on_when_more_are_asked_for(make_folder: MakeFolder) -> None:
    """With 9 trials the best three go on; with 18 the best six, three of which had stopped."""
    driver = Driver(make_folder("search.algorithm=random"), worse_later)
    driver.go_on()
    driver.close()
    before = {id: trial.rung for id, trial in driver.journal.state.trials.items()}
    assert (before["t003"], before["t004"]) == (1, 0)
    control.ask(driver.folder, [Extend(9, 1)])
    shutil.rmtree(driver.folder.trial("t005") / "a1" / "checkpoints")
    again = Driver(driver.folder, worse_later)
    legs = [(leg.trial, leg.rung) for leg in again.go_on()]
    assert ("t004", 1) in legs
    assert ("t006", 1) in legs
    assert "t005" not in {trial for trial, _ in legs}, "its checkpoint is gone"
    assert again.trial("t005").score == -5.0, "its score stays"
    assert again.trial("t005").outcome == "stopped_early"
    assert again.trial("t004").attempts == (1, 2)
    assert all(trial.outcome in (None, "completed", "stopped_early") for trial in again.journal.state.trials.values())


@pytest.mark.parametrize("outcome", ["out_of_budget", "cancelled"])
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "gone"])
def test_trials_that_were_cut_go_on_from_their_checkpoint_only(
    make_folder: MakeFolder, outcome: str, kept: bool
) -> None:
    driver = Driver(make_folder("search.trials=2", "search.scheduler=none"), rising, slots=2)
    legs = driver.legs()
    next(legs), next(legs)
    for name, step in zip(list(driver.running), (7, 0), strict=True):
        leg = driver.running[name]
        if step:
            facts = Facts(step, step, 70, 0.5, 0.3, {})
            checkpoints.save(leg.attempt_folder / "checkpoints", facts, lambda path: path.touch())
        share = 0.5 if step else 0.0
        driver.end(name, LegResult(outcome, "why", share, 10 * step, step, 0.3 if step else None))
    cut, at_once = driver.trial("t001"), driver.trial("t002")
    assert (cut.outcome, cut.share, cut.score, cut.pending, cut.running) == (outcome, 0.5, 0.3, 0, False)
    assert (at_once.outcome, at_once.cut, at_once.share) == (outcome, None, 0.0)
    if not kept:
        shutil.rmtree(driver.folder.trial("t001") / "a1" / "checkpoints")
    again = Driver(driver.folder, rising)
    assert [leg.trial for leg in again.go_on()] == (["t001", "t002"] if kept else ["t002"])
    assert again.trial("t002").outcome == "completed", "what never began to train lost nothing"
    shown = again.trial("t001")
    assert (shown.outcome, shown.score) == (("completed", 1.0) if kept else (outcome, 0.3))


def test_retried_trials_are_those_that_failed_before_the_request(make_folder: MakeFolder) -> None:
    driver = Driver(make_folder("search.trials=4", "search.scheduler=none", "search.retries=0"), rising, slots=4)
    legs = driver.legs()
    for _ in range(4):
        next(legs)
    outcomes = ["diverged", None, "error", "out_of_memory"]
    for name, outcome in zip(list(driver.running), outcomes, strict=True):
        driver.end(name, LegResult(outcome, "why") if outcome else None)
    assert Driver(driver.folder, rising).go_on() == [], "nothing is tried again by itself"

    control.ask(driver.folder, [Retry(driver.now_ms())])
    again = Driver(driver.folder, rising)
    retried = []
    for leg in again.legs():
        retried.append(leg.trial)
        if leg.trial == "t003":
            [name] = again.running
            again.end(name, LegResult("error", "again"))
    assert retried == ["t001", "t003", "t004"]
    assert [t.outcome for t in again.journal.state.trials.values()] == ["completed", "completed", "error", "completed"]
    assert Driver(driver.folder, rising).go_on() == [], "it failed after the request"
    control.ask(driver.folder, [Retry(driver.now_ms())])
    assert [leg.trial for leg in Driver(driver.folder, rising).go_on()] == ["t003"]
