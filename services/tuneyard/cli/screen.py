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
from tuneyard_pipelines import standing
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
    Tail,
    TrialEnded,
    TrialState,
    WinnerRegistered,
    WinnerScored,
)
from tuneyard_pipelines.metrics import MetricReader, MetricValue
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.spec import short_name

REFRESH_S = 0.5
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


class Progress:
    """The sweep's state with the newest value of each of its trials' metrics; `refresh` reads what is new."""

    def __init__(self, folder: SweepFolder, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.header, self._clock_s = folder, folder.header(), clock_s
        self.state = SweepState()
        self.latest: dict[str, dict[str, MetricValue]] = {}
        self._tail = Tail(folder.journal)
        self._readers: dict[str, MetricReader] = {}
        self._read: set[str] = set()
        planned = plan(self.header.spec)
        self._expected, self._trials = planned.expected_tokens, planned.trials
        self._began: tuple[float, int] | None = None

    def refresh(self) -> list[Event]:
        events = list(self._tail.events())
        for event in events:
            self.state = self.state.after(event)
        for trial in self.state.trials.values():
            if trial.id not in self._read:
                reader = self._readers.setdefault(trial.id, MetricReader(self.folder, trial.id))
                self.latest.setdefault(trial.id, {}).update({m.key: m for m in reader.new(self.state)})
            if trial.outcome is not None:
                self._read.add(trial.id)
        if self._began is None and any(trial.running for trial in self.state.trials.values()):
            self._began = (self._clock_s(), self.tokens)
        return events

    def doing(self) -> str:
        """What is done once all trials have ended; empty before, and after the sweep's end."""
        state, registration = self.state, self.header.spec.registration
        ended = sum(trial.outcome is not None for trial in state.trials.values())
        best = standing.leader(self.header, state)
        if state.ended is not None or best is None or ended < max(self._trials, len(state.trials)):
            return ""
        if state.scored is None or state.scored.trial != best.id:
            return f"scoring {best.id} on the test split ..."
        if registration and (state.registered is None or state.registered.trial != best.id):
            return f"registering {registration.name} ..."
        return "sending the rest to MLflow ..."

    @property
    def tokens(self) -> int:
        return sum(self.trial_tokens(trial) for trial in self.state.trials.values())

    def trial_tokens(self, trial: TrialState) -> int:
        newest = self.latest.get(trial.id, {}).get("train/tokens")
        return max(trial.tokens, int(newest.value) if newest else 0)

    def left_s(self) -> float | None:
        """Seconds left if the rest goes as fast as this attempt has gone so far; None while nothing is known."""
        if self._began is None or self._expected is None:
            return None
        since, tokens = self._began
        done = self.tokens - tokens
        elapsed_s = self._clock_s() - since
        return max(0.0, self._expected - self.tokens) * elapsed_s / done if done > 0 and elapsed_s > 5 else None


def render(progress: Progress, height: int, width: int) -> Group:
    """The best so far and the time left, and under it the table of trials, within `height` lines of `width` columns.

    Between them stands that MLflow fails, while it does. Trials that run are shown before others that there is no room
    for. Ids and scores are never cut: where they do not fit, the loss is left out first, then the varied keys from the
    right.
    """
    header, state = progress.header, progress.state
    keys = list(header.spec.varied)
    variant = ["variant"] if header.spec.variants else []
    best = standing.leader(header, state)
    trials = standing.standings(header, state)
    trouble = [text for text in (sweeps.outage_text(progress.folder, header),) if text]
    shown = _fitting(trials, height - 2 - len(trouble))
    head = ["trial", *variant, *map(short_name, keys), "tokens", "train/loss", header.spec.metric, "state"]
    rows = [
        [
            trial.id,
            *([trial.variant] if variant else []),
            *(sweeps.cell(trial.point.get(key, "")) for key in keys),
            f"{progress.trial_tokens(trial):,}",
            _value(progress, trial, "train/loss"),
            f"{trial.score:.4f}" if trial.score is not None else _value(progress, trial, header.spec.metric),
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
    return Group(_line(_summary(progress, best), "dim"), *(_line(text, "yellow") for text in trouble), grid, *more)


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


def _live(folder: SweepFolder, console: Console, over: threading.Event) -> None:
    progress = Progress(folder)
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        while not over.wait(REFRESH_S):
            progress.refresh()
            live.update(render(progress, console.height, console.width), refresh=True)


def _lines(folder: SweepFolder, over: threading.Event) -> None:
    progress = Progress(folder)
    ended, trouble, doing = False, "", ""
    while not ended:
        ended = over.wait(REFRESH_S)
        before, trouble = trouble, sweeps.outage_text(folder, progress.header)
        if trouble != before:
            _say(trouble or "MLflow has taken everything again")
        for event in progress.refresh():
            text = line(event, progress.header, progress.state)
            if text:
                _say(text)
        before, doing = doing, progress.doing()
        if doing not in ("", before):
            _say(doing)


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
                _say("stopping ...")
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


def _summary(progress: Progress, best: TrialState | None) -> str:
    said = [f"{progress.tokens:,} tokens"]
    if best is not None and best.score is not None:
        said.insert(0, f"best so far {best.id} {progress.header.spec.metric} {best.score:.4f}")
    left_s, doing = progress.left_s(), progress.doing()
    if doing:
        said.insert(0, doing)
    elif left_s is not None:
        said.append(f"about {int(left_s) // 60}:{int(left_s) % 60:02d} left")
    return "   ".join(said)


def _value(progress: Progress, trial: TrialState, key: str) -> str:
    newest = progress.latest.get(trial.id, {}).get(key)
    return "" if newest is None else f"{newest.value:.4f}"
