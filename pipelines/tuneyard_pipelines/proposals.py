"""The next point to try, as a pure function of the space, the seed and what was seen so far.

grid    the first feasible point in order that is not in the history
random  a uniform draw among the feasible points that are not in the history
tpe     the tree-structured Parzen estimator (Bergstra et al. 2011) by Optuna, over a study built anew from the history

Every algorithm keeps two promises: never a point that breaks a rule, never one that is in the history.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tuneyard_pipelines.ranges import Choice, Integers, LogUniform, Point, Range, Scalar
from tuneyard_pipelines.space import ENUMERATED, Space

if TYPE_CHECKING:
    import optuna

_DRAWS = 10_000
_TPE_DRAWS = 24


@dataclass(frozen=True)
class Observed:
    """A point of the history and its intermediate scores, oldest first: (share of the budget or tokens, score).

    A score that is not finite is the worst. `finished`: it will get no further score.
    """

    point: Point
    scores: tuple[tuple[float, float], ...] = ()
    finished: bool = False


def propose(space: Space, algorithm: str, seed: int, history: Sequence[Observed]) -> Point | None:
    """The next point, or None when no feasible point is left that is not in the history; included points come first.

    Of a space too large to enumerate, None means that 10,000 draws met none. random depends on the seed and the points
    of the history; tpe on their scores too.
    """
    seen = {space.identity(observed.point) for observed in history}
    for included in space.included:
        if space.identity(included) not in seen:
            return included
    if algorithm == "grid":
        return next(_left(space, seen), None)
    rng = random.Random(f"{algorithm} {seed} {len(history)}")
    if algorithm == "tpe" and space.keys and _scored(history) >= startup_trials(space.trials):
        point = _by_tpe(space, rng.getrandbits(32), history, seen)
        if point is not None:
            return point
    return _by_chance(space, rng, seen)


def startup_trials(trials: int | None) -> int:
    """How many random points tpe sees before it models: a fifth of the trials, at least 3 and at most 10.

    Optuna's fixed 10 would leave a sweep of 12 trials to chance; below 3 there is no good and bad to tell apart.
    """
    return min(10, max(3, round((trials or 0) / 5)))


def _scored(history: Sequence[Observed]) -> int:
    return sum(bool(observed.scores) or observed.finished for observed in history)


def _left(space: Space, seen: set[tuple[Scalar, ...]]) -> Iterator[Point]:
    """Feasible points in order of the grid that are not in the history."""
    return (point for point in space.grid() if space.identity(point) not in seen and space.broken_rule(point) is None)


def _by_chance(space: Space, rng: random.Random, seen: set[tuple[Scalar, ...]]) -> Point | None:
    """Draws until one is new and feasible; the last few points of a small space are found by listing what is left."""
    small = space.size is not None and space.size <= ENUMERATED
    for _ in range(min(_DRAWS, 2 * (space.size or 0)) if small else _DRAWS):
        point = space.sample(rng)
        if space.identity(point) not in seen and space.broken_rule(point) is None:
            return point
    left = list(_left(space, seen)) if small else []
    return rng.choice(left) if left else None


def _by_tpe(space: Space, seed: int, history: Sequence[Observed], seen: set[tuple[Scalar, ...]]) -> Point | None:
    """TPE's first new and feasible suggestion of a bounded number, or None."""
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study, axes = _study(space, seed, history)
            distributions = {axis.key: axis.distribution for axis in axes}
            for _ in range(_TPE_DRAWS):
                trial = study.ask(distributions)
                point = {axis.key: axis.value(trial.params[axis.key]) for axis in axes}
                if space.identity(point) not in seen and space.broken_rule(point) is None:
                    return point
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return None


def _study(space: Space, seed: int, history: Sequence[Observed]) -> tuple[optuna.Study, list[_Axis]]:
    """The history as Optuna's trials.

    Every point that was scored is a pruned trial: TPE ranks those by how far they came, then by the score there, which
    is what promotion by rungs means. One that ended without a score ranks last. One that runs unscored keeps others
    away (the constant liar). A score that is not finite is passed on as the worst there is.
    """
    import optuna

    direction: Literal["maximize", "minimize"] = "maximize" if space.mode == "max" else "minimize"
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=1, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction=direction, sampler=sampler)
    axes = [_Axis(key, held) for key, held in space.ranges.items()]
    marks = sorted({mark for observed in history for mark, _ in observed.scores})
    steps = {mark: number for number, mark in enumerate(marks)}
    worst = -math.inf if space.mode == "max" else math.inf
    states = optuna.trial.TrialState
    for observed in history:
        study.add_trial(
            optuna.trial.create_trial(
                state=states.PRUNED if observed.scores or observed.finished else states.RUNNING,
                params={axis.key: axis.internal(observed.point[axis.key]) for axis in axes},
                distributions={axis.key: axis.distribution for axis in axes},
                intermediate_values={
                    steps[mark]: score if math.isfinite(score) else worst for mark, score in observed.scores
                },
            )
        )
    return study, axes


class _Axis:
    """One key as Optuna sees it.

    A list of numbers is an ordered choice: TPE is given the index in rising order, so that what it learns of 4 heads
    says something of 2 and 8, whatever the distance between the values. Texts have no order and stay a category.
    """

    def __init__(self, key: str, held: Range) -> None:
        import optuna.distributions as optuna_distributions

        self.key = key
        self._order: list[Any] | None = None
        self.distribution: optuna_distributions.BaseDistribution
        if isinstance(held, Choice):
            ordered = all(isinstance(value, int | float) and not isinstance(value, bool) for value in held.values)
            self._order = sorted(held.values) if ordered else list(held.values)
            last = len(self._order) - 1
            self.distribution = (
                optuna_distributions.IntDistribution(0, last)
                if ordered
                else optuna_distributions.CategoricalDistribution(range(last + 1))
            )
        elif isinstance(held, Integers):
            self.distribution = optuna_distributions.IntDistribution(held.low, held.high, step=held.step)
        else:
            log = isinstance(held, LogUniform)
            self.distribution = optuna_distributions.FloatDistribution(held.low, held.high, log=log)

    def internal(self, value: Scalar) -> Any:
        return value if self._order is None else self._order.index(value)

    def value(self, internal: Any) -> Scalar:
        held: Scalar = internal if self._order is None else self._order[internal]
        return held
