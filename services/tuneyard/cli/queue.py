"""`tuneyard queue`: what waits and why, hold everything back for maintenance, and what each user may use."""

from __future__ import annotations

import getpass
import glob
import json
import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json, one_line, table, when
from tuneyard_pipelines.errors import InputError

if TYPE_CHECKING:
    from tuneyard.queue import Queue
    from tuneyard.store import Entry

app = typer.Typer(help="Look at the queue, pause it, set limits.", no_args_is_help=True, rich_markup_mode=None)


def find_queue() -> Queue | None:
    """The queue of this home; None where there is none."""
    home = settings.find_home()
    if not os.environ.get("TUNEYARD_DATABASE") and not (home / settings.QUEUE).exists():
        return None
    from tuneyard.queue import Queue
    from tuneyard.store import Store

    store = Store.open(settings.database_url(home))
    store.migrate()
    return Queue(store, home, getpass.getuser())


def the_queue() -> Queue:
    """Raises InputError where there is none."""
    queue = find_queue()
    if queue is None:
        raise InputError(
            f"{settings.find_home()}: there is no queue here; start its dispatcher with: python -m tuneyard.dispatcher"
        )
    return queue


def queued(sweep_id: str) -> tuple[Queue, Entry] | None:
    """The sweep whose id begins so, if it is one of the queue's. Raises InputError when several are."""
    queue = find_queue()
    if queue is None:
        return None
    found = queue.store.begin_so(sweep_id)
    if not found:
        return None
    local = {path.name for path in (queue.home / "sweeps").glob(f"{glob.escape(sweep_id)}*")}
    if len(begin_so := sorted({entry.job.sweep_id for entry in found} | local)) > 1:
        raise InputError(f"sweep {sweep_id!r}: {', '.join(begin_so[:6])} begin so; give more of the id")
    return queue, found[0]


@app.command()
def show(as_json: Json = False) -> None:
    """Who runs, who waits in which order and for what, and whether the queue is paused."""
    queue = the_queue()
    active, waiting, paused = queue.store.active(), queue.store.waiting(), queue.store.paused()
    if as_json:
        told = {
            "paused": asdict(paused) if paused else None,
            "active": [summary(entry) for entry in active],
            "waiting": [summary(entry) for entry in waiting],
        }
        print(json.dumps(told))
        return
    if paused is not None:
        print(f"paused since {when(paused.since_ms)} by {paused.by}: {one_line(paused.reason)}")
    rows = [
        (entry.job.sweep_id, entry.name, entry.owner, str(entry.priority), state_text(entry), one_line(entry.waits_for))
        for entry in [*active, *waiting]
    ]
    if rows:
        table(("id", "name", "owner", "priority", "state", "waits for"), rows)
    else:
        print("nothing runs and nothing waits; submit a sweep with: tuneyard sweep submit SPEC")


@app.command()
def pause(reason: Annotated[str, typer.Option("--reason", help="What those who wait are told.")]) -> None:
    """Start nothing from now on, as for maintenance; what runs goes on."""
    queue = the_queue()
    queue.store.pause(reason, queue.person, _now_ms())
    print("paused; what runs goes on; start again with: tuneyard queue resume")


@app.command()
def resume() -> None:
    """Start sweeps again."""
    queue = the_queue()
    queue.store.go_on(queue.person, _now_ms())
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

    queue = the_queue()
    limits = Limits(sweeps, gpus, gpu_hours)
    if none and limits != Limits():
        raise InputError("--none: takes all limits away; leave it out, or the other options")
    if none or limits != Limits():
        queue.store.set_limits(owner, None if none else limits, queue.person, _now_ms())
    rows = [
        (name, *("any" if value is None else f"{value:g}" for value in asdict(limits).values()))
        for name, limits in sorted(queue.store.limits().items())
    ]
    table(("owner", "sweeps", "GPUs", "GPU-hours"), rows)


def state_text(entry: Entry) -> str:
    """The state, and why it is in it."""
    return f"{entry.job.state} ({entry.job.reason})" if entry.job.reason else entry.job.state


def summary(entry: Entry) -> dict[str, object]:
    """Plain data of one sweep of the queue."""
    job = entry.job
    return {
        "sweep_id": job.sweep_id,
        "name": entry.name,
        "owner": entry.owner,
        "priority": entry.priority,
        "state": job.state,
        "reason": job.reason,
        "message": job.message,
        "waits_for": entry.waits_for,
        "attempt": job.attempt,
        "submitted_ms": entry.submitted_ms,
        "started_ms": job.started_ms,
        "ended_ms": job.ended_ms,
        "gpu_hours": entry.gpu_ms / 3_600_000,
        "where": "queued",
    }


def _now_ms() -> int:
    return int(time.time() * 1000)
