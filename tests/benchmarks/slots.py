"""What the driver adds to its trials: forty of one second over two slots, from the first start to the last end.

A whole sweep under Ray, from the data to the scored winner. Each leg trains a tiny model for two steps and then sleeps
until a second after its process took it up; on a busy machine, or for what follows training, it takes longer. The ideal
is what the legs took by their own clocks, from when their process took them up to the last file they wrote, over two
slots. What lies between two legs is beyond it: Tune, searcher, journal, and MLflow's shipper on the same cores.

The clock begins when the first leg's process has taken it up: the journal's LegStarted comes some seconds earlier,
since Ray then starts the process and imports torch, once a sweep. It ends with the journal's last LegEnded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from measurement import Measured, spread

from tuneyard_pipelines import sweep
from tuneyard_pipelines.cluster import OBJECT_STORE_BYTES, quiet
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.pictures import PICTURE
from tuneyard_pipelines.spec import parse

TRIALS, SLOTS, LEG_S = 40, 2, 1.0
TAKEN_UP = "taken_up.txt"
SPEC = f"""
version: 1
name: slots
task: translation
data: {{source: builtin/dates, examples: 400, split: {{validation: 0.02, test: 0.02}}}}
model: {{d_model: 8, num_heads: 1, num_layers: 1, sequence_length: 24}}
training: {{max_steps: 2, batch_tokens: 256, evaluations: 1, learning_rate: {{uniform: [0.001, 0.01]}}}}
search: {{algorithm: random, scheduler: none, trials: {TRIALS}, max_concurrent_trials: {SLOTS}, metric: val/loss}}
resources: {{memory_per_worker: 2GiB}}
"""


def slots() -> Measured:
    """Time from the first leg's start to the last one's end, over all legs' own time over the slots: at most 1.10."""
    with tempfile.TemporaryDirectory() as home:
        folder = _sweep(Path(home))
        trials = list(folder.state().trials.values())
        places = [folder.attempt(trial.id, 1) for trial in trials]
        began_s = [float((place / TAKEN_UP).read_text()) for place in places]
        wrote_s = [(place / PICTURE).stat().st_mtime for place in places]
    ended_s = [trial.legs[0].time_ms / 1000 for trial in trials]
    own_s = [wrote - began for began, wrote in zip(began_s, wrote_s, strict=True)]
    span_s = max(ended_s) - min(began_s)
    return Measured(
        ratio=span_s / (sum(own_s) / SLOTS),
        bound=1.10,
        side="at_most",
        details={
            "span_s": round(span_s, 3),
            "leg_by_its_own_clock_s": spread(own_s, 3),
            "last_file_to_leg_ended_s": spread([end - wrote for wrote, end in zip(wrote_s, ended_s, strict=True)], 3),
            "leg_started_to_leg_ended_s": spread([trial.trained_ms / 1000 for trial in trials], 3),
            "over_one_second_flat": round(span_s / (TRIALS * LEG_S / SLOTS), 3),
        },
    )


def _sweep(home: Path) -> SweepFolder:
    quiet()
    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False, object_store_memory=OBJECT_STORE_BYTES)
    try:
        return sweep.run(
            parse(SPEC, file="slots.py"),
            SPEC,
            home=home,
            tracking_uri=f"sqlite:///{home / 'mlflow.db'}",
            sweep_id="slots",
            callbacks=_one_second_legs(),
        )
    finally:
        ray.shutdown()


def _one_second_legs() -> sweep.MakeCallbacks:
    """Makes callbacks in a trial's process, right before its leg; nested, for that process cannot import this file."""

    def callbacks(leg: Leg) -> Sequence[Any]:
        import pytorch_lightning as pl

        class OneSecond(pl.Callback):
            def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
                (leg.attempt_folder / TAKEN_UP).write_text(str(taken_up_s))
                time.sleep(max(0.0, taken_up_s + LEG_S - time.time()))

        taken_up_s = time.time()
        return [OneSecond()]

    return callbacks
