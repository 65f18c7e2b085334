"""Which pairs are trained on, which choose the settings and which score them: no text of one split stands in another.

Pairs that share a source or a target text form a group, and a group stays together. The groups are ordered by a seeded
hash of their texts and taken until a split has its share, so that lines added to the data move few of the others.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLITS = ("train", "validation", "test")


def split(
    pairs: Sequence[tuple[str, str]], *, validation: float, test: float, seed: int, place: str
) -> dict[str, list[int]]:
    """Positions in `pairs` for each of SPLITS, ascending. `place` is named in errors: the file or built-in source.

    A group larger than what a share has left goes to training. Raises DataError if a split would be empty.
    """
    groups = _groups(pairs)
    chosen: dict[str, list[int]] = {}
    for name, share in (("test", test), ("validation", validation)):
        taken = _take(groups, round(share * len(pairs)), f"{seed} {name}")
        chosen[name] = sorted(member for key in taken for member in groups.pop(key))
    chosen["train"] = sorted(member for members in groups.values() for member in members)
    for name in SPLITS:
        if not chosen[name]:
            counts = ", ".join(f"{other} {len(chosen[other])}" for other in SPLITS)
            raise DataError(
                f"{place}: the {name} split is empty ({len(pairs)} pairs: {counts}). data.split.validation is "
                f"{validation} and data.split.test is {test}; pairs that share a text stay on one side. "
                "Give more pairs or change the shares."
            )
    return {name: chosen[name] for name in SPLITS}


def _groups(pairs: Sequence[tuple[str, str]]) -> dict[bytes, list[int]]:
    """Members by the least digest of their pairs: a name that other groups and most new members leave as it is."""
    parent = list(range(len(pairs)))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for side in (0, 1):
        first: dict[str, int] = {}
        for position, pair in enumerate(pairs):
            one, other = root(first.setdefault(pair[side], position)), root(position)
            parent[max(one, other)] = min(one, other)
    members: dict[int, list[int]] = {}
    for position in range(len(pairs)):
        members.setdefault(root(position), []).append(position)
    return {min(_digest("\0".join(pairs[member])) for member in group): group for group in members.values()}


def _take(groups: dict[bytes, list[int]], room: int, salt: str) -> list[bytes]:
    taken = []
    for key in sorted(groups, key=lambda key: _digest(f"{salt} {key.hex()}")):
        if len(groups[key]) <= room:
            taken.append(key)
            room -= len(groups[key])
    return taken


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
