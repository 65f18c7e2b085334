"""As a script: twelve trials of two workers each on a cluster of four cores, under ASHA, and what befalls some of them.

python tests/support/faulty_workers.py HOME MLFLOW_URI MARKERS
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytorch_lightning as pl
import ray
import torch
from tiny_sweep import tiny

from tuneyard_modules import workers
from tuneyard_pipelines import sweep
from tuneyard_pipelines.cluster import OBJECT_STORE_BYTES, quiet
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.spec import SweepSpec

SWEEP, CORES = "5eed0012", 4
STEPS, RUNG, FAULT_AT = 12, 4, 3


def spec() -> SweepSpec:
    return tiny(
        model__num_heads=[1, 2, 4],
        model__sequence_length=[24, 32, 40, 48],
        model__dropout=0.0,
        training__max_steps=STEPS,
        search__scheduler={"type": "asha", "min_share": 0.3, "reduction_factor": 3},
        resources__workers=2,
        resources__memory_per_worker="1800MiB",
        resources__stall_timeout="60s",
        resources__on_out_of_memory="halve_batch",
        register={"name": "faulty-workers"},
    )


class Fault(pl.Callback):
    """Befalls worker number `rank` before step FAULT_AT."""

    def __init__(self, rank: int, what: Callable[[], None]) -> None:
        self.rank, self.what = rank, what

    def on_train_batch_start(self, trainer: pl.Trainer, *args: object) -> None:
        if trainer.global_step == FAULT_AT and workers.rank() == self.rank:
            self.what()


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise RuntimeError("the disk of this node is on fire")


def hang() -> None:
    time.sleep(600)


def grow() -> None:
    held = []
    while True:
        held.append(torch.ones(16 << 20))
        time.sleep(0.02)


def main(home: Path, uri: str, markers: Path) -> None:
    def once(name: str, what: Callable[[], None]) -> Callable[[], None]:
        def fault() -> None:
            marker = markers / name
            if not marker.exists():
                marker.touch()
                what()

        return fault

    def callbacks(leg: Leg) -> Sequence[pl.Callback]:
        if leg.trial == "t007" and workers.rank() == 1:
            once("late", hang)()  # it never comes to where the first one waits for it
        faults = {
            "t002": Fault(1, once("killed", kill)),
            "t003": Fault(1, fail),
            "t004": Fault(1, once("hung", hang)),
            "t005": Fault(0, once("first killed", kill)),
            "t006": Fault(1, once("grown", grow)),
        }
        return [faults[leg.trial]] if leg.trial in faults else []

    quiet()
    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    sweep.run(spec(), "text", home=home, tracking_uri=uri, sweep_id=SWEEP, callbacks=callbacks)
    deadline_s = time.monotonic() + 60
    while ray.available_resources().get("CPU") != CORES and time.monotonic() < deadline_s:
        time.sleep(0.2)
    (home / "free").write_text(str(ray.available_resources().get("CPU")))
    ray.shutdown()


if __name__ == "__main__":
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
