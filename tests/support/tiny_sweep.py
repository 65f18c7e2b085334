"""A sweep of seconds, for tests that need a real one."""

from __future__ import annotations

from typing import Any

import yaml
from mlflow.entities import Run

from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.spec import SweepSpec, parse
from tuneyard_pipelines.tracking import connect

TINY: dict[str, Any] = {
    "version": 1,
    "name": "tiny",
    "task": "translation",
    "data": {"source": "builtin/dates", "examples": 600},
    "model": {
        "architecture": "transformer",
        "d_model": 16,
        "num_heads": [1, 2],
        "num_layers": 1,
        "sequence_length": [24, 48],
    },
    "training": {"max_steps": 8, "batch_tokens": 1024, "learning_rate": 5.0e-3, "evaluations": 4},
    "search": {"algorithm": "grid", "scheduler": "none", "metric": "val/loss"},
    "resources": {"memory_per_worker": "2GiB"},
}


def tiny(**changes: Any) -> SweepSpec:
    """A spec of seconds; `changes` are dotted keys with __ for the dots."""
    values = yaml.safe_load(yaml.safe_dump(TINY))
    for key, value in changes.items():
        *path, last = key.split("__")
        inner = values
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return parse(yaml.safe_dump(values), file="tiny.yaml")


def runs_of(uri: str, folder: SweepFolder) -> dict[str, Run]:
    """A sweep's runs in MLflow by trial; its parent is called parent. Fails on a trial with two runs."""
    client = connect(uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`tuneyard.sweep_id` = '{folder.sweep_id}'")
    by_trial = {run.data.tags.get("tuneyard.trial_id", "parent"): run for run in runs}
    assert len(by_trial) == len(runs)
    return by_trial
