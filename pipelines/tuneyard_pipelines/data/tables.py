"""Rows of texts from a file: the wanted columns of a table, in one of three ways to write it down.

.tsv .txt   columns parted by tabs, a row on each line, no quoting
.csv        columns parted by commas, quoted as in RFC 4180: a text in quotes may hold commas and line breaks
.jsonl      a JSON object on each line; a column is a key
"""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.data import lines
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.lines import shown

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    Cells = tuple[int, list[str]]
    """The number of a row's first line, and its texts; none for a blank line."""

MAX_ROW_BYTES = 1 << 20
"""Of a line in which tabs part columns."""
MAX_DOCUMENT_BYTES = 64 << 20
"""Of a line that may hold a whole document."""


def rows(
    path: Path, columns: Sequence[int | str], *, header: bool, digest: hashlib._Hash
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The texts of `columns` in each row, behind the number of its first line; a blank line is a row of empty texts.

    A column is a number from 1 or, with `header`, a name of the first line; in .jsonl it is a key. Raises DataError
    for a file that cannot be read, a column that is not there, and a row that is unlike the first one or broken.
    """
    match path.suffix.lower():
        case ".jsonl":
            yield from _json_rows(path, columns, digest)
        case ".csv":
            yield from _chosen(path, _csv_cells(path, digest), columns, header=header, separator=",")
        case _:
            yield from _chosen(path, _tab_cells(path, digest), columns, header=header, separator="\t")


def _tab_cells(path: Path, digest: hashlib._Hash) -> Iterator[Cells]:
    for number, text in lines.read(path, digest, limit_bytes=MAX_ROW_BYTES):
        yield number, text.split("\t") if text.strip() or number == 1 else []


def _csv_cells(path: Path, digest: hashlib._Hash) -> Iterator[Cells]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)  # of the whole process; the library's own limit is 128 KiB
    reader = csv.reader(
        (f"{text}\n" for _, text in lines.read(path, digest, limit_bytes=MAX_DOCUMENT_BYTES)), strict=True
    )
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}:{number}: the row that begins here is not CSV ({error}; line {reader.line_num}). "
                'Put a text that holds a comma, a quote or a line break in quotes, and write a quote in it twice: "".'
            ) from None
        yield number, cells


def _chosen(
    path: Path, table: Iterator[Cells], columns: Sequence[int | str], *, header: bool, separator: str
) -> Iterator[tuple[int, tuple[str, ...]]]:
    places: list[int] | None = None
    width = 0
    for number, cells in table:
        if places is None:
            places = [_place(path, cells, column, header, separator) for column in columns]
            width = len(cells)
            if header:
                continue
        if not cells:
            yield number, ("",) * len(columns)
            continue
        if len(cells) != width:
            mark, mend = _SEPARATORS[separator]
            raise DataError(
                f"{path}:{number}: {_count(len(cells))}, but line 1 has {width}: {shown(separator.join(cells))}. "
                f"Every line needs as many {mark}s as the first one: {mend}, or add the missing one."
            )
        yield number, tuple(cells[place] for place in places)


_SEPARATORS = {
    "\t": ("tab", "take out a tab inside a text"),
    ",": ("comma", "put a text that holds a comma in quotes"),
}


def _place(path: Path, cells: list[str], wanted: int | str, header: bool, separator: str) -> int:
    names = [cell.strip() for cell in cells]
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
    known = f"the columns are {', '.join(map(shown, names))}" if header else f"line 1 has {_count(len(cells))}"
    raise DataError(
        f"{path}:1: there is no column {wanted!r}: {known}. "
        f"Set data.columns to what exists; columns are parted by {_SEPARATORS[separator][0]}s."
    )


def _json_rows(path: Path, keys: Sequence[int | str], digest: hashlib._Hash) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, line in lines.read(path, digest, limit_bytes=MAX_DOCUMENT_BYTES):
        if not line.strip():
            yield number, ("",) * len(keys)
            continue
        found = _object(f"{path}:{number}", line)
        yield number, tuple(_text(f"{path}:{number}", found, key) for key in keys)


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{place}: this line is not JSON ({error}): {shown(line)}. A .jsonl file has one object on each line."
        ) from None
    if not isinstance(found, dict):
        raise DataError(
            f'{place}: this line holds no object: {shown(line)}. Each line needs one, such as {{"text": "..."}}.'
        )
    return found


def _text(place: str, found: dict[str, Any], key: int | str) -> str:
    if key not in found:
        raise DataError(
            f"{place}: there is no key {key!r}: the keys are {', '.join(map(shown, found))}. "
            "Name a key that every line has in data.columns, or add it to this line."
        )
    text = found[str(key)]
    if not isinstance(text, str):
        raise DataError(
            f"{place}: {key!r} is no text: {shown(json.dumps(text))}. Write a text in quotes, or take the line out."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            f"{place}: {key!r} holds half a surrogate pair (\\ud800 to \\udfff), which is no character: {shown(text)}. "
            "Write the whole character."
        ) from None
    return text


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
