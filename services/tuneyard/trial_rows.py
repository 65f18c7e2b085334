"""The database is fed from the journals: what changed of a running sweep's trials, and which model came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuneyard.store import REGISTERED, Entry, Lead, Store, TrialRow
from tuneyard_pipelines import budget, standing
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.journal import SweepFolder, SweepState, Tail, TrialState, WinnerRegistered

ACTOR = "driver"


@dataclass(frozen=True)
class Trials:
    """How many trials of a sweep run at present, and whether any ever did."""

    running: int
    begun: bool


@dataclass
class _Reading:
    tail: Tail
    state: SweepState = field(default_factory=SweepState)
    written: dict[str, TrialRow] = field(default_factory=dict)
    noted: WinnerRegistered | None = None


class TrialFeed:
    """Reads on in each journal where it stopped; one that it has not read yet it reads, and writes, from the start."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readings: dict[str, _Reading] = {}

    def read(self, folder: SweepFolder, entry: Entry, lead: Lead | None, now_ms: int) -> int:
        """Write what is new; the GPU time, in milliseconds, that the sweep has used so far."""
        reading = self._read(folder)
        rows = {trial.id: _row(trial, reading.state, entry.shape) for trial in reading.state.trials.values()}
        changed = [row for trial, row in rows.items() if row != reading.written.get(trial)]
        self._store.put_trials(entry.job.sweep_id, changed, lead)
        reading.written = rows
        registered = reading.state.registered
        if registered is not None and registered != reading.noted:
            told = f"{registered.name}/{registered.version}: {registered.candidate}"
            self._store.note_once(entry.job.sweep_id, ACTOR, REGISTERED, told, now_ms)
            reading.noted = registered
        return round(budget.gpu_ms(reading.state, now_ms, lambda trial: entry.shape.gpus_at(trial.point)))

    def trials(self, folder: SweepFolder) -> Trials:
        """As of the last look: who asks for all sweeps at once must not fail for one that cannot be read."""
        reading = self._readings.get(folder.sweep_id)
        state = reading.state if reading else SweepState()
        running = sum(trial.running for trial in state.trials.values()) if state.ended is None else 0
        return Trials(running, any(trial.attempts for trial in state.trials.values()))

    def legs(self, folder: SweepFolder) -> int:
        """How often a trial of it got to its next rung."""
        return sum(len(trial.legs) for trial in self._read(folder).state.trials.values())

    def forget(self, sweep_id: str) -> None:
        self._readings.pop(sweep_id, None)

    def _read(self, folder: SweepFolder) -> _Reading:
        reading = self._readings.setdefault(folder.sweep_id, _Reading(Tail(folder.journal)))
        for event in reading.tail.events():
            reading.state = reading.state.after(event)
        return reading


def _row(trial: TrialState, sweep: SweepState, shape: Shape) -> TrialRow:
    shown = None if sweep.ended is None else standing.trial_shown(trial, sweep).outcome  # of one whose driver is gone
    return TrialRow(
        trial=trial.id,
        number=trial.number,
        name=trial.name,
        state=shown or trial.state,
        created_ms=trial.created_ms,
        variant=trial.variant,
        rung=trial.rung,
        share=trial.share,
        tokens=trial.tokens,
        score=trial.score,
        point=trial.point,
        metrics=trial.last.metrics if trial.last else {},
        ended_ms=trial.ended_ms,
        message=trial.message,
        trained_ms=trial.trained_ms,
        since_ms=trial.started_ms if trial.running and shown is None else None,
        gpus=shape.gpus_at(trial.point),
        idle_gpu_ms=trial.idle_gpu_ms,
    )
