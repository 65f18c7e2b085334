"""Pairs of texts from a tab-separated file: one pair a line, in two of its columns, UTF-8, no quoting.

Texts come out in Unicode normal form C and without white space around them. Pairs with an empty side are left out and
counted. Everything else that is not a pair stops the reading with the line's number: a wrong pair is worse than none.
"""

from __future__ import annotations

import codecs
import hashlib
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

SUFFIXES = (".tsv", ".txt")
MAX_LINE_BYTES = 1 << 20
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Pairs:
    """What a file holds: pairs (source, target) in its order, how many were left out, and the digest of its bytes."""

    pairs: list[tuple[str, str]]
    empty: int
    sha256: str


def read(path: Path, *, source: int | str = 1, target: int | str = 2, header: bool = False) -> Pairs:
    """Read all pairs of `path`. A column is a number from 1 or, with `header`, a name of the first line.

    Raises DataError for a file that cannot be read, holds no pair, or has a line that is not like the first one.
    """
    digest = hashlib.sha256()
    pairs: list[tuple[str, str]] = []
    empty = width = 0
    columns: tuple[int, int] | None = None
    for number, text in _lines(path, digest):
        cells = text.split("\t")
        if columns is None:
            columns = (_column(path, cells, source, header), _column(path, cells, target, header))
            width = len(cells)
            if header:
                continue
        if not text.strip():
            empty += 1
            continue
        if len(cells) != width:
            raise DataError(
                f"{path}:{number}: {_count(len(cells))}, but line 1 has {width}: {_shown(text)}. "
                "Every line needs as many tabs as the first one: take out a tab inside a text, or add the missing one."
            )
        pair = (_clean(cells[columns[0]]), _clean(cells[columns[1]]))
        if all(pair):
            pairs.append(pair)
        else:
            empty += 1
    if not pairs:
        raise DataError(
            f"{path}: no pair in this file ({empty} lines with an empty side). "
            "Each line needs a source and a target, parted by a tab."
        )
    return Pairs(pairs, empty, digest.hexdigest())


def sha256(path: Path) -> str:
    """The digest of the file's bytes, as `read` reports it. Raises DataError if it cannot be read."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(path: Path, digest: hashlib._Hash) -> Iterator[tuple[int, str]]:
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            digest.update(line)
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}:{number}: the line is longer than {MAX_LINE_BYTES} bytes: "
                    f"{_shown(line.decode('utf-8', 'replace'))}. "
                    "A text is a line of its own: check that the file has line ends and is a text file."
                )
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}:{number}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not UTF-8: "
                    f"{_shown(line.decode('utf-8', 'replace'))}. Save the file as UTF-8, for example: "
                    f"iconv -f GB18030 -t UTF-8 {path.name} (with the encoding it has in place of GB18030)."
                ) from None


def _opened(path: Path) -> BufferedReader:
    if path.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{path}: not a kind of file that is read: data.source takes tab-separated text ({' or '.join(SUFFIXES)}). "
            "Save the pairs with a tab between source and target."
        )
    if path.is_dir():
        raise DataError(f"{path}: this is a folder. data.source takes one file: name a file in it.")
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path}: no such file. A relative data.source counts from the folder of the spec file: correct the path."
        ) from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror}). Give this user the right to read it: chmod +r {path}"
        ) from None


def _column(path: Path, cells: list[str], wanted: int | str, header: bool) -> int:
    names = [_clean(cell) for cell in cells]
    if isinstance(wanted, str) and not header:
        raise DataError(
            f"{path}: column {wanted!r} is a name, and data.header is false. "
            "Set data.header: true if line 1 holds names, or give the column's number, from 1."
        )
    if isinstance(wanted, str) and names.count(wanted) > 1:
        raise DataError(
            f"{path}:1: column {wanted!r} is there {names.count(wanted)} times. Give its number, from 1, instead."
        )
    if isinstance(wanted, str) and wanted in names:
        return names.index(wanted)
    if isinstance(wanted, int) and 1 <= wanted <= len(cells):
        return wanted - 1
    known = f"the columns are {', '.join(map(repr, names))}" if header else f"line 1 has {_count(len(cells))}"
    raise DataError(
        f"{path}:1: there is no column {wanted!r}: {known}. "
        "Set data.columns to two that exist; columns are parted by tabs."
    )


def _clean(text: str) -> str:
    return unicodedata.normalize("NFC", text).strip()


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
