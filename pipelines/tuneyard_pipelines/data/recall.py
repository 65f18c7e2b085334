"""builtin/recall: pairs of a letter and a digit, then one of the letters, which asks for its digit: A7 C2 F9 ? C -> 2.

The associative recall of Ba et al. (2016), section 4.1, with blanks between the pairs. A letter that stands alone is a
distractor: no pair, though it may look like the letter asked for.
"""

from __future__ import annotations

import math
import random
import string
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.sequences import LETTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = "1"
"""Changes whenever the same seed would give other text."""


def example(
    seed: int, index: int, *, min_length: int, max_length: int, symbols: int, distractors: int
) -> tuple[str, str]:
    """The pair (source, digit) number `index` of `seed`, the same in every process and whatever else is drawn.

    Lengths count pairs, and each from `min_length` to `max_length` is as likely as another; their letters differ.
    `distractors` letters stand at random places among them.
    """
    rng = random.Random(f"builtin/recall {seed} {index}")
    letters = LETTERS[:symbols]
    keys = rng.sample(letters, rng.randint(min_length, max_length))
    values = dict(zip(keys, rng.choices(string.digits, k=len(keys)), strict=True))
    shown = [key + value for key, value in values.items()] + rng.choices(letters, k=distractors)
    rng.shuffle(shown)
    asked = rng.choice(keys)
    return f"{' '.join(shown)} ? {asked}", values[asked]


def counts(*, min_length: int, max_length: int, symbols: int, distractors: int) -> Iterator[int]:
    """How many different sources there are, number of pairs by number of pairs."""
    for pairs in range(min_length, max_length + 1):
        noise = math.comb(pairs + distractors, distractors) * symbols**distractors
        yield math.perm(symbols, pairs) * len(string.digits) ** pairs * noise * pairs
