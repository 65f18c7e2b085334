"""A spec for data that was looked at: columns, tokenizer, lengths, model and budget, and why, as commented YAML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import yaml

from tuneyard_pipelines.catalog import NAMED, TASK_DATA, TASKS
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.look import (
    BODIES,
    BUILTIN,
    DATA_SET,
    SOURCES,
    TARGETS,
    Column,
    Look,
    alike,
    is_language,
    language,
    same_language,
    scripts,
)
from tuneyard_pipelines.data_facts import size
from tuneyard_pipelines.plan import duration
from tuneyard_pipelines.spec import Tokenizer

Measure = Callable[[Tokenizer, Sequence[tuple[str, ...]]], Sequence[Sequence[int]]]
"""The tokens of each text by column, of a tokenizer that learned from these examples."""

FEWEST_EXAMPLES, FEWEST_BYTES = 20, 1_000
TRAINING_S = 240.0
"""Of ten minutes, what may be planned for training.

The rest is for start-up, validation and scoring, and for trials that go on though they were expected to end early: of a
sweep in which later points kept beating those before, nearly twice the planned tokens were trained.
"""
_TRIALS = 12
_RUNG_STEPS = 30  # below so many updates a first rung tells nothing
_MOST_PASSES = {"translation": 60, "language_modeling": 20, "masked_lm": 40}
_VALIDATION_PAIRS, _TEST_PAIRS = 400, 1_000
_VALIDATION_BYTES = 60_000
_GROUPING = ("book", "work", "doc", "document", "article", "chapter", "thread", "conversation")


@dataclass(frozen=True)
class Reading:
    """One way to take the data: a task, and the column of each of its texts; of plain text there is no column."""

    task: str
    columns: tuple[Column, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.task} of {' -> '.join(repr(column.name) for column in self.columns) or 'the text'} ({self.why})"


@dataclass(frozen=True)
class Draft:
    """The values of a spec, and for each key why it has its value."""

    name: str
    head: tuple[str, ...]
    task: str
    data: Mapping[str, Any]
    model: Mapping[str, Any]
    training: Mapping[str, Any]
    trials: int
    metric: str
    tokens_per_pass: float
    why: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The spec as commented YAML."""
        lines = [*(f"# {line}" for line in self.head), "version: 1", f"name: {_name(self.name)}"]
        lines += [self._line("task", self.task), "seed: 1"]
        for section in ("data", "model", "training"):
            lines.append(f"{section}:")
            lines += [self._line(f"{section}.{key}", value) for key, value in getattr(self, section).items()]
        return "\n".join(
            [
                *lines,
                "search:",
                "  algorithm: tpe",
                self._line("search.scheduler", "asha"),
                self._line("search.trials", self.trials),
                self._line("search.metric", self.metric),
                self._line("budget", {"wall_clock": "12m"}),
                f"register: {{name: {_name(self.name)}}}",
                "",
            ]
        )

    def _line(self, key: str, value: Any) -> str:
        section, _, name = key.rpartition(".")
        line = f"{'  ' if section else ''}{name}: {_yaml(value)}"
        why = self.why.get(key)
        return f"{line:<46}  # {why}" if why else line


def readings(look: Look, task: str | None = None) -> tuple[tuple[Reading, ...], bool]:
    """The ways to take the data, the likeliest first, and whether that one is clear.

    Raises DataError if there is none, or none for `task`.
    """
    found, clear = _readings(look)
    if task is not None and TASK_DATA[task].documents:  # whatever is learned from documents reads the same ones
        found = [replace(one, task=task) if TASK_DATA[one.task].documents else one for one in found]
    fitting = tuple(one for one in found if task in (None, one.task) and TASK_DATA[one.task].takes(look.source))
    if not fitting:
        held = ", ".join(f"{column.name!r} ({column.kind})" for column in look.columns) or "documents of plain text"
        wanted = f" for {task}" if task else ""
        raise DataError(f"{look.source}: no column of text{wanted} is seen. There are: {held}. Write a spec by hand.")
    return fitting, clear or len(fitting) == 1


def draft(look: Look, reading: Reading, *, path: str, name: str, measure: Measure) -> Draft:
    """The spec for `reading`, with a budget that is not fitted to a machine yet; `path` is how it names the data.

    Raises DataError where there is too little to split.
    """
    rows = [
        row
        for row in (
            zip(*(column.values for column in reading.columns), strict=True) if reading.columns else zip(look.texts)
        )
        if all(text.strip() for text in row)
    ]
    sides = [[row[place] for row in rows] for place in range(len(TASK_DATA[reading.task].columns))] if rows else []
    seen_bytes = sum(len(text.encode()) for side in sides for text in side)
    scale = look.rows / max(look.sampled, 1)
    examples, text_bytes = round(len(rows) * scale), round(seen_bytes * scale)
    _enough(look, reading, examples, text_bytes)
    about = "" if look.counted and look.sampled == look.read else "about "
    unit = "pairs" if reading.task == "translation" else "documents"
    tokenizer, why_tokenizer = _tokenizer(reading.task, sides, text_bytes)
    lengths_by_column = measure(Tokenizer.model_validate(tokenizer), rows)
    tokens = sum(map(sum, lengths_by_column)) * scale
    lengths, why_lengths = _lengths(reading.task, lengths_by_column, tokenizer["type"])
    data, why_data = _data(look, reading, path, sides, examples, text_bytes)
    metric, why_metric = _metric(reading.task, sides[-1])
    large = text_bytes > 4_000_000
    batch_tokens = 2048 if tokens > 50_000 else 512
    while batch_tokens < 4 * max(lengths):
        batch_tokens *= 2
    return Draft(
        name=name,
        head=(
            f"Written by `tuneyard init`: {about}{examples:,} {unit}, {about}{size(text_bytes)} of text.",
            "See what is in it with `tuneyard data show`, what would run with `tuneyard sweep plan`.",
        ),
        task=reading.task,
        data={**data, "tokenizer": tokenizer},
        model={
            "architecture": TASKS[reading.task].architecture,
            "d_model": 128 if large else 64,
            "num_heads": [2, 4, 8] if large else [2, 4],
            "num_layers": [1, 2, 3] if large else [1, 2],
            "sequence_length": lengths,
            "dropout": 0.1,
        },
        training={
            "max_tokens": round(tokens),
            "batch_tokens": batch_tokens,
            "evaluations": 6,
            "learning_rate": {"loguniform": [5e-4, 5e-3] if large else [1e-3, 8e-3]},
        },
        trials=_TRIALS,
        metric=metric,
        tokens_per_pass=tokens,
        why={
            "task": reading.why,
            **why_data,
            "data.tokenizer": why_tokenizer,
            "model.d_model": f"{'much' if large else 'little'} text: {about}{size(text_bytes)}",
            "model.num_heads": "a list is a choice: every value is tried",
            "model.sequence_length": why_lengths,
            "training.learning_rate": "the smaller the model, the larger",
            "search.metric": why_metric,
            "search.scheduler": "only the best third of a rung trains on",
            "budget": "a guard: the best so far is kept",
        },
    )


def within(made: Draft, seconds_per_max_token: float, *, slots: int) -> Draft:
    """The draft with the tokens of a trial and the number of trials that fit into about ten minutes.

    `seconds_per_max_token`: of training the whole sweep, for each of `max_tokens`, all slots busy.
    """
    affordable = TRAINING_S / seconds_per_max_token
    most = made.tokens_per_pass * _MOST_PASSES[made.task]
    fewest = 9 * _RUNG_STEPS * made.training["batch_tokens"]
    tokens = _round(max(min(affordable, most), fewest))
    passes = tokens / max(made.tokens_per_pass, 1)
    seconds = seconds_per_max_token * tokens
    trials = made.trials
    if seconds > 1.5 * TRAINING_S:  # a slow machine or a large model: fewer trials instead of none that learns
        trials = max(3, round(trials * TRAINING_S / seconds))
        seconds *= trials / made.trials
    why = {
        "training.max_tokens": f"{passes:,.1f} passes over the training text",
        "search.trials": f"about {duration(seconds)} of training here, {slots} at once",
        "model.dropout": "the text is seen many times" if passes > 3 else "the text is seen a few times only",
    }
    return replace(
        made,
        training={**made.training, "max_tokens": tokens},
        model={**made.model, "dropout": 0.1 if passes > 3 else 0.0},
        trials=trials,
        why={**made.why, **why},
    )


def slug(stem: str) -> str:
    """A name for a spec from the name of a file."""
    made = re.sub(r"[^a-z0-9._-]+", "-", stem.lower()).strip("-._")[:64].rstrip("-._")
    return made or "data"


def _readings(look: Look) -> tuple[list[Reading], bool]:
    if not look.columns:
        return [Reading("language_modeling", (), "plain text without columns")], True
    columns = [column for column in look.columns if column.filled >= 0.5 and any(column.values)]
    texts = [column for column in columns if column.kind == "text"]
    named = _named_pair(columns)
    if named is None and len(columns) == 2 and len(texts) < 2 and (odd := _odd_pair(columns)):
        return [odd, *(_documents(column) for column in texts)], True
    found: list[Reading] = []
    pair = named or _pair(texts)
    body = next((column for column in texts if str(column.name).lower() in BODIES), None)
    longest = max(texts, key=lambda column: column.median_characters, default=None)
    if pair is not None:
        found.append(pair)
    documents = [one for one in (body, longest, *texts) if one is not None]
    found += [_documents(column) for column in dict.fromkeys(documents)]
    found += [
        Reading("translation", (one, other), "two columns of text")
        for one, other in pairwise(texts)
        if pair is None or (one, other) != pair.columns
    ]
    clear = (
        len(texts) <= 1
        or named is not None
        or (len(texts) == 2 and pair is not None)
        or (pair is None and body is not None)
    )
    return found, clear


def _documents(column: Column) -> Reading:
    return Reading("language_modeling", (column,), f"texts of {column.median_characters:,.0f} characters")


def _named_pair(columns: Sequence[Column]) -> Reading | None:
    """The two columns whose names say that they are the sides of pairs."""
    by_name = {str(column.name).lower(): column for column in columns}
    source = next((by_name[name] for name in SOURCES if name in by_name), None)
    target = next((by_name[name] for name in TARGETS if name in by_name), None)
    if source is not None and target is not None:
        return Reading("translation", (source, target), "columns with the names of a pair")
    spoken = [column for column in columns if column.kind == "text" and is_language(str(column.name))]
    if len(spoken) == 2:
        return Reading("translation", (spoken[0], spoken[1]), "columns with the names of two languages")
    return None


def _pair(texts: Sequence[Column]) -> Reading | None:
    """The two columns of text that look like the sides of pairs."""
    pairs = [(one, other) for place, one in enumerate(texts) for other in texts[place + 1 :] if alike(one, other)]
    different = next((pair for pair in pairs if not same_language(*pair)), None)
    if different is not None:
        sides = " -> ".join(_speech(column.values) for column in different)
        return Reading("translation", different, f"two columns about as long: {sides}")
    if len(pairs) == 1 and len(texts) == 2:
        return Reading("translation", pairs[0], "two columns about as long")
    return None


def _odd_pair(columns: Sequence[Column]) -> Reading | None:
    """A table of two columns, one or both of dates, numbers or codes: pairs, unless one of them counts the rows."""
    one, other = columns
    short = max(one.median_characters, other.median_characters) < 64
    sides = one.kind not in ("category", "note") and other.kind in ("text", "date", "number", "code")
    if short and sides and not _rising(one):
        return Reading("translation", (one, other), f"two short columns: {one.kind} -> {other.kind}")
    return None


def _rising(column: Column) -> bool:
    try:
        values = [float(value) for value in column.values if value]
    except ValueError:
        return False
    return all(one < other for one, other in pairwise(values))


def _enough(look: Look, reading: Reading, examples: int, text_bytes: int) -> None:
    unit = "pairs" if reading.task == "translation" else "documents"
    if examples >= FEWEST_EXAMPLES and text_bytes >= FEWEST_BYTES:
        return
    hint = ""
    if not look.columns:
        hint = " Blank lines part the documents of a .txt file; without any, every line is one."
    raise DataError(
        f"{look.source}: {examples:,} {unit} with {size(text_bytes)} of text are too little to train on and to hold "
        f"some back for validation and test: at least {FEWEST_EXAMPLES} with {size(FEWEST_BYTES)} are needed.{hint} "
        "Give more."
    )


def _tokenizer(task: str, sides: Sequence[Sequence[str]], text_bytes: int) -> tuple[dict[str, Any], str]:
    texts = [text for side in sides for text in side]
    alphabet = len(set().union(*map(set, texts)))
    spoken = " and ".join(dict.fromkeys(_speech(side) for side in sides))
    median = float(np.median([len(text) for text in texts]))
    characters = f"{alphabet:,} different characters, {spoken}"
    if any("Han" in scripts(side) or "Kana" in scripts(side) for side in sides):
        return {"type": "char"}, f"{characters}: a character says much"
    if task == "translation" and median <= 40 and alphabet <= 400:
        return {"type": "char"}, f"{characters}: texts are short, {median:,.0f} characters"
    if text_bytes < 400_000:
        if alphabet > 400 or (TASK_DATA[task].documents and scripts(texts)[:1] == ("Latin",)):
            return {"type": "byte"}, f"{characters}: too little text to learn longer pieces"
        return {"type": "char"}, f"{characters}: too little text to learn longer pieces"
    steps = ((2_000_000, 1000), (20_000_000, 2000), (200_000_000, 4000))
    vocab_size = next((vocab for limit, vocab in steps if text_bytes < limit), 8000)
    return {"type": "bpe", "vocab_size": vocab_size}, f"{spoken}, {size(text_bytes)}: enough to learn so many pieces"


def _speech(texts: Sequence[str]) -> str:
    return language(texts) or "/".join(scripts(texts)) or "no letters"


def _lengths(task: str, by_column: Sequence[Sequence[int]], tokenizer: str) -> tuple[list[int], str]:
    longest = np.max(by_column, axis=0) + 1
    half, most, nearly, top = (math.ceil(value) for value in np.quantile(longest, [0.5, 0.9, 0.99, 1.0]))
    if task == "translation":
        wanted = [_up(most, 4), _up(nearly, 4), _up(min(top, 2 * nearly), 4)]
        return _distinct(wanted, 512), f"nine in ten pairs have up to {most:,} tokens a side, 99 % up to {nearly:,}"
    if nearly <= 128:
        wanted = [_up(half, 16), _up(nearly, 16), _up(2 * nearly, 16)]
    else:
        wanted = [32, 64, 128] if tokenizer == "bpe" else [64, 128, 256]
    return _distinct(wanted, 512), f"the window; half of the documents have up to {half:,} tokens"


def _metric(task: str, side: Sequence[str]) -> tuple[str, str]:
    if task == "masked_lm":
        return "val/loss", "nats for a hidden word: the smaller the better"
    if task == "language_modeling":
        return "val/bits_per_byte", "bits for a byte of text it has not seen: the smaller the better"
    if language(side) or np.median([len(text) for text in side]) > 20:
        return "val/chrf", "what is nearly right counts, from 0 to 100"
    return "val/exact_match", "short answers: the share that is right"


def _data(
    look: Look, reading: Reading, path: str, sides: Sequence[Sequence[str]], examples: int, text_bytes: int
) -> tuple[dict[str, Any], dict[str, str]]:
    """The section without its tokenizer, and why."""
    data: dict[str, Any] = {"source": path}
    why: dict[str, str] = {}
    if reading.columns and look.kind != BUILTIN:
        names = TASK_DATA[reading.task].columns
        data["columns"] = {name: column.name for name, column in zip(names, reading.columns, strict=True)}
        others = [f"{column.name} ({column.kind})" for column in look.columns if column not in reading.columns]
        if others:
            why["data.columns"] = f"not used: {', '.join(others)}"[:120]
        if look.kind not in (*NAMED, DATA_SET):
            data["header"] = look.header
            why["data.header"] = "line 1 names the columns" if look.header else "line 1 is data"
    if look.encoding != "auto":
        data["encoding"] = look.encoding
        why["data.encoding"] = "not UTF-8"
    empty_share = 1 - len(sides[0]) / max(look.sampled, 1) if reading.columns else 0.0
    bad_share = 1 - (1 - look.bad_share) * (1 - empty_share)
    if bad_share > 0.04:
        data["max_bad_share"] = min(1.0, math.ceil(100 * (1.2 * bad_share + 0.01)) / 100)
        worst = [f"{one.what}, as at {one.first}" for one in look.findings if one.fate == "left out"]
        worst += [f"{empty_share:.1%} with an empty text"] if empty_share else []
        why["data.max_bad_share"] = f"{bad_share:.1%} cannot be used: {worst[0]}"[:120]
    split = _split(reading.task, sides, examples, text_bytes)
    if group := _group(look, reading, sides):
        split["group_by"], why["data.split"] = group
    data["split"] = split
    return data, why


def _split(task: str, sides: Sequence[Sequence[str]], examples: int, text_bytes: int) -> dict[str, Any]:
    """Shares that hold back enough to tell trials apart, and not more."""
    if task == "translation":
        validation, test = _VALIDATION_PAIRS / examples, _TEST_PAIRS / examples
        least = 3 / examples
    else:
        validation = test = _VALIDATION_BYTES / text_bytes
        least = 4 * float(np.quantile([len(text.encode()) for text in sides[0]], 0.75)) / text_bytes
    return {
        "validation": _share(max(min(validation, 0.1), least)),
        "test": _share(max(min(test, 0.1), least)),
    }


def _share(share: float) -> float:
    return min(0.3, float(f"{share:.1g}"))


def _group(look: Look, reading: Reading, sides: Sequence[Sequence[str]]) -> tuple[Any, str] | None:
    """What must stay on one side of the split, where the default would not do, and why."""
    for side, column in zip(sides, reading.columns, strict=False):
        most = max((side.count(text) for text in set(side[:50])), default=0)
        if reading.task == "translation" and most > 0.05 * len(side):
            return "example", f"{column.name!r} has few different texts: those may stand on both sides"
    for column in look.columns:
        different = {value for value in column.values if value}
        name = str(column.name).lower()
        if name in _GROUPING and column not in reading.columns and (look.header or look.kind in (*NAMED, DATA_SET)):
            largest = max(map(column.values.count, different), default=0)
            if len(different) >= 20 and largest <= 0.05 * look.sampled and column.filled == 1.0:
                return [column.name], f"what has the same {column.name} stays on one side"
    return None


def _distinct(wanted: Sequence[int], most: int) -> list[int]:
    return sorted({min(max(length, 8), most) for length in wanted})


def _up(length: int, step: int) -> int:
    return math.ceil(length / step) * step


def _round(tokens: float) -> int:
    """To two digits, so that it can be read."""
    return int(float(f"{tokens:.1e}"))


def _name(name: str) -> str:
    """The name as YAML; in quotes where it could be read as a number or a truth."""
    return f'"{name}"' if name[0].isdigit() else _yaml(name)


def _yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
