"""`tuneyard queue`: what waits and why, hold everything back for maintenance, and what each user may use."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from tuneyard.cli.output import Json, ago, one_line, table
from tuneyard.cli.service import state_text, the_client
from tuneyard_pipelines.errors import InputError

app = typer.Typer(help="Look at the queue, pause it, set limits.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(as_json: Json = False) -> None:
    """Who runs, who waits in which order and for what, and whether the queue is paused."""
    now = the_client().queue()
    if as_json:
        told = {
            "paused": asdict(now.paused) if now.paused else None,
            "active": [sweep.to_dict() for sweep in now.active],
            "waiting": [sweep.to_dict() for sweep in now.waiting],
        }
        print(json.dumps(told))
        return
    if now.paused is not None:
        print(f"paused {ago(now.paused.since_ms)} by {now.paused.by}: {one_line(now.paused.reason)}")
    rows = [
        (sweep.sweep_id, sweep.name, sweep.owner, str(sweep.priority), state_text(sweep), one_line(sweep.waits_for))
        for sweep in [*now.active, *now.waiting]
    ]
    if rows:
        table(("id", "name", "owner", "priority", "state", "waits for"), rows)
    else:
        print("nothing runs and nothing waits; submit a sweep with: tuneyard sweep submit SPEC")


@app.command()
def pause(reason: Annotated[str, typer.Option("--reason", help="What those who wait are told.")]) -> None:
    """Start nothing from now on, as for maintenance; what runs goes on."""
    the_client().pause(reason)
    print("paused; what runs goes on; start again with: tuneyard queue resume")


@app.command()
def resume() -> None:
    """Start sweeps again."""
    the_client().go_on()
    print("the queue goes on")


@app.command()
def limit(
    owner: Annotated[str, typer.Argument(metavar="OWNER", help="A user's name, or '*' for all without limits of own.")],
    sweeps: Annotated[int | None, typer.Option("--sweeps", min=0, help="Sweeps that run at once.")] = None,
    gpus: Annotated[int | None, typer.Option("--gpus", min=0, help="GPUs at once.")] = None,
    gpu_hours: Annotated[float | None, typer.Option("--gpu-hours", min=0, help="GPU-hours in all.")] = None,
    none: Annotated[bool, typer.Option("--none", help="As everybody again.")] = False,
) -> None:
    """What the sweeps of one user may use together; of several options, one that is left out sets no limit.

    Without an option nothing is set, and what there is is shown.
    """
    from tuneyard.store import Limits

    client = the_client()
    limits = Limits(sweeps, gpus, gpu_hours)
    if none and limits != Limits():
        raise InputError("--none: takes all limits away; leave it out, or the other options")
    if none or limits != Limits():
        client.set_limits(owner, None if none else limits)
    rows = [
        (name, *("any" if value is None else f"{value:g}" for value in asdict(limits).values()))
        for name, limits in sorted(client.limits().items())
    ]
    table(("owner", "sweeps", "GPUs", "GPU-hours"), rows)
