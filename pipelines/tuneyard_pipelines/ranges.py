"""What may stand in place of one value: a choice, a uniform or log-uniform interval, whole numbers with a step.

| written as              | class      | points                                   |
|-------------------------|------------|------------------------------------------|
| `[a, b, c]`             | Choice     | the values, in the order written         |
| `{int: [a, b], step: n}`| Integers   | a, a + n, ..., b: both ends included     |
| `{uniform: [a, b]}`     | Uniform    | every number from a to b                 |
| `{loguniform: [a, b]}`  | LogUniform | the same, each factor of ten as likely   |
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Scalar = bool | int | float | str
Point = dict[str, Scalar]


@dataclass(frozen=True)
class Choice:
    """One of the listed values."""

    values: tuple[Scalar, ...]

    @property
    def size(self) -> int:
        return len(self.values)

    def value(self, index: int) -> Scalar:
        return self.values[index]

    def take(self, value: Any) -> Scalar:
        """The choice that `value` is. Raises ValueError."""
        for held in self.values:
            if held == value and _is_number(held) == _is_number(value):
                return held
        raise ValueError(f"found {value!r}; allowed: one of {', '.join(map(str, self.values))}")

    def sample(self, rng: random.Random) -> Scalar:
        return rng.choice(self.values)

    def written(self) -> list[Scalar]:
        return list(self.values)


@dataclass(frozen=True)
class Integers:
    """Whole numbers from `low` to `high`, both included, `step` apart."""

    low: int
    high: int
    step: int = 1

    @property
    def size(self) -> int:
        return (self.high - self.low) // self.step + 1

    def value(self, index: int) -> int:
        return self.low + index * self.step

    def take(self, value: Any) -> int:
        """`value` as a number of the range. Raises ValueError."""
        if _is_number(value) and self.low <= value <= self.high and (value - self.low) % self.step == 0:
            return int(value)
        apart = "" if self.step == 1 else f", {self.step} apart"
        raise ValueError(f"found {value!r}; allowed: a whole number from {self.low} to {self.high}{apart}")

    def sample(self, rng: random.Random) -> int:
        return self.value(rng.randrange(self.size))

    def written(self) -> dict[str, Any]:
        return {"int": [self.low, self.high]} | ({"step": self.step} if self.step != 1 else {})


@dataclass(frozen=True)
class Uniform:
    """Every number from `low` to `high` alike."""

    low: float
    high: float

    def take(self, value: Any) -> float:
        """`value` as a number of the interval. Raises ValueError."""
        return _between(value, self.low, self.high)

    def sample(self, rng: random.Random) -> float:
        return min(max(rng.uniform(self.low, self.high), self.low), self.high)

    def written(self) -> dict[str, Any]:
        return {"uniform": [self.low, self.high]}


@dataclass(frozen=True)
class LogUniform:
    """Numbers from `low` to `high` whose logarithm is uniform; `low` > 0."""

    low: float
    high: float

    def take(self, value: Any) -> float:
        """`value` as a number of the interval. Raises ValueError."""
        return _between(value, self.low, self.high)

    def sample(self, rng: random.Random) -> float:
        return min(max(math.exp(rng.uniform(math.log(self.low), math.log(self.high))), self.low), self.high)

    def written(self) -> dict[str, Any]:
        return {"loguniform": [self.low, self.high]}


Countable = Choice | Integers
Continuous = Uniform | LogUniform
Range = Countable | Continuous

FORMS: dict[type, tuple[str, ...]] = {
    int: ("[a, b, ..]", "{int: [a, b]}"),
    float: ("[a, b, ..]", "{uniform: [a, b]}", "{loguniform: [a, b]}"),
    str: ("[a, b, ..]",),
    bool: ("[true, false]",),
}
RANGE_WORDS = frozenset({"int", "uniform", "loguniform"})


def read(written: list[Any] | dict[str, Any], kind: type, value: Callable[[Any], Scalar]) -> Range:
    """The range that a list or mapping of the spec means.

    `kind` is the key's type (int, float, str or bool), `value` checks one end or choice and raises ValueError with what
    is allowed. Raises ValueError with the rule that was broken and what to write.
    """
    if isinstance(written, list):
        return _choice(written, value)
    forms = ", ".join(FORMS[kind])
    words = sorted(RANGE_WORDS & written.keys())
    if len(words) != 1 or not written.keys() <= {words[0], "step"} or words[0] not in forms:
        raise ValueError(f"not a form of range that this key takes; write one of {forms}")
    [word] = words
    if "step" in written and word != "int":
        raise ValueError(f"step goes with int only; write {{{word}: [a, b]}}")
    low, high = _ends(word, written[word], value)
    if word == "int":
        return _integers(int(low), int(high), written.get("step", 1))
    if not low < high:
        raise ValueError(f"{word} from {low!r} to {high!r}: the first end must be below the second")
    if word == "uniform":
        return Uniform(float(low), float(high))
    if low <= 0:
        raise ValueError(f"loguniform from {low!r}: both ends must be above 0")
    return LogUniform(float(low), float(high))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _between(value: Any, low: float, high: float) -> float:
    if _is_number(value) and low <= value <= high:
        return float(value)
    raise ValueError(f"found {value!r}; allowed: a number from {low:g} to {high:g}")


def _choice(written: list[Any], value: Callable[[Any], Scalar]) -> Choice:
    if not written:
        raise ValueError("an empty list leaves nothing to try; name at least one value")
    values: list[Scalar] = []
    for number, entry in enumerate(written, start=1):
        try:
            checked = value(entry)
        except ValueError as error:
            raise ValueError(f"choice {number}: {error}") from None
        if checked in values:
            raise ValueError(f"choice {number}: {checked!r} stands twice; name each value once")
        values.append(checked)
    return Choice(tuple(values))


def _ends(word: str, written: Any, value: Callable[[Any], Scalar]) -> tuple[Any, Any]:
    if not isinstance(written, list) or len(written) != 2:
        raise ValueError(f"{word} takes its two ends; write {{{word}: [a, b]}}")
    ends = []
    for name, entry in zip(("low end", "high end"), written, strict=True):
        try:
            ends.append(value(entry))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return ends[0], ends[1]


def _integers(low: int, high: int, step: Any) -> Integers:
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ValueError(f"step {step!r}: must be a whole number of at least 1")
    if low > high:
        raise ValueError(f"int from {low} to {high}: the first end must not be above the second")
    if (high - low) % step:
        last = high - (high - low) % step
        raise ValueError(
            f"step {step} from {low} reaches {last}, not {high}; write {{int: [{low}, {last}], step: {step}}}"
        )
    return Integers(low, high, step)
