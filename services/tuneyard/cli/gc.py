"""`tuneyard gc`: give disk space back."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json
from tuneyard_pipelines import units
from tuneyard_pipelines.errors import InputError


def gc(
    limit: Annotated[
        str | None,
        typer.Option("--limit", metavar="SIZE", help="How much may stay, as in 5GiB; left out, TUNEYARD_CACHE_LIMIT."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove prepared data that was not used for the longest time, until what is left is within the limit.

    Data of unfinished sweeps and what is in use stays. What was removed is prepared again when it is needed.
    """
    from tuneyard.local import collect_garbage

    home = settings.find_home()
    try:
        limit_bytes = settings.size_bytes("TUNEYARD_CACHE_LIMIT") if limit is None else _bytes(limit)
    except ValueError:
        raise InputError(f"--limit: found {limit!r}; allowed: 0, or {units.SIZE_FORMS}") from None
    found = collect_garbage(home, limit_bytes)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    left = found.before_bytes - found.removed_bytes
    print(
        f"removed {found.removed} of prepared data, {_mib(found.removed_bytes)}; {_mib(left)} stay in {home / 'data'}"
    )


def _bytes(text: str) -> int:
    return 0 if text == "0" else units.size_bytes(text)


def _mib(amount_bytes: int) -> str:
    return f"{amount_bytes / 2**20:,.1f} MiB"
