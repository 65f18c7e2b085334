"""A leg as driver and trial agree on it: what is asked for, what is answered, and what a silent end means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.catalog import Mode
from tuneyard_pipelines.journal import CUT, SweepFolder
from tuneyard_pipelines.spec import Point
from tuneyard_pipelines.watchdog import last_words

NO_SPACE = "no_space"  # no outcome of a trial: a disk that is full or read-only ends the driver's attempt
LEFT = "left"  # nor is this: a worker that another one has left says nothing of why


@dataclass(frozen=True)
class Leg:
    """What a process is asked to do: bring `trial` to rung number `rung`, under attempt `attempt` of the driver.

    `point` is one of `variant`; every batch is trained on in `split` turns.
    """

    folder: str
    trial: str
    point: Point
    attempt: int
    rung: int
    variant: str = ""
    split: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def trial_folder(self) -> Path:
        return SweepFolder(Path(self.folder)).trial(self.trial)

    @property
    def attempt_folder(self) -> Path:
        return SweepFolder(Path(self.folder)).attempt(self.trial, self.attempt)


@dataclass(frozen=True)
class LegResult:
    """Where the trial stands after a leg; `outcome` and `message` say why it ended early, if it did.

    share: of the full budget; score: the best validation of the sweep's metric so far, None when none was finite;
    metrics: all values of that validation.
    """

    outcome: str | None = None
    message: str = ""
    share: float = 0.0
    tokens: int = 0
    step: int = 0
    score: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def explain_death(leg: Leg, mode: Mode, who: str = "the trial's process") -> LegResult:
    """What became of a leg whose process is gone without a result; one that was ended keeps its checkpoints' best."""
    outcome, message = last_words(leg.attempt_folder) or (
        "error",
        f"{who} is gone without a word: it was killed, crashed, or its node was lost",
    )
    if outcome not in CUT:
        return LegResult(outcome, message)
    return stands(leg.trial_folder, mode, outcome, message)


def stands(trial: Path, mode: Mode, outcome: str | None = None, message: str = "") -> LegResult:
    """Where a trial stands by the checkpoints in its folder."""
    kept = checkpoints.whole(trial)
    best = checkpoints.best(kept, mode)
    last = kept[-1].facts if kept else None
    return LegResult(
        outcome=outcome,
        message=message,
        share=last.share if last else 0.0,
        tokens=last.tokens if last else 0,
        step=last.step if last else 0,
        score=best.facts.score if best else None,
        metrics=best.facts.metrics if best else {},
    )
