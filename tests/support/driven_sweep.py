"""A sweep's folder as a driver and its trials would leave it, without either."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneyard_pipelines import checkpoints, spec
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.journal import (
    AttemptEnded,
    AttemptStarted,
    Header,
    Journal,
    LegEnded,
    LegFailed,
    LegStarted,
    SweepFolder,
    TrialCreated,
    TrialEnded,
)
from tuneyard_pipelines.metrics import MetricFile, MetricValue
from tuneyard_pipelines.spec import display_name

SPEC = """
version: 1
name: dates
description: what this is about
task: translation
seed: 3
data: {source: builtin/dates, examples: 200}
model: {d_model: 16, num_heads: [1, 2, 4, 8], num_layers: 1, sequence_length: 24}
training: {max_tokens: 3000, batch_tokens: 256}
search: {algorithm: random, scheduler: {type: asha, min_share: 0.11, reduction_factor: 3}, trials: 4}
register: {name: dates}
tags: {team: nlp}
"""


@dataclass
class DrivenSweep:
    """A sweep's folder, written as the driver and the trials' processes write it."""

    folder: SweepFolder
    journal: Journal
    _time: itertools.count[int]

    def now_ms(self) -> int:
        return 1_700_000_000_000 + next(self._time)

    def begin(self, host: str = "node-1") -> None:
        number = self.journal.state.attempt + 1
        self.journal.append(AttemptStarted(number, self.now_ms(), host, {"torch": f"2.{number}"}, self.folder.seals()))

    def create(self, number: int, heads: int = 2) -> str:
        trial, point = f"t{number:03d}", {"model.num_heads": heads}
        self.journal.append(TrialCreated(trial, number, display_name(number, point), point, self.now_ms()))
        return trial

    def start(self, trial: str, rung: int = 0) -> None:
        self.journal.append(LegStarted(trial, self.journal.state.attempt, rung, self.now_ms()))

    def measure(self, trial: str, step: int, values: Mapping[str, float]) -> None:
        file = MetricFile(self.folder.attempt(trial, self.journal.state.attempt) / "metrics.jsonl")
        file.write(MetricValue(key, step, value, self.now_ms()) for key, value in values.items())
        file.close()

    def reach(self, trial: str, rung: int, score: float | None, step: int = 10) -> None:
        attempt = self.journal.state.attempt
        facts = Facts(step, step, 100 * step, share=(rung + 1) / 3, score=score, metrics={})
        checkpoints.save(self.folder.attempt(trial, attempt) / "checkpoints", facts, lambda path: path.touch() or None)
        metrics = {} if score is None else {"val/exact_match": score}
        self.journal.append(
            LegEnded(trial, attempt, rung, facts.share, facts.tokens, step, score, metrics, self.now_ms())
        )

    def fail(self, trial: str, rung: int, outcome: str, message: str) -> None:
        attempt = self.journal.state.attempt
        self.journal.append(LegFailed(trial, attempt, rung, outcome, message, self.now_ms()))

    def end(self, trial: str, outcome: str, message: str = "") -> None:
        self.journal.append(TrialEnded(trial, outcome, message, self.now_ms()))

    def close(self, state: str, message: str = "") -> None:
        self.journal.append(AttemptEnded(self.journal.state.attempt, state, message, self.now_ms()))

    def move_to(self, uri: str) -> None:
        """Another tracking server stands in the header from now on."""
        header = json.loads((self.folder.path / "sweep.json").read_text())
        (self.folder.path / "sweep.json").write_text(json.dumps({**header, "tracking_uri": uri}))


def driven_sweep(
    *, home: Path, sweep_id: str, name: str, overrides: Sequence[str], uri: str, data: Path | None
) -> DrivenSweep:
    """A sweep that was accepted and has not begun."""
    folder = SweepFolder(home / "sweeps" / sweep_id)
    folder.create(
        Header(
            sweep_id=sweep_id,
            spec=spec.parse(SPEC, file="spec.yaml", overrides=(f"name={name}", *overrides)),
            spec_text=SPEC,
            home=home,
            data=data or home / "data",
            data_fingerprint="f" * 64,
            tracking_uri=uri,
            created_ms=1_700_000_000_000,
            versions={"tuneyard": "0.1.0"},
        )
    )
    return DrivenSweep(folder, Journal(folder), itertools.count(1))
