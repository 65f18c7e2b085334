"""The sweep's spec: one YAML file, read strictly, with every problem named by place, value and remedy."""

from __future__ import annotations

import codecs
import glob
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from tuneyard_pipelines import architectures, spec_checks, spec_errors, spec_yaml
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.catalog import (
    GOES_WITH,
    METRICS,
    TASKS,
    Mode,
    complete,
    hub_name,
    is_data_set,
    is_pattern,
    tokenizer_name,
)
from tuneyard_pipelines.keys import (
    MODEL,
    RESOURCES,
    TRAINING,
    Budget,
    Columns,
    DataSpec,
    Model,
    Name,
    Registration,
    Resources,
    Scheduler,
    Search,
    Split,
    TaskName,
    Text,
    Tokenizer,
    Training,
    Variant,
    Whole,
)
from tuneyard_pipelines.ranges import Choice, Integers, Point, Range, Scalar
from tuneyard_pipelines.sections import Part, Says
from tuneyard_pipelines.space import constraint_of
from tuneyard_pipelines.spec_errors import SpecError

__all__ = [
    "Budget",
    "Columns",
    "DataSpec",
    "Model",
    "Point",
    "Range",
    "Registration",
    "Resources",
    "Scalar",
    "Scheduler",
    "Search",
    "SpecError",
    "Split",
    "SweepSpec",
    "Tokenizer",
    "Training",
    "TrialConfig",
    "Variant",
    "at_paths",
    "data_files",
    "display_name",
    "every_key",
    "json_schema",
    "load",
    "parse",
    "short_name",
]

_SECTIONS = ("model", "training", "data.tokenizer", "resources")
_LABELS = {
    "model.d_model": "width",
    "model.num_heads": "heads",
    "model.num_layers": "layers",
    "model.sequence_length": "length",
    "training.learning_rate": "lr",
    "data.tokenizer.type": "tokenizer",
}
_LONGEST_NAME = 120
_MOST_CHOICES, _MOST_SHAPES = 256, 10_000
VARIANT = "variant"  # what a point calls its variant
_BOUNDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class TrialConfig(Part):
    """One point of a sweep: every key has one value."""

    task: TaskName
    seed: int
    model: Model
    training: Training
    tokenizer: Tokenizer
    resources: Resources = Field(default_factory=Resources)

    def flat(self) -> dict[str, Scalar]:
        """Dotted key -> value, as the spec names them; what does not apply to the point is left out."""
        return complete(
            {"task": self.task, "seed": self.seed}
            | {f"model.{key}": value for key, value in self.model}
            | {f"training.{key}": value for key, value in self.training}
            | {f"data.tokenizer.{key}": value for key, value in self.tokenizer}
            | {f"resources.{key}": value for key, value in self.resources if key not in RESOURCES.fixed}
        )


class SweepSpec(Part):
    """A sweep: which data, which family of models, which ranges of its keys, how they are searched and recorded."""

    version: Annotated[Literal[1], Says("1")] = Field(1, description="Version of this format.")
    name: Name = Field(description="Name of the sweep's experiment.", examples=["dates"])
    description: Annotated[Text, Field(max_length=4000)] = Field("", description="What the sweep is about.")
    task: TaskName = Field(
        description="What is learned: to translate texts, to go on with them, or to tell the words behind masks.",
        examples=["translation"],
    )
    seed: Whole = Field(1, ge=0, le=2**32 - 1, description="Where all chance comes from: data, weights, search.")
    data: DataSpec = Field(description="Texts: where they come from, how they are split and cut into tokens.")
    model: Annotated[Part, MODEL] = Field(default_factory=lambda: MODEL.variant(), description="What is trained.")
    training: Annotated[Part, TRAINING] = Field(
        default_factory=lambda: TRAINING.variant(), description="How a trial is trained."
    )
    search: Search = Field(default_factory=Search, description="Which points are tried, and how long each.")
    resources: Annotated[Part, RESOURCES] = Field(
        default_factory=lambda: RESOURCES.variant(), description="What one trial takes of the cluster."
    )
    constraints: Annotated[
        tuple[Text, ...],
        Field(strict=False, max_length=100),
        Says('a list of at most 100 expressions such as ["num_heads * num_layers <= 16"]'),
    ] = Field(
        (), description="Expressions over the keys of a point; one that is false keeps the point from being tried."
    )
    variants: Annotated[
        dict[Name, Variant],
        Field(max_length=50),
        Says("a mapping of at most 50 names to what each changes, such as {small: {model: {d_model: 64}}}"),
    ] = Field(
        default_factory=dict,
        description="Families to compare fairly: each sets keys of model, training or data.tokenizer in place of those "
        "above, and has an equal share of the trials, its own ranges, searcher and rungs.",
    )
    budget: Budget = Field(default_factory=Budget, description="What the whole sweep may take; left out, no limit.")
    registration: Annotated[Registration | None, Says("a mapping such as {name: dates}")] = Field(
        None, alias="register", description="Where the best trial's model goes; left out, it is not registered."
    )
    tags: Annotated[dict[str, Text], Says("a mapping of at most 50 names to texts; put a number in quotes")] = Field(
        default_factory=dict, description="Tags of the sweep's run in MLflow."
    )

    @model_validator(mode="after")
    def _checked(self) -> SweepSpec:
        if problems := tuple(spec_checks.problems(self)):
            text = "\n".join(f"{spec_yaml.dotted(problem.path)}: {problem.message}" for problem in problems)
            raise PydanticCustomError("checks", "{text}", {"text": text, "problems": problems})
        return self

    @cached_property
    def values(self) -> dict[str, Scalar | Range | None]:
        """All dotted keys of a trial: its value, its range, or None where it is left out or its architecture has none.

        Raises InputError for an architecture that cannot be used.
        """
        values: dict[str, Any] = {"task": self.task, "seed": self.seed}
        parts = (self.model, self.training, self.data.tokenizer, self.resources)
        for section, part in zip(_SECTIONS, parts, strict=True):
            fixed = RESOURCES.fixed if section == "resources" else ()
            values |= {f"{section}.{key}": value for key, value in part if key not in fixed}
        architecture = architectures.find(self.architecture)
        values = {key: value if architecture.follows(key) else None for key, value in values.items()}
        return values | {"model.architecture": self.architecture}

    @property
    def architecture(self) -> str:
        """The family of models; of a sweep with variants, that of those which set none."""
        return str(self.model.architecture or TASKS[self.task].architecture)  # type: ignore[attr-defined]

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Dotted key -> range, of the varied keys, in the order in which this format declares them.

        Of a sweep with variants, those that the variants do not change: its points are those of `by_variant`.
        """
        return {key: value for key, value in self.values.items() if isinstance(value, Range)}

    @property
    def by_variant(self) -> dict[str, SweepSpec]:
        """Variant -> the spec that it means, with its share of the trials and without variants.

        A sweep without variants has one, the spec itself, under the empty name.
        """
        return self._overlaid or {"": self}

    @cached_property
    def _overlaid(self) -> dict[str, SweepSpec]:
        return {name: self._with(name, variant) for name, variant in self.variants.items()}

    @property
    def varied(self) -> tuple[str, ...]:
        """The dotted keys that are varied in some variant, in the order in which this format declares them."""
        return tuple(key for key in self.values if any(key in spec.ranges for spec in self.by_variant.values()))

    @property
    def architectures(self) -> tuple[str, ...]:
        """The architecture of each variant, named once."""
        return tuple(dict.fromkeys(one.architecture for one in self.by_variant.values()))

    @property
    def tokenizers(self) -> dict[str, Tokenizer]:
        """Those that are known before the search, by `catalog.tokenizer_name`: of a variant the one that it has.

        Where it varies it, those of type: char, whose vocabularies no setting tells.
        """
        found = [one for variant in self.by_variant.values() for one in variant._tokenizers()]
        return {tokenizer_name({f"data.tokenizer.{key}": value for key, value in one}): one for one in found}

    def _tokenizers(self) -> list[Tokenizer]:
        held = dict(self.data.tokenizer)
        if not any(isinstance(value, Range) for value in held.values()):
            return [Tokenizer.model_validate(held)]
        if "char" not in _choices(held["type"]):
            return []
        return [
            Tokenizer(type="char", normalization=form, vocabulary=vocabulary)
            for form in _choices(held["normalization"])
            for vocabulary in _choices(held["vocabulary"])
        ]

    @property
    def short_names(self) -> dict[str, str]:
        """Varied key -> the short name that tables and run names use; no two are equal."""
        return {key: short_name(key) for key in self.varied}

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """What trials may ask for: a shape for each choice of resources that no constraint over these alone forbids.

        Of whole numbers with more than 256 choices, and where there are too many shapes, the two ends stand for all.
        """
        held = {key: value for key, value in self.values.items() if key.startswith("resources.")}
        listed = {key: _listed(value, _MOST_CHOICES) for key, value in held.items()}
        if prod(map(len, listed.values())) > _MOST_SHAPES:
            listed = {key: _listed(value, 2) for key, value in held.items()}
        constraints = [constraint_of(text, self.values) for text in self.constraints]
        mine = [one for one in constraints if set(one.names) <= held.keys()]
        points = (dict(zip(listed, values, strict=True)) for values in product(*listed.values()))
        allowed = (point for point in points if all(one.allows(point) for one in mine))
        chosen = ({key.rpartition(".")[2]: value for key, value in point.items()} for point in allowed)
        return tuple(dict.fromkeys(Shape.of(self._resources(values)) for values in chosen))

    @property
    def metric(self) -> str:
        """What trials are compared by."""
        return self.search.metric or TASKS[self.task].metrics[0]

    @property
    def mode(self) -> Mode:
        """Which way the metric is better."""
        return METRICS[self.metric].mode

    @property
    def reduction_factor(self) -> int:
        return self.search.scheduler.reduction_factor

    def rungs(self) -> tuple[float, ...]:
        """Shares of a trial's budget at which it is compared, rising; the last is 1.

        Under asha these are `reduction_factor ** -k` for every k whose share is not below `min_share`: 0.11 and 3 give
        1/9, 1/3, 1. A sweep of one trial, or without a scheduler, has the one rung 1.
        """
        scheduler = self.search.scheduler
        if scheduler.type == "none" or not self.ranges or self.search.trials == 1:
            return (1.0,)
        return asha_rungs(scheduler.min_share, scheduler.reduction_factor)

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> SweepSpec:
        """Read the spec in `path`, with `KEY=VALUE` overrides; raises SpecError, which names all that is wrong in it.

        >>> spec = SweepSpec.load("examples/dates.yaml", ["search.trials=4", "model.d_model=32"])
        """
        return load(Path(path), overrides)

    def text(self) -> str:
        """As a file: overrides applied, defaults written out; it reads as the same spec wherever it lies."""
        return spec_yaml.written(self.model_dump(mode="json", by_alias=True, exclude_none=True))

    def variant(self, name: str) -> SweepSpec:
        """The spec of one variant; "" is that of a sweep without variants. Raises KeyError."""
        return self.by_variant[name]

    def at(self, point: Point) -> TrialConfig:
        """The trial that `point` means. Raises ValueError for another set of keys than the varied ones."""
        if point.keys() != self.ranges.keys():
            raise ValueError(
                f"a point of {self.name} holds {', '.join(self.ranges) or 'no key'}; found {', '.join(point)}"
            )
        values = complete({**self.values, **point})
        sections = {
            section: {
                key.rpartition(".")[2]: value for key, value in values.items() if key.rpartition(".")[0] == section
            }
            for section in _SECTIONS
        }
        return TrialConfig(
            task=self.task,
            seed=self.seed,
            model=Model.model_validate(sections["model"]),
            training=Training.model_validate(sections["training"]),
            tokenizer=Tokenizer.model_validate(sections["data.tokenizer"]),
            resources=self._resources(sections["resources"]),
        )

    def _resources(self, chosen: Mapping[str, Any]) -> Resources:
        """Those of a trial with these values of the keys that may be ranges."""
        fixed = {key: getattr(self.resources, key) for key in RESOURCES.fixed}
        return Resources.model_validate({**fixed, **chosen})

    def resources_at(self, point: Point) -> Resources:
        """What the trial that `point` means takes: of `at` the one part, at a small part of its cost."""
        held = {key: value for key, value in self.values.items() if key.startswith("resources.")}
        return self._resources({key.rpartition(".")[2]: point.get(key, value) for key, value in held.items()})

    def _with(self, name: str, variant: Variant) -> SweepSpec:
        tokenizer = _overlaid(self.data.tokenizer, variant.data.tokenizer)
        share = None if self.search.trials is None else max(1, self.search.trials // len(self.variants))
        mine = tuple(
            {key: value for key, value in point.items() if key != VARIANT}
            for point in self.search.include
            if point.get(VARIANT) == name
        )
        search = self.search.model_copy(update={"trials": share, "include": mine})
        # Its parts are checked already; what they must keep together is checked for each variant by `spec_checks`.
        parts = {name: getattr(self, name) for name in type(self).model_fields} | {
            "variants": {},
            "model": _overlaid(self.model, variant.model),
            "training": _overlaid(self.training, variant.training),
            "data": self.data.model_copy(update={"tokenizer": tokenizer}),
            "search": search,
        }
        made = type(self).model_construct()
        made.__dict__.update(parts)
        return made


def load(path: Path, overrides: Sequence[str] = ()) -> SweepSpec:
    """Read the spec in `path`, with `KEY=VALUE` overrides. Its data file must exist. Raises SpecError like `parse`."""
    return _accept(_text(path), str(path), overrides, look_for_data=True)


def parse(text: str, *, file: str, overrides: Sequence[str] = ()) -> SweepSpec:
    """Read the spec in `text`; `file` names it in errors, and a relative data source counts from its folder.

    Raises SpecError with all problems, each with its place, the value found and what is allowed.
    """
    return _accept(text, file, overrides, look_for_data=False)


def data_files(data: DataSpec) -> dict[tuple[str, ...], str]:
    """The paths, and patterns of paths, that its keys name."""
    found: dict[tuple[str, ...], str] = {}
    if not data.source.startswith("builtin/") and not hub_name(data.source):
        found["data", "source"] = data.source
    for name in ("validation", "test"):
        if isinstance(held := getattr(data.split, name), str):
            found["data", "split", name] = held
    return found


def at_paths(data: DataSpec, paths: Mapping[tuple[str, ...], str]) -> DataSpec:
    """The same data, with its files elsewhere: by the keys of `data_files`."""
    split = data.split.model_copy(update={key[-1]: path for key, path in paths.items() if len(key) == 3})
    source = paths.get(("data", "source"), data.source)
    return data.model_copy(update={"source": source, "split": split})


def json_schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of a spec, for editors."""
    schema = _standard(SweepSpec.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Tuneyard sweep"}


def every_key() -> str:
    """A spec that holds every key, each with its meaning, unit and what it takes; it loads as it stands."""
    from tuneyard_pipelines.spec_example import annotated

    return annotated(SweepSpec)


def short_name(key: str) -> str:
    """`model.num_heads` -> `heads`: what tables and run names call a key."""
    return _LABELS.get(key, key.rpartition(".")[2])


def display_name(number: int, point: Mapping[str, Scalar], variant: str = "") -> str:
    """`t07 gpt heads=4 layers=2 length=32`: a trial's name for people, at most 120 characters."""
    values = (f"{short_name(key)}={_short_value(value)}" for key, value in point.items())
    words = [f"t{number:02d}", *([variant] if variant else []), *values]
    return _cut(" ".join(words), _LONGEST_NAME)


def asha_rungs(min_share: float, reduction_factor: int) -> tuple[float, ...]:
    """The shares `reduction_factor ** -k` not below `min_share`, rising to 1."""
    shares = [1.0]
    while (share := 1 / reduction_factor ** len(shares)) >= min_share:
        shares.append(share)
    return tuple(reversed(shares))


def _overlaid(part: Part, over: Part) -> Part:
    """`part` with every key that is set in `over`, and without those that go with a word that is no longer set."""
    given = {key: getattr(over, key) for key in over.model_fields_set}
    for dotted, (other, words) in GOES_WITH.items():
        key, chosen = dotted.rpartition(".")[2], given.get(other.rpartition(".")[2])
        belongs_elsewhere = chosen is not None and not set(words) & set(_choices(chosen))
        if key in type(part).model_fields and key not in given and belongs_elsewhere:
            given[key] = type(part).model_fields[key].default
    return part.model_copy(update=given)


def _listed(held: Any, most: int) -> tuple[Any, ...]:
    """The choices of a range that can be counted, the two ends of one with more than `most`; a value alone."""
    if isinstance(held, Choice | Integers):
        numbers = range(held.size) if held.size <= most else (0, held.size - 1)
        return tuple(held.value(number) for number in numbers)
    return (held,)


def _choices(held: Any) -> tuple[Any, ...]:
    return held.values if isinstance(held, Choice) else (held,)


def _standard(schema: Any) -> Any:
    """Bounds of an optional number under the standard's names, for pydantic leaves its own there; closed mappings."""
    if isinstance(schema, list):
        return [_standard(entry) for entry in schema]
    if isinstance(schema, dict):
        closed = {"additionalProperties": False} if "patternProperties" in schema else {}
        return {_BOUNDS.get(key, key): _standard(entry) for key, entry in schema.items()} | closed
    return schema


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(spec_yaml.LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise SpecError.of(str(path), "no such file; check the path, which counts from the current folder") from None
    except IsADirectoryError:
        raise SpecError.of(str(path), "this is a folder; name the spec file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError.of(str(path), f"cannot be read ({reason}); name a file that this user may read") from None
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise SpecError.of(str(path), "is UTF-16 text; save it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if len(raw) > spec_yaml.LARGEST_BYTES:
            return "\n" * len(raw)
        line = raw.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise SpecError.of(f"{path}:{line}", f"{found}; save the file as UTF-8 text") from None


def _accept(text: str, file: str, overrides: Sequence[str], *, look_for_data: bool) -> SweepSpec:
    try:
        document = spec_yaml.read(text, file, overrides)
    except spec_yaml.UnreadableError as error:
        raise SpecError((error.problem,)) from None
    spec = spec_errors.accept(document, SweepSpec)
    data = spec.data
    found = {key: _absolute(path, file) for key, path in data_files(data).items()}
    problems = [
        spec_yaml.Problem(document.place(key), spec_yaml.dotted(key), problem)
        for key, path in found.items()
        if look_for_data and (problem := _missing(path))
    ]
    if problems:
        raise SpecError(problems)
    return spec.model_copy(update={"data": at_paths(data, found)})


def _absolute(path: str, file: str) -> str:
    absolute = str((Path(file).parent / Path(path).expanduser()).absolute())
    return f"{absolute}/" if path.endswith("/") else absolute  # which says that it is a folder


def _missing(path: str) -> str:
    """What is wrong with the path of a file, or with a pattern; "" if it is there."""
    counts = "a relative path counts from the folder of the spec"
    if is_data_set(path):
        if Path(path).is_dir():
            return ""
        there = "is no folder, and its name does not say what kind of file it is"
        return f"{path} {there if Path(path).exists() else 'does not exist'}; {counts}"
    try:
        Path(path).stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"{path} cannot be read ({error.strerror}); name another path"
    if Path(path).is_file() or (is_pattern(path) and glob.glob(path, recursive=True)):
        return ""
    if Path(path).exists():
        return f"{path} is no file; {counts}"
    return f"no file fits {path}; {counts}" if is_pattern(path) else f"{path} does not exist; {counts}"


def _short_value(value: Scalar) -> str:
    return f"{value:.3g}" if isinstance(value, float) else _cut(str(value), 40)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
