"""A sweep of a minute or two that has each GPU of a cluster train one small model, all at once, in half precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneyard_pipelines import sweep
from tuneyard_pipelines.capacity import Node, Shape
from tuneyard_pipelines.cluster import cluster, nodes
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.spec import Resources, SweepSpec, parse

SPEC = """
version: 1
name: gpu-test
task: translation
data: {source: builtin/dates, examples: 4000}
model: {architecture: transformer, d_model: 128, num_heads: 4, num_layers: 2, sequence_length: 32}
training:
  {max_steps: 200, batch_tokens: 8192, evaluations: 2, precision: bf16-mixed, learning_rate: {uniform: [0.001, 0.002]}}
search: {algorithm: random, scheduler: none, metric: val/loss, retries: 0}
resources: {gpus_per_worker: 1, stall_timeout: 2m}
budget: {wall_clock: 5m}
"""


@dataclass(frozen=True)
class GpuTrial:
    """What became of one model; losses are those of its first and last logged step, nan where there is none."""

    trial: str
    outcome: str
    message: str
    first_loss: float
    last_loss: float
    tokens_per_second: float
    gpu_memory_bytes: float

    @property
    def trained(self) -> bool:
        """Whether it was trained on a GPU, and learned something there."""
        return self.outcome == "completed" and self.last_loss < self.first_loss and self.gpu_memory_bytes > 0

    @property
    def summary(self) -> str:
        """What became of it, for people."""
        if self.outcome != "completed":
            return f"{self.trial}: {self.outcome}: {self.message}"
        return (
            f"{self.trial} trained in bf16: loss {self.first_loss:.2f} to {self.last_loss:.2f}, "
            f"{self.tokens_per_second:,.0f} tokens a second, {self.gpu_memory_bytes / 2**20:,.0f} MiB on the GPU"
        )


@dataclass(frozen=True)
class GpuTest:
    """The nodes there were, and a trial for each GPU of theirs; none where there is no GPU."""

    nodes: Sequence[Node]
    trials: Sequence[GpuTrial]


def run(home: Path) -> GpuTest:
    """Train on every GPU of the cluster at RAY_ADDRESS, else of this machine, under a home that all nodes share.

    Raises TuneyardError where not even a sweep comes about.
    """
    with cluster([Shape.of(Resources())]):
        there = nodes()
        gpus = sum(int(node.gpus) for node in there)
        if not gpus:
            return GpuTest(there, [])
        uri = f"sqlite:///{home / 'mlflow.db'}"
        spec = spec_for(gpus)
        folder = sweep.run(spec, spec.text(), home=home, tracking_uri=uri, sweep_id="gpu-test")
    return GpuTest(there, told(folder))


def spec_for(gpus: int) -> SweepSpec:
    """The sweep that has so many GPUs train at once."""
    return parse(SPEC, file="gpu-test", overrides=(f"search.trials={gpus}",))


def told(folder: SweepFolder) -> list[GpuTrial]:
    """What became of each trial of the sweep."""
    state = folder.state()
    found = []
    for trial in state.trials.values():
        values = MetricReader(folder, trial.id).new(state)
        losses = [one.value for one in values if one.key == "train/loss"] or [math.nan]
        found.append(
            GpuTrial(
                trial=trial.id,
                outcome=trial.outcome or "unfinished",
                message=trial.message or next((failure.message for failure in trial.failures), ""),
                first_loss=losses[0],
                last_loss=losses[-1],
                tokens_per_second=max((one.value for one in values if one.key == "train/tokens_per_second"), default=0),
                gpu_memory_bytes=max((one.value for one in values if one.key == "system/gpu_memory_bytes"), default=0),
            )
        )
    return found
