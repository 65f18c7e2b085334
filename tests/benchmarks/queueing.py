"""What the queue's database takes: to accept a sweep, and to list the trials of a large one; SQLite, the default."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from measurement import Measured, spread

from tuneyard.queue import Queue
from tuneyard.store import Store, TrialRow
from tuneyard_pipelines.spec import load

SPEC = Path(__file__).parents[2] / "examples" / "dates.yaml"
SUBMITS, LEAST_A_SECOND = 500, 50
TRIALS, LONGEST_S = 5000, 0.1
RUNS = 9


def submitting() -> Measured:
    """Sweeps a second that the database accepts for good, of the 50 that it must be; `planning` checks them before."""
    spec = load(SPEC)
    with _queue() as queue:
        first = queue.submit(spec)
        took_s = []
        for number in range(SUBMITS):
            entry = replace(first, job=replace(first.job, sweep_id=f"s{number:07d}"))
            began_s = time.perf_counter()
            queue.store.submit(entry, "somebody", number)
            took_s.append(time.perf_counter() - began_s)
    return Measured(
        ratio=SUBMITS / sum(took_s) / LEAST_A_SECOND,
        bound=1.0,
        side="at_least",
        details={"submit_s": spread(took_s, 4)},
    )


def listing() -> Measured:
    """Seconds that all trials of a sweep of 5,000 take, best first, of the 0.1 that they may."""
    spec = load(SPEC)
    with _queue() as queue:
        sweep_id = queue.submit(spec).job.sweep_id
        queue.store.put_trials(sweep_id, [_trial(number) for number in range(TRIALS)])
        took_s = []
        for _ in range(RUNS):
            began_s = time.perf_counter()
            rows = queue.store.trials(sweep_id, order="best", mode="max")
            took_s.append(time.perf_counter() - began_s)
            assert len(rows) == TRIALS
    return Measured(
        ratio=statistics.median(took_s) / LONGEST_S,
        bound=1.0,
        side="at_most",
        details={"list_s": spread(took_s, 4)},
    )


def _trial(number: int) -> TrialRow:
    return TrialRow(
        trial=f"t{number:04d}",
        number=number,
        name=f"t{number:04d} heads=4 layers=2 length=48 lr=0.00123",
        state="completed",
        created_ms=number,
        rung=number % 3,
        share=1.0,
        tokens=3_000_000,
        score=number % 997 / 997,
        point={"model.num_heads": 4, "model.num_layers": 2, "training.learning_rate": 0.00123},
        metrics={"val/loss": 0.5, "val/exact_match": number % 997 / 997, "val/accuracy": 0.9},
        ended_ms=number + 1,
    )


@contextmanager
def _queue() -> Iterator[Queue]:
    with tempfile.TemporaryDirectory() as home:
        store = Store.open(f"sqlite:///{home}/queue.db")
        store.migrate()
        yield Queue(store, Path(home), "somebody")
        store.close()
