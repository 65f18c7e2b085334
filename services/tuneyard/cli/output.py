"""What all commands share: options, tables, times."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Mlflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="URI",
        help="The tracking server; otherwise MLFLOW_TRACKING_URI, otherwise SQLite in .tuneyard.",
    ),
]


def table(head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell; plain text, so that it can be piped."""
    lines = [head, *rows] if head else list(rows)
    widths = [max(_width(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())


def visible(text: str) -> str:
    """Any text as one line that garbles nothing around it: blanks as ␣, what cannot be seen as \\n or \\u202e.

    A mark that would join the character before it stands on a circle; letters from right to left are kept apart.
    """
    shown = "".join("␣" if letter == " " else letter if letter.isprintable() else _escaped(letter) for letter in text)
    if shown and unicodedata.category(shown[0]).startswith("M"):
        shown = f"◌{shown}"
    if any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in shown):
        return f"\u2068{shown}\u2069"
    return shown


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _width(text: str) -> int:
    """Columns of a terminal."""
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def when(time_ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
