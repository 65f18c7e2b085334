"""The examples of a source: what makes its content unique, all of them one after the other, and a first look at some.

    builtin/NAME   made or read here: dates, stdlib
    PATH           a file, or a pattern such as corpus/*.txt.gz: its files in the order of their names

A pair is brought to Unicode normal form C and stripped of white space around it; what a document keeps is in
`documents`. What cannot be used is left out and counted, with the place of the first of each kind.
"""

from __future__ import annotations

import glob
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.catalog import NAMED, TASK_DATA, file_kind, is_pattern
from tuneyard_pipelines.data import dates, documents, lines, stdlib, tables
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Example, Tally

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import DataSpec

DATES, STDLIB = "builtin/dates", "builtin/stdlib"
_FIRST_EXAMPLES = 2_000
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def origin(data: DataSpec, task: str) -> dict[str, Any]:
    """What makes the content of `data.source` unique. Raises DataError for a source that `task` cannot use."""
    takes = TASK_DATA[task]
    if not takes.takes(data.source):
        raise DataError(f"data.source: {data.source!r} is nothing that {task} takes. It takes {takes.allowed}.")
    if data.source == DATES:
        return {"builtin": DATES, "version": dates.VERSION, "examples": data.examples}
    if data.source == STDLIB:
        return {"builtin": STDLIB, "version": stdlib.VERSION, "sha256": stdlib.sha256()}
    read_as = {"header": data.header, "encoding": data.encoding, "columns": _columns(data, task)}
    held = {part: [_identity(path, task) for path in files(place)] for part, place in _places(data).items()}
    return {"files": held, **read_as}


def examples(data: DataSpec, task: str, seed: int, tally: Tally) -> Iterator[Example]:
    """Every example, in an order that depends on the content alone.

    Its keys are what it must not share with one of another split (`data.split.group_by`). Raises DataError for a source
    that cannot be used.
    """
    if data.source == DATES:
        made = (dates.example(seed, index) for index in range(data.examples))
        yield from (Example(pair, _keys(data, pair)) for pair in made)
        return
    if data.source == STDLIB:
        sources = stdlib.read()
        if sources.left_out:
            tally.add("files that are empty or not UTF-8", "left out", STDLIB, sources.left_out)
        for text, module in zip(sources.texts, sources.modules, strict=True):
            yield Example((text,), (text, module))
        return
    for part, place in _places(data).items():
        split = None if part == "train" else part
        for path in files(place):
            for where, texts, groups in _rows(data, task, path, tally):
                if (kept := _kept(texts, task, tally, where)) is not None:
                    yield Example(kept, _keys(data, kept, groups), split)


def beginning(data: DataSpec, task: str, seed: int) -> Iterator[tuple[str, ...]]:
    """The texts of the first examples of a source that `task` can use, read as far as they are taken."""
    if data.source == DATES:
        yield from dates.generate(min(data.examples, _FIRST_EXAMPLES), seed)
        return
    if data.source == STDLIB:
        yield from ((text,) for text in stdlib.read().texts)
        return
    unused = Tally()
    for path in files(data.source):
        if _plain(path, task):  # lines, since what parts documents is seen at the end only
            texts = lines.TextFile.look(path, data.encoding).lines(unused, limit=tables.MAX_DOCUMENT)
            found: Iterator[tuple[str, ...]] = ((line,) for _, line in texts)
        else:
            found = (texts for _, texts, _ in _rows(data, task, path, unused))
        yield from (kept for texts in found if (kept := _kept(texts, task, unused, "")) is not None)


def size_bytes(data: DataSpec) -> int | None:
    """About how many bytes of text there are to read, so far as it is known before."""
    if data.source.startswith("builtin/"):
        return None
    paths = [path for place in _places(data).values() for path in files(place)]
    return sum(path.stat().st_size for path in paths if path.suffix.lower() not in (".gz", ".parquet")) or None


def files(place: str) -> list[Path]:
    """The files that a path or pattern means, sorted. Raises DataError if there is none."""
    if Path(place).exists() or not is_pattern(place):
        return [Path(place)]
    found = sorted(Path(path) for path in glob.glob(place, recursive=True) if Path(path).is_file())
    if not found:
        raise DataError(f"{place}: no file fits this pattern. It counts from the folder of the spec file: correct it.")
    return found


def _places(data: DataSpec) -> dict[str, str]:
    """Where the examples of each part come from: training's, and those of the splits that are given as files."""
    given = {name: getattr(data.split, name) for name in ("validation", "test")}
    return {"train": data.source, **{name: place for name, place in given.items() if isinstance(place, str)}}


def _identity(path: Path, task: str) -> dict[str, str]:
    return {"sha256": lines.sha256(path), "kind": "paragraphs" if _plain(path, task) else file_kind(path.name)}


def _rows(
    data: DataSpec, task: str, path: Path, tally: Tally
) -> Iterator[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """The place of each example, its texts, and the values of the columns that group it."""
    if _plain(path, task):
        for number, text in documents.read(lines.TextFile.look(path, data.encoding), tally):
            yield f"{path}:{number}", (text,), ()
        return
    columns = tuple(_columns(data, task).values())
    grouping = data.split.group_by if isinstance(data.split.group_by, tuple) else ()
    found = tables.rows(path, (*columns, *grouping), tally, header=data.header, encoding=data.encoding)
    for number, cells in found:
        yield f"{path}:{number}", cells[: len(columns)], cells[len(columns) :]


def _kept(texts: tuple[str, ...], task: str, tally: Tally, place: str) -> tuple[str, ...] | None:
    """The texts as they are kept; None, and a count, where one is empty."""
    if any(_CONTROLS.search(text) for text in texts):
        bad = next(text for text in texts if _CONTROLS.search(text))
        tally.add("texts with control characters, which are taken out", "mended", f"{place}: {lines.shown(bad)}")
        texts = tuple(_CONTROLS.sub("", text) for text in texts)
    if task == "language_modeling":
        kept = tuple(documents.clean(text) for text in texts)
    else:
        kept = tuple(unicodedata.normalize("NFC", text).strip() for text in texts)
    if not all(kept):
        what = "empty texts" if not any(kept) else "pairs with an empty side"
        tally.add(what, "left out", place)
        return None
    if any(_RIGHT_TO_LEFT.search(text) for text in kept):
        tally.add("texts with letters that run from right to left", "kept", place)
    return kept


def _keys(data: DataSpec, texts: tuple[str, ...], groups: tuple[str, ...] = ()) -> tuple[str, ...]:
    whole = "\0".join(texts)
    return texts if data.split.group_by == "text" else (*groups, whole)


def _plain(path: Path, task: str) -> bool:
    """Whether the file is text without columns."""
    return task == "language_modeling" and file_kind(path.name) == ".txt"


def _columns(data: DataSpec, task: str) -> dict[str, Any]:
    """Where each text of an example stands: by default in the first columns, or under its name as a key."""
    names = TASK_DATA[task].columns
    if data.columns is not None:
        return {name: getattr(data.columns, name) for name in names}
    keyed = file_kind(data.source) in NAMED
    return {name: name if keyed else number for number, name in enumerate(names, start=1)}
