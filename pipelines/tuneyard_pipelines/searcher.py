"""The Tune searcher: hands out legs one by one from the journal, and writes there what became of them."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ray.tune.search import Searcher

from tuneyard_pipelines import checkpoints, control, promotion
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.catalog import Mode, Vocabularies
from tuneyard_pipelines.control import Finish, Inbox, Wishes
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import (
    CUT,
    EARLY,
    Journal,
    LegCut,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepState,
    TrialCreated,
    TrialEnded,
    TrialState,
)
from tuneyard_pipelines.leg import NO_SPACE, Leg, LegResult, explain_death
from tuneyard_pipelines.promotion import Else, Go, Rules
from tuneyard_pipelines.proposals import Observed, propose
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import Point, SweepSpec, display_name
from tuneyard_pipelines.watchdog import at_work, idle_gpu_ms

log = logging.getLogger(__name__)
_Stand = TypeVar("_Stand", LegEnded, LegCut)
RETRIED = frozenset({"error", "stalled"})  # a point that diverges would do so again
OUT_OF_MEMORY = "out_of_memory"  # and one that outgrows its memory, unless its batches are made smaller
MOST_HALVINGS = 6


@dataclass
class _VariantSearch:
    """A variant in the search: its spec, its space, and whether that has no new point left."""

    spec: SweepSpec
    space: Space
    exhausted: bool = False


class LegSearcher(Searcher):
    """Suggests (trial, rung) pairs, each once it has room. The journal is its state; the rest lasts for one attempt.

    Tune pickles its searcher now and then for a restore that is never made: the journal is all that an attempt needs.
    `finishing` is set from outside: no leg begins any more, those that run come to their end.
    """

    def __init__(
        self,
        journal: Journal,
        spec: SweepSpec,
        attempt: int,
        now_ms: Callable[[], int],
        vocabularies: Vocabularies | None = None,
        fits: Callable[[Sequence[Shape], Shape], bool] = lambda running, shape: True,
    ) -> None:
        """`fits(running, shape)`: whether the cluster has room for one more trial beside those that run."""
        super().__init__(metric="leg", mode=spec.mode)  # Tune wants the name of something that is reported
        self._journal, self._spec, self._attempt, self._now_ms = journal, spec, attempt, now_ms
        self._variants = {
            name: _VariantSearch(variant, Space(variant, vocabularies=vocabularies))
            for name, variant in spec.by_variant.items()
        }
        self._fits = fits
        self._inbox = Inbox(journal.folder)
        self.heard = 0  # requests that were followed
        self._legs: dict[str, Leg] = {}
        self._gone: set[str] = set()  # trials that cannot go on, since their checkpoints made room for others
        self._broken: Exception | None = None
        self.stopping = False
        self.finishing: Finish | None = None
        self._telling = threading.Lock()

    def __reduce__(self) -> tuple[type[Searcher], tuple[()]]:
        return Searcher, ()

    @property
    def exhausted(self) -> bool:
        """Whether some variant has fewer points than were asked for."""
        return any(search.exhausted for search in self._variants.values())

    def asked_meanwhile(self) -> bool:
        """Whether something was asked for after the last leg was chosen."""
        return self._inbox.read().heard > self.heard

    def interrupt(self) -> None:
        """Have the legs that train save where they are, and end."""
        self.tell(Finish("interrupted", "its driver was told to end", self._now_ms()))

    def tell(self, why: Finish) -> None:
        """Have the legs that train come to their end, unless they were interrupted: whatever comes then comes later."""
        with self._telling:
            if why.interrupts or not self.stopping:
                control.finish(self._journal.folder, self._attempt, why)

    def training(self) -> bool:
        """Whether a leg trains at present; one whose process is only about to begin does not."""
        return any(at_work(leg.attempt_folder) for leg in list(self._legs.values()))

    def suggest(self, trial_id: str) -> Any:
        """A leg as Tune's config, None to be asked again, or FINISHED. Raises what `on_trial_complete` met."""
        if self._broken is not None:
            raise self._broken
        if self.stopping or self.finishing:
            return None if self._legs else Searcher.FINISHED
        step = self._next()
        if not isinstance(step, Go):
            return None if step is Else.WAIT else Searcher.FINISHED
        trial = self._journal.state.trials[step.trial]
        if not self._has_room(trial):
            return None  # it is the first to be asked again, so that none with fewer workers takes its place for ever
        leg = Leg(
            folder=str(self._journal.folder.path),
            trial=trial.id,
            point=trial.point,
            attempt=self._attempt,
            rung=step.rung,
            variant=trial.variant,
            split=2 ** self._halvings(trial),
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
            outcome = _outcome(leg, result, error, self._spec.mode)
            if outcome.outcome == NO_SPACE:  # the trial stays open: its next attempt goes on from its checkpoint
                raise TuneyardError(f"trial {leg.trial} could not write: {outcome.message}; free space")
            if outcome.outcome in EARLY:
                self._cut(leg, outcome)
            elif outcome.outcome:
                self._failed(leg, outcome)
            else:
                self._ended(leg, outcome)
        except Exception as cause:
            self._broken = cause

    def save(self, checkpoint_path: str) -> None:
        """The journal is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """The journal is the state."""

    def _has_room(self, trial: TrialState) -> bool:
        """Whether its leg fits beside those that run; where none runs, Ray waits for it as for a lost node."""
        running = [self._shape(leg.variant, leg.point) for leg in self._legs.values()]
        return not running or self._fits(running, self._shape(trial.variant, trial.point))

    def _shape(self, variant: str, point: Point) -> Shape:
        return Shape.of(self._variants[variant].spec.resources_at(point))

    def _next(self) -> Go | Else:
        """The next leg of a trial that still has its place."""
        while True:
            step = self._choose()
            if not isinstance(step, Go) or not self._lost_its_place(self._journal.state.trials[step.trial]):
                return step
            self._gone.add(step.trial)

    def _choose(self) -> Go | Else:
        """The next leg of the variant that has used the least so far and has one."""
        wishes, state = self._inbox.read(), self._journal.state
        self.heard = wishes.heard
        asked = rules(self._spec, wishes, frozenset(self._gone))
        states = {name: state.of(name) for name in self._variants}
        waiting = False
        for name in sorted(self._variants, key=lambda name: promotion.spent(states[name], asked[name])):
            search = self._variants[name]
            exhausted = search.exhausted and _added(search.space, name, states[name], wishes) is None
            step = promotion.next_leg(states[name], asked[name], exhausted=exhausted)
            if step is Else.NEW:
                step = self._new_trial(name, states[name], asked[name], wishes)
            if isinstance(step, Go):
                return step
            waiting = waiting or step is Else.WAIT
        return Else.WAIT if waiting else Else.DONE

    def _lost_its_place(self, trial: TrialState) -> bool:
        """Whether a trial that stood somewhere has no checkpoint left; one that failed or died begins anew."""
        stood = trial.last is not None and (trial.pending is None or trial.outcome in CUT)
        return stood and not checkpoints.any_left(self._journal.folder.trial(trial.id))

    def _new_trial(self, name: str, state: SweepState, asked: Rules, wishes: Wishes) -> Go | Else:
        search = self._variants[name]
        point = _added(search.space, name, state, wishes)
        if point is None:
            history = [observed(trial) for trial in state.trials.values()]
            point = propose(search.space, self._spec.search.algorithm, self._spec.seed, history)
        if point is None:
            search.exhausted = True
            return promotion.next_leg(state, asked, exhausted=True)
        number = self._journal.folder.last_number(self._journal.state) + 1
        trial = f"t{number:03d}"
        title = display_name(number, point, name)
        self._journal.append(TrialCreated(trial, number, title, point, self._now_ms(), name))
        return Go(trial, 0)

    def _ended(self, leg: Leg, result: LegResult) -> None:
        self._journal.append(_stands(LegEnded, leg, result, self._now_ms()))
        if leg.rung == len(self._variants[leg.variant].spec.rungs()) - 1:
            self._trial_ended(leg, "completed", "")

    def _cut(self, leg: Leg, result: LegResult) -> None:
        if result.step:
            cut = _stands(LegCut, leg, result, self._now_ms())
            self._journal.append(replace(cut, final=result.outcome not in CUT))
        if result.outcome in CUT and self.finishing is None:
            self._gone.add(leg.trial)  # it alone was ended: it stands as it is for as long as this attempt lasts
        self._trial_ended(leg, str(result.outcome), result.message)

    def _failed(self, leg: Leg, result: LegResult) -> None:
        outcome, message = result.outcome or "error", result.message
        before = self._journal.state.trials[leg.trial]
        again = outcome in RETRIED and _failures(before, RETRIED) < self._spec.search.retries
        if outcome == OUT_OF_MEMORY and self._halves(before) and self._halvings(before) < MOST_HALVINGS:
            again, message = True, f"{message}; it goes on with every batch in {2 * leg.split} parts"
        log.warning("trial %s: %s: %s", leg.trial, outcome, message)
        idle_ms = idle_gpu_ms(leg.attempt_folder)
        self._journal.append(LegFailed(leg.trial, leg.attempt, leg.rung, outcome, message, self._now_ms(), idle_ms))
        if not again:
            self._trial_ended(leg, outcome, message)

    def _trial_ended(self, leg: Leg, outcome: str, message: str) -> None:
        """That a GPU was idle is said with the reason."""
        idle_ms = idle_gpu_ms(leg.attempt_folder)  # what no event of the leg has told
        trial = self._journal.state.trials[leg.trial]
        idle = replace(trial, idle_gpu_ms=trial.idle_gpu_ms + idle_ms).idle_gpu
        said = "; ".join(text for text in (message, idle) if text)
        self._journal.append(TrialEnded(leg.trial, outcome, said, self._now_ms(), idle_gpu_ms=idle_ms))

    def _halves(self, trial: TrialState) -> bool:
        resources = self._variants[trial.variant].spec.resources_at(trial.point)
        return resources.on_out_of_memory == "halve_batch"

    def _halvings(self, trial: TrialState) -> int:
        """How often its batches were cut into halves: each time that it ran out of memory."""
        return min(MOST_HALVINGS, _failures(trial, {OUT_OF_MEMORY})) if self._halves(trial) else 0


def _failures(trial: TrialState, outcomes: Collection[str]) -> int:
    """How many of its legs have failed so."""
    return sum(failure.outcome in outcomes for failure in trial.failures)


def rules(spec: SweepSpec, wishes: Wishes, gone: frozenset[str] = frozenset()) -> dict[str, Rules]:
    """What the promotion needs, by variant; a grid without `trials` asks for every point.

    More trials are shared like the first ones; an added point is its variant's own.
    """
    return {
        name: Rules(
            rungs=variant.rungs(),
            reduction_factor=variant.reduction_factor,
            trials=(variant.search.trials or sys.maxsize - wishes.more)
            + wishes.more // len(spec.by_variant)
            + sum(owner == name for owner, _ in wishes.added),
            mode=variant.mode,
            retried_ms=wishes.retried_ms,
            gone=gone,
        )
        for name, variant in spec.by_variant.items()
    }


def observed(trial: TrialState) -> Observed:
    """A trial as the proposals see it: its score at every rung it reached, and at the last one where it is final."""
    stood = [(leg.share, leg.score) for leg in trial.legs] + ([(1.0, trial.score)] if trial.final else [])
    scores = tuple((share, float("nan") if score is None else score) for share, score in stood)
    return Observed(point=trial.point, scores=scores, finished=trial.outcome is not None)


def _added(space: Space, variant: str, state: SweepState, wishes: Wishes) -> Point | None:
    """The first point that was asked for by hand and is not there yet."""
    there = {space.identity(trial.point) for trial in state.trials.values()}
    wanted = (point for owner, point in wishes.added if owner == variant)
    return next((point for point in wanted if space.identity(point) not in there), None)


def _stands(kind: type[_Stand], leg: Leg, result: LegResult, time_ms: int) -> _Stand:
    """Where a leg came to, as an event."""
    return kind(
        trial=leg.trial,
        attempt=leg.attempt,
        rung=leg.rung,
        share=result.share,
        tokens=result.tokens,
        step=result.step,
        score=result.score,
        metrics=result.metrics,
        time_ms=time_ms,
        idle_gpu_ms=idle_gpu_ms(leg.attempt_folder),
    )


def _outcome(leg: Leg, result: dict[str, Any] | None, error: bool, mode: Mode) -> LegResult:
    if error:
        return explain_death(leg, mode)
    if not result or "leg" not in result:
        return LegResult("no_metric", "the trial's process ended well and reported nothing")
    return LegResult(**json.loads(result["leg"]))
