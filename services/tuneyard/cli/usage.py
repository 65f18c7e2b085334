"""`tuneyard usage`: what users and projects have used of the cluster."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer

from tuneyard.cli.output import Json, one_line, table, when
from tuneyard.cli.service import the_client
from tuneyard_pipelines import units
from tuneyard_pipelines.errors import InputError

MOST_DAYS = 366


def usage(
    by: Annotated[
        str, typer.Option("--by", help="user, or project: the tag project of a spec, else its name.")
    ] = "user",
    since: Annotated[str, typer.Option("--since", metavar="TIME", help="So long ago, as in 7d, 12h or 1d12h.")] = "7d",
    as_json: Json = False,
) -> None:
    """How long trials have trained, on how many GPUs, which of them were idle, and for how long those that failed.

    A trial that began before counts as if it had trained last of all: at most as long as it was there since.
    """
    from tuneyard.usage import WAYS

    way = next((one for one in WAYS if one == by), None)
    if way is None:
        raise InputError(f"--by {by}: allowed: {', '.join(WAYS)}")
    try:
        since_s = units.duration_s(since, most_days=MOST_DAYS)
    except ValueError:
        raise InputError(f"--since {since}: allowed: 1s to {MOST_DAYS}d, as in 7d, 12h or 1d12h") from None
    found = the_client().usage(way, since_ms=int((time.time() - since_s) * 1000))
    if as_json:
        print(json.dumps(asdict(found)))
        return
    if not found.rows:
        print(f"nothing ran since {when(found.since_ms)}")
        return
    rows = [
        (
            one_line(row.name),
            str(row.sweeps),
            str(row.trials),
            *(
                f"{hours:,.2f}"
                for hours in (row.trial_hours, row.gpu_hours, row.idle_gpu_hours, row.failed_trial_hours)
            ),
        )
        for row in found.rows
    ]
    table((way, "sweeps", "trials", "trial-hours", "GPU-hours", "idle GPU-hours", "failed trial-hours"), rows)
