"""What all commands share: options, tables, times."""

from __future__ import annotations

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
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def when(time_ms: int) -> str:
    """UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
