"""A training step as a trial makes it against a bare loop's step, and what logging every step adds to it.

Both are measured inside a leg of `run_leg`, with its Trainer, logger, callbacks and watchdog. A callback has the clock:
it stops when a batch has ended, does or sets what it has to, and starts again, so that the two sides of a comparison
take turns at every step and see the same machine. What runs from one stop to the next is a whole step of the trial: the
hooks after the batch, logging among them, the next batch from the stream, forward, backward, clip, AdamW.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from measurement import Measured, QuietClock, accepted, spread

from tuneyard_modules.likelihood import next_token_loss
from tuneyard_modules.translation import TranslationBatch
from tuneyard_pipelines.data import PAD
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.spec import parse
from tuneyard_pipelines.trial import run_leg

WARM_UP = 10  # steps before the clock counts
NEVER = 10**9
ALLOWED_MS = 1.0
SPEC = """
version: 1
name: bench
task: translation
data: {source: builtin/dates, examples: 2000, split: {validation: 0.01}}
model: {d_model: 128, num_heads: 4, num_layers: 2, sequence_length: 48, dropout: 0.0}
training: {max_steps: 310, batch_tokens: 1024, evaluations: 1}
search: {algorithm: grid, scheduler: none, metric: val/loss}
resources: {memory_per_worker: 64GiB}
"""
SMALL = ("model.d_model=16", "model.num_layers=1", "training.max_steps=610", "training.batch_tokens=128")


def training_step() -> Measured:
    """Steps a second of a trial over those of a bare loop on the same batches: at least 0.97."""
    pairs = _Pairs()
    _leg(pairs)
    ratios = [bare_s / trial_s for trial_s, bare_s in pairs.seconds[WARM_UP:]]
    trial_ms, bare_ms = ([1000 * side for side in sides] for sides in zip(*pairs.seconds[WARM_UP:], strict=True))
    return Measured(
        ratio=statistics.median(ratios),
        bound=0.97,
        side="at_least",
        details={"pairwise": spread(ratios), "trial_ms": spread(trial_ms), "bare_ms": spread(bare_ms)},
    )


def logging_every_step() -> Measured:
    """Milliseconds that logging adds to the step it happens in, of the one that it may take."""
    turns = _Turns()
    _leg(turns, *SMALL)
    logged_ms, silent_ms = ([1000 * s for s in side[WARM_UP:]] for side in (turns.logged_s, turns.silent_s))
    added_ms = statistics.median(logged_ms) - statistics.median(silent_ms)
    return Measured(
        ratio=added_ms / ALLOWED_MS,
        bound=1.0,
        side="at_most",
        details={
            "added_ms": round(added_ms, 4),
            "log_every_n_steps_1_ms": spread(logged_ms),
            f"log_every_n_steps_{NEVER}_ms": spread(silent_ms),
        },
    )


class _Pairs(pl.Callback):
    """After every step of the trial, one of a bare loop on the same batch: seconds of both."""

    def __init__(self) -> None:
        self.seconds: list[tuple[float, float]] = []
        self._clock = QuietClock()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._network = copy.deepcopy(pl_module.network)
        self._optimizer = torch.optim.AdamW(self._network.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
        self._began_s = self._clock.now_s()

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        trial_s = self._clock.now_s() - self._began_s
        torch.use_deterministic_algorithms(False)  # a bare loop would not ask for them
        began_s = self._clock.now_s()
        self._bare_step(batch)
        bare_s = self._clock.now_s() - began_s
        torch.use_deterministic_algorithms(True, warn_only=True)
        self.seconds.append((trial_s, bare_s))
        self._began_s = self._clock.now_s()

    def _bare_step(self, batch: TranslationBatch) -> None:
        logits_BTV = self._network(batch.source_BS, batch.target_BT[:, :-1])
        summed, tokens = next_token_loss(logits_BTV, batch.target_BT[:, 1:], pad_id=PAD)
        loss = summed / tokens
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()


class _Turns(pl.Callback):
    """Lets the trial log every other step: seconds from the end of one batch to the end of the next, by kind."""

    def __init__(self) -> None:
        self.logged_s: list[float] = []
        self.silent_s: list[float] = []
        self._clock = QuietClock()

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self._begin(trainer, every=NEVER)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        logs = trainer.log_every_n_steps == 1  # type: ignore[attr-defined]
        (self.logged_s if logs else self.silent_s).append(self._clock.now_s() - self._began_s)
        self._begin(trainer, every=NEVER if logs else 1)

    def _begin(self, trainer: pl.Trainer, every: int) -> None:
        trainer.log_every_n_steps = every  # type: ignore[attr-defined]
        self._began_s = self._clock.now_s()


def _leg(watch: pl.Callback, *overrides: str) -> None:
    """Run a whole leg that `watch` looks at."""
    spec = parse(SPEC, file="training_step.py", overrides=overrides)
    with tempfile.TemporaryDirectory() as home:
        folder = accepted(Path(home), spec)
        result = run_leg(Leg(str(folder.path), "t001", {}, attempt=1, rung=0), [watch])
    if result.outcome:
        raise RuntimeError(f"the leg to be measured ended as {result.outcome}: {result.message}")
