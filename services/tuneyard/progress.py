"""What a running sweep is doing, read from its folder like any other reader would: the driver knows nothing of it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from tuneyard_pipelines import standing
from tuneyard_pipelines.journal import Event, SweepFolder, SweepState, Tail, TrialState
from tuneyard_pipelines.metrics import MetricReader, MetricValue
from tuneyard_pipelines.plan import plan

log = logging.getLogger(__name__)

REFRESH_S = 0.5
Stage = Literal["preparing", "training", "scoring", "registering", "sending", "ended"]


@dataclass(frozen=True)
class Progress:
    """What a sweep is doing at a moment; `str` gives it as a line.

    preparing: this machine is measured, data is read and cut into tokens, Ray starts, and there is no sweep_id yet.
    training, then scoring (the best on the test split), registering, sending (the rest to MLflow), ended. `share` is
    how much of preparing or training is done, 0 to 1, and None where that is not known; of training it is an estimate,
    for how many trials stop early is not known before. `trials` counts trials by their state, `best` is the leading
    trial with its validation score, `left_s` the seconds left of training.
    """

    stage: Stage
    doing: str
    share: float | None = None
    left_s: float | None = None
    sweep_id: str = ""
    tokens: int = 0
    trials: Mapping[str, int] = field(default_factory=dict)
    best: str = ""
    score: float | None = None

    def __str__(self) -> str:
        words = [self.doing + ("" if self.share is None else f" {self.share:.0%}")]
        words += [f"{count} {state}" for state, count in sorted(self.trials.items())]
        if self.score is not None:
            words.append(f"best so far {self.best} {self.score:.4f}")
        if self.left_s is not None and self.stage == "training":
            words.append(f"about {clock(self.left_s)} left")
        return ", ".join(words)


OnProgress = Callable[[Progress], object]


class Watch:
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

    @property
    def stage(self) -> Stage:
        """Training, until all trials have ended."""
        state, registration = self.state, self.header.spec.registration
        if state.ended is not None:
            return "ended"
        ended = sum(trial.outcome is not None for trial in state.trials.values())
        best = self.best
        if best is None or ended < max(self._trials, len(state.trials)):
            return "training"
        if state.scored is None or state.scored.trial != best.id:
            return "scoring"
        if registration and (state.registered is None or state.registered.trial != best.id):
            return "registering"
        return "sending"

    @property
    def doing(self) -> str:
        """The stage in words."""
        best, registration = self.best, self.header.spec.registration
        return {
            "scoring": f"scoring {best.id if best else ''} on the test split ...",
            "registering": f"registering {registration.name if registration else ''} ...",
            "sending": "sending the rest to MLflow ...",
            "ended": self.state.ended.state if self.state.ended else "",
        }.get(self.stage, self.stage)

    @property
    def best(self) -> TrialState | None:
        return standing.leader(self.header, self.state)

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

    def progress(self) -> Progress:
        """All of it as a value, as of the last `refresh`."""
        best, stage = self.best, self.stage
        training = stage == "training"
        return Progress(
            stage=stage,
            doing=self.doing,
            share=min(1.0, self.tokens / self._expected) if training and self._expected else None,
            left_s=self.left_s() if training else None,
            sweep_id=self.header.sweep_id,
            tokens=self.tokens,
            trials=dict(Counter(trial.state for trial in self.state.trials.values())),
            best=best.id if best else "",
            score=best.score if best else None,
        )


class Teller:
    """What a sweep that is about to run reports of itself, until there is a folder to watch."""

    def __init__(self) -> None:
        self.folder: SweepFolder | None = None
        self.progress = Progress("preparing", "preparing")

    def preparing(self, doing: str, share: float) -> None:
        """Of the data, `share` done; NaN where that is not known."""
        self.progress = Progress("preparing", doing, share=None if math.isnan(share) else share)

    def accepted(self, folder: SweepFolder) -> None:
        """The sweep may be watched from now on."""
        self.folder = folder


@contextmanager
def telling(on_progress: OnProgress | None) -> Iterator[Teller]:
    """Calls `on_progress` with every change, twice a second at most, from one thread, and once more at the end.

    What it raises is logged, and it is not called again.
    """
    teller, over = Teller(), threading.Event()
    if on_progress is None:
        yield teller
        return
    thread = threading.Thread(target=_tell, args=(teller, on_progress, over), name="progress", daemon=True)
    thread.start()
    try:
        yield teller
    finally:
        over.set()
        thread.join()


def clock(seconds: float) -> str:
    """`2:05`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _tell(teller: Teller, on_progress: OnProgress, over: threading.Event) -> None:
    watch, told, begun, ended = None, None, False, False
    while not ended:
        ended = over.is_set()
        if watch is None and teller.folder is not None:
            watch = Watch(teller.folder)
        now = teller.progress
        if watch is not None:
            watch.refresh()
            begun = begun or ended or watch.state.ended is None  # of a resumed sweep, the attempt before has ended
            now = watch.progress() if begun else now
        if now != told:
            try:
                on_progress(now)
            except Exception:
                log.exception("on_progress failed at %r and is not called again; the sweep goes on", str(now))
                return
        told = now
        if not ended:
            over.wait(REFRESH_S)
