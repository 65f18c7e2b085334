"""What is trained on, what chooses the settings and what scores them: no text of one split stands in another.

Examples that share a key form a group, and a group stays together: pairs with the same source or the same target, equal
documents, files of one module. The groups are ordered by a seeded hash of their keys and taken until a split has its
share, so that lines added to the data move few of the others.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

SPLITS = ("train", "validation", "test")


def split(
    keys: Sequence[tuple[str, ...]],
    *,
    validation: float,
    test: float,
    seed: int,
    place: str,
    sizes: Sequence[int] | None = None,
    unit: str = "pairs",
) -> dict[str, list[int]]:
    """Positions in `keys` for each of SPLITS, ascending; `keys[n]` are the keys of example n, compared place by place.

    Shares are of the sum of `sizes`, by default of the number of examples. `place`, the file or built-in source, and
    `unit` name things in errors. A group larger than what a share has left goes to training. Raises DataError if a
    split would be empty.
    """
    sizes = [1] * len(keys) if sizes is None else sizes
    groups = _groups(keys)
    chosen: dict[str, list[int]] = {}
    for name, share in (("test", test), ("validation", validation)):
        taken = _take(groups, sizes, round(share * sum(sizes)), f"{seed} {name}")
        chosen[name] = sorted(member for group in taken for member in groups.pop(group))
    chosen["train"] = sorted(member for members in groups.values() for member in members)
    for name in SPLITS:
        if not chosen[name]:
            counts = ", ".join(f"{other} {len(chosen[other])}" for other in SPLITS)
            raise DataError(
                f"{place}: the {name} split is empty ({len(keys)} {unit}: {counts}). data.split.validation is "
                f"{validation} and data.split.test is {test}; {unit} that share a text stay on one side. "
                f"Give more {unit} or change the shares."
            )
    return {name: chosen[name] for name in SPLITS}


def _groups(keys: Sequence[tuple[str, ...]]) -> dict[bytes, list[int]]:
    """Members by the least digest of their keys: a name that other groups and most new members leave as it is."""
    parent = list(range(len(keys)))

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    for column in zip(*keys, strict=True):
        first: dict[str, int] = {}
        for position, key in enumerate(column):
            one, other = root(first.setdefault(key, position)), root(position)
            parent[max(one, other)] = min(one, other)
    members: dict[int, list[int]] = {}
    for position in range(len(keys)):
        members.setdefault(root(position), []).append(position)
    return {min(_digest("\0".join(keys[member])) for member in group): group for group in members.values()}


def _take(groups: dict[bytes, list[int]], sizes: Sequence[int], room: int, salt: str) -> list[bytes]:
    taken = []
    for name in sorted(groups, key=lambda name: _digest(f"{salt} {name.hex()}")):
        size = sum(sizes[member] for member in groups[name])
        if size <= room:
            taken.append(name)
            room -= size
    return taken


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
