"""`tuneyard init`: a spec for a data file, written after a look at it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard.cli.output import Task, one_line, table
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard.local import Found

_OFFERED = 8


def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A data file, a pattern, or builtin/NAME.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing, take the defaults.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="SPEC", help="Where to; otherwise NAME.yaml here.")
    ] = None,
    task: Task = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a spec that is there.")] = False,
) -> None:
    """Look at data and write a commented spec that runs in about ten minutes here; asks only what it cannot see."""
    from tuneyard.local import draft_spec, look_at, spec_name, write_spec

    place = out or Path(f"{spec_name(file)}.yaml")
    if place.exists() and not force:
        raise InputError(f"{place}: is there already; write over it with --force, or name another place with --out")
    if not place.parent.is_dir():
        raise InputError(f"{place}: its folder is not there; make it, or name another place with --out")
    found = look_at(file, task=task)
    reading = found.readings[0]
    if not found.clear and not yes and _someone_is_there():
        reading = found.readings[_asked(found)]
    print(f"{file}: {reading}", file=sys.stderr)
    print("measuring this machine ...", file=sys.stderr)
    write_spec(draft_spec(found.look, reading, out=place), place)
    table(
        None,
        [
            ("written", str(place)),
            ("data", f"tuneyard data show {place}"),
            ("plan", f"tuneyard sweep plan {place}"),
            ("train", f"tuneyard sweep run {place}"),
        ],
    )


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _asked(found: Found) -> int:
    """The place of the reading that the person at the terminal chooses."""
    offered = found.readings[:_OFFERED]
    print("This can be read in several ways:")
    for number, reading in enumerate(offered, start=1):
        print(f"  {number}  {reading}")
        for column in reading.columns:
            print(f"       {column.name}: {one_line(next(filter(None, column.values), ''), 70)}")
    chosen = 0
    while not 1 <= chosen <= len(offered):
        chosen = typer.prompt(f"Which one, 1 to {len(offered)}", default=1, type=int)
    return chosen - 1
