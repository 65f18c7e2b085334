"""Tuneyard's public Python API: a spec, a sweep, a model; each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuneyard.client import Client
    from tuneyard.local import load_model, plan_sweep, resume_sweep, run_sweep
    from tuneyard.progress import Progress
    from tuneyard.results import Sweep, open_sweep
    from tuneyard_pipelines.spec import SweepSpec

__version__ = "0.1.0"
__all__ = [
    "Client",
    "Progress",
    "Sweep",
    "SweepSpec",
    "__version__",
    "load_model",
    "open_sweep",
    "plan_sweep",
    "resume_sweep",
    "run_sweep",
]

_HOMES = {
    "Client": "tuneyard.client",
    "Progress": "tuneyard.progress",
    "Sweep": "tuneyard.results",
    "SweepSpec": "tuneyard_pipelines.spec",
    "load_model": "tuneyard.local",
    "open_sweep": "tuneyard.results",
    "plan_sweep": "tuneyard.local",
    "resume_sweep": "tuneyard.local",
    "run_sweep": "tuneyard.local",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tuneyard' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
