"""Documents of plain text: blank lines part them; in a file without a blank line between others, every line is one.

Documents come out in Unicode normal form C, with line feeds as the only line ends and without blank lines around them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from tuneyard_pipelines.data.examples import Tally
from tuneyard_pipelines.data.lines import TextFile
from tuneyard_pipelines.data.tables import MAX_DOCUMENT


def read(file: TextFile, tally: Tally) -> Iterator[tuple[int, str]]:
    """Every document as it stands in `file`, behind the number of its first line.

    One of more than MAX_DOCUMENT characters is parted at a line end, and that is counted.
    """
    if _only_lines(file):
        yield from ((number, line) for number, line in _counted(file, tally) if line.strip())
        return
    held: list[str] = []
    size, first = 0, 0
    for number, line in _counted(file, tally):
        if line.strip():
            if size + len(line) > MAX_DOCUMENT:
                tally.add("documents parted for their length", "mended", f"{file.path}:{first}")
                yield first, "\n".join(held)
                held, size = [], 0
            first = first if held else number
            held.append(line)
            size += len(line) + 1
        elif held:
            yield first, "\n".join(held)
            held, size = [], 0
    if held:
        yield first, "\n".join(held)


def _counted(file: TextFile, tally: Tally) -> Iterator[tuple[int, str]]:
    for numbered in file.lines(tally, limit=MAX_DOCUMENT):
        tally.lines += 1
        yield numbered


def clean(raw: str) -> str:
    """The document as it is kept: normal form C, line feeds only, no blank lines around it; "" if nothing is left."""
    text = unicodedata.normalize("NFC", raw).replace("\r\n", "\n")
    if text and not text[0].isspace() and not text[-1].isspace():
        return text
    if not (inner := text.strip()):
        return ""
    begin = text.index(inner)
    first = text.rfind("\n", 0, begin) + 1
    last = text.find("\n", begin + len(inner))
    return text[first:] if last < 0 else text[first:last]


def _only_lines(file: TextFile) -> bool:
    """Whether no blank line stands between others."""
    filled = blank = False
    for _, line in file.lines(Tally(), limit=MAX_DOCUMENT):
        if not line.strip():
            blank = filled
        elif blank:
            return False
        else:
            filled = True
    return True
