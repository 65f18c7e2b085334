"""Sweeps to report, made up: what a score is made of is known."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tuneyard_pipelines.report import Sweep, Trial

RUNGS = (1 / 9, 1 / 3, 1.0)
FULL_TOKENS = 3_000_000


def trial(number: int, point: Mapping[str, Any] | None = None, score: float | None = 0.5, **more: Any) -> Trial:
    """A trial with its full budget, if nothing else is said."""
    point = point or {}
    values = {"model.d_model": 64, "model.num_heads": 4, "model.num_layers": 2, "model.sequence_length": 32} | point
    share = more.pop("share", 1.0)
    facts: dict[str, Any] = {
        "id": f"t{number:03d}",
        "number": number,
        "name": f"t{number:02d} " + " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point.items()),
        "point": point,
        "values": values,
        "state": "completed",
        "score": score,
        "share": share,
        "tokens": round(FULL_TOKENS * share),
        "scores": {share: score},
    }
    return Trial(**facts | more)


def sweep(trials: Sequence[Trial], mode: Any = "max", **more: Any) -> Sweep:
    metric = "val/exact_match" if mode == "max" else "val/loss"
    return Sweep("dates", "5eed0001", metric, mode, tuple(trials), **more)


def searched(count: int, seed: int = 1, *, mode: Any = "max", points: int = 60) -> Sweep:
    """A search under successive halving: heads and length matter, layers little, dropout not; every tenth one fails."""
    rng = random.Random(seed)
    trials = []
    for number in range(1, count + 1):
        point = {
            "model.num_heads": rng.choice([1, 2, 4, 8]),
            "model.num_layers": rng.choice([1, 2, 3]),
            "model.sequence_length": rng.choice([24, 32, 48]),
            "training.learning_rate": math.exp(rng.uniform(math.log(1e-3), math.log(1e-2))),
            "model.dropout": rng.choice([0.0, 0.1, 0.2]),
        }
        quality = 0.25 * math.log2(point["model.num_heads"]) / 3 + 0.35 * (point["model.sequence_length"] >= 32)
        quality += 0.05 * point["model.num_layers"] / 3 + rng.gauss(0.15, 0.04)
        failed = number % 10 == 0
        reached = 0 if failed or number % 3 else 1 if number % 2 else 2
        at = [quality * share**0.15 for share in RUNGS]
        if mode == "min":
            at = [3 * (1.05 - score) for score in at]
        scores = {} if failed else dict(zip(RUNGS[: reached + 1], at, strict=False))
        share = RUNGS[reached] if not failed else 0.0
        trials.append(
            trial(
                number,
                point,
                at[reached] if not failed else None,
                share=share,
                scores=scores,
                state="diverged" if failed else "completed" if reached == 2 else "stopped_early",
                message=f"the loss is not finite at step {17 * number}" if failed else "",
                parameters=40_000 * point["model.num_layers"] + 9_000,
                tokens=round(FULL_TOKENS * (share or 0.02)),
                curves=_curves(quality, share or 0.02, failed, mode, points, rng),
            )
        )
    return sweep(trials, mode)


def _curves(
    quality: float, share: float, failed: bool, mode: str, points: int, rng: random.Random
) -> dict[str, list[tuple[int, float, float]]]:
    """Loss that falls and a metric that rises towards `quality`."""
    metric = "val/exact_match" if mode == "max" else "val/loss"
    loss, score = [], []
    for index in range(1, points + 1):
        done = index / points * share
        tokens = done * FULL_TOKENS
        value = math.nan if failed and index > points * 0.8 else 4 * math.exp(-6 * done * quality) + rng.gauss(0, 0.05)
        loss.append((index, tokens, value))
        if index % 6 == 0:
            score.append((index, tokens, quality * done**0.15 if mode == "max" else 3 * (1.05 - quality * done**0.15)))
    return {"train/loss": loss, metric: score}
