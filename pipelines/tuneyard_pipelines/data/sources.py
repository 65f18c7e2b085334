"""The texts of a source: what makes its content unique, all of its examples, and a first look at some."""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.catalog import GENERATED, TASK_DATA
from tuneyard_pipelines.data import documents, generated, lines, pairs, stdlib, tables
from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tuneyard_pipelines.spec import DataSpec

STDLIB = "builtin/stdlib"
_FIRST_GENERATED = 2_000


@dataclass(frozen=True)
class Texts:
    """Examples in the order of the source, each with a text for every column of the task.

    `keys` are what an example must not share with one of another split: its texts, and the module of builtin/stdlib.
    `left_out` counts what was empty or could not be decoded.
    """

    rows: list[tuple[str, ...]]
    keys: list[tuple[str, ...]]
    left_out: int


def origin(data: DataSpec, task: str) -> dict[str, Any]:
    """What makes the content of `data.source` unique. Raises DataError for a source that `task` cannot use."""
    takes = TASK_DATA[task]
    if not takes.takes(data.source):
        raise DataError(f"data.source: {data.source!r} is nothing that {task} takes. It takes {takes.allowed}.")
    if data.source in GENERATED:
        return generated.origin(data)
    if data.source == STDLIB:
        return {"builtin": STDLIB, "version": stdlib.VERSION, "sha256": stdlib.sha256()}
    path = Path(data.source)
    digest = lines.sha256(path)
    if _plain(path, task):
        return {"sha256": digest, "kind": "paragraphs"}
    kind = path.suffix.lower()
    kinds = {"kind": kind} if kind in (".csv", ".jsonl") else {}  # nothing for tabs: they were the only kind once
    return {"sha256": digest, "header": data.header, **_columns(data, task), **kinds}


def read(data: DataSpec, task: str, seed: int, origin: dict[str, Any]) -> Texts:
    """Every example. Raises DataError for a source that cannot be used or is no longer that of `origin`."""
    if data.source in GENERATED:
        made = list(generated.examples(data, task, seed))
        return Texts([texts for texts, _ in made], [keys for _, keys in made], 0)
    if data.source == STDLIB:
        sources = stdlib.read()
        keys = list(zip(sources.texts, sources.modules, strict=True))
        return Texts([(text,) for text in sources.texts], list(keys), sources.left_out)
    path, columns = Path(data.source), _columns(data, task)
    rows: list[tuple[str, ...]]
    if task == "translation":
        found = pairs.read(path, header=data.header, **columns)
        rows, left_out, sha256 = list(found.pairs), found.empty, found.sha256
    else:
        held = documents.read(path, header=data.header, **columns)
        rows, left_out, sha256 = [(text,) for text in held.texts], held.empty, held.sha256
    if sha256 != origin["sha256"]:
        raise DataError(f"{data.source}: the file was changed while it was read. Start again once it is complete.")
    return Texts(rows, rows, left_out)


def beginning(data: DataSpec, task: str, seed: int) -> Iterator[str]:
    """Texts from the beginning of a source that `task` can use, read as far as they are taken."""
    if data.source in GENERATED:
        first = itertools.islice(generated.examples(data, task, seed), _FIRST_GENERATED)
        yield from (text for texts, _ in first for text in texts)
        return
    if data.source == STDLIB:
        yield from stdlib.read().texts
        return
    path, unused = Path(data.source), hashlib.sha256()
    if _plain(path, task):
        texts = (text for _, text in lines.read(path, unused, limit_bytes=tables.MAX_DOCUMENT_BYTES))
    else:
        columns = tuple(_columns(data, task).values())
        texts = (text for _, row in tables.rows(path, columns, header=data.header, digest=unused) for text in row)
    yield from (unicodedata.normalize("NFC", text) for text in texts)


def _plain(path: Path, task: str) -> bool:
    """Whether the file is text without columns."""
    return task == "language_modeling" and path.suffix.lower() == ".txt"


def _columns(data: DataSpec, task: str) -> dict[str, Any]:
    """Where each text of an example stands: by default in the first columns, or under its name as a key."""
    names = TASK_DATA[task].columns
    if data.columns is not None:
        return {name: getattr(data.columns, name) for name in names}
    keyed = data.source.lower().endswith(".jsonl")
    return {name: name if keyed else number for number, name in enumerate(names, start=1)}
