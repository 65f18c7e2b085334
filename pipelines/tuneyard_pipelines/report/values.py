"""Which value of each key pays, in words, and whether that can be told from chance."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneyard_pipelines.ranges import Scalar
from tuneyard_pipelines.report.axes import grouped, key_labels, varied_keys
from tuneyard_pipelines.report.trials import Comparison, Sweep, comparable, cost, counted, number

if TYPE_CHECKING:
    import numpy as np

MOST_VALUES = 6
FEWEST_TRIALS = 3
_NAMED = 4
_PERMUTATIONS = 999
_CHANCE = 0.05


@dataclass(frozen=True)
class _Value:
    """A value of a key: the scores of the trials that have it, best first."""

    label: str
    scores: tuple[float, ...]

    @property
    def best(self) -> float:
        return self.scores[0]


def sentences(sweep: Sweep) -> list[str]:
    """A sentence for the variant and for each key that a variant varies: its values by best score, what can be told.

    Keys are looked at within each variant: a length in bytes and one in byte pairs are not the same.

    A value is better than another beyond chance when ranks as much in its favour come up in less than one of twenty
    shufflings of the two values among their trials (a permutation test; Good 2005, "Permutation, Parametric and
    Bootstrap Tests of Hypotheses"), times the number of values it is compared with.
    """
    compared = comparable(sweep)
    if not compared.trials:
        return ["No trial has a score yet, so nothing can be said about the values of keys."]
    keys = varied_keys(sweep.trials)
    told = []
    if sweep.variants:
        told.append(_sentence("variant", [trial.variant or None for trial in compared.trials], sweep, compared))
    for key, label in key_labels(keys).items():
        for variant in sweep.variants or [""]:
            inside = [trial for trial in sweep.trials if not variant or trial.variant == variant]
            if not any(key in trial.point for trial in inside):
                continue
            values = [trial.point.get(key) if trial in inside else None for trial in compared.trials]
            told.append(_sentence(f"{label} of {variant}" if variant else label, values, sweep, compared))
    return told


def _sentence(
    label: str,
    values: Sequence[Scalar | None],
    sweep: Sweep,
    compared: Comparison,
) -> str:
    ranked = _by_best(values, sweep, compared)
    if len(ranked) < 2:
        only = f"only {ranked[0].label} was compared" if ranked else "no trial that varies it has a score"
        return f"{label}: {only}."
    first, others = ranked[0], ranked[1:]
    equal = [value for value in others if value.best == first.best]
    opening = (
        f"{first.label} and {', '.join(value.label for value in equal)} share the best {sweep.metric}, {_facts(first)}"
        if equal
        else f"{first.label} has the best {sweep.metric}, {_facts(first)}"
    )
    named = [f"{value.label} with {_facts(value)}" for value in others[: _NAMED - 1]]
    more = len(others) - len(named)
    named += [f"{counted(more, 'more value')}"] if more else []
    verdict = _verdict(first, others, sweep)
    return f"{label}: {opening}; then {', '.join(named)}. {verdict}"


def _by_best(values: Sequence[Scalar | None], sweep: Sweep, compared: Comparison) -> list[_Value]:
    intervals = min(max(len(values) // 6, 2), 4)
    groups = grouped(values, MOST_VALUES, intervals)
    found: list[_Value] = []
    for index, label in enumerate(groups.labels):
        scores = zip(groups.of, compared.scores, strict=True)
        having = sorted((score for group, score in scores if group == index), key=lambda one: cost(one, sweep.mode))
        found.append(_Value(label, tuple(having)))
    return sorted(found, key=lambda value: [cost(value.best, sweep.mode), cost(_middle(value), sweep.mode)])


def _facts(value: _Value) -> str:
    """`0.91 (6 trials, median 0.8)`."""
    middle = f", median {number(_middle(value))}" if len(value.scores) > 1 else ""
    return f"{number(value.best)} ({counted(len(value.scores), 'trial')}{middle})"


def _verdict(first: _Value, others: Sequence[_Value], sweep: Sweep) -> str:
    import numpy as np

    rng = np.random.default_rng(sweep.seed)
    gap = f"{abs(others[0].best - first.best):.2g}"
    spread = _spread([first, *others])
    noise = f"scores within one value spread by {spread:.2g}" if spread is not None else "no value was tried twice"
    if len(first.scores) < FEWEST_TRIALS:
        return (
            f"With {counted(len(first.scores), 'trial')} of {first.label} this is a hint, not an answer: the best "
            f"scores are {gap} apart, and {noise}."
        )
    enough = [value for value in others if len(value.scores) >= FEWEST_TRIALS]
    beaten = [value for value in enough if _chance(first, value, sweep, rng) * len(others) <= _CHANCE]
    rest = [value.label for value in others if value not in beaten]
    if not beaten:
        return f"No difference can be told from chance: the best scores are {gap} apart, and {noise} (the middle half)."
    better = f"{first.label} is better than {_listed([value.label for value in beaten])} beyond chance"
    if not rest:
        return f"{better}."
    return f"{better}, and cannot be told from {_listed(rest)}: {noise} (the middle half)."


def _chance(first: _Value, other: _Value, sweep: Sweep, rng: np.random.Generator) -> float:
    """How often shuffling ranks `first` as far before `other` as it stands."""
    import numpy as np

    costs = np.array([cost(score, sweep.mode) for score in (*first.scores, *other.scores)])
    _, index, counts = np.unique(costs, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]
    shuffled = rng.permuted(np.tile(ranks, (_PERMUTATIONS, 1)), axis=1)
    own = len(first.scores)
    as_good = np.count_nonzero(shuffled[:, :own].sum(axis=1) <= ranks[:own].sum())
    return float(1 + as_good) / (1 + _PERMUTATIONS)


def _middle(value: _Value) -> float:
    return statistics.median(value.scores)


def _spread(values: Sequence[_Value]) -> float | None:
    """Width of the middle half of the scores about the median of their value."""
    apart = [score - _middle(value) for value in values if len(value.scores) > 1 for score in value.scores]
    if not apart:
        return None
    low, _, high = statistics.quantiles(apart, n=4, method="inclusive")
    return high - low


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
