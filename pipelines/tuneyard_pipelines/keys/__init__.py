"""The keys of a spec, each declared once: type, bounds, default, meaning, unit."""

from __future__ import annotations

from tuneyard_pipelines.keys.data import Columns, DataSpec, Generate, Split
from tuneyard_pipelines.keys.declared import NAME_RULE, Name, Text, Whole
from tuneyard_pipelines.keys.point import MODEL, TOKENIZER, TRAINING, Model, TaskName, Tokenizer, Training
from tuneyard_pipelines.keys.resources import RESOURCES, Resources
from tuneyard_pipelines.keys.sweep import Budget, Registration, Scheduler, Search, Variant

__all__ = [
    "MODEL",
    "NAME_RULE",
    "RESOURCES",
    "TOKENIZER",
    "TRAINING",
    "Budget",
    "Columns",
    "DataSpec",
    "Generate",
    "Model",
    "Name",
    "Registration",
    "Resources",
    "Scheduler",
    "Search",
    "Split",
    "TaskName",
    "Text",
    "Tokenizer",
    "Training",
    "Variant",
    "Whole",
]
