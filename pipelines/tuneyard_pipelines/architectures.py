"""Families of models by name: ours, and those that installed packages add by the entry point `tuneyard.architectures`.

    [project.entry-points."tuneyard.architectures"]
    linear_attention = "my_package:ARCHITECTURE"

The name is what `model.architecture` says; the value is an `Architecture`. Importing it must not import torch, for
every command that reads such a spec does so. A package that cannot be used troubles only specs that name what it adds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tuneyard_pipelines import formulas
from tuneyard_pipelines.errors import InputError, first_line
from tuneyard_pipelines.formulas import Formulas

GROUP = "tuneyard.architectures"
_FUNCTION = re.compile(r"[\w.]+:\w+")
_OF_ALL = ("model.architecture", "model.sequence_length")
_OF_COUNTING = tuple(
    f"training.{key}" for key in ("max_tokens", "max_steps", "max_epochs", "batch_tokens", "accumulate", "evaluations")
)


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

    `network` names, as "module:function", what builds the untrained network: function(model, sizes), where `model` is
    the section of that name of a trial (`spec.Model`) and `sizes` its vocabularies' (`formulas.VocabSizes`). What it
    returns keeps the protocol of each of `tasks`; see CONTRIBUTING.md. `keys` are those of `model` that the family
    follows, dotted, beside the architecture and the sequence length; `words`, of keys that take words, those that it
    knows, where it does not know all; `defaults` its own values of keys that are left out. One that `counts`
    (`tuneyard_modules.baselines.CountingNetwork`) has nothing to optimise. Raises ValueError for a `network` that
    names no function and for keys that are none of `model`.
    """

    tasks: tuple[str, ...]
    network: str
    cost: Formulas
    keys: tuple[str, ...]
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    defaults: Mapping[str, str | int | float] = field(default_factory=dict)
    counts: bool = False

    def __post_init__(self) -> None:
        if not _FUNCTION.fullmatch(self.network):
            raise ValueError(f"network={self.network!r} must be module:function, such as my_package.network:build")
        if wrong := [key for key in (*self.keys, *self.words) if not key.startswith("model.")]:
            raise ValueError(f"keys={self.keys!r}: {wrong[0]!r} is none of the section model, such as model.d_model")

    @cached_property
    def follows(self) -> Callable[[str], bool]:
        """Whether a dotted key means something to models of this family: asked for every key of every point."""
        return cache(self._follows)

    def _follows(self, key: str) -> bool:
        if key.startswith("model."):
            return key in _OF_ALL or key in self.keys
        return not self.counts or not key.startswith("training.") or key in _OF_COUNTING


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
    holds=lambda point: _positions(point) != "sinusoidal" or point["model.d_model"] % 2 == 0,
)
_ROTATIONS_TURN_PAIRS = Rule(
    name="d_model / num_heads is even with rotary positions",
    message="a rotation turns pairs of features of a head",
    keys=("model.d_model", "model.num_heads", "model.positions"),
    holds=lambda point: _positions(point) != "rotary" or point["model.d_model"] // point["model.num_heads"] % 2 == 0,
)
_GROUPS_ARE_EQUAL = Rule(
    name="num_heads % num_kv_heads == 0",
    message="each head of keys and values is shared by equally many heads of queries",
    keys=("model.num_heads", "model.num_kv_heads"),
    holds=lambda point: point["model.num_heads"] % point.get("model.num_kv_heads", 1) == 0,
)
_DIRECTIONS_SHARE_THE_WIDTH = Rule(
    name="d_model % 2 == 0",
    message="the encoder's two directions share the width",
    keys=("model.d_model",),
    holds=lambda point: point["model.d_model"] % 2 == 0,
)
_HEADS_ARE_OF_MULTI_HEAD = Rule(
    name="num_heads == 1 but for attention: multi_head",
    message="other attention has one head",
    keys=("model.num_heads", "model.attention"),
    holds=lambda point: point["model.num_heads"] == 1 or point["model.attention"] == "multi_head",
)
_A_CONTEXT = Rule(
    name="order >= 2",
    message="there is a token to predict from",
    keys=("model.order",),
    holds=lambda point: point["model.order"] >= 2,
)
_TANH_IS_OF_RNN = Rule(
    name="activation: tanh but for cell: rnn",
    message="the gates of lstm and gru have their own activations",
    keys=("model.activation", "model.cell"),
    holds=lambda point: point["model.activation"] == "tanh" or point["model.cell"] == "rnn",
)

_SIZES = ("model.d_model", "model.num_layers", "model.dropout")
_ATTENTION = (
    *_SIZES,
    "model.num_heads",
    "model.d_ff",
    "model.norm",
    "model.positions",
    "model.activation",
    "model.bias",
    "model.without",
    "model.gradient_checkpointing",
)
_ATTENTION_RULES = (HEADS_SHARE_THE_WIDTH, SINUSOIDS_COME_IN_PAIRS, _ROTATIONS_TURN_PAIRS)
_FEED_FORWARD = {"model.activation": ("relu", "gelu", "swiglu")}
_ELMAN = {"model.activation": ("tanh", "relu")}
_RECURRENT = (*_SIZES, "model.tied_embeddings")


def _attention_defaults(norm: str, positions: str, activation: str) -> dict[str, str | int | float]:
    return {
        "model.num_heads": 4,
        "model.norm": norm,
        "model.positions": positions,
        "model.activation": activation,
    }


OURS: dict[str, Architecture] = {
    "transformer": Architecture(
        tasks=("translation",),
        network="tuneyard_pipelines.build:transformer",
        cost=formulas.TRANSFORMER,
        keys=(*_ATTENTION, "model.num_decoder_layers"),
        words=_FEED_FORWARD,
        rules=_ATTENTION_RULES,
        defaults=_attention_defaults("pre", "sinusoidal", "relu"),
    ),
    "gpt": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:gpt",
        cost=formulas.GPT,
        keys=(*_ATTENTION, "model.num_kv_heads"),
        words=_FEED_FORWARD,
        rules=(*_ATTENTION_RULES, _GROUPS_ARE_EQUAL),
        defaults=_attention_defaults("pre", "learned", "gelu"),
    ),
    "bert": Architecture(
        tasks=("masked_lm",),
        network="tuneyard_pipelines.build:bert",
        cost=formulas.BERT,
        keys=_ATTENTION,
        words=_FEED_FORWARD,
        rules=_ATTENTION_RULES,
        defaults=_attention_defaults("post", "learned", "gelu"),
    ),
    "seq2seq": Architecture(
        tasks=("translation",),
        network="tuneyard_pipelines.build:seq2seq",
        cost=formulas.SEQ2SEQ,
        keys=(
            *_RECURRENT,
            "model.cell",
            "model.activation",
            "model.attention",
            "model.num_heads",
            "model.teacher_forcing",
        ),
        words=_ELMAN,
        rules=(_DIRECTIONS_SHARE_THE_WIDTH, HEADS_SHARE_THE_WIDTH, _HEADS_ARE_OF_MULTI_HEAD, _TANH_IS_OF_RNN),
        defaults={"model.num_heads": 1, "model.activation": "tanh"},
    ),
    "rnn": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:recurrent",
        cost=formulas.RNN,
        keys=(*_RECURRENT, "model.activation"),
        words=_ELMAN,
        defaults={"model.activation": "tanh"},
    ),
    "lstm": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:recurrent",
        cost=formulas.LSTM,
        keys=_RECURRENT,
    ),
    "gru": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:recurrent",
        cost=formulas.GRU,
        keys=_RECURRENT,
    ),
    "conv": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:conv",
        cost=formulas.CONV,
        keys=(*_RECURRENT, "model.kernel_size"),
    ),
    "nplm": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:nplm",
        cost=formulas.NPLM,
        keys=("model.order", "model.d_model", "model.d_ff", "model.dropout"),
        rules=(_A_CONTEXT,),
    ),
    "ngram": Architecture(
        tasks=("language_modeling",),
        network="tuneyard_pipelines.build:ngram",
        cost=formulas.NGRAM,
        keys=("model.order",),
        counts=True,
    ),
    "cbow": Architecture(
        tasks=("masked_lm",),
        network="tuneyard_pipelines.build:cbow",
        cost=formulas.CBOW,
        keys=("model.window", "model.d_model"),
    ),
}


def _positions(point: Mapping[str, Any]) -> str:
    without, positions = point.get("model.without", "nothing"), point["model.positions"]
    return "none" if without == "positions" else str(positions)


def names() -> tuple[str, ...]:
    """All names, ours first; nothing is imported for it."""
    return tuple(dict.fromkeys((*OURS, *sorted(_entries()))))


def following(key: str) -> tuple[str, ...]:
    """The names of those that follow a dotted key; what cannot be used is left out."""
    return tuple(name for name, one in _usable() if one.follows(key))


def of_task(task: str) -> tuple[str, ...]:
    """The names of those that can learn a task; what cannot be used is left out."""
    return tuple(name for name, one in _usable() if task in one.tasks)


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


def _usable() -> Iterator[tuple[str, Architecture]]:
    for name in names():
        with suppress(InputError):
            yield name, find(name)


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
