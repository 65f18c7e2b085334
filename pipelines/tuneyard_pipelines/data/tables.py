"""Rows of texts from a file: the wanted columns of a table, in one of four ways to write it down.

.tsv .txt   columns parted by tabs, a row on each line, no quoting
.csv        columns parted by commas, quoted as in RFC 4180: a text in quotes may hold commas and line breaks
.jsonl      a JSON object on each line; a column is a key
.parquet    columns by name, of strings

All but .parquet may be packed as .gz. A row that is unlike the others is left out and counted; what is wrong with the
whole file (a column that is not there, the header) is refused.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.catalog import file_kind
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Tally
from tuneyard_pipelines.data.lines import AUTO, TextFile, is_broken, opened, shown

if TYPE_CHECKING:
    Cells = tuple[int, list[str], int]
    """The number of a row's first line, its texts (none for a blank line), and of how many lines it is."""

MAX_ROW = 1 << 20
"""Characters of a line in which tabs part columns."""
MAX_DOCUMENT = 64 << 20
"""Characters of a line that may hold a whole document."""
_PARQUET_ROWS = 1000
_NAMED_KEYS = 20


def rows(
    path: Path,
    columns: Sequence[int | str],
    tally: Tally,
    *,
    texts: int | None = None,
    header: bool = False,
    encoding: str = AUTO,
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The texts of `columns` in each row, behind the number of its first line (of .parquet: of the row).

    The first `texts` of them, by default all, must hold texts; others may hold numbers. A column is a number from 1 or,
    with `header`, a name of the first line; in .jsonl and .parquet it is a name. Blank lines and rows that cannot be
    used are counted in `tally`. Raises DataError for a file that cannot be read and a column that is not there.
    """
    match file_kind(path.name):
        case ".parquet":
            yield from _parquet_rows(path, columns, texts, tally)
        case ".jsonl":
            yield from _json_rows(TextFile.look(path, encoding), columns, texts, tally)
        case ".csv":
            cells = _csv_cells(TextFile.look(path, encoding), tally)
            yield from _chosen(path, cells, columns, tally, header=header, separator=",")
        case _:
            cells = _tab_cells(TextFile.look(path, encoding), tally)
            yield from _chosen(path, cells, columns, tally, header=header, separator="\t")


def width(path: Path, encoding: str = AUTO) -> int:
    """How many columns the first line of a .csv or of a table of tabs has."""
    file = TextFile.look(path, encoding)
    table = (_csv_cells if file_kind(path.name) == ".csv" else _tab_cells)(file, Tally())
    return next((len(cells) for _, cells, _ in table), 0)


def _tab_cells(file: TextFile, tally: Tally) -> Iterator[Cells]:
    for number, text in file.lines(tally, limit=MAX_ROW):
        yield number, text.split("\t") if text.strip() or number == 1 else [], 1


def _csv_cells(file: TextFile, tally: Tally) -> Iterator[Cells]:
    csv.field_size_limit(MAX_DOCUMENT)  # of the whole process; the library's own limit is 128 KiB
    lines = file.lines(tally, limit=MAX_DOCUMENT, broken=True)
    reader = csv.reader((f"{text}\n" for _, text in lines), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            place = f"{file.path}:{number} ({error}, up to line {reader.line_num})"
            tally.add("lines that are not CSV", "left out", place, max(1, reader.line_num + 1 - number))
            continue
        spans = reader.line_num + 1 - number
        if any(map(is_broken, cells)):
            what = f"lines of rows with a line that is too long or not {file.encoding.removesuffix('-sig').upper()}"
            tally.add(what, "left out", f"{file.path}:{number}", spans)
        else:
            yield number, cells, spans


def _chosen(
    path: Path, table: Iterator[Cells], columns: Sequence[int | str], tally: Tally, *, header: bool, separator: str
) -> Iterator[tuple[int, tuple[str, ...]]]:
    places: list[int] | None = None
    width = 0
    for number, cells, spans in table:
        if places is None:
            places = [_place(path, cells, column, header, separator) for column in columns]
            width = len(cells)
            if header:
                continue
        if not cells:
            tally.add("blank lines", "kept", f"{path}:{number}")
        elif len(cells) != width:
            found = f"{path}:{number}: {_count(len(cells))}, line 1 has {width}: {shown(separator.join(cells))}"
            tally.add("rows with more or fewer columns", "left out", found, spans)
        else:
            yield number, tuple(cells[place] for place in places)


_SEPARATORS = {"\t": "tab", ",": "comma"}


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
        f"Set data.columns, or data.split.group_by, to what exists; columns are parted by {_SEPARATORS[separator]}s."
    )


def _json_rows(
    file: TextFile, keys: Sequence[int | str], texts: int | None, tally: Tally
) -> Iterator[tuple[int, tuple[str, ...]]]:
    keyed = False
    known: dict[str, None] = {}
    for number, line, found in json_objects(file, tally):
        place = f"{file.path}:{number}"
        if not keyed and len(known) < _NAMED_KEYS:
            known |= dict.fromkeys(found)
        missing = [key for key in keys if key not in found]
        if missing:
            names = ", ".join(map(shown, found))
            tally.add(f"lines without a key {missing[0]!r}", "left out", f"{place}, whose keys are {names}")
            continue
        keyed = True
        values = [found[str(key)] for key in keys]
        if wrong := next((problem for value in values[:texts] if (problem := _no_text(value))), ""):
            tally.add(f"lines with {wrong}", "left out", f"{place}: {shown(line)}")
            continue
        yield number, tuple(map(str, values))
    if known and not keyed:
        raise DataError(
            f"{file.path}: no line has all of the keys {', '.join(map(repr, keys))}; there are "
            f"{', '.join(map(shown, known))}. Name what is there in data.columns."
        )


def json_objects(file: TextFile, tally: Tally) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Number, text and object of each line of a .jsonl; a line that holds none is counted."""
    for number, line in file.lines(tally, limit=MAX_DOCUMENT):
        place = f"{file.path}:{number}"
        if not line.strip():
            tally.add("blank lines", "kept", place)
        elif (found := _object(line)) is None:
            tally.add("lines that are no JSON object", "left out", f"{place}: {shown(line)}")
        else:
            yield number, line, found


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_text(value: Any) -> str:
    if not isinstance(value, str):
        return "a value that is no text"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "half a surrogate pair"
    return ""


def _parquet_rows(
    path: Path, columns: Sequence[int | str], texts: int | None, tally: Tally
) -> Iterator[tuple[int, tuple[str, ...]]]:
    import pyarrow as pa

    file = parquet_file(path)
    schema = file.schema_arrow
    names = [str(name) for name in columns]
    for name in names:
        if name not in schema.names:
            known = ", ".join(map(shown, schema.names))
            raise DataError(f"{path}: there is no column {name!r}: there are {known}. Set data.columns to what exists.")
        if schema.names.count(name) > 1:
            raise DataError(f"{path}: column {name!r} is there {schema.names.count(name)} times. Name it apart.")
        held = schema.field(name).type
        text = held.value_type if pa.types.is_dictionary(held) else held
        if name in names[:texts] and not (pa.types.is_string(text) or pa.types.is_large_string(text)):
            raise DataError(f"{path}: column {name!r} holds {held}, no text. Set data.columns to one of strings.")
    number = 0
    try:
        for batch in file.iter_batches(batch_size=_PARQUET_ROWS, columns=list(dict.fromkeys(names))):
            held_by_name = {name: batch.column(name).to_pylist() for name in names}
            for values in zip(*(held_by_name[name] for name in names), strict=True):
                number += 1
                if None in values[:texts]:
                    tally.add("rows with a value that is no text", "left out", f"{path}, row {number}")
                else:
                    yield number, tuple(map(str, values))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"{path}: row {number + 1} or one soon after it cannot be read ({error}).") from None


def parquet_file(path: Path) -> Any:
    """The open file. Raises DataError if it is not one."""
    import pyarrow as pa
    from pyarrow import parquet

    opened(path).close()  # says in words why it cannot be
    try:
        return parquet.ParquetFile(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a whole Parquet file ({error}). Write it again.") from None


def _count(columns: int) -> str:
    return "1 column" if columns == 1 else f"{columns} columns"
