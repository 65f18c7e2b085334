"""What is trained on, what chooses the settings and what scores them: no text of one split stands in another.

Examples that share a key form a group, and a group stays together: pairs with the same source or the same target, equal
documents, files of one module. The groups are ordered by a seeded hash of their keys and taken until a split has its
share, so that lines added to the data move few of the others.

Of an example only digests and its size are kept, in files; memory is needed for about 20 bytes of it, and for those
that share a key.
"""

from __future__ import annotations

import hashlib
from array import array
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
_PART = 1 << 18  # examples that are looked at together
_WRITTEN = 1 << 16  # examples that are written together
_NAMES = "name"
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """The split of each example, as its place in SPLITS.

    `duplicates` counts the examples that stood before; `shared` those that share a key with a given split, and are
    trained on; `in_both` those of two given splits that share one.
    """

    codes: NDArray[np.int8]
    duplicates: int
    shared: int
    in_both: int

    @property
    def counts(self) -> dict[str, int]:
        """How many examples each split has."""
        return {name: int(np.count_nonzero(self.codes == code)) for code, name in enumerate(SPLITS)}


class Ledger:
    """Digests, sizes and given splits of all examples, in their order: a file for each, in a folder of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Makes `folder`."""
        folder.mkdir()
        self._folder, self._seed = folder, seed
        self._names = bytearray()
        self._held = {"size": array("I"), "split": array("b"), **{_order(code): array("Q") for code in _TAKEN}}
        self._keys: list[str] = []
        self.count = 0

    def append(self, keys: Sequence[str], size: int, given: str | None = None) -> None:
        """The next example: its keys, as many as the first one has, its size, and its split if that is given."""
        if not self.count:
            self._keys = [f"key {number}" for number in range(len(keys))]
            self._held |= {name: array("Q") for name in self._keys}
        name = hashlib.blake2b("\0".join(keys).encode(), digest_size=16).digest()
        self._names += name
        self._held["size"].append(size)
        self._held["split"].append(_OPEN if given is None else SPLITS.index(given))
        for code in _TAKEN:
            self._held[_order(code)].append(self._place(name, code))
        for column, key in zip(self._keys, keys, strict=True):
            self._held[column].append(_digest(key))
        self.count += 1
        if self.count % _WRITTEN == 0:
            self._write()

    def assign(
        self, *, validation: float | None, test: float | None, place: str = "data", unit: str = "pairs"
    ) -> Assignment:
        """The split of each example.

        `validation` and `test` are a share of the sum of all sizes, below 1, or a number of examples; None where that
        split is given. `place`, the source, and `unit` name things in errors. A group larger than what a share has left
        goes to training. Raises DataError if a split would be empty.
        """
        self._write()
        groups = self._groups()
        codes = self._column("split")
        given = codes[groups.members] != _OPEN
        beside = np.isin(groups.numbers, groups.numbers[given]) & ~given
        codes[groups.members[beside]] = TRAIN
        for code, amount in zip(_TAKEN, (test, validation), strict=True):
            if amount is not None:
                self._take(groups, codes, code, amount)
        codes[codes == _OPEN] = TRAIN
        both = [np.isin(groups.numbers, groups.numbers[given & (codes[groups.members] == code)]) for code in _TAKEN]
        made = Assignment(
            codes,
            duplicates=_repetitions(self._column(_order(TEST))),
            shared=int(np.count_nonzero(beside)),
            in_both=int(np.count_nonzero(both[0] & both[1] & given)),
        )
        counts = made.counts
        for name in SPLITS:
            if not counts[name]:
                found = ", ".join(f"{other} {counts[other]}" for other in SPLITS)
                if {"validation": validation, "test": test}.get(name, 0) is None:
                    raise DataError(f"{place}: the {name} split that is given holds nothing that can be used.")
                raise DataError(
                    f"{place}: the {name} split is empty ({self.count} {unit}: {found}). data.split.validation is "
                    f"{validation} and data.split.test is {test}; {unit} that share a text stay on one side. "
                    f"Give more {unit} or change the shares."
                )
        return made

    def _take(self, groups: _Groups, codes: NDArray[np.int8], code: int, amount: float) -> None:
        """Give groups without a split the split `code`, in their order, as long as they fit into `amount`."""
        orders = self._column(_order(code))
        orders[groups.first] = [self._place(name.tobytes(), code) for name in groups.names]
        led = np.ones(self.count, dtype=bool)  # whether an example stands for its group
        led[groups.members] = False
        led[groups.first] = True
        led &= codes == _OPEN
        sizes = self._column("size") if amount < 1 else np.ones(self.count, dtype=np.uint8)
        room = round(amount * int(sizes.sum(dtype=np.int64))) if amount < 1 else int(amount)
        firsts = np.append(groups.first, self.count)  # the last one is no example's
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

    def _groups(self) -> _Groups:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        found = [_repeated(self._column(name)) for name in self._keys]
        members = np.unique(np.concatenate([positions for positions, _ in found] or [np.empty(0, np.int64)]))
        if not len(members):
            return _Groups(members, members, members, np.empty((0, 16), np.uint8))
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
        names = np.memmap(self._folder / _NAMES, np.uint8, mode="r").reshape(-1, 16)[members]
        high, low = names.view(">u8").T
        least = np.lexsort((low, high, numbers))
        starts = np.searchsorted(numbers[least], np.arange(len(first_at)))
        return _Groups(members, numbers, members[first_at[by_place]], names[least[starts]])

    def _place(self, name: bytes, code: int) -> int:
        """Where a group of this name stands in the order in which the split `code` takes groups."""
        return _digest(f"{self._seed} {SPLITS[code]} {name.hex()}")

    def _write(self) -> None:
        """Put what is held into the files."""
        with (self._folder / _NAMES).open("ab") as file:
            file.write(self._names)
        self._names.clear()
        for name, column in self._held.items():
            with (self._folder / name).open("ab") as file:
                column.tofile(file)
            del column[:]

    def _column(self, name: str) -> NDArray[Any]:
        return np.fromfile(self._folder / name, self._held[name].typecode)


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


def _repeated(values: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Positions of the values that occur more than once, and a number for each such value."""
    in_order = np.sort(values)
    twice = np.unique(in_order[1:][in_order[1:] == in_order[:-1]])
    del in_order
    positions, labels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(values) if len(twice) else 0, _PART):
        part = values[start : start + _PART]
        label = np.minimum(np.searchsorted(twice, part), len(twice) - 1)
        hit = np.flatnonzero(twice[label] == part)
        positions.append(start + hit)
        labels.append(label[hit])
    return np.concatenate(positions), np.concatenate(labels)


def _repetitions(values: NDArray[np.uint64]) -> int:
    """How many values stood before."""
    in_order = np.sort(values)
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


def _order(code: int) -> str:
    return f"order of {SPLITS[code]}"


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest()[:8])
