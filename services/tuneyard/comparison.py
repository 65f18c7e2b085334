"""Two sweeps side by side: how each went, its best trial and its test scores, and where their specs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuneyard.progress import clock
from tuneyard.sweeps import View, cell, figure
from tuneyard_pipelines import spec_yaml

NONE = "-"
UNCOMPARED = {"name", "description", "tags", "register"}  # say nothing of how models came about


@dataclass(frozen=True)
class Line:
    """What the two have to say to one question; of a key of the spec, `differs` is always true."""

    label: str
    one: str
    other: str

    @property
    def differs(self) -> bool:
        return self.one != self.other


@dataclass(frozen=True)
class Comparison:
    """`results` and the keys of the specs that differ, `spec`; `warning`: why the scores say little, if they do."""

    results: tuple[Line, ...]
    spec: tuple[Line, ...]
    warning: str


def compare(one: View, other: View, specs: tuple[str, str]) -> Comparison:
    """Each view has all its trials; the first spec is that of `one`.

    Specs are compared as they were accepted, with all their keys, whatever would be made of them today.
    """
    first, second = (spec_yaml.read(text, "spec.yaml").data for text in specs)
    flat = [_flat({key: said for key, said in spec.items() if key not in UNCOMPARED}) for spec in (first, second)]
    return Comparison(
        results=tuple(_lines(_results(one), _results(other))),
        spec=tuple(line for line in _lines(*flat) if line.differs),
        warning=_warning(one, other, first, second),
    )


def _results(view: View) -> dict[str, str]:
    best = view.best
    test = {key: figure(value) for key, value in sorted(view.test.items())}
    found = {
        "sweep": f"{view.sweep_id} ({view.name})",
        "state": view.state,
        "trials": view.counted,
        "trained": clock(sum(row.seconds for row in view.leaderboard)),
        "tokens": f"{sum(row.tokens for row in view.leaderboard):,}",
    }
    if best is not None:
        point = {f"  {key}": cell(value) for key, value in sorted(best.point.items())}
        found |= {"best": best.trial, **({"  variant": best.variant} if best.variant else {}), **point}
        found |= {view.metric: NONE if best.score is None else f"{best.score:.4g}"}
    return found | test


def _lines(one: Mapping[str, str], other: Mapping[str, str]) -> list[Line]:
    return [Line(label, one.get(label, NONE), other.get(label, NONE)) for label in dict.fromkeys([*one, *other])]


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """`{model: {d_model: [64, 128]}}` -> `model.d_model: [64, 128]`."""
    if not isinstance(value, dict) or not value:
        return {path: _shown(value)}
    nested = [_flat(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items()]
    return {key: text for flat in nested for key, text in flat.items()}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return NONE if value is None else str(value)


def _warning(one: View, other: View, first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Of data that is named alike, only the sweeps' folders know whether it was the same."""
    if one.metric != other.metric:
        return f"one was chosen by {one.metric}, the other by {other.metric}"
    texts = [{**spec["data"], "tokenizer": None, "seed": spec["seed"]} for spec in (first, second)]
    return "" if texts[0] == texts[1] else "their data or its split differ: their scores are of different texts"
