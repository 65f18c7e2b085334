"""Documents from a file: one text column of a table (`tables`), or plain text in which blank lines part them.

In a .txt file without a blank line between others, every line is a document. Documents come out in Unicode normal form
C, with line feeds as the only line ends and without blank lines around them. Empty ones are left out and counted.
"""

from __future__ import annotations

import hashlib
import itertools
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuneyard_pipelines.data import lines, tables
from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Documents:
    """What a file holds: documents in its order, how many were left out as empty, and the digest of its bytes."""

    texts: list[str]
    empty: int
    sha256: str


def read(path: Path, *, text: int | str = 1, header: bool = False) -> Documents:
    """Read all documents of `path`; `text` is the column of a table as `tables.rows` takes it, and unused for .txt.

    Raises DataError as that does, and for a file that holds no document.
    """
    digest = hashlib.sha256()
    found = [clean(raw) for raw in _raw(path, text, header, digest)]
    texts = [document for document in found if document]
    if not texts:
        raise DataError(f"{path}: no document in this file ({len(found)} empty ones). Name a file that holds text.")
    return Documents(texts, len(found) - len(texts), digest.hexdigest())


def clean(raw: str) -> str:
    """The document as it is kept: normal form C, line feeds only, no blank lines around it; "" if nothing is left."""
    text = unicodedata.normalize("NFC", raw).replace("\r\n", "\n")
    if not (inner := text.strip()):
        return ""
    begin = text.index(inner)
    first = text.rfind("\n", 0, begin) + 1
    last = text.find("\n", begin + len(inner))
    return text[first:] if last < 0 else text[first:last]


def _raw(path: Path, text: int | str, header: bool, digest: hashlib._Hash) -> Iterator[str]:
    if path.suffix.lower() == ".txt":
        numbered = lines.read(path, digest, limit_bytes=tables.MAX_DOCUMENT_BYTES)
        yield from _paragraphs(line for _, line in numbered)
        return
    for _, (document,) in tables.rows(path, (text,), header=header, digest=digest):
        yield document


def _paragraphs(texts: Iterable[str]) -> list[str]:
    groups = itertools.groupby(texts, key=lambda line: bool(line.strip()))
    paragraphs = [list(group) for filled, group in groups if filled]
    return paragraphs[0] if len(paragraphs) == 1 else ["\n".join(paragraph) for paragraph in paragraphs]
