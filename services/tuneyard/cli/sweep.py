"""`tuneyard sweep`: plan, run, look at, and ask of a sweep what it should do next."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuneyard import requests, settings
from tuneyard.cli.output import Json, Mlflow, Set, reporting, table, when
from tuneyard_pipelines.errors import UNWRITABLE, InputError, RefusedError, TuneyardError

if TYPE_CHECKING:
    from tuneyard_pipelines.control import Request
    from tuneyard_pipelines.journal import SweepFolder

app = typer.Typer(help="Plan, train and look at sweeps.", no_args_is_help=True, rich_markup_mode=None)
Spec = Annotated[Path, typer.Argument(metavar="SPEC", help="A sweep's YAML file.")]
Calibrate = Annotated[
    bool,
    typer.Option("--calibrate/--no-calibrate", help="Measure this machine once, for a forecast, and look at the data."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="A sweep's id, or enough of its beginning.")]


@app.command()
def run(
    spec: Spec,
    overrides: Set = [],  # noqa: B006  (typer reads the default)
    mlflow: Mlflow = None,
    calibrate: Calibrate = True,
) -> None:
    """Train a sweep here and now: progress on screen, runs in MLflow, the best model registered."""
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
def resume(sweep_id: Id) -> None:
    """Go on with what is unfinished in a sweep, one that was stopped included."""
    folder = _find(sweep_id)
    requests.ask(folder, requests.resume(folder))
    _go_on(folder)


@app.command()
def stop(sweep_id: Id) -> None:
    """Finish now: what trains is validated once more, the best so far is scored and registered."""
    folder = _find(sweep_id)
    _ask(folder, requests.stop(folder))


@app.command()
def extend(
    sweep_id: Id,
    trials: Annotated[int, typer.Option("--trials", min=1, max=100_000, help="How many more.")],
) -> None:
    """Try so many more points, whether the sweep runs or has ended."""
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
    folder = _find(sweep_id)
    _ask(folder, requests.add(folder, points))


@app.command()
def retry(sweep_id: Id) -> None:
    """Run the trials that failed again, from their last checkpoints."""
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
    """The sweeps of this home, newest first."""
    from tuneyard import sweeps

    home = settings.find_home()
    found = []
    for folder in sweeps.all_folders(home):
        try:
            found.append(sweeps.look(folder))
        except InputError as error:  # one damaged folder hides no other
            print(f"warning: {error}", file=sys.stderr)
    if as_json:
        print(json.dumps([view.to_dict() for view in found]))
    elif not found:
        print(f"no sweeps in {home / 'sweeps'}; start one with: tuneyard sweep run SPEC")
    else:
        rows = [
            (view.sweep_id, view.name, view.state, view.counted, view.best_text, when(view.created_ms), "local")
            for view in found
        ]
        table(("id", "name", "state", "trials", "best", "created", "where"), rows)


@app.command()
def show(sweep_id: Id, as_json: Json = False) -> None:
    """One sweep: its state, its best trial, where its runs are, what to do next."""
    from tuneyard import sweeps

    view = sweeps.look(sweeps.find(settings.find_home(), sweep_id))
    if as_json:
        print(json.dumps(view.to_dict()))
    else:
        table(None, view.facts())


@app.command()
def trials(sweep_id: Id, as_json: Json = False) -> None:
    """The trials of a sweep, best first."""
    from tuneyard import sweeps

    view = sweeps.look(sweeps.find(settings.find_home(), sweep_id))
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
