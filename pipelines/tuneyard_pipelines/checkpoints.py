"""A trial's checkpoints: folders that are whole or not there, of which the best and the newest are kept.

trials/ID/aN/checkpoints/00000120/     named by step
    state.ckpt                         what the trainer saved
    manifest.json                      size and SHA-256 of state.ckpt, and the `Checkpoint` facts
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from tuneyard_pipelines.journal import sync_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Facts:
    """Where training stood: optimiser steps, batches, tokens, share of the budget; and the validation made there.

    score: the sweep's metric at this point, None when it was not finite; since_best: validations in a row, this one
    included, that were no better than the best before them.
    """

    step: int
    position: int
    tokens: int
    share: float
    score: float | None
    metrics: dict[str, float]
    since_best: int = 0


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    facts: Facts

    @property
    def state(self) -> Path:
        return self.path / "state.ckpt"


def save(folder: Path, facts: Facts, write: Callable[[Path], None]) -> Checkpoint:
    """Call `write` with the file to write and make the result appear at once, synced to disk."""
    final = folder / f"{facts.step:08d}"
    scratch = folder / f".{facts.step:08d}.{os.getpid()}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    state = scratch / "state.ckpt"
    try:
        write(state)
        with state.open("rb") as file:
            os.fsync(file.fileno())
        manifest = {"bytes": state.stat().st_size, "sha256": _sha256(state), "facts": asdict(facts)}
        with (scratch / "manifest.json").open("w") as out:
            json.dump(manifest, out)
            out.flush()
            os.fsync(out.fileno())
        shutil.rmtree(final, ignore_errors=True)
        scratch.rename(final)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)  # on a full disk, half a checkpoint would keep it full
        raise
    return Checkpoint(final, facts)


def whole(trial: Path) -> list[Checkpoint]:
    """The checkpoints of all attempts that are whole, by step; a damaged one is left out with a warning."""
    found = [_read(path) for path in trial.glob("a*/checkpoints/[0-9]*")]
    return sorted((c for c in found if c is not None), key=lambda c: c.facts.step)


def any_left(trial: Path) -> bool:
    """Whether there is a checkpoint, whole or not: as quick as a look can be."""
    return next(trial.glob("a*/checkpoints/[0-9]*/manifest.json"), None) is not None


def best(checkpoints: list[Checkpoint], mode: Literal["min", "max"]) -> Checkpoint | None:
    """The one with the best score, the newest among equals; one without a finite score is never the best."""
    scored = [c for c in checkpoints if c.facts.score is not None and math.isfinite(c.facts.score)]
    sign = 1 if mode == "min" else -1
    return min(scored, key=lambda c: (sign * (c.facts.score or 0.0), -c.facts.step), default=None)


def prune(trial: Path, mode: Literal["min", "max"], attempt: int) -> None:
    """Keep the best and the newest; what is damaged goes too, and what attempts up to `attempt` left half made."""
    checkpoints = whole(trial)
    kept = {c.path for c in (best(checkpoints, mode), checkpoints[-1] if checkpoints else None) if c is not None}
    half_made = [path for n in range(1, attempt + 1) for path in (trial / f"a{n}" / "checkpoints").glob(".*")]
    for path in (*trial.glob("a*/checkpoints/[0-9]*"), *half_made):
        if path not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _read(path: Path) -> Checkpoint | None:
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        state = path / "state.ckpt"
        if state.stat().st_size != manifest["bytes"] or _sha256(state) != manifest["sha256"]:
            raise ValueError("state.ckpt is not what was saved")
        return Checkpoint(path, Facts(**manifest["facts"]))
    except (OSError, ValueError, KeyError, TypeError) as cause:
        log.warning("checkpoint %s is damaged and not used: %s", path, cause)
        return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
