"""What the parts of a spec must keep together: each check reads an accepted spec and names what does not fit."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines import architectures, ranges
from tuneyard_pipelines.catalog import (
    GENERATED,
    GOES_WITH,
    METRICS,
    NAMED,
    TASK_DATA,
    TASKS,
    file_kind,
    hub_name,
    is_data_set,
)
from tuneyard_pipelines.constraints import ConstraintError
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.keys import Tokenizer, Training
from tuneyard_pipelines.sections import Part
from tuneyard_pipelines.space import Space, constraint_of, needs_costs
from tuneyard_pipelines.spec_yaml import Path, dotted, shown_value

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import SweepSpec

MOST_TAGS = 50
LONGEST_TAG = 250
LONGEST_TAG_VALUE = 8_000
_TAG = re.compile(r"[\w./ :-]+")
_RESERVED = ("mlflow.", "tuneyard.")
_BUDGETS = ("max_tokens", "max_steps", "max_epochs")


@dataclass(frozen=True)
class Misfit:
    """What does not fit: the path that is to blame, what to do, and the paths that the check read."""

    path: Path
    message: str
    reads: tuple[Path, ...]


def problems(spec: SweepSpec) -> Iterator[Misfit]:
    """Everything in `spec` that does not fit together; what two variants have in common is named once."""
    if unusable := list(_architectures(spec)):  # nothing else can be judged without it
        yield from unusable
        return
    for check in (_variants, _unused, _bound, _comparable, _include, _data, _tags):
        yield from check(spec)
    named: set[tuple[Path, str]] = set()
    for name, variant in spec.by_variant.items():
        for check in (
            _task,
            _words,
            _budget,
            _trials,
            _grid,
            _metric,
            _asha,
            _goes_with,
            _vocabulary,
            _constraints,
            _training,
            _workers,
            _accelerator,
        ):
            for misfit in check(variant):
                path = _where(misfit.path, spec, name)
                if (path, misfit.message) not in named:
                    named.add((path, misfit.message))
                    yield Misfit(
                        path, misfit.message, (*misfit.reads, *(_where(read, spec, name) for read in misfit.reads))
                    )


def _where(path: Path, spec: SweepSpec, variant: str) -> Path:
    """Where `path` was written: in the variant if that sets the key."""
    if not variant:
        return path
    part: object = spec.variants[variant]
    for step in path:
        if not isinstance(part, Part) or step not in part.model_fields_set:
            return path
        part = getattr(part, str(step))
    return ("variants", variant, *path)


def _architectures(spec: SweepSpec) -> Iterator[Misfit]:
    """Those whose package cannot be used."""
    for name, variant in spec.by_variant.items():
        path = _where(("model", "architecture"), spec, name)
        try:
            architectures.find(variant.architecture)
        except InputError as error:
            yield Misfit(path, str(error), (path, ("task",)))


def _variants(spec: SweepSpec) -> Iterator[Misfit]:
    count, trials = len(spec.variants), spec.search.trials
    here: Path = ("search", "trials")
    if count and trials is not None and trials % count:
        below = trials - trials % count
        near = f"{below} or {below + count}" if below else f"{count}"
        message = f"found {trials}; {count} variants have an equal share each: {near}, for example"
        yield Misfit(here, message, (here, ("variants",)))


def _unused(spec: SweepSpec) -> Iterator[Misfit]:
    """Keys of model and training that nothing follows where they are set."""
    places: list[tuple[Path, Part, str, tuple[str, ...]]] = []
    for section in ("model", "training"):
        places.append(((section,), getattr(spec, section), section, spec.architectures))
        for name, variant in spec.variants.items():
            mine = (spec.by_variant[name].architecture,)
            places.append((("variants", name, section), getattr(variant, section), section, mine))
    for here, part, section, used in places:
        for name, field in type(part).model_fields.items():
            unset = name not in part.model_fields_set or getattr(part, name) == field.default
            if unset or any(architectures.find(one).follows(f"{section}.{name}") for one in used):
                continue
            goes_with = _either(architectures.following(f"{section}.{name}"))
            message = f"goes with architecture: {goes_with} only, not with {' and '.join(used)}; take it out"
            yield Misfit((*here, name), message, ((*here, name), (*here[:-1], "model", "architecture"), ("task",)))


def _comparable(spec: SweepSpec) -> Iterator[Misfit]:
    """The sweep's metric must mean the same in every trial."""

    def differing(keys: Iterable[str]) -> list[str]:
        values = {key: {variant.values[key] for variant in spec.by_variant.values()} for key in keys}
        return [
            key for key, held in values.items() if len(held) > 1 or any(isinstance(one, ranges.Range) for one in held)
        ]

    if varied := differing(METRICS[spec.metric].incomparable_over):
        measured = TASKS[spec.task].metrics
        comparable = [name for name in measured if not differing(METRICS[name].incomparable_over)]
        vary = f"{' and '.join(varied)} {'varies' if len(varied) == 1 else 'vary'}"
        remedy = f"use one of {', '.join(comparable)}" if comparable else f"give {' and '.join(varied)} one value"
        message = f"{spec.metric} cannot be compared while {vary}; {remedy}"
        yield Misfit(("search", "metric"), message, (("search", "metric"), ("variants",), *map(_path, varied)))


def _include(spec: SweepSpec) -> Iterator[Misfit]:
    reads: tuple[Path, ...] = (
        ("search", "include"),
        ("variants",),
        ("model",),
        ("training",),
        ("data",),
        ("constraints",),
    )
    if not spec.search.include:
        return
    spaces = {name: Space(variant, _judging(variant)) for name, variant in spec.by_variant.items()}
    counts = dict.fromkeys(spaces, 0)
    for number, written in enumerate(spec.search.include):
        here: Path = ("search", "include", number)
        name = written.get("variant", "")
        if not isinstance(name, str) or name not in spaces:
            known = f"variant must be one of {', '.join(spaces)}" if spec.variants else "this sweep has no variants"
            yield Misfit(here, f"found {shown_value(written)}; {known}", reads)
            continue
        counts[name] += 1
        try:
            spaces[name].read_point({key: value for key, value in written.items() if key != "variant"})
        except ValueError as error:
            yield Misfit(here, f"found {shown_value(written)}: {error}", reads)
    for name, count in counts.items():
        share = spaces[name].trials
        if share is not None and count > share:
            allowed = f"search.trials ({share})" if not name else f"the {share} of search.trials that {name} has"
            message = f"found {count} points, more than {allowed}; raise that"
            yield Misfit(("search", "include"), message, (*reads, ("search", "trials")))


def _judging(spec: SweepSpec) -> list[str]:
    """The constraints that a point can be held to before its data is read; one that is wrong is told elsewhere."""
    return [] if any(_constraints(spec)) else [text for text in spec.constraints if not needs_costs(text, spec.values)]


def _task(spec: SweepSpec) -> Iterator[Misfit]:
    if spec.task not in architectures.find(spec.architecture).tasks:
        message = f"found {spec.architecture}; {spec.task} takes {', '.join(architectures.of_task(spec.task))}"
        yield Misfit(("model", "architecture"), message, (("model", "architecture"), ("task",)))


def _words(spec: SweepSpec) -> Iterator[Misfit]:
    """Words that another architecture knows."""
    for key, known in architectures.find(spec.architecture).words.items():
        held = spec.values[key]
        given = held.values if isinstance(held, ranges.Choice) else (held,)
        for word in given:
            if word is not None and word not in known:
                message = f"found {word}; {spec.architecture} takes {_either(known)}"
                yield Misfit(_path(key), message, (_path(key), ("model", "architecture"), ("task",)))


def _path(key: str) -> Path:
    return tuple(key.split("."))


def _budget(spec: SweepSpec) -> Iterator[Misfit]:
    given = [name for name in _BUDGETS if spec.values[f"training.{name}"] is not None]
    reads = tuple(("training", name) for name in _BUDGETS)
    one = f"exactly one of {', '.join(_BUDGETS)} is needed"
    if not given:
        yield Misfit(("training",), f"{one}; found none: add max_tokens: 3000000, for example", reads)
    for name in given[1:]:
        yield Misfit(("training", name), f"{one}; found {' and '.join(given)}: keep one", reads)


def _trials(spec: SweepSpec) -> Iterator[Misfit]:
    algorithm = spec.search.algorithm
    if spec.ranges and spec.search.trials is None and algorithm != "grid":
        message = f"missing; {algorithm} must know how many points to try: add trials: 12, for example"
        yield Misfit(("search", "trials"), message, (("search", "trials"), ("search", "algorithm")))


def _grid(spec: SweepSpec) -> Iterator[Misfit]:
    if spec.search.algorithm != "grid":
        return
    for key, held in spec.ranges.items():
        if isinstance(held, ranges.Continuous):
            message = (
                f"found {shown_value(held.written())}, a continuous range; grid takes a list [a, b, ..] or, for whole "
                "numbers, {int: [a, b], step: n}; or set search.algorithm to random or tpe"
            )
            yield Misfit(_path(key), message, (_path(key), ("search", "algorithm")))


def _metric(spec: SweepSpec) -> Iterator[Misfit]:
    measured = TASKS[spec.task].metrics
    if spec.metric not in measured:
        message = f"found {spec.metric}, which is not measured in {spec.task}; use one of {', '.join(measured)}"
        yield Misfit(("search", "metric"), message, (("search", "metric"), ("task",)))


def _asha(spec: SweepSpec) -> Iterator[Misfit]:
    scheduler = spec.search.scheduler
    here: Path = ("search", "scheduler")
    if scheduler.type == "none":
        for name in ("min_share", "reduction_factor"):
            if getattr(scheduler, name) != type(scheduler).model_fields[name].default:
                yield Misfit((*here, name), "goes with type: asha only; take it out, or set type: asha", (here,))
        return
    if 1 / scheduler.reduction_factor < scheduler.min_share:
        message = (
            f"found {scheduler.min_share}; with reduction_factor {scheduler.reduction_factor} no rung lies below the "
            f"full budget: at most {1 / scheduler.reduction_factor:.4f}, or set scheduler: none"
        )
        yield Misfit((*here, "min_share"), message, (here,))
    for name in _BUDGETS:
        if f"training.{name}" in spec.ranges:
            message = "a range; asha compares at shares of one budget: give one value, or set search.scheduler to none"
            yield Misfit(("training", name), message, (("training", name), here))


def _data(spec: SweepSpec) -> Iterator[Misfit]:
    data, task = spec.data, TASK_DATA[spec.task]
    reads: tuple[Path, ...] = (("data",), ("task",))
    if not task.takes(data.source):
        message = f"found {shown_value(data.source)}; {spec.task} takes {task.allowed}"
        yield Misfit(("data", "source"), message, reads)
        return
    if data.source not in GENERATED and data.examples != type(data).model_fields["examples"].default:
        message = f"goes with {_either(GENERATED)} only; other data is taken whole: take it out"
        yield Misfit(("data", "examples"), message, reads)
    yield from _generate(spec, reads)
    data_set = is_data_set(data.source)
    kind = "" if data.source.startswith("builtin/") or data_set else file_kind(data.source)
    if data_set:
        misplaced = ""
        yield from _columns(spec, kind, reads)
        if data.header:
            yield Misfit(("data", "header"), f"goes with a file only, not with {data.source}; take it out", reads)
    elif not kind:
        misplaced = f"goes with a file only, not with {data.source}"
    elif kind == ".txt" and task.documents:
        misplaced = "goes with .csv, .jsonl and .parquet only; a .txt file of documents has no columns"
    else:
        misplaced = ""
        yield from _columns(spec, kind, reads)
        if kind in NAMED and data.header:
            yield Misfit(("data", "header"), f"a {kind} file has names without a header; take it out", reads)
    for name, given in (("columns", data.columns is not None), ("header", data.header)):
        if misplaced and given:
            yield Misfit(("data", name), f"{misplaced}; take it out", reads)
    if data.config is not None and not data_set:
        message = f"goes with a data set of the hub or a folder only, not with {data.source}; take it out"
        yield Misfit(("data", "config"), message, reads)
    if data.revision != type(data).model_fields["revision"].default and not hub_name(data.source):
        message = f"goes with a data set of the hub only, not with {data.source}; take it out"
        yield Misfit(("data", "revision"), message, reads)
    if misplaced and isinstance(data.split.group_by, tuple):
        yield Misfit(("data", "split", "group_by"), f"a column {misplaced}; write text or example", reads)
    if data.encoding != "auto" and kind in ("", ".parquet"):
        yield Misfit(("data", "encoding"), f"goes with files of text only, not with {data.source}; take it out", reads)
    for name in ("validation", "test"):
        held = getattr(data.split, name)
        if isinstance(held, str) and file_kind(held) != kind:
            message = (
                f"found {shown_value(held)}; a split of its own is written like data.source: {kind or 'none here'}"
            )
            yield Misfit(("data", "split", name), message, reads)


def _generate(spec: SweepSpec, reads: tuple[Path, ...]) -> Iterator[Misfit]:
    held, source = spec.data.generate, spec.data.source
    here: Path = ("data", "generate")
    follows = GENERATED.get(source, ())
    for name, field in type(held).model_fields.items():
        if name not in follows and getattr(held, name) != field.default:
            goes_with = _either(kind for kind, names in GENERATED.items() if name in names)
            yield Misfit((*here, name), f"goes with {goes_with} only, not with {source}; take it out", reads)
    if "max_length" not in follows:
        return
    if held.max_length < held.min_length:
        message = f"found {held.max_length}, below min_length ({held.min_length}); raise it, or lower min_length"
        yield Misfit((*here, "max_length"), message, reads)
    elif "distractors" in follows and held.max_length > held.symbols:
        message = (
            f"found {held.max_length} pairs, whose letters differ, but symbols is {held.symbols}; lower it, or raise "
            "symbols"
        )
        yield Misfit((*here, "max_length"), message, reads)


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def _columns(spec: SweepSpec, kind: str, reads: tuple[Path, ...]) -> Iterator[Misfit]:
    if spec.data.columns is None:
        return
    here: Path = ("data", "columns")
    wanted = TASK_DATA[spec.task].columns
    given = {name: column for name, column in spec.data.columns if column is not None}
    named = kind in NAMED or is_data_set(spec.data.source)
    what = f"a {kind} file" if kind else "a data set"
    for name in wanted:
        if name not in given:
            yield Misfit((*here, name), f"missing; {spec.task} needs a column for {' and '.join(wanted)}", reads)
    for name, column in given.items():
        if name not in wanted:
            message = f"does not go with {spec.task}, whose columns are {' and '.join(wanted)}; take it out"
            yield Misfit((*here, name), message, reads)
        elif named and isinstance(column, int):
            yield Misfit((*here, name), f"found {column}; {what} has names: give the column's name", reads)
        elif not named and isinstance(column, str) and not spec.data.header:
            message = (
                f"found {shown_value(column)} while header is false; set header: true, or give the column's number"
            )
            yield Misfit((*here, name), message, reads)
    if "source" in given and given["source"] == given.get("target"):
        message = f"found {shown_value(given['target'])} for source and target; name two columns"
        yield Misfit((*here, "target"), message, reads)


def _goes_with(spec: SweepSpec) -> Iterator[Misfit]:
    """Keys that mean nothing beside the words of another that are set."""
    for key, (other, fitting) in GOES_WITH.items():
        held, reads = spec.values[other], (_path(key), _path(other))
        if held is None:
            continue  # the architecture follows neither
        words = held.values if isinstance(held, ranges.Choice) else (held,)
        name, word = key.rpartition(".")[2], other.rpartition(".")[2]
        without = [str(each) for each in words if each not in fitting]
        if len(without) == len(words) and spec.values[key] != _default(key):
            message = f"goes with {word}: {', '.join(fitting)} only; take it out, or set {word}: {fitting[0]}"
            yield Misfit(_path(key), message, reads)
        elif without and key in spec.ranges:
            message = (
                f"a range beside a range of {word}, and {without[0]} has no {name}: {without[0]} would be tried twice; "
                "vary one of them"
            )
            yield Misfit(_path(key), message, reads)


def _default(key: str) -> object:
    part = Tokenizer if key.startswith("data.") else Training
    return part.model_fields[key.rpartition(".")[2]].default


def _vocabulary(spec: SweepSpec) -> Iterator[Misfit]:
    here: Path = ("data", "tokenizer", "vocabulary")
    if spec.task != "translation" and spec.values[dotted(here)] != "joint":
        message = f"goes with task: translation only; {spec.task} has one kind of text: take it out"
        yield Misfit(here, message, (here, ("task",)))


def _bound(spec: SweepSpec) -> Iterator[Misfit]:
    """Constraints that bind no variant."""
    used = [architectures.find(name) for name in spec.architectures]
    for number, text in enumerate(spec.constraints):
        try:
            names = constraint_of(text, spec.values).names
        except ConstraintError:
            continue  # told elsewhere
        if not any(all(map(one.follows, names)) for one in used):
            here: Path = ("constraints", number)
            without = next(name for name in names if not all(one.follows(name) for one in used))
            message = (
                f"{shown_value(text)}: {without} goes with architecture: {_either(architectures.following(without))} "
                f"only, not with {' and '.join(spec.architectures)}; take it out"
            )
            yield Misfit(here, message, (here, ("model", "architecture")))


def _constraints(spec: SweepSpec) -> Iterator[Misfit]:
    sound: dict[str, Path] = {}
    architecture = architectures.find(spec.architecture)
    filled = {"model.d_ff", *architecture.defaults}  # left out, they follow from others
    for number, text in enumerate(spec.constraints):
        here: Path = ("constraints", number)
        try:
            names = constraint_of(text, spec.values).names
        except ConstraintError as error:
            yield Misfit(here, f"{shown_value(text)}: {error}", (here,))
            continue
        if not all(map(architecture.follows, names)):
            continue
        unset = [name for name in names if name in spec.values and spec.values[name] is None and name not in filled]
        for name in unset:
            message = f"{shown_value(text)}: {name} has no value in this spec; set it, or leave the constraint out"
            yield Misfit(here, message, (here, _path(name)))
        if not unset:
            sound.setdefault(text, here)
    if sound:
        for text, message in Space(spec, tuple(sound)).failing_constraints().items():
            yield Misfit(sound[text], message, (sound[text], ("model",), ("training",), ("data", "tokenizer")))


def _tags(spec: SweepSpec) -> Iterator[Misfit]:
    if len(spec.tags) > MOST_TAGS:
        yield Misfit(("tags",), f"found {len(spec.tags)} tags; at most {MOST_TAGS} are kept", (("tags",),))
    for name, value in spec.tags.items():
        here: Path = ("tags", name)
        if wrong := _tag_fault(name):
            yield Misfit(
                here, f"{wrong}; a tag's name has 1 to {LONGEST_TAG} letters, digits and . _ - / : or space", (here,)
            )
        if len(value) > LONGEST_TAG_VALUE:
            yield Misfit(here, f"found {len(value):,} characters; a tag holds at most {LONGEST_TAG_VALUE:,}", (here,))


def _tag_fault(name: str) -> str:
    if len(name) > LONGEST_TAG:
        return f"the name has {len(name):,} characters"
    if not _TAG.fullmatch(name):
        return "a name that MLflow cannot hold"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        return "a name that reads as a path to elsewhere"
    reserved = [prefix for prefix in _RESERVED if name.startswith(prefix)]
    return f"names that begin with {reserved[0]} are set by the sweep itself" if reserved else ""


def _training(spec: SweepSpec) -> Iterator[Misfit]:
    """Schedules with what they need, and half precision without a GPU."""

    def ends(name: str) -> tuple[Any, ...]:
        return _ends(spec.values[f"training.{name}"])

    def misfit(name: str, message: str, *reads: str) -> Misfit:
        return Misfit(("training", name), message, tuple(("training", read) for read in (name, *reads)))

    if architectures.find(spec.architecture).counts:
        return
    schedules, least, most = ends("schedule"), min(ends("warmup")), max(ends("warmup"))
    falling = [name for name in ("inverse_sqrt", "noam") if name in schedules]
    if falling and least <= 0:
        yield misfit(
            "warmup", f"found {least:g}; {falling[0]} falls from the end of warm-up on: set it above 0", "schedule"
        )
    if "warmup_stable_decay" in schedules and most + max(ends("decay")) > 1:
        message = f"found {max(ends('decay')):g} beside a warmup of {most:g}: together they must not be above 1"
        yield misfit("decay", f"{message}; lower one of them", "schedule", "warmup")
    if "16-mixed" in ends("precision") and 0 in _ends(spec.values["resources.gpus_per_worker"]):
        message = "found 16-mixed, which needs a GPU; set resources.gpus_per_worker, or use bf16-mixed"
        reads: tuple[Path, ...] = (("training", "precision"), ("resources", "gpus_per_worker"))
        yield Misfit(("training", "precision"), message, reads)


def _workers(spec: SweepSpec) -> Iterator[Misfit]:
    """Several of them need something to share: gradients, and a token of each batch for each."""
    here, batch = ("resources", "workers"), ("training", "batch_tokens")
    most = max(_ends(spec.values["resources.workers"]))
    if most > 1 and architectures.find(spec.architecture).counts:
        message = f"found {most}; {spec.architecture} counts and has no gradients to share: it takes 1"
        yield Misfit(here, message, (here, ("model", "architecture")))
    else:
        # Of pairs at least a token each; documents are shared by windows.
        window = 1 if spec.task == "translation" else max(_ends(spec.values["model.sequence_length"]) or (1,))
        least = min(_ends(spec.values[dotted(batch)]) or (most * window,))
        if most > 1 and least < most * window:
            each = "a token" if window == 1 else f"a window of {window} tokens"
            message = (
                f"found {least}, the tokens of all {most} workers together; with {each} for each it is {most * window}"
            )
            yield Misfit(batch, f"{message} at least: raise it, or lower workers", (batch, here))
    shares = [gpus for gpus in _ends(spec.values["resources.gpus_per_worker"]) if 0 < gpus < 1]
    if most > 1 and shares:
        message = (
            f"found {shares[0]:g} beside {most} workers, which need a GPU each to train together (NCCL takes no two of "
            "them on one); set it to 1 or 0, or workers to 1"
        )
        yield Misfit(("resources", "gpus_per_worker"), message, (("resources", "gpus_per_worker"), here))


def _accelerator(spec: SweepSpec) -> Iterator[Misfit]:
    here, gpus = ("resources", "accelerator_type"), ("resources", "gpus_per_worker")
    if spec.values[dotted(here)] is not None and 0 in _ends(spec.values[dotted(gpus)]):
        message = "goes with a GPU only; take it out, or set gpus_per_worker above 0"
        yield Misfit(here, message, (here, gpus))


def _ends(held: Any) -> tuple[Any, ...]:
    """The values of a list, the two ends of another range, a value alone; none where there is none."""
    if isinstance(held, ranges.Choice):
        return held.values
    if isinstance(held, ranges.Integers | ranges.Continuous):
        return held.low, held.high
    return () if held is None else (held,)
