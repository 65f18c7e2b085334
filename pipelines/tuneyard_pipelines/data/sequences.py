"""builtin/copy, builtin/reverse and builtin/sort: sequences of symbols, each with its copy, its reverse or its order.

A symbol is one character, and no blank stands between two: digits, then letters, then Han characters, in the order of
their code points, which is the order that builtin/sort asks for.
"""

from __future__ import annotations

import random
import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = "1"
"""Changes whenever the same seed would give other text."""

LETTERS = string.ascii_uppercase + string.ascii_lowercase + "".join(map(chr, range(0x4E00, 0x4E00 + 4096 - 52)))
SYMBOLS = string.digits + LETTERS

TARGETS: dict[str, Callable[[str], str]] = {
    "builtin/copy": str,
    "builtin/reverse": lambda source: source[::-1],
    "builtin/sort": lambda source: "".join(sorted(source)),
}


def example(name: str, seed: int, index: int, *, min_length: int, max_length: int, symbols: int) -> tuple[str, str]:
    """The pair (source, target) number `index` of `seed`, the same in every process and whatever else is drawn.

    `name` is one of TARGETS. Every length from `min_length` to `max_length` is as likely as another.
    """
    rng = random.Random(f"{name} {seed} {index}")
    source = "".join(rng.choices(SYMBOLS[:symbols], k=rng.randint(min_length, max_length)))
    return source, TARGETS[name](source)


def counts(*, min_length: int, max_length: int, symbols: int) -> Iterator[int]:
    """How many different sequences there are, length by length."""
    yield from (symbols**length for length in range(min_length, max_length + 1))
