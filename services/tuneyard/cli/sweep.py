"""`tuneyard sweep`: plan, run, look at, and ask of a sweep what it should do next."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import requests, settings
from tuneyard.cli.output import Json, Mlflow, Set, reporting, table, when
from tuneyard.cli.queue import find_queue, queued, state_text, the_queue
from tuneyard_pipelines.errors import UNWRITABLE, InputError, RefusedError, TuneyardError, UnreachableError

if TYPE_CHECKING:
    from tuneyard.queue import Queue
    from tuneyard.store import Entry
    from tuneyard.sweeps import View
    from tuneyard_pipelines.control import Request
    from tuneyard_pipelines.journal import SweepFolder

app = typer.Typer(help="Plan, train and look at sweeps.", no_args_is_help=True, rich_markup_mode=None)
Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep's YAML file.")]
Calibrate = Annotated[
    bool,
    typer.Option("--calibrate/--no-calibrate", help="Measure this machine once, for a forecast, and look at the data."),
]
Priority = Annotated[
    int, typer.Option("--priority", min=0, max=100, help="The higher, the sooner; then the older first.")
]
LOOK_S = 0.5
Id = Annotated[str, typer.Argument(metavar="ID", help="A sweep's id, or enough of its beginning.")]


@app.command()
def run(
    spec: Annotated[
        Path | None, typer.Argument(metavar="SPEC", help="A sweep's YAML file.", show_default=False)
    ] = None,
    overrides: Set = [],  # noqa: B006  (typer reads the default)
    mlflow: Mlflow = None,
    calibrate: Calibrate = True,
    sweep_id: Annotated[str | None, typer.Option("--sweep-id", hidden=True)] = None,  # what the queue's jobs call
) -> None:
    """Train a sweep here and now: progress on screen, runs in MLflow, the best model registered."""
    if sweep_id is not None:
        from tuneyard import driver

        sys.exit(driver.run(settings.find_home(), sweep_id))
    if spec is None:
        raise InputError("SPEC: name a sweep's YAML file, as in: tuneyard sweep run examples/dates.yaml")
    from tuneyard_pipelines.plan import runnable
    from tuneyard_pipelines.spec import load

    accepted: list[SweepFolder] = []

    def announce(folder: SweepFolder) -> None:
        bar.close()
        accepted.append(folder)
        show_progress(folder)

    with _interruptible(accepted):
        # What is wrong with the file is said before the seconds that the imports below take.
        loaded = load(spec, overrides)
        planned = runnable(loaded, file=str(spec))
        if any(count for one in planned.variants for count in one.broken_rules.values()):
            print("\n".join(line for line in planned.lines() if line.startswith(("variant ", "points", " "))))
        from tuneyard.cli.screen import watching

        measuring = "measuring this machine, " if calibrate else ""
        doing = f"{measuring}preparing data, starting Ray ..."
        with watching(doing) as show_progress, contextlib.ExitStack() as bar:
            from tuneyard.local import train

            preparing = bar.enter_context(reporting())
            folder = train(loaded, mlflow=mlflow, calibrate=calibrate, announce=announce, preparing=preparing)
    _finish(folder)


@app.command()
def submit(
    spec: Spec,
    overrides: Set = [],  # noqa: B006
    priority: Priority = 50,
    wait: Annotated[bool, typer.Option("--wait", help="Stay until it has ended; exit 0 if it succeeded.")] = False,
) -> None:
    """Put a sweep into the queue, whose dispatcher has it run on the cluster; close the lid, find it finished."""
    from tuneyard_pipelines.spec import load

    loaded = load(spec, overrides)
    queue = the_queue()
    entry = queue.submit(loaded, priority=priority)
    print(f"sweep {entry.job.sweep_id} ({entry.name}) is queued; see it with: tuneyard sweep show {entry.job.sweep_id}")
    if wait:
        _wait(queue, entry)


@app.command()
def cancel(sweep_id: Id) -> None:
    """Give up a sweep of the queue, whatever it is doing; what it has so far stays in its folder."""
    queue, entry = _in_queue(sweep_id)
    _said(queue.cancel(entry.job.sweep_id))


@app.command("set")
def set_(sweep_id: Id, priority: Priority) -> None:
    """Move a sweep of the queue up or down."""
    queue, entry = _in_queue(sweep_id)
    _said(queue.prioritise(entry.job.sweep_id, priority))


@app.command()
def logs(
    sweep_id: Id,
    follow: Annotated[bool, typer.Option("--follow", help="Print what is added, until the sweep has ended.")] = False,
) -> None:
    """What the sweep's driver said; kept in its folder, also when the cluster is gone."""
    from tuneyard import sweeps
    from tuneyard_pipelines.journal import SweepFolder

    found = queued(sweep_id)
    home = settings.find_home()
    folder = SweepFolder(home / "sweeps" / found[1].job.sweep_id) if found else sweeps.find(home, sweep_id)
    log = folder.path / "driver.log"
    offset = 0
    while True:
        ended = not sweeps.goes_on(folder, found[0].store.get(folder.sweep_id) if found else None)
        if log.exists():
            with log.open("rb") as source:
                source.seek(offset)
                added = source.read()
            offset += len(added)
            sys.stdout.buffer.write(added)
            sys.stdout.buffer.flush()
        if ended or not follow:
            return
        time.sleep(LOOK_S)


@app.command()
def resume(sweep_id: Id) -> None:
    """Go on with what is unfinished in a sweep, one that was stopped included."""
    if found := queued(sweep_id):
        _said(found[0].resume(found[1].job.sweep_id))
        return
    folder = _find(sweep_id)
    requests.ask(folder, requests.resume(folder))
    _go_on(folder)


@app.command()
def stop(sweep_id: Id) -> None:
    """Finish now: what trains is validated once more, the best so far is scored and registered."""
    if found := queued(sweep_id):
        _said(found[0].stop(found[1].job.sweep_id))
        return
    folder = _find(sweep_id)
    _ask(folder, requests.stop(folder))


@app.command()
def extend(
    sweep_id: Id,
    trials: Annotated[int, typer.Option("--trials", min=1, max=100_000, help="How many more.")],
) -> None:
    """Try so many more points, whether the sweep runs or has ended."""
    if found := queued(sweep_id):
        _said(found[0].extend(found[1].job.sweep_id, trials))
        return
    folder = _find(sweep_id)
    _ask(folder, requests.extend(folder, trials))


@app.command()
def add(
    sweep_id: Id,
    points: Annotated[
        list[str],
        typer.Option("--point", metavar="KEY=VALUE,..", help="A value for every varied key, and variant=NAME."),
    ],
) -> None:
    """Try these points, too, whether the sweep runs or has ended."""
    if found := queued(sweep_id):
        _said(found[0].add(found[1].job.sweep_id, points))
        return
    folder = _find(sweep_id)
    _ask(folder, requests.add(folder, points))


@app.command()
def retry(sweep_id: Id) -> None:
    """Run the trials that failed again, from their last checkpoints."""
    if found := queued(sweep_id):
        _said(found[0].retry(found[1].job.sweep_id))
        return
    folder = _find(sweep_id)
    _ask(folder, requests.retry(folder))


@app.command()
def plan(
    spec: Spec,
    overrides: Set = [],  # noqa: B006
    calibrate: Calibrate = True,
    as_json: Json = False,
) -> None:
    """What would run: points, models, memory, tokens, time. Exit 2 where nothing can run."""
    from tuneyard_pipelines.spec import load

    accepted = load(spec, overrides)
    from tuneyard.local import plan_sweep

    found = plan_sweep(accepted, calibrate=calibrate)
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        print("\n".join(found.lines()))
    if found.problems:
        raise typer.Exit(InputError.exit_code)


@app.command()
def schema() -> None:
    """The JSON schema of a spec, for editors."""
    from tuneyard_pipelines.spec import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """The sweeps of this home and of its queue, newest first."""
    from tuneyard import sweeps

    home = settings.find_home()

    def warn(message: str) -> None:
        print(f"warning: {message}", file=sys.stderr)

    found: list[sweeps.View] = []
    known: set[str] = set()
    try:
        if (queue := find_queue()) is not None:
            found = sweeps.queued_views(queue.store, home, warn)
            known = queue.store.ids()
    except UnreachableError as error:  # the local ones can be seen all the same
        warn(str(error))
    for folder in sweeps.all_folders(home):
        if folder.sweep_id in known:
            continue
        try:
            found.append(sweeps.look(folder))
        except InputError as error:  # one damaged folder hides no other
            warn(str(error))
    found.sort(key=lambda view: view.created_ms, reverse=True)
    if as_json:
        print(json.dumps([view.to_dict() for view in found]))
    elif not found:
        print(f"no sweeps in {home / 'sweeps'}; start one with: tuneyard sweep run SPEC")
    else:
        rows = [
            (view.sweep_id, view.name, view.state, view.counted, view.best_text, when(view.created_ms), view.where)
            for view in found
        ]
        table(("id", "name", "state", "trials", "best", "created", "where"), rows)


@app.command()
def show(sweep_id: Id, as_json: Json = False) -> None:
    """One sweep: its state, its best trial, where its runs are, what to do next."""
    view = _view(sweep_id)
    if as_json:
        print(json.dumps(view.to_dict()))
    else:
        table(None, view.facts())


@app.command()
def trials(sweep_id: Id, as_json: Json = False) -> None:
    """The trials of a sweep, best first."""
    view = _view(sweep_id)
    if as_json:
        print(json.dumps([row.to_dict() for row in view.leaderboard]))
    elif not view.leaderboard:
        print("no trials yet")
    else:
        table(*view.leaderboard_table())


@contextlib.contextmanager
def _interruptible(accepted: Sequence[SweepFolder]) -> Iterator[None]:
    """Says at Ctrl-C, at SIGTERM and after an error what is left.

    While trials train, the driver hears the signals and ends those in order.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        print(f"interrupted; {_what_is_left(accepted) or 'nothing was made'}", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        if error.errno not in UNWRITABLE or not accepted:
            raise
        raise TuneyardError(f"{error}; free space, then {_what_is_left(accepted)}") from error
    except TuneyardError as error:
        if not accepted or accepted[0].sweep_id in str(error):
            raise
        raise type(error)(f"{error}; {_what_is_left(accepted)}") from error


def _what_is_left(accepted: Sequence[SweepFolder]) -> str:
    return f"go on with: tuneyard sweep resume {accepted[0].sweep_id}" if accepted else ""


def _view(sweep_id: str) -> View:
    """Of a sweep of the queue, or of a local one."""
    from tuneyard import sweeps

    home = settings.find_home()
    if found := queued(sweep_id):
        return sweeps.queued_view(found[0].store, found[1], home)
    return sweeps.look(sweeps.find(home, sweep_id))


def _in_queue(sweep_id: str) -> tuple[Queue, Entry]:
    found = queued(sweep_id)
    if found is None:
        raise InputError(f"sweep {sweep_id!r}: not in the queue; see those that are with: tuneyard queue show")
    return found


def _said(entry: Entry) -> None:
    """What became of it."""
    job = entry.job
    print(f"sweep {job.sweep_id} ({entry.name}) is {state_text(entry)}; priority {entry.priority}")


def _wait(queue: Queue, entry: Entry) -> None:
    """Until it has ended; says each new state. Exit 1 unless it succeeded."""
    from tuneyard.jobs import ENDED

    said = ""
    while True:
        entry = queue.store.get(entry.job.sweep_id)
        now = f"{state_text(entry)}{f': {entry.waits_for}' if entry.waits_for else ''}"
        if now != said:
            print(now, flush=True)
            said = now
        if entry.job.state in ENDED:
            break
        time.sleep(LOOK_S)
    if entry.job.state != "succeeded":
        raise TuneyardError(f"sweep {entry.job.sweep_id} {entry.job.state}: {entry.job.message or entry.job.reason}")


def _find(sweep_id: str) -> SweepFolder:
    from tuneyard.sweeps import find

    return find(settings.find_home(), sweep_id)


def _ask(folder: SweepFolder, asked: Sequence[Request]) -> None:
    """Put the requests down; a driver that runs follows them, else one starts here."""
    follows = f"the driver of sweep {folder.sweep_id} follows; see it with: tuneyard sweep show {folder.sweep_id}"
    if requests.ask(folder, asked):
        print(follows)
        return
    try:
        _go_on(folder)
    except RefusedError:  # another one was faster, and reads the same requests
        print(follows)


def _go_on(folder: SweepFolder) -> None:
    with _interruptible([folder]):
        from tuneyard.cli.screen import watching

        with watching("reading what is done, starting Ray ...") as announce:
            from tuneyard.local import go_on

            go_on(folder, announce=announce)
    _finish(folder)


def _finish(folder: SweepFolder) -> None:
    """The last screen of a sweep; exit 1 when nothing came of it, 130 when it was interrupted."""
    from tuneyard import sweeps

    view = sweeps.look(folder)
    if view.leaderboard:
        print()
        table(*view.leaderboard_table())
    print()
    table(None, view.facts())
    if view.state == "interrupted":
        sys.exit(130)
    if view.state != "finished":
        raise TuneyardError(f"sweep {view.sweep_id} {view.state}: {view.message or 'see its driver.log'}")
