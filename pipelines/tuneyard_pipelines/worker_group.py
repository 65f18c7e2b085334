"""Several workers that train one leg together: Ray Train starts, joins and ends them, the trial's own process waits.

    trial's process   holds no core; builds the group, and tells what became of the leg
    rank 0, 1, ...    a process each with the resources of a worker, which runs the leg (`trial.run_leg`)

Each worker leaves its result in the trial's folder. One that fails raises after that, for then all others, which may
wait for it, are ended; so does one that dies. What was first is why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from tuneyard_pipelines.catalog import Mode
from tuneyard_pipelines.cluster import only_own_gpus, quiet, request
from tuneyard_pipelines.control import Finish, finishing
from tuneyard_pipelines.journal import EARLY, SweepFolder, write_atomic
from tuneyard_pipelines.leg import LEFT, Leg, LegResult, explain_death, stands
from tuneyard_pipelines.spec import Resources
from tuneyard_pipelines.watchdog import last_words

LOOK_S = 1.0
LATER_S = 30  # the watchdog of a worker that waits speaks before the process group gives up
_WELL = frozenset({None, "interrupted", *EARLY})


def train(
    leg: Leg, resources: Resources, mode: Mode, storage: str, callbacks: Callable[[Leg], Sequence[Any]] | None
) -> LegResult:
    """Run a leg on `resources.workers` processes; whatever goes wrong there is the result's outcome.

    To be called in the process of a Tune trial. It waits until there is room for all of them, as a trial of one worker
    does. A group that is not complete within resources.stall_timeout from then on is given up. `storage` is a folder
    for what Ray Train keeps meanwhile.
    """
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    last_words(leg.attempt_folder)  # of an earlier group, which another failure explained
    for path in (*_results(leg), *_watched(leg)):
        path.unlink()
    if (told := _wait_for_room(leg, resources)) is not None:
        return stands(leg.trial_folder, mode, told.outcome, told.reason)
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(resources.stall_timeout_s)

    def work() -> None:
        only_own_gpus(resources)
        _work(leg, callbacks)

    try:
        TorchTrainer(
            work,
            # Flags and texts go by gloo beside the gradients, which go by NCCL on GPUs.
            torch_config=TorchConfig(
                backend="cpu:gloo,cuda:nccl" if resources.gpus_per_worker else "gloo",
                timeout_s=resources.stall_timeout_s + LATER_S,
            ),
            scaling_config=ray.train.ScalingConfig(
                num_workers=resources.workers,
                use_gpu=bool(resources.gpus_per_worker),
                resources_per_worker=request(resources),
            ),
            run_config=ray.train.RunConfig(
                name=f"{leg.trial}-{leg.rung}-{os.getpid()}",
                storage_path=storage,
                failure_config=ray.train.FailureConfig(  # of Ray Train's own, which its types do not tell
                    max_failures=0,
                    controller_failure_limit=0,  # type: ignore[call-arg]
                ),
            ),
        ).fit()
    except ray.train.TrainingFailedError as failed:
        return _why(leg, resources, mode, failed)
    return _told(_results(leg)[0])


def _wait_for_room(leg: Leg, resources: Resources) -> Finish | None:
    """By a reservation like that of the group, which is given back at once; why the leg must not begin any more, if so.

    It waits as long as there is none: a node that was lost may come back.
    """
    room = placement_group([request(resources)] * resources.workers)
    try:
        ready = room.ready()
        while not ray.wait([ready], timeout=LOOK_S)[0]:
            if (told := finishing(SweepFolder(Path(leg.folder)), leg.attempt)) is not None:
                return told
        return None
    finally:
        remove_placement_group(room)


def _work(leg: Leg, callbacks: Callable[[Leg], Sequence[Any]] | None) -> None:
    """One worker, in a process of its own."""
    import ray.train
    from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment

    from tuneyard_pipelines.trial import DATA_PARALLEL, run_leg

    quiet()
    rank = ray.train.get_context().get_world_rank()
    strategy, environment = RayDDPStrategy(**DATA_PARALLEL), RayLightningEnvironment()  # type: ignore[no-untyped-call]
    group = {"devices": "auto", "strategy": strategy, "plugins": [environment]}
    result = run_leg(leg, callbacks(leg) if callbacks else (), group)
    write_atomic(leg.attempt_folder / f"result.rank{rank}.json", json.dumps(result.to_dict()))
    if result.outcome not in _WELL:
        raise RuntimeError(f"rank {rank}: {result.outcome}: {result.message}")


def _why(leg: Leg, resources: Resources, mode: Mode, failed: Exception) -> LegResult:
    """What ended a group: the first failure of a worker's own, else a worker that died, else what was between them."""
    workers, results = resources.workers, {path: _told(path) for path in _results(leg)}
    in_time = sorted(results, key=lambda path: path.stat().st_mtime_ns)
    own = [path for path in in_time if results[path].outcome not in {*_WELL, LEFT}]
    if own:
        return results[own[0]]
    told, began = {path.name for path in results}, bool(_watched(leg))
    gone = [str(rank) for rank in range(workers) if f"result.rank{rank}.json" not in told]
    explained = explain_death(leg, mode, f"worker {', '.join(gone)} of {workers} (ranks from 0)")
    if explained.outcome != "error":  # a watchdog spoke
        return explained
    last_line = str(failed).strip().splitlines()[-1]
    if len(gone) == workers and not began:
        patience = f"resources.stall_timeout ({resources.stall_timeout})"
        why = f"the group of {workers} workers did not begin, within {patience} or for another reason: {last_line}"
        return LegResult("error", why)
    if not gone:
        left = [path for path in in_time if results[path].outcome == LEFT]
        if not left:  # all is well, but for how Ray Train ended them
            return _told(_results(leg)[0])
        return LegResult("error", f"the {workers} workers lost each other: {results[left[0]].message}")
    return explained


def _results(leg: Leg) -> list[Path]:
    return sorted(leg.attempt_folder.glob("result.rank*.json"))


def _watched(leg: Leg) -> list[Path]:
    """What the watchdog of a worker that runs, or was killed as it did, has open."""
    return list(leg.attempt_folder.glob("stack.*"))


def _told(path: Path) -> LegResult:
    return LegResult(**json.loads(path.read_text()))
