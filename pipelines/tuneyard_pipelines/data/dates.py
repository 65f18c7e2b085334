"""builtin/dates: dates as people write them in fourteen locales, each with the one ISO 8601 date that it means.

Only forms that mean the same in every locale are used: years have four digits, and where the month is a number, the
order of day and month is the only one in use (2021-09-03, 2021/9/3, 03.09.2021). 03/09/2021 is left out: two dates.
"""

from __future__ import annotations

import datetime
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import babel
from babel.dates import format_date

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = f"1/babel-{babel.__version__}"
"""Changes whenever the same seed would give other text."""

FIRST_DAY = datetime.date(1950, 1, 1)
LAST_DAY = datetime.date(2049, 12, 31)


@dataclass(frozen=True)
class Form:
    """One way of writing a date: a locale of CLDR and a pattern (or the name of a pattern) of that locale."""

    locale: str
    pattern: str

    def write(self, day: datetime.date) -> str:
        """The date as a person types it: with plain spaces only."""
        return format_date(day, self.pattern, locale=_LOCALES[self.locale]).translate(_PLAIN_SPACES)


PATTERNS: dict[str, tuple[str, ...]] = {
    "en_US": ("full", "long", "medium", "EEE, MMM d, y", "EEEE MMMM d y"),
    "en_GB": ("full", "long", "medium", "EEE d MMM y", "EEEE d MMMM y"),
    "de": ("full", "long", "medium", "d.M.y", "EEEE, 'den' d. MMMM y"),
    "fr": ("full", "long", "medium", "EEE d MMM y", "'le' EEEE d MMMM y"),
    "es": ("full", "long", "medium", "EEEE d 'de' MMMM 'de' y"),
    "it": ("full", "long", "medium", "EEE d MMM y", "EEEE, d MMMM y"),
    "pt": ("full", "long", "medium", "EEEE, 'dia' d 'de' MMMM 'de' y"),
    "nl": ("full", "long", "medium", "EEE d MMM y", "EEEE, d MMMM y"),
    "sv": ("full", "long", "medium", "short", "EEEE 'den' d MMMM y"),
    "pl": ("full", "long", "medium", "dd.MM.y", "EEEE, d MMMM y 'roku'"),
    "ru": ("full", "long", "medium", "d MMMM y", "EEEE, d MMMM y 'года'"),
    "ja": ("full", "long", "medium", "y年M月d日(EEE)"),
    "ko": ("full", "long", "medium", "y년 M월 d일 (EEE)"),
    "zh_Hans": ("full", "long", "short", "y年M月d日 EEE"),
}
CASES = {"as written": 8, "lower": 1, "capitalised": 1}
"""Capitals that people use, with how often each is drawn."""

_LOCALES = {name: babel.Locale.parse(name) for name in PATTERNS}
_FORMS = {name: tuple(Form(name, pattern) for pattern in patterns) for name, patterns in PATTERNS.items()}
_NAMES = tuple(PATTERNS)
_PLAIN_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " "})


def cased(text: str, case: str) -> str:
    """The text with the capitals of `case`, one of CASES."""
    if case == "lower":
        return text.lower()
    if case == "capitalised":
        return text[:1].upper() + text[1:]
    return text


def forms() -> Iterator[Form]:
    """Every form that `example` can draw."""
    for group in _FORMS.values():
        yield from group


def example(seed: int, index: int) -> tuple[str, str]:
    """The pair (text, ISO 8601 date) number `index` of `seed`, the same in every process and whatever else is drawn."""
    rng = random.Random(f"builtin/dates {seed} {index}")
    day = datetime.date.fromordinal(rng.randint(FIRST_DAY.toordinal(), LAST_DAY.toordinal()))
    form = rng.choice(_FORMS[rng.choice(_NAMES)])
    case = rng.choices(list(CASES), list(CASES.values()))[0]
    return cased(form.write(day), case), day.isoformat()


def generate(examples: int, seed: int) -> list[tuple[str, str]]:
    """The first `examples` pairs of `seed`: a longer list begins with the shorter one."""
    return [example(seed, index) for index in range(examples)]
