"""Pairs of texts from a file: two columns of a table (`tables`), a pair in each row.

Texts come out in Unicode normal form C and without white space around them. Pairs with an empty side are left out and
counted. Everything else that is not a pair stops the reading with the line's number: a wrong pair is worse than none.
"""

from __future__ import annotations

import hashlib
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneyard_pipelines.data import tables
from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Pairs:
    """What a file holds: pairs (source, target) in its order, how many were left out, and the digest of its bytes."""

    pairs: list[tuple[str, str]]
    empty: int
    sha256: str


def read(path: Path, *, source: int | str = 1, target: int | str = 2, header: bool = False) -> Pairs:
    """Read all pairs of `path`, whose columns are as `tables.rows` takes them.

    Raises DataError as that does, and for a file that holds no pair.
    """
    digest = hashlib.sha256()
    pairs: list[tuple[str, str]] = []
    empty = 0
    for _, texts in tables.rows(path, (source, target), header=header, digest=digest):
        one, other = (unicodedata.normalize("NFC", text).strip() for text in texts)
        if one and other:
            pairs.append((one, other))
        else:
            empty += 1
    if not pairs:
        raise DataError(
            f"{path}: no pair in this file ({empty} lines with an empty side). Each line needs a source and a target."
        )
    return Pairs(pairs, empty, digest.hexdigest())
