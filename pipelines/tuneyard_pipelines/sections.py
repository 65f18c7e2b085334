"""Sections of a spec as pydantic classes: the variant whose keys may be ranges, and what a key takes, in words."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, PydanticUndefined, core_schema

from tuneyard_pipelines import ranges
from tuneyard_pipelines.spec_yaml import shown_value

# Built on first use: importing the vocabulary stays cheap.
STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


@dataclass(frozen=True)
class Says:
    """What a key takes, in words, where its type and bounds do not tell."""

    text: str


@dataclass(frozen=True)
class OneOf:
    """Marks a text that is one of the words that `known()` gives, asked when a spec is read or described."""

    known: Callable[[], tuple[str, ...]]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.known())}


@dataclass(frozen=True)
class Listed:
    """Marks a number whose range is a list, since not every number between two ends is allowed."""


class Part(BaseModel):
    """A section of a spec: strict, frozen, no unknown keys."""

    model_config = STRICT


def refusal(reason: str) -> PydanticCustomError:
    """An error whose message is `reason` and nothing else."""
    return PydanticCustomError("key", "{reason}", {"reason": reason})


class Ranged:
    """Marks a section in which every key but those of `fixed` may be a range."""

    def __init__(self, plain: type[Part], fixed: tuple[str, ...] = ()) -> None:
        self.plain, self.fixed = plain, fixed

    @cached_property
    def variant(self) -> type[Part]:
        """The derived class; a key holds one value or a `ranges.Range`."""
        fields: dict[str, Any] = {
            name: (field.rebuild_annotation() if name in self.fixed else Annotated[Any, _RangedKey(field)], field)
            for name, field in self.plain.model_fields.items()
        }
        return create_model(
            f"{self.plain.__name__}Ranges",
            __base__=Part,
            __module__=self.plain.__module__,
            __doc__=self.plain.__doc__,
            **fields,
        )

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(self.variant)


def nested(field: FieldInfo) -> type[Part] | None:
    """The section that a field holds, in plain form, or None."""
    for mark in field.metadata:
        if isinstance(mark, Ranged):
            return mark.plain
    kind = _kind(field.annotation)
    return kind if issubclass(kind, Part) else None


def takes(field: FieldInfo, *, ranged: bool = False) -> str:
    """What a key takes, in words, from its type and bounds; with `ranged` also the forms of range."""
    forms = ", ".join(ranges.FORMS[_range_kind(field)]) if ranged else ""
    return _scalar_words(field) + (f", or a range: {forms}" if forms else "")


def default_of(field: FieldInfo) -> Any:
    """The default as it would be written, or None where a key has none."""
    default = field.get_default(call_default_factory=True, validated_data={})
    return None if default is PydanticUndefined else default


def is_scalar(field: FieldInfo) -> bool:
    """Whether the key takes a single text, number or truth value."""
    return _kind(field.annotation) in (str, int, float, bool)


def _scalar_words(field: FieldInfo) -> str:
    for mark in (*field.metadata, *_marks(field.annotation)):
        if isinstance(mark, Says):
            return mark.text
    if inner := nested(field):
        return f"a mapping of {', '.join(inner.model_fields)}"
    if words := words_of(field.annotation):
        return f"one of {', '.join(words)}" if len(words) > 1 else words[0]
    kind = _kind(field.annotation)
    longest = next((mark.max_length for mark in field.metadata if isinstance(mark, annotated_types.MaxLen)), None)
    if kind is str:
        return "text" + (f" of at most {longest} characters" if longest else "") + "; put a number in quotes"
    if kind is bool:
        return "true or false"
    return ("an integer" if kind is int else "a number") + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    words = ""
    for mark in field.metadata:
        match mark:
            case annotated_types.Ge(ge=low):
                words += f" from {low}"
            case annotated_types.Gt(gt=low):
                words += f" above {low}"
            case annotated_types.Le(le=int() | float() as high):
                words += f" to {high:,}" if high >= 100_000 else f" to {high}"
            case annotated_types.Lt(lt=high):
                words += f" to less than {high}"
    return words


class _RangedKey:
    """Reads what one key takes: a value as `field` declares it, or a range of such values."""

    def __init__(self, field: FieldInfo) -> None:
        self.field = field

    @cached_property
    def one(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.field.rebuild_annotation(), config=STRICT)

    def read(self, written: Any) -> Any:
        if isinstance(written, ranges.Range):
            return written
        try:
            if isinstance(written, list | dict):
                return ranges.read(written, _range_kind(self.field), self._value)
            return self.one.validate_python(written)
        except ValidationError:
            reason = f"allowed: {takes(self.field, ranged=True)}"
        except ValueError as error:
            reason = str(error)
        raise refusal(f"found {shown_value(written)}; {reason}")

    def _value(self, entry: Any) -> Any:
        """One end or choice. Raises ValueError."""
        try:
            if entry is None:
                raise ValueError
            return self.one.validate_python(entry)
        except ValueError:
            raise ValueError(f"{shown_value(entry)} is not {_scalar_words(self.field)}") from None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(
            lambda held: held.written() if isinstance(held, ranges.Range) else held
        )
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return _ranged_schema(self.one.json_schema(), _range_kind(self.field), nullable=self.field.default is None)


def _ranged_schema(scalar: dict[str, Any], kind: type, *, nullable: bool) -> dict[str, Any]:
    one = next(form for form in scalar["anyOf"] if form != {"type": "null"}) if nullable else scalar
    pair = {"type": "array", "items": one, "minItems": 2, "maxItems": 2}
    forms: list[dict[str, Any]] = [one, {"type": "array", "items": one, "minItems": 1, "uniqueItems": True}]
    for word in {int: ["int"], float: ["uniform", "loguniform"]}.get(kind, []):
        step = {"step": {"type": "integer", "minimum": 1}} if word == "int" else {}
        forms.append(
            {"type": "object", "properties": {word: pair, **step}, "required": [word], "additionalProperties": False}
        )
    return {"anyOf": [*forms, *([{"type": "null"}] if nullable else [])]}


def _core(annotation: Any) -> Any:
    """The annotation without Optional and Annotated."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(arm for arm in get_args(annotation) if arm is not type(None))
        else:
            return annotation


def _marks(annotation: Any) -> tuple[Any, ...]:
    """What is annotated inside an Optional."""
    arms = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(mark for arm in arms if get_origin(arm) is Annotated for mark in get_args(arm)[1:])


def words_of(annotation: Any) -> tuple[str, ...]:
    """The words that a key of fixed vocabulary takes; none for any other key."""
    for mark in _marks(annotation):
        if isinstance(mark, OneOf):
            return mark.known()
    core = _core(annotation)
    words = get_args(core) if get_origin(core) is Literal else ()
    return tuple(word for word in words if isinstance(word, str))


def _range_kind(field: FieldInfo) -> type:
    """The type by whose forms a range of the key is written."""
    listed = any(isinstance(mark, Listed) for mark in (*field.metadata, *_marks(field.annotation)))
    return str if listed else _kind(field.annotation)


def _kind(annotation: Any) -> type:
    core = _core(annotation)
    if get_origin(core) is Literal:
        return str
    return core if isinstance(core, type) else object
