"""Token ids of a split as flat files that trials map into memory, whatever their size: written in order, read anywhere.

    SPLIT/id.i8                    the number of each example in its source
          COLUMN.u2                the ids of all its texts of this column, one after the other; u4 past 65,536 ids
          COLUMN.bounds.i8         text n is ids[bounds[n] : bounds[n + 1]]

A file is named by NumPy's code of what it holds, little-endian.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TokenLists:
    """The token ids of many texts: text n is flat[bounds[n] : bounds[n + 1]], without special tokens."""

    flat: NDArray[Any]
    bounds: Ints

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, number: int) -> list[int]:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return [int(token) for token in self.flat[self.bounds[number] : self.bounds[number + 1]]]

    @property
    def lengths(self) -> Ints:
        """Tokens of each text."""
        return np.diff(self.bounds)

    def shares_of(self, token: int) -> NDArray[np.float64]:
        """What share of each text's tokens `token` is; 0 for a text without any."""
        upto = np.append(0, np.cumsum(self.flat == token))
        found = upto[self.bounds[1:]] - upto[self.bounds[:-1]]
        return np.asarray(found / np.maximum(self.lengths, 1))


@dataclass(frozen=True)
class EncodedSplit:
    """The examples of a split as token ids: their numbers in the source, and the texts of each column."""

    ids: Ints
    columns: Mapping[str, TokenLists]

    @classmethod
    def open(cls, folder: Path, columns: Sequence[str]) -> EncodedSplit:
        """What a `TokenWriter` left in `folder`."""
        return cls(
            _read(folder / "id.i8"),
            {
                name: TokenLists(_read(next(folder.glob(f"{name}.u?"))), _read(folder / f"{name}.bounds.i8"))
                for name in columns
            },
        )

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Sequence[int]]]) -> EncodedSplit:
        """A split in memory of the token ids of each text by column; its examples are numbered from 0."""
        lists = {
            name: TokenLists(
                np.fromiter(itertools.chain.from_iterable(texts), np.int64),
                np.cumsum([0, *map(len, texts)], dtype=np.int64),
            )
            for name, texts in columns.items()
        }
        return cls(np.arange(len(next(iter(columns.values()))), dtype=np.int64), lists)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, column: str) -> TokenLists:
        return self.columns[column]


class TokenWriter:
    """Appends batches of examples to the files of a split. Used as a context manager."""

    def __init__(self, folder: Path, columns: Sequence[str], vocab_size: int) -> None:
        folder.mkdir()
        kind = "u2" if vocab_size <= 1 << 16 else "u4"
        self._kind = np.dtype(f"<{kind}")
        self._ids = (folder / "id.i8").open("wb")
        self._flat = {name: (folder / f"{name}.{kind}").open("wb") for name in columns}
        self._bounds = {name: (folder / f"{name}.bounds.i8").open("wb") for name in columns}
        self._ends = dict.fromkeys(columns, 0)

    def __enter__(self) -> TokenWriter:
        for file in self._bounds.values():
            _write(file, np.zeros(1, "<i8"))
        return self

    def __exit__(self, *exception: object) -> None:
        for file in (self._ids, *self._flat.values(), *self._bounds.values()):
            file.close()

    def append(self, ids: Sequence[int], columns: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """The next examples: their numbers, and the token ids of each text by column."""
        _write(self._ids, np.asarray(ids, "<i8"))
        for name, texts in columns.items():
            bounds = self._ends[name] + np.cumsum([len(text) for text in texts], dtype="<i8")
            _write(self._bounds[name], bounds)
            _write(self._flat[name], np.fromiter(itertools.chain.from_iterable(texts), self._kind))
            self._ends[name] = int(bounds[-1]) if len(texts) else self._ends[name]


def _write(file: BinaryIO, values: NDArray[Any]) -> None:
    file.write(values.tobytes())


def _read(path: Path) -> NDArray[Any]:
    """The numbers in a file, mapped; a file without any cannot be mapped."""
    kind = np.dtype(f"<{path.suffix[1:]}")
    return np.asarray(np.memmap(path, kind, mode="r")) if path.stat().st_size else np.empty(0, kind)
