"""Room for checkpoints within `budget.checkpoint_bytes`: what goes to make place for a new one, and what never does.

Never: the best and the newest checkpoint of a trial that runs, and those of the best trial so far. The others go trial
by trial: failed ones first, then those that were done and beaten, then those that wait, the worst first. A trial whose
checkpoints are gone cannot go on; it keeps its score.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tuneyard_pipelines import promotion
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import FAILURES, FULL, SweepFolder, SweepState, TrialState
from tuneyard_pipelines.spec import SweepSpec


@contextlib.contextmanager
def room(folder: SweepFolder, spec: SweepSpec, needed_bytes: int) -> Iterator[None]:
    """Hold room for so many bytes while the context lasts; other trials of the sweep wait.

    Raises TuneyardError when what must be kept leaves too little.
    """
    limit_bytes = spec.budget.checkpoint_limit_bytes
    if limit_bytes is None:
        yield
        return
    with (folder.path / "checkpoints.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        used_bytes = _used_bytes(folder.path, "trials/*/a*/checkpoints")
        going = _going(folder.state(), spec) if used_bytes + needed_bytes > limit_bytes else []
        for trial in going:
            if used_bytes + needed_bytes <= limit_bytes:
                break
            used_bytes -= _used_bytes(folder.trial(trial.id), "a*/checkpoints")
            for path in folder.trial(trial.id).glob("a*/checkpoints"):
                shutil.rmtree(path, ignore_errors=True)
        if used_bytes + needed_bytes > limit_bytes:
            raise TuneyardError(
                f"budget.checkpoint_bytes: {spec.budget.checkpoint_bytes} is too little: a checkpoint of "
                f"{needed_bytes:,} bytes does not fit beside the {used_bytes:,} bytes of running trials and of the "
                "best; raise it, or lower search.max_concurrent_trials"
            )
        yield


def _going(state: SweepState, spec: SweepSpec) -> list[TrialState]:
    """The trials whose checkpoints may go, first to last; pure."""
    rungs = {name: variant.rungs() for name, variant in spec.by_variant.items()}
    best = (promotion.winner(state.trials, spec.mode), promotion.best_so_far(state.trials, spec.mode))
    kept = {trial.id for trial in best if trial is not None}
    worst_first = reversed(promotion.standings(state.trials.values(), rungs, spec.mode))
    going = [trial for trial in worst_first if not trial.running and trial.id not in kept]

    def turn(trial: TrialState) -> int:
        return 0 if trial.outcome in FAILURES else 1 if trial.share >= FULL or trial.final else 2

    return sorted(going, key=turn)


def _used_bytes(folder: Path, pattern: str) -> int:
    """Of all files in folders of that pattern.

    What other trials rename or remove meanwhile would count as nothing, or end the walk: then all is counted again.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return sum(
                os.stat(os.path.join(path, name)).st_size
                for top in folder.glob(pattern)
                for path, _, names in os.walk(top, onerror=_raise)
                for name in names
            )


def _raise(error: OSError) -> None:
    raise error
