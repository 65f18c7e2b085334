"""The annotated example that holds every key, written from the declarations of the keys."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic.fields import FieldInfo

from tuneyard_pipelines.sections import Part, Ranged, default_of, nested, takes

# Instead of the default, so that the example varies something and the keys fit together.
_VALUES: dict[str, Any] = {
    "description": "every key that a spec may hold, with its default or an example",
    "model.num_heads": [2, 4, 8],
    "model.num_layers": {"int": [1, 3]},
    "training.learning_rate": {"loguniform": [1e-3, 1e-2]},
    "data.tokenizer.type": "bpe",
    "search.include": [{"variant": "learned", "num_heads": 2, "num_layers": 1, "learning_rate": 2e-3}],
    "variants": {"sinusoidal": {"model": {"positions": "sinusoidal"}}, "learned": {"model": {"positions": "learned"}}},
    "constraints": ["num_heads * num_layers <= 16", "parameters <= 2e6"],
    "tags": {"team": "nlp"},
}
# Keys that exclude others of the example: they stand behind a comment sign.
_INSTEAD = (
    "model.num_kv_heads",
    "model.cell",
    "model.attention",
    "model.teacher_forcing",
    "model.tied_embeddings",
    "model.kernel_size",
    "model.order",
    "model.window",
    "resources.accelerator_type",
    "training.max_steps",
    "training.max_epochs",
    "data.columns",
    "data.header",
    "data.generate",
    "data.config",
    "data.revision",
)
_WIDTH = 116


def annotated(spec: type[Part]) -> str:
    """The text of the example."""
    head = [
        "# Every key of a spec. A key that has a default may be left out.",
        "# Where a range is allowed, it is a list, {uniform: [a, b]}, {loguniform: [a, b]} or {int: [a, b], step: n}.",
        "# Written by the program itself, from the declarations that read it.",
    ]
    return "\n".join([*head, *_section(spec, "", None, off=False)]) + "\n"


def _section(part: type[Part], prefix: str, ranges: Ranged | None, *, off: bool) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in part.model_fields.items():
        word = field.alias or name
        key = f"{prefix}{word}"
        hidden = off or key in _INSTEAD
        inner = nested(field)
        if not indent:
            yield ""
        yield from _comment(field, indent, ranged=ranges is not None and name not in ranges.fixed)
        sign = "# " if hidden else ""
        if inner is None:
            yield f"{indent}{sign}{word}: {_written(_VALUES.get(key, _value(field)))}"
            continue
        yield f"{indent}{sign}{word}:"
        mark = next((mark for mark in field.metadata if isinstance(mark, Ranged)), None)
        yield from _section(inner, f"{key}.", mark, off=hidden)


def _comment(field: FieldInfo, indent: str, *, ranged: bool) -> Iterator[str]:
    extra = field.json_schema_extra
    unit = str(extra.get("unit", "")) if isinstance(extra, dict) else ""
    text = field.description or ""
    if nested(field) is None:
        default = default_of(field)
        facts = [
            unit,
            takes(field) + (", or a range" if ranged else ""),
            "required" if field.is_required() else "" if default is None else f"default {_default(default)}",
        ]
        text += f" ({'; '.join(filter(None, facts))})"
    yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _default(default: Any) -> str:
    return "empty" if default in ("", (), {}) else _written(default)


def _value(field: FieldInfo) -> Any:
    return field.examples[0] if field.examples else default_of(field)


def _written(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()
