"""Built-in data that is made by a pure function of seed and index, as many examples as asked for.

    builtin/dates                    dates          no settings
    builtin/numbers                  numbers        languages, largest
    builtin/copy, /reverse, /sort    sequences      min_length, max_length, symbols
    builtin/recall                   recall         the same, and distractors

The settings are the keys of data.generate.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tuneyard_pipelines.catalog import GENERATED
from tuneyard_pipelines.data import dates, numbers, recall, sequences
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tuneyard_pipelines.spec import DataSpec

SEPARATOR = "="
"""Between source and target in a document, where a language model learns what a translator does."""

_BY_TARGET = ("builtin/dates", "builtin/numbers")


class _Kind(NamedTuple):
    version: str
    example: Callable[..., tuple[str, str]]
    counts: Callable[..., Iterator[int]] | None


_KINDS: dict[str, _Kind] = {
    "builtin/dates": _Kind(dates.VERSION, dates.example, None),
    "builtin/numbers": _Kind(numbers.VERSION, numbers.example, numbers.counts),
    "builtin/recall": _Kind(recall.VERSION, recall.example, recall.counts),
    **{
        name: _Kind(sequences.VERSION, partial(sequences.example, name), sequences.counts) for name in sequences.TARGETS
    },
}


def origin(data: DataSpec) -> dict[str, Any]:
    """What, with the seed, makes the content unique: name, version, number of examples, and the settings it follows.

    Raises DataError if there are fewer different examples than asked for.
    """
    settings = _settings(data)
    if counts := _KINDS[data.source].counts:
        _check(data, settings, counts)
    return {"builtin": data.source, "version": _KINDS[data.source].version, "examples": data.examples, **settings}


def examples(data: DataSpec, task: str, seed: int) -> Iterator[Example]:
    """All examples of `seed`, as texts of `task`: a pair, or the document that it makes.

    Both texts are keys where many sources share a target by their meaning: all ways to write one day or number. Where
    targets are few by nature, as digits are, it is the source alone.
    """
    make, settings = _KINDS[data.source].example, _settings(data)
    by_target = data.source in _BY_TARGET and data.split.group_by == "text"
    for index in range(data.examples):
        source, target = make(seed, index, **settings)
        texts = (source, target) if task == "translation" else (f"{source}{SEPARATOR}{target}",)
        yield Example(texts, texts if by_target else (source,))


def _settings(data: DataSpec) -> dict[str, Any]:
    return {name: getattr(data.generate, name) for name in GENERATED[data.source]}


def _check(data: DataSpec, settings: dict[str, Any], counts: Callable[..., Iterator[int]]) -> None:
    found = 0
    for count in counts(**settings):
        found += count
        if found >= data.examples:
            return
    written = ", ".join(
        f"{name}: {', '.join(value) if isinstance(value, tuple) else f'{value:,}'}" for name, value in settings.items()
    )
    raise DataError(
        f"data.examples: found {data.examples:,}, but {data.source} with {written} has only {found:,} different ones. "
        f"Ask for at most {found:,}, or raise {_more(data.source)} of data.generate."
    )


def _more(source: str) -> str:
    return "largest" if source == "builtin/numbers" else "max_length or symbols"
