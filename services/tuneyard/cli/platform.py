"""`tuneyard up`, `down`, `status` and `doctor`: the platform on one machine."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import settings
from tuneyard.cli.output import Json, ago, one_line, table
from tuneyard_pipelines.errors import TuneyardError

if TYPE_CHECKING:
    from tuneyard.platform import Look, State

NOT_HEALTHY, PROBLEM = 3, 1

Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Where the API listens; 0 for any free port.")]
MlflowPort = Annotated[int, typer.Option("--mlflow-port", min=0, max=65535, help="The same of MLflow and its pages.")]
RayPort = Annotated[int, typer.Option("--ray-port", min=0, max=65535, help="The same of the Ray head.")]
DashboardPort = Annotated[int, typer.Option("--dashboard-port", min=0, max=65535, help="The same of Ray's dashboard.")]


def up(
    port: Port = 8700,
    mlflow_port: MlflowPort = 5000,
    ray_port: RayPort = 6379,
    dashboard_port: DashboardPort = 8265,
    detach: Annotated[bool, typer.Option("--detach", help="Go on in the background, and return once ready.")] = False,
) -> None:
    """Run the platform on this machine: API, MLflow, a Ray head and the dispatcher, on 127.0.0.1 only.

    What dies is started again. Ctrl-C ends it all in order; that is its regular end, and exits 0.
    """
    from tuneyard import platform
    from tuneyard.ports import Ports

    home, ports = settings.find_home(), Ports(port, mlflow_port, ray_port, dashboard_port)
    if detach:
        platform.detach(home, ports, print)
        print("it goes on in the background; end it with: tuneyard down")
    else:
        platform.run(home, ports, _say)


def down() -> None:
    """End the platform of this home, and wait until all of it is gone."""
    from tuneyard import platform

    home = settings.find_home()
    if platform.down(home, print):
        print("ended")
    else:
        print(f"nothing is up in {home}")


def status(as_json: Json = False) -> None:
    """Each part of the platform as it is now, and how much is queued; exit 3 unless all is well."""
    from tuneyard import platform

    home = settings.find_home()
    state = platform.read(home)
    if state is None or not platform.is_up(home):
        _say_down(home, state, as_json)
        raise typer.Exit(NOT_HEALTHY)
    looks = platform.look(home, state)
    healthy = state.state == "ready" and all(look.answers for look in looks)
    queue = _queue(home, state)
    if as_json:
        parts = [{**asdict(look.standing), "answers": look.answers} for look in looks]
        told = {"up": True, "healthy": healthy, **asdict(state), "addresses": state.addresses(), "parts": parts}
        print(json.dumps({**told, "home": str(home), "queue": queue}))
    else:
        print(f"the platform of {home} is {state.state}; begun {ago(state.since_ms)}, process {state.pid}")
        table(("part", "state", "process", "begun", "restarts", "address"), [_row(look) for look in looks])
        print(_queue_text(queue, state))
    if not healthy:
        raise typer.Exit(NOT_HEALTHY)


def doctor(
    gpus: Annotated[
        bool, typer.Option("--gpus", help="Have each GPU of the cluster train a small model, too: a minute or two.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, this home and what runs in it, and say what to do; exit 1 if there is a problem."""
    from tuneyard import doctor

    findings = doctor.examine(settings.find_home(), try_gpus=gpus)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            print(f"{finding.verdict:<8}{finding.about}: {one_line(finding.found)}")
            if finding.do:
                print(f"{'':<8}  -> {one_line(finding.do)}")
    if any(finding.verdict == "problem" for finding in findings):
        raise typer.Exit(PROBLEM)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone is no reason to end the platform
        print(f"{datetime.now(UTC):%H:%M:%SZ}  {text}", flush=True)


def _say_down(home: Path, state: State | None, as_json: bool) -> None:
    from tuneyard import platform

    left = sorted({process.pid for process in platform.left(state)}) if state is not None else []
    if as_json:
        print(json.dumps({"up": False, "healthy": False, "home": str(home), "left": left}))
        return
    print(f"no platform is up in {home}; start one with: tuneyard up")
    if left:
        print(f"its supervisor was killed, and processes of it are left: {_ids(left)}; end them with: tuneyard down")


def _ids(pids: list[int]) -> str:
    return ", ".join(str(pid) for pid in pids)


def _row(look: Look) -> tuple[str, ...]:
    part = look.standing
    state = part.state if part.state != "ready" or look.answers else "silent"
    pid = "-" if part.pid is None else str(part.pid)
    return part.name, state, pid, ago(part.since_ms), str(part.restarts), part.address or "-"


def _queue(home: Path, state: State) -> dict[str, int] | None:
    """How many sweeps run and wait; None where this shell does not name the platform's database."""
    from tuneyard.store import Store

    url = settings.database_url(home)
    if settings.without_passwords(url) != state.database:
        return None
    try:
        with contextlib.closing(Store.open(url)) as store:
            return {"running": len(store.active()), "queued": len(store.waiting())}
    except TuneyardError:
        return None


def _queue_text(queue: dict[str, int] | None, state: State) -> str:
    if queue is None:
        return f"queue: in {state.database}, which does not answer or is not the one that TUNEYARD_DATABASE names here"
    return f"queue: {queue['running']} running, {queue['queued']} queued"
