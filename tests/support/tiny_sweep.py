"""A sweep of seconds, for tests that need a real one."""

from __future__ import annotations

from typing import Any

import yaml
from tuneyard_pipelines.spec import SweepSpec, parse

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
