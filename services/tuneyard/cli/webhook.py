"""`tuneyard webhook`: who is told what becomes of sweeps, and what came of telling them."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from tuneyard.cli.output import Json, ago, one_line, table, when
from tuneyard.cli.service import the_client
from tuneyard_pipelines.errors import InputError, TuneyardError, UnreachableError

app = typer.Typer(help="Have other services told what becomes of sweeps.", no_args_is_help=True, rich_markup_mode=None)
Id = Annotated[str, typer.Argument(metavar="ID", help="A webhook's id.")]

PATIENCE_S, LOOK_S = 30.0, 0.2  # for the dispatcher's first try


@app.command("create")
def create_(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to, as in https://hooks.example.org/tuneyard.")],
    events: Annotated[
        list[str] | None,
        typer.Option("--event", metavar="EVENT", help="Of what, as in sweep.failed; otherwise of all."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="json, or slack for a line of text as Slack takes it.")
    ] = "json",
    as_json: Json = False,
) -> None:
    """Make a webhook, and print the secret that its deliveries are signed with, this once."""
    from tuneyard.webhooks import FORMATS

    known = next((one for one in FORMATS if one == form), None)
    if known is None:
        raise InputError(f"--format {form}: allowed: {', '.join(FORMATS)}")
    made = the_client().create_webhook(url, events=events or (), format=known)
    if as_json:
        print(json.dumps({**asdict(made.hook), "secret": made.secret}))
        return
    print(
        f"webhook {made.hook.hook_id}, of {', '.join(made.hook.events)}; its secret is not shown again:",
        file=sys.stderr,
    )
    print(made.secret)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """The webhooks there are, and why one has ended."""
    hooks = the_client().webhooks()
    if as_json:
        print(json.dumps([asdict(hook) for hook in hooks]))
        return
    rows = [
        (
            hook.hook_id,
            one_line(hook.url, 60),
            hook.format,
            " ".join(hook.events),
            str(hook.waiting),
            "good" if hook.ended_ms is None else f"ended {ago(hook.ended_ms)}: {one_line(hook.ended_why)}",
        )
        for hook in hooks
    ]
    table(("id", "url", "format", "events", "waiting", "state"), rows)


@app.command()
def delete(hook_id: Id) -> None:
    """Tell it nothing any more."""
    hook = the_client().delete_webhook(hook_id)
    print(f"webhook {hook.hook_id} is deleted")


@app.command()
def test(hook_id: Id) -> None:
    """Send it a test, and say what came of that."""
    client = the_client()
    sent = client.test_webhook(hook_id)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        now = next((one for one in client.webhook_deliveries(hook_id) if one.delivery_id == sent.delivery_id), sent)
        if now.tries:
            last = now.tries[-1]
            if last.error:
                raise TuneyardError(f"webhook {hook_id}: {one_line(last.error)}")
            print(f"webhook {hook_id}: taken ({last.status})")
            return
        time.sleep(LOOK_S)
    raise UnreachableError(
        f"webhook {hook_id}: nothing was sent in {PATIENCE_S:.0f} s; see that a dispatcher runs (tuneyard status), and "
        f"what came of it with: tuneyard webhook deliveries {hook_id}"
    )


@app.command()
def deliveries(
    hook_id: Id,
    limit: Annotated[int, typer.Option("--limit", min=1, max=500, help="So many of the newest.")] = 50,
    as_json: Json = False,
) -> None:
    """What it was told or is owed, and what came of the last try."""
    found = the_client().webhook_deliveries(hook_id, limit=limit)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    rows = [
        (
            one.delivery_id,
            one.event,
            ago(one.created_ms),
            one.state if one.next_ms is None or not one.tries else f"tried again {when(one.next_ms)}",
            str(len(one.tries)),
            one_line(one.tries[-1].error, 80) if one.tries else "",
        )
        for one in found
    ]
    table(("id", "event", "owed", "state", "tries", "what is wrong"), rows)
