"""The examples of a source: what makes its content unique, all of them one after the other, and a first look at some.

    builtin/NAME   made here (`generated`), or stdlib
    hub/OWNER/NAME a data set of the Hugging Face hub, or a folder laid out like one (`hub`)
    PATH           a file, or a pattern such as corpus/*.txt.gz: its files in the order of their names

A pair is brought to Unicode normal form C and stripped of white space around it; what a document keeps is in
`documents`. What cannot be used is left out and counted, with the place of the first of each kind.
"""

from __future__ import annotations

import functools
import glob
import itertools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.catalog import GENERATED, NAMED, TASK_DATA, file_kind, hub_name, is_data_set, is_pattern
from tuneyard_pipelines.data import documents, generated, hub, lines, stdlib, tables
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Example, Tally

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import DataSpec

STDLIB = "builtin/stdlib"
_FIRST_EXAMPLES = 500
_FIRST_CHARACTERS = 500_000
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f]")
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")


def origin(data: DataSpec, task: str) -> dict[str, Any]:
    """What makes the content of `data.source` unique. Raises DataError for a source that `task` cannot use."""
    takes = TASK_DATA[task]
    if not takes.takes(data.source):
        raise DataError(f"data.source: {data.source!r} is nothing that {task} takes. It takes {takes.allowed}.")
    if data.source in GENERATED:
        return generated.origin(data)
    if data.source == STDLIB:
        return {"builtin": STDLIB, "version": stdlib.VERSION, "sha256": stdlib.sha256()}
    if is_data_set(data.source):
        read_as: dict[str, Any] = {"config": data.config, "columns": _columns(data, task)}
        return {"kind": "data set", "version": hub.identity(Path(data.source)), **read_as}
    read_as = {"columns": _columns(data, task), "header": data.header, "encoding": data.encoding}
    held = {part: [_identity(path, task) for path in files(place)] for part, place in places(data).items()}
    return {"files": held, **read_as}


def examples(data: DataSpec, task: str, seed: int, tally: Tally) -> Iterator[Example]:
    """Every example, in an order that depends on the content alone.

    Its keys are what it must not share with one of another split (`data.split.group_by`). Raises DataError for a source
    that cannot be used.
    """
    if data.source in GENERATED:
        yield from generated.examples(data, task, seed)
        return
    if data.source == STDLIB:
        sources = stdlib.read()
        if sources.left_out:
            tally.add("files that are empty or not UTF-8", "left out", STDLIB, sources.left_out)
        for text, module in zip(sources.texts, sources.modules, strict=True):
            yield Example((text,), (text, module))
        return
    if is_data_set(data.source):
        for row in hub.rows(Path(data.source), data.config, _wanted(data, task)):
            texts, groups = _parted(data, task, row.texts)
            if (kept := _kept(texts, task, tally, row.place)) is not None:
                yield Example(kept, _keys(data, kept, groups), None if row.split == "train" else row.split)
        return
    for part, place in places(data).items():
        split = None if part == "train" else part
        for path in files(place):
            for where, texts, groups in _rows(data, task, path, tally):
                if (kept := _kept(texts, task, tally, where)) is not None:
                    yield Example(kept, _keys(data, kept, groups), split)


def beginning(data: DataSpec, task: str, seed: int) -> Iterator[tuple[str, ...]]:
    """The texts of the first examples of a source that `task` can use, read as far as they are taken."""
    if data.source in GENERATED:
        yield from _first_made(data, task, seed)
        return
    if data.source == STDLIB:
        yield from ((text,) for text in stdlib.read().texts)
        return
    unused = Tally()
    if is_data_set(data.source):
        for row in hub.rows(Path(data.source), data.config, _wanted(data, task)):
            if (kept := _kept(_parted(data, task, row.texts)[0], task, unused, row.place)) is not None:
                yield kept
        return
    for path in files(data.source):
        if _plain(path, task):  # lines, since what parts documents is seen at the end only
            texts = lines.TextFile.look(path, data.encoding).lines(unused, limit=tables.MAX_DOCUMENT)
            found: Iterator[tuple[str, ...]] = ((line,) for _, line in texts)
        else:
            found = (texts for _, texts, _ in _rows(data, task, path, unused))
        yield from (kept for texts in found if (kept := _kept(texts, task, unused, "")) is not None)


@functools.lru_cache(maxsize=2)  # a plan asks twice
def _first_made(data: DataSpec, task: str, seed: int) -> tuple[tuple[str, ...], ...]:
    taken, characters = [], 0
    for example in itertools.islice(generated.examples(data, task, seed), _FIRST_EXAMPLES):
        taken.append(example.texts)
        characters += sum(map(len, example.texts))
        if characters > _FIRST_CHARACTERS:
            break
    return tuple(taken)


def pinned(data: DataSpec) -> DataSpec:
    """The same with the commit that `data.revision` of a data set of the hub is now.

    The hub is asked then, and never for another source. Raises DataError and UnreachableError as `hub.resolve` does.
    """
    name = hub_name(data.source)
    return data.model_copy(update={"revision": hub.resolve(name, data.revision)}) if name else data


def local(data: DataSpec, cache: Path) -> DataSpec:
    """The same with a folder of `cache` in place of a data set of the hub, fetched if it is not there."""
    name = hub_name(data.source)
    return data.model_copy(update={"source": str(hub.fetch(name, data.revision, cache / "hub"))}) if name else data


def given_splits(data: DataSpec) -> set[str]:
    """Which of validation and test the source gives: a local one, as `local` returns it."""
    found = {name for name in ("validation", "test") if isinstance(getattr(data.split, name), str)}
    if is_data_set(data.source):
        layout = hub.look(Path(data.source), data.config)
        found |= set() if layout.whole else {ours for ours in layout.splits.values() if ours}
    return found & {"validation", "test"}


def size_bytes(data: DataSpec) -> int | None:
    """About how many bytes of text there are to read, so far as it is known before."""
    if data.source.startswith("builtin/") or is_data_set(data.source):
        return None
    paths = [path for place in places(data).values() for path in files(place)]
    return sum(path.stat().st_size for path in paths if path.suffix.lower() not in (".gz", ".parquet")) or None


def places(data: DataSpec) -> dict[str, str]:
    """Where the examples of each part come from: training's, and those of the splits that are given as files."""
    given = {name: getattr(data.split, name) for name in ("validation", "test")}
    return {"train": data.source, **{name: place for name, place in given.items() if isinstance(place, str)}}


def files(place: str) -> list[Path]:
    """The files that a path or pattern means, sorted. Raises DataError if there is none."""
    if not is_pattern(place) or Path(place).exists():
        return [Path(place)]
    found = sorted(Path(path) for path in glob.glob(place, recursive=True) if Path(path).is_file())
    if not found:
        raise DataError(f"{place}: no file fits this pattern. It counts from the folder of the spec file: correct it.")
    return found


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
    columns, texts = _wanted(data, task), len(TASK_DATA[task].columns)
    found = tables.rows(path, columns, tally, texts=texts, header=data.header, encoding=data.encoding)
    for number, cells in found:
        yield f"{path}:{number}", *_parted(data, task, cells)


def _wanted(data: DataSpec, task: str) -> tuple[Any, ...]:
    """The columns to read: those of the texts, then those that group examples."""
    grouping = data.split.group_by if isinstance(data.split.group_by, tuple) else ()
    return (*_columns(data, task).values(), *grouping)


def _parted(data: DataSpec, task: str, cells: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The texts, and the values that group examples."""
    texts = len(TASK_DATA[task].columns)
    return cells[:texts], cells[texts:]


def _kept(texts: tuple[str, ...], task: str, tally: Tally, place: str) -> tuple[str, ...] | None:
    """The texts as they are kept; None, and a count, where one is empty."""
    whole = "\n".join(texts)
    if _CONTROLS.search(whole):
        bad = next(text for text in texts if _CONTROLS.search(text))
        tally.add("texts with control characters, which are taken out", "mended", f"{place}: {lines.shown(bad)}")
        texts = tuple(_CONTROLS.sub("", text) for text in texts)
    if TASK_DATA[task].documents:
        kept = tuple(documents.clean(text) for text in texts)
    else:
        kept = tuple(unicodedata.normalize("NFC", text).strip() for text in texts)
    if not all(kept):
        what = "empty texts" if not any(kept) else "pairs with an empty side"
        tally.add(what, "left out", place)
        return None
    if not whole.isascii() and _RIGHT_TO_LEFT.search(whole):
        tally.add("texts with letters that run from right to left", "kept", place)
    return kept


def _keys(data: DataSpec, texts: tuple[str, ...], groups: tuple[str, ...] = ()) -> tuple[str, ...]:
    whole = "\0".join(texts)
    return texts if data.split.group_by == "text" else (*groups, whole)


def _plain(path: Path, task: str) -> bool:
    """Whether the file is text without columns."""
    return TASK_DATA[task].documents and file_kind(path.name) == ".txt"


def _columns(data: DataSpec, task: str) -> dict[str, Any]:
    """Where each text of an example stands: by default in the first columns, or under its name as a key."""
    names = TASK_DATA[task].columns
    if data.columns is not None:
        return {name: getattr(data.columns, name) for name in names}
    keyed = file_kind(data.source) in NAMED or is_data_set(data.source)
    return {name: name if keyed else number for number, name in enumerate(names, start=1)}
