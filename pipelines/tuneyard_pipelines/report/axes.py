"""Where values of keys stand on an axis: numbers along it, linear or by their logarithm, and texts each at a tick.

Values that are few stand evenly, each at its own tick. A key that a trial does not vary stands at the tick `-`.
"""

from __future__ import annotations

import bisect
import html
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from tuneyard_pipelines.ranges import Scalar
from tuneyard_pipelines.report.trials import Trial
from tuneyard_pipelines.spec import short_name

MISSING = "-"
FEW = 8
TICKS = 5
LONGEST_LABEL = 28
_NARROW = 200
KEY_FACTOR, SCORE_FACTOR = 4, 30  # between the ends of what may stand on a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """One place a trial, and the ticks (place, label) in their order. `log`: places are the values' log10."""

    places: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    log: bool = False


@dataclass(frozen=True)
class Groups:
    """The group of each trial (None: it has no such value), as an index into `labels`."""

    labels: tuple[str, ...]
    of: tuple[int | None, ...]


def varied_keys(trials: Iterable[Trial]) -> list[str]:
    """Every key that some trial varies, in the order of their first appearance."""
    return list(dict.fromkeys(key for trial in trials for key in trial.point))


def key_labels(keys: Sequence[str]) -> dict[str, str]:
    """Key -> its short name, or the key itself where two would share one."""
    short = {key: short_name(key) for key in keys}
    taken = list(short.values())
    return {key: key if taken.count(name) > 1 else name for key, name in short.items()}


def escaped(text: str) -> str:
    """`text` as Plotly shows it: Plotly reads a few tags of HTML in titles, labels, legends and hovers."""
    return html.escape(storable(text), quote=False)


def storable(text: str) -> str:
    """`text` without what UTF-8 cannot hold."""
    return text.encode("utf-8", "replace").decode()


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def written(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else storable(value) if isinstance(value, str) else str(value)


def axis(values: Sequence[Scalar | None], *, even: bool = True, factor: float = KEY_FACTOR) -> Axis:
    """The places of one key's values, one value a trial. `even`: few numbers may stand evenly, each at a tick.

    `factor`: as in `log_like`.
    """
    known = [value for value in values if _is_known(value)]
    names = labels(known)
    numbers = [value for value in known if _is_number(value)]
    some_repeat = len(names) < max(2, len(known))
    few = len(names) <= FEW and (some_repeat or all(float(value).is_integer() for value in numbers))
    if not known or (even and few) or len(numbers) < len(known):
        index = {identity: float(place) for place, identity in enumerate(names)}
        ticks = [(index[identity], name) for identity, name in names.items()]
        places = [index[_identity(value)] if _is_known(value) else None for value in values]
        return _with_missing(places, ticks, log=False)
    log = log_like(numbers, factor)
    scaled = [(math.log10(value) if log else float(value)) if _is_number(value) else None for value in values]
    low, high = min(numbers), max(numbers)
    at = [
        low * (high / low) ** (tick / (TICKS - 1)) if log else low + (high - low) * tick / (TICKS - 1)
        for tick in range(TICKS)
    ]
    ticks = [(math.log10(value) if log else value, f"{value:.3g}") for value in (at if high > low else at[:1])]
    return _with_missing(scaled, ticks, log=log)


def log_like(values: Sequence[float], factor: float) -> bool:
    """Whether positive numbers span that factor and lie more evenly by their logarithm than as they are."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if low <= 0 or high / low < factor:
        return False
    middle = statistics.median(values)
    linear, logarithmic = (middle - low) / (high - low), math.log(middle / low) / math.log(high / low)
    return abs(logarithmic - 0.5) < abs(linear - 0.5)


def grouped(values: Sequence[Scalar | None], most: int, intervals: int | None = None) -> Groups:
    """Each value a group, in order; more numbers than `most` fall into `intervals` of equally many trials each."""
    known = [value for value in values if _is_known(value)]
    names = labels(known)
    numbers = sorted(value for value in known if _is_number(value))
    if len(names) <= most or len(numbers) < len(known):
        index = {identity: place for place, identity in enumerate(names)}
        return Groups(tuple(names.values()), tuple(index[_identity(v)] if _is_known(v) else None for v in values))
    parts = intervals or most
    bins = [bisect.bisect_left(numbers, v) * parts // len(numbers) if _is_number(v) else None for v in values]
    used = sorted({place for place in bins if place is not None})
    ends = [[v for v, place in zip(values, bins, strict=True) if place == wanted and _is_number(v)] for wanted in used]
    texts = tuple(
        written(min(within)) if min(within) == max(within) else f"{written(min(within))} to {written(max(within))}"
        for within in ends
    )
    return Groups(texts, tuple(None if place is None else used.index(place) for place in bins))


def log_ticks(values: Sequence[float]) -> list[float]:
    """1, 2 and 5 times powers of ten among positive `values`; their ends where these are too close for two of them."""
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < _NARROW else (1,)
    ticks = [step * 10.0**power for power in powers for step in steps if low / 1.1 <= step * 10.0**power <= high * 1.1]
    return ticks if len(ticks) > 1 else sorted({low, high})


def labels(values: Iterable[Scalar]) -> Mapping[tuple[str, Scalar], str]:
    """Identity -> text, of the different values in order: false, true, numbers, texts. No two texts are equal."""
    different = {_identity(value): value for value in values}
    short = {identity: cut(written(value), LONGEST_LABEL) for identity, value in different.items()}
    taken = [MISSING, *short.values()]
    return {
        identity: short[identity] if taken.count(short[identity]) == 1 else _whole(different[identity])
        for identity in sorted(different)
    }


def _whole(value: Scalar) -> str:
    return json.dumps(storable(value), ensure_ascii=False) if isinstance(value, str) else repr(value)


def _identity(value: Scalar) -> tuple[str, Scalar]:
    """1, true and "1" are three values; the kinds' names sort as the kinds do."""
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number", value


def _is_known(value: Scalar | None) -> TypeGuard[Scalar]:
    return value is not None and (isinstance(value, str) or math.isfinite(value))


def _is_number(value: Scalar | None) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _with_missing(places: Sequence[float | None], ticks: Sequence[tuple[float, str]], *, log: bool) -> Axis:
    """Values that are not there stand below all others."""
    if None not in places:
        return Axis(tuple(place for place in places if place is not None), tuple(ticks), log)
    low, high = (ticks[0][0], ticks[-1][0]) if ticks else (0.0, 0.0)
    below = low - (1.0 if all(place == int(place) for place, _ in ticks) else (high - low) / (TICKS - 1) or 1.0)
    filled = tuple(below if place is None else place for place in places)
    return Axis(filled, ((below, MISSING), *ticks), log)
