"""The points of a sweep: ranges, the architecture's own rules and the user's constraints, seen as one space."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines import architectures, cost
from tuneyard_pipelines.catalog import Vocabularies, complete, vocab_sizes
from tuneyard_pipelines.constraints import Constraint, ConstraintError, parse
from tuneyard_pipelines.ranges import Choice, Continuous, Point, Range, Scalar
from tuneyard_pipelines.vocabulary import constraint_names

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import SweepSpec

ENUMERATED = 50_000  # points; larger spaces are sampled
SAMPLED = 2_000
_PROBED = 200
_COSTS = frozenset(cost.DERIVED)


@dataclass(frozen=True)
class Survey:
    """How much of a space can be tried: of `examined` points, `feasible` keep every rule.

    `whole`: every point was examined; otherwise they are a seeded sample. `broken` counts, for each rule, the points
    that break it; one point may break several.
    """

    examined: int
    feasible: int
    whole: bool
    broken: dict[str, int]
    failing: tuple[str, ...]

    @property
    def share(self) -> float:
        return self.feasible / self.examined


@dataclass(frozen=True)
class _Judgement:
    """The rules that a point breaks, and of its constraints those that cannot be computed there, with why."""

    broken: tuple[str, ...]
    failing: Mapping[str, str]


class Space:
    """Ranges and rules of a spec. A point holds the varied keys only."""

    def __init__(
        self, spec: SweepSpec, constraints: Sequence[str] | None = None, *, vocabularies: Vocabularies | None = None
    ) -> None:
        """`constraints` take the place of the spec's own; `vocabularies` are those that the data is known to give."""
        self.ranges: dict[str, Range] = spec.ranges
        self.keys: tuple[str, ...] = tuple(spec.ranges)
        self.mode = spec.mode
        self.trials = spec.search.trials
        self._values = spec.values
        architecture = architectures.find(spec.architecture)
        self._rules = architecture.rules
        held = [constraint_of(text, spec.values) for text in (spec.constraints if constraints is None else constraints)]
        # One that speaks of what this family has not is meant for other variants.
        self._constraints: list[Constraint] = [one for one in held if all(map(architecture.follows, one.names))]
        self._vocabularies = vocabularies or {}
        self._costs = _COSTS & {name for held in self._constraints for name in held.names}
        self._judged: dict[tuple[Scalar, ...], _Judgement] = {}
        self._include = spec.search.include

    @cached_property
    def included(self) -> tuple[Point, ...]:
        """The points to start from. Raises ValueError for one that is not of this space."""
        return tuple(self.read_point(written) for written in self._include)

    @property
    def size(self) -> int | None:
        """How many points there are, feasible or not; None if a range is continuous."""
        sizes = [None if isinstance(held, Continuous) else held.size for held in self.ranges.values()]
        return None if None in sizes else prod(size for size in sizes if size is not None)

    def broken_rules(self, point: Point) -> tuple[str, ...]:
        """The rules that a point breaks; a constraint that cannot be computed there counts as broken."""
        return self._judgement(point).broken

    def broken_rule(self, point: Point) -> str | None:
        """The first rule that a point breaks, or None for a feasible one."""
        return next(iter(self.broken_rules(point)), None)

    def explained(self, broken: str) -> str:
        """A rule with its reason and the keys to change; a constraint with what to do."""
        for rule in self._rules:
            if rule.name == broken:
                values = complete(self._values)
                found = ", ".join(f"{key} = {values.get(key)}" for key in rule.keys)
                return f"it breaks {rule.name}, for {rule.message}; found {found}: change one of them"
        return f"it breaks the constraint {broken}: change the keys of that, or leave it out"

    def identity(self, point: Point) -> tuple[Scalar, ...]:
        """What makes two points the same."""
        return tuple(point[key] for key in self.keys)

    def read_point(self, written: Mapping[str, Any]) -> Point:
        """The point that a person means: a value of its range for every varied key, by full or short name.

        Raises ValueError, naming key, value and what is allowed, also for a point that breaks a rule.
        """
        names = constraint_names(self.keys)
        values: Point = {}
        for name, value in written.items():
            if name not in names:
                raise ValueError(f"{name!r} is no varied key; a point names {self._named()}")
            if names[name] in values:
                raise ValueError(f"{name!r} stands twice")
            try:
                values[names[name]] = self.ranges[names[name]].take(value)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if missing := [key for key in self.keys if key not in values]:
            raise ValueError(f"{missing[0]} is missing; a point names {self._named()}")
        point = {key: values[key] for key in self.keys}
        if (broken := self.broken_rule(point)) is not None:
            raise ValueError(f"the point breaks {broken}")
        return point

    def grid(self) -> Iterator[Point]:
        """All points, the last key moving fastest. Raises ValueError if a range is continuous."""
        if self.size is None:
            raise ValueError("a continuous range has no grid; use random or tpe")
        return (self._numbered(number) for number in range(self.size))

    def corners(self) -> Iterator[Point]:
        """The points at the lowest and at the highest end of every range; of texts, the first and the last."""
        for end in (min, max):
            yield {key: _end(held, end) for key, held in self.ranges.items()}

    def sample(self, rng: random.Random) -> Point:
        """Any point, feasible or not."""
        return {key: held.sample(rng) for key, held in self.ranges.items()}

    @property
    def constrained(self) -> bool:
        """Whether the spec has rules of its own."""
        return bool(self._constraints)

    def survey(self, seed: int, *, enough: int | None = None) -> Survey:
        """Examine every point of a space of at most 50,000, and 2,000 seeded draws of a larger or continuous one.

        No more of them once `enough` are feasible.
        """
        whole = self.size is not None and self.size <= ENUMERATED
        rng = random.Random(f"survey {seed}")
        points = self.grid() if whole else (self.sample(rng) for _ in range(SAMPLED))
        broken = Counter({rule.name: 0 for rule in self._rules} | {held.text: 0 for held in self._constraints})
        failing: dict[str, str] = {}
        examined = feasible = 0
        for point in points:
            judgement = self._judgement(point)
            examined += 1
            feasible += not judgement.broken
            if judgement.broken:
                broken.update(judgement.broken)
            for text, message in judgement.failing.items():
                failing.setdefault(text, message)
            if feasible == enough:
                break
        return Survey(examined, feasible, whole, dict(broken), tuple(failing.values()))

    def failing_constraints(self) -> dict[str, str]:
        """Constraint -> the first of a few hundred points at which it cannot be computed, and why."""
        small = self.size is not None and self.size <= _PROBED
        rng = random.Random("probe")
        failing: dict[str, str] = {}
        for point in self.grid() if small else (self.sample(rng) for _ in range(_PROBED)):
            values = self._at(point)
            for held in self._constraints:
                if held.text not in failing and (message := _failure(held, values)):
                    failing[held.text] = message
        return failing

    def _named(self) -> str:
        return ", ".join(key.rpartition(".")[2] for key in self.keys) or "no key, for nothing is varied"

    def _numbered(self, number: int) -> Point:
        point: Point = {}
        for key, held in reversed(self.ranges.items()):
            assert not isinstance(held, Continuous)
            number, index = divmod(number, held.size)
            point[key] = held.value(index)
        return {key: point[key] for key in self.keys}

    def _judgement(self, point: Point) -> _Judgement:
        identity = self.identity(point)
        if identity not in self._judged:
            if len(self._judged) > ENUMERATED:
                self._judged.clear()
            self._judged[identity] = self._judge(point)
        return self._judged[identity]

    def _judge(self, point: Point) -> _Judgement:
        values = self._at(point)
        broken = [rule.name for rule in self._rules if not rule.holds(values)]
        failing: dict[str, str] = {}
        for held in self._constraints:
            try:
                kept = held.holds(values)
            except ConstraintError as error:
                kept, failing[held.text] = False, _told(held, values, error)
            if not kept:
                broken.append(held.text)
        return _Judgement(tuple(broken), failing)

    def _at(self, point: Point) -> dict[str, Any]:
        values = complete({**self._values, **point})
        if self._costs:
            sizes = vocab_sizes(values, self._vocabularies)
            values |= {name: cost.DERIVED[name](values, sizes) for name in self._costs}
        return values


def constraint_of(text: str, values: Mapping[str, Any]) -> Constraint:
    """Read a constraint over the dotted keys of `values` and over what a point costs. Raises ConstraintError."""
    return parse(text, constraint_names(values) | {name: name for name in _COSTS})


def needs_costs(text: str, values: Mapping[str, Any]) -> bool:
    """Whether a constraint speaks of what a point costs, which depends on the vocabulary. Raises ConstraintError."""
    return bool(_COSTS & set(constraint_of(text, values).names))


def _end(held: Range, end: Callable[..., Scalar]) -> Scalar:
    if not isinstance(held, Choice):
        return end(held.low, held.high)
    numbers = all(isinstance(value, int | float) for value in held.values)
    return end(held.values) if numbers else held.values[0 if end is min else -1]


def _failure(constraint: Constraint, values: Mapping[str, Any]) -> str:
    """Why it cannot be computed there; empty where it can."""
    try:
        constraint.holds(values)
    except ConstraintError as error:
        return _told(constraint, values, error)
    return ""


def _told(constraint: Constraint, values: Mapping[str, Any], error: ConstraintError) -> str:
    where = ", ".join(f"{name} = {values[name]}" for name in constraint.names if name in values)
    return f'"{constraint.text}" cannot be computed at {where or "any point"}: {error}'
