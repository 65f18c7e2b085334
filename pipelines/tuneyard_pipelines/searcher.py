"""The Tune searcher: hands out legs one by one from the journal, and writes there what became of them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

from ray.tune.search import Searcher

from tuneyard_pipelines import promotion
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import Journal, LegEnded, LegFailed, LegStarted, TrialCreated, TrialEnded, TrialState
from tuneyard_pipelines.leg import NO_SPACE, Leg, LegResult, explain_death
from tuneyard_pipelines.promotion import Else, Go, Rules
from tuneyard_pipelines.proposals import Observed, propose
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import SweepSpec, display_name

log = logging.getLogger(__name__)
RETRIED = frozenset({"error", "stalled"})  # a point that diverges or outgrows its memory would do so again


class LegSearcher(Searcher):
    """Suggests (trial, rung) pairs; its only state beside the journal is which Tune trial runs which leg.

    Tune pickles its searcher now and then for a restore that is never made: the journal is all that an attempt needs.
    """

    def __init__(self, journal: Journal, spec: SweepSpec, attempt: int, now_ms: Callable[[], int]) -> None:
        super().__init__(metric="leg", mode=spec.mode)  # Tune wants the name of something that is reported
        self._journal, self._spec, self._attempt, self._now_ms = journal, spec, attempt, now_ms
        self._space = Space(spec)
        self._rules = rules(spec)
        self.exhausted = False
        self._legs: dict[str, Leg] = {}
        self._broken: Exception | None = None
        self.stopping = False

    def __reduce__(self) -> tuple[type[Searcher], tuple[()]]:
        return Searcher, ()

    def suggest(self, trial_id: str) -> Any:
        """A leg as Tune's config, None to be asked again, or FINISHED. Raises what `on_trial_complete` met."""
        if self._broken is not None:
            raise self._broken
        if self.stopping:
            return None if self._legs else Searcher.FINISHED
        step = promotion.next_leg(self._journal.state, self._rules, exhausted=self.exhausted)
        if step is Else.NEW:
            step = self._new_trial()
        if not isinstance(step, Go):
            return None if step is Else.WAIT else Searcher.FINISHED
        trial = self._journal.state.trials[step.trial]
        leg = Leg(
            folder=str(self._journal.folder.path),
            trial=trial.id,
            point=trial.point,
            attempt=self._attempt,
            rung=step.rung,
        )
        self._journal.append(LegStarted(trial.id, self._attempt, step.rung, self._now_ms()))
        self._legs[trial_id] = leg
        return {"leg": leg.to_dict()}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Write down what became of a leg. What goes wrong here is kept for `suggest`: Tune would swallow it."""
        leg = self._legs.pop(trial_id, None)
        if leg is None or self.stopping:
            return
        try:
            outcome = _outcome(leg, result, error)
            if outcome.outcome == NO_SPACE:  # the trial stays open: its next attempt goes on from its checkpoint
                raise TuneyardError(f"trial {leg.trial} could not write: {outcome.message}; free space")
            if outcome.outcome:
                self._failed(leg, outcome)
            else:
                self._ended(leg, outcome)
        except Exception as cause:
            self._broken = cause

    def save(self, checkpoint_path: str) -> None:
        """The journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """The journal is the state."""

    def _new_trial(self) -> Go | Else:
        history = [observed(trial) for trial in self._journal.state.trials.values()]
        point = propose(self._space, self._spec.search.algorithm, self._spec.seed, history)
        if point is None:
            self.exhausted = True
            return promotion.next_leg(self._journal.state, self._rules, exhausted=True)
        number = self._journal.folder.last_number(self._journal.state) + 1
        trial = f"t{number:03d}"
        name = display_name(number, point)
        self._journal.append(TrialCreated(trial, number, name, point, self._now_ms()))
        return Go(trial, 0)

    def _ended(self, leg: Leg, result: LegResult) -> None:
        self._journal.append(
            LegEnded(
                trial=leg.trial,
                attempt=leg.attempt,
                rung=leg.rung,
                share=result.share,
                tokens=result.tokens,
                step=result.step,
                score=result.score,
                metrics=result.metrics,
                time_ms=self._now_ms(),
            )
        )
        if leg.rung == len(self._rules.rungs) - 1:
            self._journal.append(TrialEnded(leg.trial, "completed", "", self._now_ms()))

    def _failed(self, leg: Leg, result: LegResult) -> None:
        outcome = result.outcome or "error"
        log.warning("trial %s: %s: %s", leg.trial, outcome, result.message)
        self._journal.append(LegFailed(leg.trial, leg.attempt, leg.rung, outcome, result.message, self._now_ms()))
        failures = self._journal.state.trials[leg.trial].failures
        if outcome not in RETRIED or len(failures) > self._spec.search.retries:
            self._journal.append(TrialEnded(leg.trial, outcome, result.message, self._now_ms()))


def rules(spec: SweepSpec) -> Rules:
    """What the promotion needs of a spec; a grid without `trials` asks for every point."""
    return Rules(
        rungs=spec.rungs(),
        reduction_factor=spec.reduction_factor,
        trials=spec.search.trials or sys.maxsize,
        mode=spec.mode,
    )


def observed(trial: TrialState) -> Observed:
    """A trial as the proposals see it: its score at every rung it reached."""
    scores = tuple((leg.share, float("nan") if leg.score is None else leg.score) for leg in trial.legs)
    return Observed(point=trial.point, scores=scores, finished=trial.outcome is not None)


def _outcome(leg: Leg, result: dict[str, Any] | None, error: bool) -> LegResult:
    if error:
        return explain_death(leg)
    if not result or "leg" not in result:
        return LegResult("no_metric", "the trial's process ended well and reported nothing")
    return LegResult(**json.loads(result["leg"]))
