"""What is trained on, what chooses the settings and what scores them: no text of one split stands in another.

Examples that share a key form a group, and a group stays together: pairs with the same source or the same target, equal
documents, files of one module. The groups are ordered by a seeded hash of their keys and taken until a split has its
share, so that lines added to the data move few of the others.

Of an example only digests and its size are kept, in a file; memory is needed for about 20 bytes of it, and for those
that share a key.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuneyard_pipelines.data.errors import DataError

SPLITS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = range(3)

_TAKEN = (TEST, VALIDATION)  # in this order
_OPEN = -1  # the split of an example for which none is given
_PART = 1 << 20  # examples that are looked at together
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """The split of each example, as its place in SPLITS.

    `duplicates` counts the examples that stood before; `shared` those that share a key with a given split, and are
    trained on.
    """

    codes: NDArray[np.int8]
    duplicates: int
    shared: int

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each split has."""
        return {name: int(np.count_nonzero(self.codes == code)) for code, name in enumerate(SPLITS)}


class Ledger:
    """Digests, sizes and given splits of all examples, in their order."""

    def __init__(self, path: Path, seed: int) -> None:
        """`path`: the file to keep them in."""
        self._path, self._seed = path, seed
        self._file = path.open("wb")
        self._keys = 1
        self.count = 0

    def append(self, keys: Sequence[str], size: int, given: str | None = None) -> None:
        """The next example: its keys, as many as the first one has, its size, and its split if that is given."""
        name = hashlib.blake2b("\0".join(keys).encode(), digest_size=16).digest()
        split = _OPEN if given is None else SPLITS.index(given)
        self._keys = self._keys if self.count else len(keys)
        row = struct.pack(f"<16s2Q{self._keys}QIb", name, *self._orders(name), *map(_digest, keys), size, split)
        self._file.write(row)
        self.count += 1

    def assign(
        self, *, validation: float | None, test: float | None, place: str = "data", unit: str = "pairs"
    ) -> Assignment:
        """The split of each example.

        `validation` and `test` are a share of the sum of all sizes, below 1, or a number of examples; None where that
        split is given. `place`, the source, and `unit` name things in errors. A group larger than what a share has left
        goes to training. Raises DataError if a split would be empty.
        """
        self._file.close()
        fields = [("name", "u1", 16), ("order", "<u8", 2), ("keys", "<u8", (self._keys,)), ("size", "<u4")]
        kind = np.dtype([*fields, ("split", "i1")])
        rows = np.memmap(self._path, kind, mode="r") if self.count else np.empty(0, kind)
        groups = _Groups.of(rows)
        codes = np.array(rows["split"])
        given = codes[groups.members] != _OPEN
        beside = np.isin(groups.numbers, groups.numbers[given]) & ~given
        codes[groups.members[beside]] = TRAIN
        for order, (code, amount) in enumerate(zip(_TAKEN, (test, validation), strict=True)):
            if amount is not None:
                self._take(rows, groups, codes, order, code, amount)
        codes[codes == _OPEN] = TRAIN
        made = Assignment(codes, _repetitions(rows), int(np.count_nonzero(beside)))
        counts = made.counts
        for name in SPLITS:
            if not counts[name]:
                found = ", ".join(f"{other} {counts[other]}" for other in SPLITS)
                raise DataError(
                    f"{place}: the {name} split is empty ({self.count} {unit}: {found}). data.split.validation is "
                    f"{validation} and data.split.test is {test}; {unit} that share a text stay on one side. "
                    f"Give more {unit} or change the shares."
                )
        return made

    def _take(
        self, rows: NDArray[Any], groups: _Groups, codes: NDArray[np.int8], order: int, code: int, amount: float
    ) -> None:
        """Give groups without a split the split `code`, in their order, as long as they fit into `amount`."""
        by_size = amount < 1
        orders = np.array(rows["order"][:, order])
        orders[groups.first] = [self._orders(name.tobytes())[order] for name in groups.names]
        led = np.ones(len(rows), dtype=bool)  # whether an example stands for its group
        led[groups.members] = False
        led[groups.first] = True
        led &= codes == _OPEN
        sizes = rows["size"] if by_size else np.ones(len(rows), dtype=np.uint8)
        total = sum(int(part.sum(dtype=np.int64)) for part in _parts(sizes))
        room = round(amount * total) if by_size else int(amount)
        firsts = np.append(groups.first, len(rows))  # the last one is no example's
        group_sizes = np.zeros(len(firsts), dtype=np.int64)
        np.add.at(group_sizes, groups.numbers, sizes[groups.members].astype(np.int64))
        taken_groups = [np.empty(0, np.int64)]
        for at in _in_order(orders, led):
            number = np.searchsorted(firsts, at)
            grouped = firsts[number] == at
            size = np.where(grouped, group_sizes[number], sizes[at])
            taken = _fitting(size, room)
            room -= int(size[taken].sum())
            codes[at[taken]] = code
            taken_groups.append(number[taken & grouped])
            if room <= 0:
                break
        codes[groups.members[np.isin(groups.numbers, np.concatenate(taken_groups))]] = code

    def _orders(self, name: bytes) -> list[int]:
        return [_digest(f"{self._seed} {SPLITS[code]} {name.hex()}") for code in _TAKEN]


@dataclass(frozen=True)
class _Groups:
    """The groups of more than one example: their members' positions, rising, and the group number of each.

    `first` is the first member of each group, rising with its number; `names` the least digest of its members' keys: a
    name that other groups and most new members leave as it is.
    """

    members: Ints
    numbers: Ints
    first: Ints
    names: NDArray[np.uint8]

    @classmethod
    def of(cls, rows: NDArray[Any]) -> _Groups:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        found = [_repeated(rows["keys"][:, column]) for column in range(rows["keys"].shape[1])]
        members = np.unique(np.concatenate([positions for positions, _ in found]))
        if not len(members):
            return cls(members, members, members, np.empty((0, 16), np.uint8))
        nodes, links = len(members), []
        for positions, labels in found:
            links.append((np.searchsorted(members, positions), nodes + labels))
            nodes += int(labels.max(initial=-1)) + 1
        ends = np.concatenate([one for one, _ in links]), np.concatenate([other for _, other in links])
        graph = coo_array((np.ones(len(ends[0]), dtype=np.int8), ends), shape=(nodes, nodes))
        components = connected_components(graph, directed=False)[1][: len(members)]
        _, first_at, numbers = np.unique(components, return_index=True, return_inverse=True)
        by_place = np.argsort(first_at)  # number groups by their first members
        renumbered = np.empty_like(by_place)
        renumbered[by_place] = np.arange(len(by_place))
        numbers = renumbered[numbers]
        names = rows["name"][members]
        high, low = names.view(">u8").T
        least = np.lexsort((low, high, numbers))
        starts = np.searchsorted(numbers[least], np.arange(len(first_at)))
        return cls(members, numbers, members[first_at[by_place]], names[least[starts]])


def _repeated(values: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Positions of the values that occur more than once, and a number for each such value."""
    in_order = np.array(values)
    in_order.sort()
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    del in_order
    if not len(twice):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    positions, labels = [], []
    for start, part in zip(range(0, len(values), _PART), _parts(values), strict=True):
        label = np.minimum(np.searchsorted(twice, part), len(twice) - 1)
        hit = np.flatnonzero(twice[label] == part)
        positions.append(start + hit)
        labels.append(label[hit])
    return np.concatenate(positions), np.concatenate(labels)


def _repetitions(rows: NDArray[Any]) -> int:
    """How many examples have the keys of an earlier one."""
    in_order = np.array(rows["order"][:, 0])  # a digest of the name
    in_order.sort()
    return int(np.count_nonzero(in_order[1:] == in_order[:-1]))


def _in_order(orders: NDArray[np.uint64], wanted: NDArray[np.bool_]) -> Iterator[Ints]:
    """The positions of what is wanted by rising order, in parts."""
    slices = max(1, len(orders) // _PART)
    bounds = [2**64 * number // slices for number in range(slices + 1)]
    for low, high in pairwise(bounds):
        inside = wanted & (orders >= np.uint64(low)) & (orders <= np.uint64(high - 1))
        at = np.flatnonzero(inside)
        yield at[np.argsort(orders[at], kind="stable")]


def _fitting(sizes: Ints, room: int) -> NDArray[np.bool_]:
    """Which are taken when each is, in order, that fits into what is left of `room`."""
    taken = np.zeros(len(sizes), dtype=bool)
    left = np.flatnonzero(sizes <= room)
    while len(left):
        upto = np.cumsum(sizes[left])
        fitting = int(np.searchsorted(upto, room, side="right"))
        taken[left[:fitting]] = True
        room -= int(upto[fitting - 1]) if fitting else 0
        left = left[fitting:]
        left = left[sizes[left] <= room]
    return taken


def _parts(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(values), _PART):
        yield np.asarray(values[start : start + _PART])


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()[:8])
