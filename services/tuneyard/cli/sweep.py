"""`tuneyard sweep`: plan, run, look at, and ask of a sweep what it should do next."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import requests, settings
from tuneyard.cli.output import Json, Mlflow, Set, ago, reporting, table
from tuneyard.cli.service import find_client, for_the_service, ids, local, local_folders, queued, state_text, the_client
from tuneyard_pipelines.errors import UNWRITABLE, InputError, RefusedError, TuneyardError, UnreachableError

if TYPE_CHECKING:
    from tuneyard.client import Client
    from tuneyard.sweeps import Listed, View
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
SUCCEEDED = ("finished", "succeeded")  # of a local one, and of one in the queue
MOST_TRIALS = 100_000  # that are shown
Id = Annotated[str, typer.Argument(metavar="ID", help="A sweep's id, or enough of its beginning.", autocompletion=ids)]


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
        from tuneyard.cli.screen import watching

        sys.exit(driver.run(settings.find_home(), sweep_id, watching))
    if spec is None:
        raise InputError("SPEC: name a sweep's YAML file, as in: tuneyard sweep run examples/dates.yaml")
    from tuneyard_pipelines.plan import runnable
    from tuneyard_pipelines.spec import load

    accepted: list[SweepFolder] = []

    def announce(folder: SweepFolder) -> None:
        bar.close()
        accepted.append(folder)
        show_progress(folder)

    with _interruptible(accepted) as unless_interrupted:
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

            report = bar.enter_context(reporting())

            def preparing(doing: str, share: float) -> None:
                unless_interrupted()
                report(doing, share)

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
    client = the_client()
    sweep = client.submit(for_the_service(loaded, client).text(), priority=priority)
    print(f"sweep {sweep.sweep_id} ({sweep.name}) is {sweep.state} at {client.url}")
    print(f"follow it with: tuneyard sweep logs {sweep.sweep_id} --follow")
    if wait:
        _wait(client, sweep.sweep_id)


@app.command()
def cancel(sweep_id: Id) -> None:
    """Give up a sweep of the queue, whatever it is doing; what it has so far stays in its folder."""
    client, view = _in_queue(sweep_id)
    _said(client.cancel(view.sweep_id))


@app.command("set")
def set_(sweep_id: Id, priority: Priority) -> None:
    """Move a sweep of the queue up or down."""
    client, view = _in_queue(sweep_id)
    _said(client.prioritise(view.sweep_id, priority))


@app.command()
def logs(
    sweep_id: Id,
    trial: Annotated[
        str | None,
        typer.Option("--trial", metavar="TRIAL", help="What this trial said, t007 or 7, and not the driver."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print what is added, until the sweep has ended.")] = False,
) -> None:
    """What the sweep's driver said; kept in its folder, also when the cluster is gone."""
    if found := queued(sweep_id):
        for text in found[0].logs(found[1].sweep_id, trial=trial, follow=follow):
            print(text, end="", flush=True)
        return
    from tuneyard import logs as said
    from tuneyard_pipelines import lease

    folder = _find(sweep_id)
    offset = 0
    while True:
        ended = not lease.driven(folder.path)
        while added := said.read(said.files(folder, trial), offset):
            offset += len(added)
            sys.stdout.buffer.write(added)
            sys.stdout.buffer.flush()
        if ended or not follow:
            return
        time.sleep(LOOK_S)


@app.command()
def watch(sweep_id: Id) -> None:
    """A sweep as it goes on, until it has ended; exit 1 unless it succeeded. Ctrl-C leaves it running."""
    from tuneyard import sweeps
    from tuneyard.cli.screen import follow

    if found := queued(sweep_id):
        client, there = found
        view = follow(lambda trials: client.sweep(there.sweep_id, trials=trials), MOST_TRIALS)
    else:
        folder = _find(sweep_id)
        view = follow(lambda trials: sweeps.look(folder), MOST_TRIALS)
    if view.state not in SUCCEEDED:
        raise TuneyardError(f"sweep {view.sweep_id} {view.state}: {view.message or 'see tuneyard sweep logs'}")


@app.command()
def compare(sweep_id: Id, other_id: Id, as_json: Json = False) -> None:
    """Two sweeps side by side: their best trials, their test scores, and where their specs differ."""
    from tuneyard.comparison import compare

    one, other = (_view(each, trials=MOST_TRIALS) for each in (sweep_id, other_id))
    found = compare(one, other, (_spec_text(one), _spec_text(other)))
    if as_json:
        print(json.dumps(asdict(found)))
        return
    table(None, [(line.label, line.one, line.other) for line in found.results])
    print()
    if found.spec:
        table(None, [(line.label, line.one, line.other) for line in found.spec])
    else:
        print("their specs are the same")
    if found.warning:
        print(f"\nwarning: {found.warning}")


@app.command()
def resume(sweep_id: Id) -> None:
    """Go on with what is unfinished in a sweep, one that was stopped included."""
    if found := queued(sweep_id):
        _said(found[0].resume(found[1].sweep_id))
        return
    folder = local(sweep_id)
    requests.ask(folder, requests.resume(folder))
    _go_on(folder)


@app.command()
def stop(sweep_id: Id) -> None:
    """Finish now: what trains is validated once more, the best so far is scored and registered."""
    if found := queued(sweep_id):
        _said(found[0].stop(found[1].sweep_id))
        return
    folder = local(sweep_id)
    _ask(folder, requests.stop(folder))


@app.command()
def extend(
    sweep_id: Id,
    trials: Annotated[int, typer.Option("--trials", min=1, max=100_000, help="How many more.")],
) -> None:
    """Try so many more points, whether the sweep runs or has ended."""
    if found := queued(sweep_id):
        _said(found[0].extend(found[1].sweep_id, trials))
        return
    folder = local(sweep_id)
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
        _said(found[0].add(found[1].sweep_id, points))
        return
    folder = local(sweep_id)
    _ask(folder, requests.add(folder, points))


@app.command()
def retry(sweep_id: Id) -> None:
    """Run the trials that failed again, from their last checkpoints."""
    if found := queued(sweep_id):
        _said(found[0].retry(found[1].sweep_id))
        return
    folder = local(sweep_id)
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
    client = find_client()
    found: list[sweeps.Listed] = []
    folders = sweeps.all_folders(home)
    try:
        if client is not None:
            found += client.sweeps()
            folders = local_folders()
    except TuneyardError as error:  # what lies here can be seen all the same
        _warn(error)
    for folder in folders:
        try:
            found.append(sweeps.Listed.of(sweeps.look(folder)))
        except InputError as error:  # one damaged folder hides no other
            _warn(error)
    found.sort(key=lambda sweep: sweep.created_ms, reverse=True)
    if as_json:
        print(json.dumps([sweep.to_dict() for sweep in found]))
    elif not found:
        print(f"no sweeps in {home / 'sweeps'}; start one with: tuneyard sweep run SPEC")
    else:
        rows = [
            (one.sweep_id, one.name, one.state, one.counted, one.best_text, ago(one.created_ms), one.where)
            for one in found
        ]
        table(("id", "name", "state", "trials", "best", "created", "where"), rows)


@app.command()
def show(sweep_id: Id, as_json: Json = False) -> None:
    """One sweep: its state, its best trial, where its runs are, what to do next."""
    view = _view(sweep_id, trials=1)
    if as_json:
        print(json.dumps(view.to_dict()))
    else:
        table(None, view.facts())


@app.command()
def trials(sweep_id: Id, as_json: Json = False) -> None:
    """The trials of a sweep, best first."""
    view = _view(sweep_id, trials=MOST_TRIALS)
    if as_json:
        print(json.dumps([row.to_dict() for row in view.leaderboard]))
    elif not view.leaderboard:
        print("no trials yet")
    else:
        table(*view.leaderboard_table())


@contextlib.contextmanager
def _interruptible(accepted: Sequence[SweepFolder]) -> Iterator[Callable[[], None]]:
    """Says at Ctrl-C, at SIGTERM and after an error what is left.

    While trials train, the driver hears the signals and ends those in order. What it gives raises KeyboardInterrupt
    again after a signal: among all that is imported before, something may catch the first one and go on.
    """
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    def unless_interrupted() -> None:
        if heard:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield unless_interrupted
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
    finally:
        signal.signal(signal.SIGINT, before)


def _what_is_left(accepted: Sequence[SweepFolder]) -> str:
    return f"go on with: tuneyard sweep resume {accepted[0].sweep_id}" if accepted else ""


def _view(sweep_id: str, *, trials: int) -> View:
    """Of a sweep of the service's, with so many of its trials, or of a local one."""
    from tuneyard import sweeps

    if found := queued(sweep_id, trials=trials):
        return found[1]
    return sweeps.look(_find(sweep_id))


def _spec_text(view: View) -> str:
    """What the sweep was asked to do, every key of it, as YAML."""
    if view.where == "queued" and (client := find_client()) is not None:
        return client.spec(view.sweep_id)
    return _find(view.sweep_id).header().spec.text()


def _in_queue(sweep_id: str) -> tuple[Client, View]:
    found = queued(sweep_id)
    if found is None:
        raise InputError(f"sweep {sweep_id!r}: not in the queue; see those that are with: tuneyard queue show")
    return found


def _said(sweep: Listed) -> None:
    """What became of it."""
    print(f"sweep {sweep.sweep_id} ({sweep.name}) is {state_text(sweep)}; priority {sweep.priority}")


def _warn(error: TuneyardError) -> None:
    print(f"warning: {settings.without_passwords(str(error))}", file=sys.stderr)


def _wait(client: Client, sweep_id: str) -> None:
    """Until it has ended; says each new state, and when the service is silent. Exit 1 unless it succeeded."""
    from tuneyard.jobs import ENDED

    said = ""
    while True:
        try:
            view = client.sweep(sweep_id)
        except UnreachableError as silent:  # the sweep goes on without us, and so we wait
            now, ended = str(silent), False
        else:
            why, waits_for = view.queue["reason"], view.queue["waits_for"]
            now = f"{view.state}{f' ({why})' if why else ''}{f': {waits_for}' if waits_for else ''}"
            ended = view.state in ENDED
        if now != said:
            print(now, flush=True)
            said = now
        if ended:
            break
        time.sleep(LOOK_S)
    if view.state != "succeeded":
        raise TuneyardError(f"sweep {sweep_id} {view.state}: {view.message or view.queue['reason']}")


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
    utilisation = sweeps.utilisation(folder, [row.trial for row in view.leaderboard[:10]])
    table(None, [*view.facts(), *([("MFU", utilisation)] if utilisation else [])])
    if view.state == "interrupted":
        sys.exit(130)
    if view.state != "finished":
        raise TuneyardError(f"sweep {view.sweep_id} {view.state}: {view.message or 'see its driver.log'}")
