"""Families of models by name: ours, and those that installed packages add by the entry point `tuneyard.architectures`.

    [project.entry-points."tuneyard.architectures"]
    linear_attention = "my_package:ARCHITECTURE"

The name is what `model.architecture` says; the value is an `Architecture`. Importing it must not import torch, for
every command that reads such a spec does so. A package that cannot be used troubles only specs that name what it adds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tuneyard_pipelines import formulas
from tuneyard_pipelines.errors import InputError, first_line
from tuneyard_pipelines.formulas import Formulas

GROUP = "tuneyard.architectures"
_FUNCTION = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True)
class Rule:
    """What every point of an architecture must keep. `holds` reads all keys of the point, dotted."""

    name: str
    message: str
    keys: tuple[str, ...]
    holds: Callable[[Mapping[str, Any]], bool]


@dataclass(frozen=True)
class Architecture:
    """A family of models, as far as it is known without torch.

    `network` names, as "module:function", what builds the untrained network: function(model, vocab_size), where `model`
    is the section of that name of a trial (`spec.Model`). What it returns keeps the protocol of each of `tasks`; see
    CONTRIBUTING.md. `defaults` are the family's own values of keys that are left out, dotted. Raises ValueError for a
    `network` that names no function.
    """

    tasks: tuple[str, ...]
    network: str
    cost: Formulas
    rules: tuple[Rule, ...] = ()
    defaults: Mapping[str, str | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _FUNCTION.fullmatch(self.network):
            raise ValueError(f"network={self.network!r} must be module:function, such as my_package.network:build")


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


HEADS_SHARE_THE_WIDTH = Rule(
    name="d_model % num_heads == 0",
    message="every head takes an equal share of the width",
    keys=("model.d_model", "model.num_heads"),
    holds=lambda point: point["model.d_model"] % point["model.num_heads"] == 0,
)
SINUSOIDS_COME_IN_PAIRS = Rule(
    name="d_model % 2 == 0 with sinusoidal positions",
    message="sines and cosines come in pairs",
    keys=("model.d_model", "model.positions"),
    holds=lambda point: point["model.positions"] != "sinusoidal" or point["model.d_model"] % 2 == 0,
)

OURS: dict[str, Architecture] = {
    "transformer": Architecture(
        tasks=("translation",),
        network="tuneyard_pipelines.build:transformer",
        cost=formulas.TRANSFORMER,
        rules=(HEADS_SHARE_THE_WIDTH, SINUSOIDS_COME_IN_PAIRS),
        defaults={"model.positions": "sinusoidal"},
    ),
    "gpt": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:gpt",
        cost=formulas.GPT,
        rules=(HEADS_SHARE_THE_WIDTH, SINUSOIDS_COME_IN_PAIRS),
        defaults={"model.positions": "learned"},
    ),
}


def names() -> tuple[str, ...]:
    """All names, ours first; nothing is imported for it."""
    return tuple(dict.fromkeys((*OURS, *sorted(_entries()))))


def of_task(task: str) -> tuple[str, ...]:
    """The names of those that can learn a task; what cannot be used is left out."""
    usable = []
    for name in names():
        try:
            usable += [name] if task in find(name).tasks else []
        except InputError:
            continue
    return tuple(usable)


@cache
def find(name: str) -> Architecture:
    """The architecture of that name.

    Raises InputError where there is none; where two packages, or a package and Tuneyard, have one of that name; and
    where the package that names it cannot be imported or gives something else.
    """
    entries = _entries().get(name, ())
    if len(entries) + (name in OURS) > 1:
        owners = [*(["Tuneyard"] if name in OURS else []), *(str(_package(entry)) for entry in entries)]
        raise InputError(
            f"architecture {name!r} is named by {' and by '.join(owners)}; uninstall all but one, or have it renamed"
        )
    if name in OURS:
        return OURS[name]
    if not entries:
        raise InputError(f"there is no architecture {name!r}; there is {', '.join(names())}")
    return _load(entries[0])


def packages(architectures: Iterable[str]) -> tuple[Package, ...]:
    """The installed packages that these come from, ours left out. Raises InputError as `find` does."""
    foreign = [name for name in architectures if find(name) is not OURS.get(name)]
    return tuple(dict.fromkeys(_package(_entries()[name][0]) for name in foreign))


@cache
def _entries() -> dict[str, tuple[EntryPoint, ...]]:
    """What the installed packages name, as they are when this is first asked for."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=GROUP):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def _package(entry: EntryPoint) -> Package:
    return Package(entry.dist.name, entry.dist.version) if entry.dist else Package("an unnamed package", "")


def _load(entry: EntryPoint) -> Architecture:
    owner = f"architecture {entry.name!r} of the package {_package(entry)}"
    remedy = "mend the package or uninstall it"
    try:
        loaded = entry.load()
    except Exception as cause:  # whatever a stranger's module does while it is imported
        why = f"{entry.value} cannot be imported ({type(cause).__name__}: {first_line(cause)})"
        raise InputError(f"{owner}: {why}; {remedy}") from cause
    if not isinstance(loaded, Architecture):
        kind = type(loaded).__name__
        raise InputError(f"{owner}: {entry.value} is of type {kind}, not {__name__}.Architecture; {remedy}")
    return loaded
