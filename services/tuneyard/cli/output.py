"""What all commands share: options, tables, times."""

from __future__ import annotations

import contextlib
import math
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

_FIRST_STRONG_ISOLATE, _POP_ISOLATE = "\u2068", "\u2069"
_STEERING = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # categories of Unicode
_JOINERS = "\u200c\u200d"  # in words of Persian, in emoji
LONGEST_AGO_S = 30 * 86_400

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
Mlflow = Annotated[
    str | None,
    typer.Option(
        "--mlflow",
        metavar="URI",
        help="The tracking server; otherwise MLFLOW_TRACKING_URI, otherwise SQLite in .tuneyard.",
    ),
]
Set = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in model.d_model=128.")]
Task = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="TASK", help="translation, language_modeling or masked_lm; else what it looks like."
    ),
]


def one_line(text: str, longest: int | None = None) -> str:
    """The text on one line of a terminal: cut, what steers a terminal or turns its lines around escaped.

    What runs from right to left is isolated, so that it moves nothing beside it.
    """
    shown = text if longest is None or len(text) <= longest else text[: longest - 1] + "…"
    escaped = "".join(
        character.encode("unicode_escape").decode()
        if unicodedata.category(character) in _STEERING and character not in _JOINERS
        else character
        for character in shown
    )
    return _isolated(escaped)


@contextlib.contextmanager
def reporting() -> Iterator[Callable[[str, float], None]]:
    """Gives what tells on the terminal what is done to the data; its bar goes with the context."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda doing, share: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:

        def tell(doing: str, share: float) -> None:
            known = not math.isnan(share)
            if not bars.tasks or doing != bars.tasks[0].description:  # the time left is that of this doing alone
                for before in bars.task_ids:
                    bars.remove_task(before)
                bars.add_task(doing, total=1.0 if known else None)
            bars.update(bars.task_ids[0], completed=share if known else 0.0)

        yield tell


def table(head: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell; plain text, so that it can be piped."""
    lines = [head, *rows] if head else list(rows)
    widths = _widths(lines)
    for line in lines:
        padded = (cell + " " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True))
        print("  ".join(padded).rstrip())


def table_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The columns of a terminal that `table` takes."""
    return sum(_widths([head, *rows])) + 2 * (len(head) - 1)


def visible(text: str) -> str:
    """Any text as one line that garbles nothing around it: blanks as ␣, what cannot be seen as \\n or \\u202e.

    A mark that would join the character before it stands on a circle; letters from right to left are kept apart.
    """
    shown = "".join("␣" if letter == " " else letter if letter.isprintable() else _escaped(letter) for letter in text)
    if shown and unicodedata.category(shown[0]).startswith("M"):
        shown = f"◌{shown}"
    return _isolated(shown)


def _isolated(text: str) -> str:
    """The text, and what runs from right to left in it kept apart from what stands beside it."""
    turned = any(unicodedata.bidirectional(letter) in ("R", "AL", "AN") for letter in text)
    return f"{_FIRST_STRONG_ISOLATE}{text}{_POP_ISOLATE}" if turned else text


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def _widths(lines: Sequence[Sequence[str]]) -> list[int]:
    return [max(_width(line[column]) for line in lines) for column in range(len(lines[0]))]


def _width(text: str) -> int:
    """Columns of a terminal."""
    return sum(_letter_width(letter) for letter in text)


def _letter_width(letter: str) -> int:
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def ago(time_ms: int, now_ms: int | None = None) -> str:
    """How long ago, in one unit; the day itself, in UTC, after a month, and of what is yet to come the second."""
    past_s = ((int(time.time() * 1000) if now_ms is None else now_ms) - time_ms) / 1000
    if past_s < -1:
        return when(time_ms)
    for unit_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if past_s >= unit_s:
            return f"{past_s // unit_s:.0f} {unit} ago" if past_s < LONGEST_AGO_S else when(time_ms)[:10]
    return f"{max(0, int(past_s))} s ago"


def when(time_ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
