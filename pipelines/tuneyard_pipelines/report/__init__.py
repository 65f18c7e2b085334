"""The report of a sweep: figures and words about its trials, as one page and as Plotly's JSON; no torch, Ray, MLflow.

`from_folder` reads a `Sweep`, `sentences` say which values pay, `figures` draws, `write` leaves the files.
"""

from __future__ import annotations

from tuneyard_pipelines.report.folder import TRAINING, from_folder
from tuneyard_pipelines.report.page import PAGE, figures, parts, write
from tuneyard_pipelines.report.trials import Figure, Omitted, Sweep, Table, Trial
from tuneyard_pipelines.report.values import sentences

__all__ = [
    "PAGE",
    "TRAINING",
    "Figure",
    "Omitted",
    "Sweep",
    "Table",
    "Trial",
    "figures",
    "from_folder",
    "parts",
    "sentences",
    "write",
]
