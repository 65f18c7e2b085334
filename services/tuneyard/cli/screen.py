"""A running sweep on screen: one live table where there is a terminal, a line for each event where there is none.

It reads the sweep's folder like any other reader, in a thread of its own: the driver knows nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tuneyard import sweeps
from tuneyard.cli.output import table
from tuneyard.progress import REFRESH_S, Watch, clock
from tuneyard.sweeps import View
from tuneyard_pipelines import reach, standing
from tuneyard_pipelines.budget import SAVE_S
from tuneyard_pipelines.errors import UnreachableError
from tuneyard_pipelines.journal import (
    AttemptStarted,
    Event,
    Header,
    LegCut,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepFolder,
    SweepState,
    TrialEnded,
    TrialState,
    WinnerRegistered,
    WinnerScored,
)
from tuneyard_pipelines.spec import short_name

WATCH_S = 1.0
FINISHING = ("scoring", "registering", "sending")
STYLES = {"running": "bold cyan", "completed": "green", "waiting": "dim", "stopped_early": "dim"}


@contextlib.contextmanager
def watching(doing: str) -> Iterator[Callable[[SweepFolder], None]]:
    """Says what it is `doing` and gives a function to call with the folder once there are trials to watch.

    The screen ends with the context. Meanwhile it answers the first SIGINT or SIGTERM, whoever handles it.
    """
    console = Console(highlight=False)
    over = threading.Event()
    threads: list[threading.Thread] = []

    def announce(folder: SweepFolder) -> None:
        _say(f"sweep {folder.sweep_id} in {folder.path}")
        for one in folder.header().findings:
            if one["fate"] == "left out":
                _say(f"data: {one['count']:,} {one['what']} left out, the first at {one['first']}")
        show = (lambda: _live(folder, console, over)) if console.is_terminal else (lambda: _lines(folder, over))
        threads.append(threading.Thread(target=show, name="screen", daemon=True))
        threads[0].start()

    _say(doing)
    try:
        with _signals_answered():
            yield announce
    finally:
        over.set()
        for thread in threads:
            thread.join()


def follow(look: Callable[[int], View], most_trials: int) -> View:
    """Shows a sweep anew until it has ended, and how it ended: a live table, or a line for each change of its state.

    `look` gives it with so many of its trials, at the end `most_trials`. A service that does not answer is waited for.
    Returns the last look.
    """
    console = Console(highlight=False)
    shown = console.height if console.is_terminal else 1
    view, said = look(shown), ""
    live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
    with live if console.is_terminal else contextlib.nullcontext():
        while not view.ended:
            now = "   ".join([view.state_text, *([view.counted] if view.trial_states else []), view.best_text]).rstrip()
            if console.is_terminal:
                live.update(_standing(view, now, console.height), refresh=True)
            elif now != said:
                _say(now)
            said = now
            time.sleep(WATCH_S)
            with contextlib.suppress(UnreachableError):  # the sweep goes on without us, and so we wait
                view = look(shown)
    with contextlib.suppress(UnreachableError):
        view = look(most_trials)
    if view.leaderboard:
        table(*view.leaderboard_table())
        print()
    table(None, view.facts())
    return view


def render(watch: Watch, height: int, width: int) -> Group:
    """The best so far and the time left, and under it the table of trials, within `height` lines of `width` columns.

    Between them stands that MLflow fails, while it does. Trials that run are shown before others that there is no room
    for. Ids and scores are never cut: where they do not fit, the loss is left out first, then the varied keys from the
    right.
    """
    header, state = watch.header, watch.state
    keys = list(header.spec.varied)
    variant = ["variant"] if header.spec.variants else []
    best = standing.leader(header, state)
    trials = standing.standings(header, state)
    trouble = [text for text in (sweeps.outage_text(watch.folder, header),) if text]
    shown = _fitting(trials, height - 2 - len(trouble))
    head = ["trial", *variant, *map(short_name, keys), "tokens", "train/loss", header.spec.metric, "state"]
    rows = [
        [
            trial.id,
            *([trial.variant] if variant else []),
            *(sweeps.cell(trial.point.get(key, "")) for key in keys),
            f"{watch.trial_tokens(trial):,}",
            _value(watch, trial, "train/loss"),
            f"{trial.score:.4f}" if trial.score is not None else _value(watch, trial, header.spec.metric),
            trial.state,
        ]
        for trial in shown
    ]
    grid = Table(expand=False, box=None, pad_edge=False, header_style="bold")
    kept = _columns([head, *rows], len(variant) + len(keys), width)
    for column in kept:
        grid.add_column(head[column], no_wrap=True, justify="left" if head[column] in ("trial", "state") else "right")
    for trial, row in zip(shown, rows, strict=True):
        state_cell = Text(trial.state, style=STYLES.get(trial.state, "red"))
        leads = best is not None and trial.id == best.id
        grid.add_row(*(row[column] for column in kept[:-1]), state_cell, style="bold" if leads else "")
    hidden = len(trials) - len(shown)
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return Group(_line(_summary(watch, best), "dim"), *(_line(text, "yellow") for text in trouble), grid, *more)


def line(event: Event, header: Header, state: SweepState) -> str | None:
    """An event as one line, or None if it is of no interest."""
    match event:
        case AttemptStarted():
            return f"attempt {event.attempt} on {event.host}"
        case LegStarted():
            trial = state.trials[event.trial]
            return (
                f"{trial.name}: training to {header.spec.variant(trial.variant).rungs()[event.rung]:.0%} of the budget"
            )
        case LegEnded() | LegCut():
            score = "no finite score" if event.score is None else f"{event.score:.4f}"
            return f"{state.trials[event.trial].name}: {header.spec.metric} {score} at {event.tokens:,} tokens"
        case LegFailed() | TrialEnded():
            return f"{state.trials[event.trial].name}: {event.outcome} {event.message}".rstrip()
        case WinnerScored():
            values = ", ".join(f"{key} {value:.4f}" for key, value in sorted(event.metrics.items()))
            return f"{state.trials[event.trial].name}: {values}"
        case WinnerRegistered():
            return f"registered {event.name} version {event.version}; {event.candidate}"
        case _:
            return None


def _standing(view: View, summary: str, height: int) -> Group:
    """As much of the leaderboard as there is room for."""
    head, rows = view.leaderboard_table()
    grid = Table(expand=False, box=None, pad_edge=False, header_style="bold")
    for name in head:
        grid.add_column(name, no_wrap=True, justify="left" if name in ("trial", "state") else "right")
    shown = rows[: max(1, height - 4)]
    for row in shown:
        grid.add_row(*(Text(text) for text in row))
    hidden = sum(view.trial_states.values()) - len(shown)
    more = [Text(f"... and {hidden} more", style="dim")] if hidden else []
    return Group(_line(f"{view.sweep_id} ({view.name})   {summary}", "dim"), *([grid] if rows else []), *more)


def _live(folder: SweepFolder, console: Console, over: threading.Event) -> None:
    watch = Watch(folder)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        while not over.wait(REFRESH_S):
            watch.refresh()
            live.update(render(watch, console.height, console.width), refresh=True)


def _lines(folder: SweepFolder, over: threading.Event) -> None:
    watch = Watch(folder)
    ended, trouble, doing = False, "", ""
    while not ended:
        ended = over.wait(REFRESH_S)
        before, trouble = trouble, sweeps.outage_text(folder, watch.header)
        if trouble != before:
            _say(trouble or "MLflow has taken everything again")
        for event in watch.refresh():
            text = line(event, watch.header, watch.state)
            if text:
                _say(text + _reached(event, watch))
        before, doing = doing, watch.doing
        if doing != before and watch.stage in FINISHING:
            _say(doing)


def _reached(event: Event, watch: Watch) -> str:
    """How much of its devices a trial has made use of so far, once a leg of it is over."""
    if not isinstance(event, LegEnded | LegCut):
        return ""
    found = reach.told({key: metric.value for key, metric in watch.latest.get(event.trial, {}).items()})
    return f", {found}" if found else ""


def _say(text: str) -> None:
    """Whoever read it may be gone, as in `| head`: the sweep goes on."""
    with contextlib.suppress(BrokenPipeError):
        print(text, flush=True)


@contextlib.contextmanager
def _signals_answered() -> Iterator[None]:
    """Says once that a signal was heard: the driver's own handlers come and go, and what they do takes its time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reads, writes = os.pipe()
    os.set_blocking(writes, False)

    def answer() -> None:
        said = False
        while heard := os.read(reads, 1):
            if heard[0] in (signal.SIGINT, signal.SIGTERM) and not said:
                said = True
                _say(f"stopping ... trials save where they are, in {SAVE_S:.0f} s at most; again, and they do not")
        os.close(reads)

    thread = threading.Thread(target=answer, name="signals", daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writes)
        thread.join()


def _fitting(trials: Sequence[TrialState], rows: int) -> list[TrialState]:
    """In the same order: all of them, or so many that a line is left to say how many more there are."""
    if len(trials) <= rows:
        return list(trials)
    first = {trial.id for trial in sorted(trials, key=lambda trial: not trial.running)[: max(0, rows - 1)]}
    return [trial for trial in trials if trial.id in first]


def _columns(cells: Sequence[Sequence[str]], keys: int, width: int) -> list[int]:
    """Which columns of trial, keys, tokens, loss, score and state fit with two blanks between them."""
    kept = list(range(len(cells[0])))
    for left_out in (keys + 2, *range(keys, 0, -1)):
        if sum(max(len(row[column]) for row in cells) + 2 for column in kept) - 2 <= width:
            break
        kept.remove(left_out)
    return kept


def _line(text: str, style: str) -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _summary(watch: Watch, best: TrialState | None) -> str:
    said = [f"{watch.tokens:,} tokens"]
    if best is not None and best.score is not None:
        said.insert(0, f"best so far {best.id} {watch.header.spec.metric} {best.score:.4f}")
    left_s = watch.left_s()
    if watch.stage in FINISHING:
        said.insert(0, watch.doing)
    elif left_s is not None:
        said.append(f"about {clock(left_s)} left")
    return "   ".join(said)


def _value(watch: Watch, trial: TrialState, key: str) -> str:
    newest = watch.latest.get(trial.id, {}).get(key)
    return "" if newest is None else f"{newest.value:.4f}"
