"""builtin/numbers: whole numbers below a million in the words of twelve languages, each with its digits.

The words are num2words'; where it errs, they are mended. No two numbers have the same words, in one language or in two.
"""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import TYPE_CHECKING

import num2words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION = f"1/num2words-{version('num2words')}"
"""Changes whenever the same seed would give other text."""

_MENDED: dict[str, dict[str, str]] = {
    "de": {"einstausend": "eintausend"},
    "es": {"veintiuno mil": "veintiún mil", " uno mil": " un mil"},
}


def write(number: int, language: str) -> str:
    """`number` in words; languages are those of `catalog.NUMBER_LANGUAGES`."""
    text: str = num2words.num2words(number, lang=language)
    for wrong, right in _MENDED.get(language, {}).items():
        text = text.replace(wrong, right)
    return text


def example(seed: int, index: int, *, languages: Sequence[str], largest: int) -> tuple[str, str]:
    """The pair (words, digits) number `index` of `seed`, the same in every process and whatever else is drawn.

    The number is the cube of an evenly drawn share of `largest`: of a million, one in ten is below a thousand.
    """
    rng = random.Random(f"builtin/numbers {seed} {index}")
    number = int((largest + 1) * rng.random() ** 3)
    return write(number, rng.choice(languages)), str(number)


def counts(*, languages: Sequence[str], largest: int) -> Iterator[int]:
    """How many different examples there are, language by language."""
    yield from (largest + 1 for _ in languages)
