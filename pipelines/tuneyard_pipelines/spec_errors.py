"""From what pydantic refuses to what a person can act on: place, key, value found, what is allowed."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.keys import NAME_RULE, Variant
from tuneyard_pipelines.ranges import RANGE_WORDS
from tuneyard_pipelines.sections import Part, Ranged, is_scalar, nested, takes, words_of
from tuneyard_pipelines.spec_yaml import Document, Path, Problem, dotted, shown_value
from tuneyard_pipelines.vocabulary import did_you_mean, nearest

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import SweepSpec

MOST_PROBLEMS = 100
_VARIANT = tuple(Variant.model_fields)
# What stands in for a required key that is missing or wrong, so that the rest of the file can be checked too.
_STAND_INS: dict[Path, Any] = {("name",): "sweep", ("task",): "translation", ("data", "source"): "builtin/dates"}


class SpecError(InputError):
    """A spec that cannot be accepted: all its problems, one a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, place: str, message: str) -> SpecError:
        return cls((Problem(place, "", message),))


def accept(document: Document, spec: type[SweepSpec]) -> SweepSpec:
    """The spec that a document holds. Raises SpecError with every problem, in the order of the file.

    What is wrong in itself is found first and taken out, so that what does not fit together is found in the same go.
    """
    wrong: list[tuple[Path, Problem]] = list(document.doubts)
    data = _without(document.data, [path for path, _ in wrong])
    for _ in range(3):
        try:
            accepted = spec.model_validate(data)
        except ValidationError as error:
            new = _problems(error, document, spec, [path for path, _ in wrong])
            if not new:
                break
            wrong += new
            if len(wrong) > MOST_PROBLEMS:
                break
            data = _without(data, [path for path, _ in new])
        else:
            if not wrong:
                return accepted
            break
    problems = sorted((problem for _, problem in wrong), key=_line)
    more = Problem(document.file, "", f"and more than {MOST_PROBLEMS} problems in all")
    raise SpecError(problems if len(problems) <= MOST_PROBLEMS else [*problems[:MOST_PROBLEMS], more])


def _problems(
    error: ValidationError, document: Document, spec: type[Part], known: list[Path]
) -> list[tuple[Path, Problem]]:
    problems: dict[Path, Problem] = {}
    for detail in error.errors(include_url=False)[: 2 * MOST_PROBLEMS]:
        if detail["type"] == "checks":
            for check in detail["ctx"]["problems"]:
                if not any(_touch(path, key) for path in known for key in check.reads):
                    problems[check.path] = Problem(document.place(check.path), dotted(check.path), check.message)
            continue
        path = _written(detail["loc"], document.data, missing=detail["type"] in ("missing", "extra_forbidden"))
        if path not in problems and not any(_touch(path, other) for other in known):
            problems[path] = Problem(document.place(path), dotted(path), _message(detail, path, spec))
    return list(problems.items())


def _message(detail: Any, path: Path, spec: type[Part]) -> str:
    if detail["type"] == "key":
        return str(detail["ctx"]["reason"])
    if detail["type"] == "extra_forbidden":
        return _unknown(path, spec)
    field, ranged = field_at(spec, detail["loc"])
    if detail["loc"][:1] == ("variants",) and len(detail["loc"]) > 1 and path[2:] == ():
        field = None
        allowed = f"a name of {NAME_RULE}" if detail["loc"][-1] == "[key]" else f"a mapping of {', '.join(_VARIANT)}"
    else:
        allowed = takes(field, ranged=ranged) if field else "something else"
    if detail["type"] == "missing":
        return f"missing; it takes {allowed}"
    found = detail["input"]
    cause = detail.get("ctx", {}).get("error")
    reason = f" ({cause})" if isinstance(cause, ValueError) and str(cause) and str(cause) != allowed else ""
    if field and is_scalar(field) and _looks_like_range(found):
        return f"found {shown_value(found)}; it takes one value, not a range; allowed: {allowed}"
    guess = nearest(found, words_of(field.annotation)) if field and isinstance(found, str) else None
    meant = f"did you mean {guess}? " if guess else ""
    return f"found {shown_value(found)}{reason}; {meant}allowed: {allowed}"


def _unknown(path: Path, spec: type[Part]) -> str:
    word, section = str(path[-1]), path[:-1]
    keys = list(all_keys(spec))
    if section[:1] == ("variants",):  # holds keys of the spec itself
        section = section[2:]
        keys = [key for key in keys if key.startswith(("model", "training", "data.tokenizer"))]
    within = ".".join(str(part) for part in section)
    message = f"unknown key {shown_value(word)}"
    if guess := did_you_mean(word, within, keys):
        return f"{message}; {guess}"
    what = within or ("a variant" if section != path[:-1] else "a spec")
    mine = [key.rpartition(".")[2] for key in keys if key.rpartition(".")[0] == within]
    if what == "a variant":
        mine = list(_VARIANT)
    return f"{message}; {what} takes {', '.join(mine)}"


def all_keys(spec: type[Part], prefix: str = "") -> Iterable[str]:
    """Every dotted key, sections included, in order of declaration."""
    for name, field in spec.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        yield key
        if inner := nested(field):
            yield from all_keys(inner, f"{key}.")


def field_at(spec: type[Part], path: Path) -> tuple[FieldInfo | None, bool]:
    """The innermost declared field on the way along `path`, and whether it may be a range."""
    if path[:1] == ("variants",) and len(path) > 2:
        path = path[2:]
    part: type[Part] | None = spec
    field: FieldInfo | None = None
    ranges: Ranged | None = None
    for step in path:
        if part is None:
            break
        inner = next((held for name, held in part.model_fields.items() if (held.alias or name) == step), None)
        if inner is None:
            break
        ranged = ranges is not None and step not in ranges.fixed
        field, part = inner, nested(inner)
        ranges = next((mark for mark in inner.metadata if isinstance(mark, Ranged)), None)
        if part is None:
            return field, ranged
    return field, False


def _looks_like_range(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and bool(RANGE_WORDS & value.keys()))


def _written(path: Path, data: Any, *, missing: bool) -> Path:
    """`path` as far as the document holds it, and one further for a key that is missing."""
    for depth, step in enumerate(path):
        inside = isinstance(data, dict) and step in data
        inside = inside or (isinstance(data, list) and isinstance(step, int) and step < len(data))
        if not inside:
            return path[: depth + 1] if missing else path[:depth]
        data = data[step]
    return path


def _touch(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _without(data: dict[str, Any], paths: Iterable[Path]) -> dict[str, Any]:
    """A copy without what stands at `paths`, required keys filled with stand-ins."""
    left = copy.deepcopy(data)
    for path in paths:
        target, cut = (
            left,
            path[:1] if path[:1] == ("register",) else path[:2] if path[:2] == ("data", "columns") else path,
        )
        for step, following in zip(cut, (*cut[1:], None), strict=True):
            inner = target.get(step) if isinstance(step, str) else None
            if not isinstance(inner, dict) or following is None:
                target.pop(str(step), None)
                break
            target = inner
    for path, value in _STAND_INS.items() if paths else ():
        target = left
        for step in path[:-1]:
            target = target.setdefault(str(step), {})
        if isinstance(target, dict):
            target.setdefault(str(path[-1]), value)
    return left


def _line(problem: Problem) -> tuple[int, int]:
    """Overrides last, the rest by line."""
    match = re.search(r":(\d+)$", problem.place)
    return (problem.place.startswith("--set"), int(match[1]) if match else 0)
