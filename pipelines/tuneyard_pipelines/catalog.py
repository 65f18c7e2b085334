"""What exists by name: tasks, metrics, built-in data; and what a point implies. Architectures: `architectures.py`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tuneyard_pipelines import architectures

if TYPE_CHECKING:
    from tuneyard_pipelines.keys import Tokenizer

Mode = Literal["min", "max"]


@dataclass(frozen=True)
class Metric:
    """A validation score: which way is better, and the keys whose variation makes two values incomparable."""

    name: str
    mode: Mode
    description: str
    incomparable_over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Task:
    """What is learned: by which architecture where none is named, and what is measured; the first is the default."""

    name: str
    architecture: str
    metrics: tuple[str, ...]


@dataclass(frozen=True)
class TaskData:
    """What a task learns from: the texts of an example by name, built-in sources, and kinds of file by suffix."""

    columns: tuple[str, ...]
    builtin: tuple[str, ...]
    files: tuple[str, ...]

    def takes(self, source: str) -> bool:
        """Whether `source`, a built-in name, a data set, a path or a pattern, fits the task."""
        if source.startswith("builtin/"):
            return source in self.builtin
        return is_data_set(source) or is_data_file(source, self.files)

    @property
    def allowed(self) -> str:
        """What it takes, in words."""
        files = f"the path of a file ({' '.join(self.files)}, also as .gz) or of a folder"
        return f"{', '.join(self.builtin)}, hub/OWNER/NAME, or {files}"


def is_data_file(source: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a path or pattern ends with one of the suffixes; .gz may follow, but for .parquet, which is packed."""
    name = source.lower()
    return name.endswith(suffixes) or (name.removesuffix(".gz").endswith(suffixes) and ".parquet" not in name)


_HUB = re.compile(r"hub/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)")


def hub_name(source: str) -> str:
    """OWNER/NAME of a data set of the Hugging Face hub; "" for any other source."""
    found = _HUB.fullmatch(source)
    return found[1] if found else ""


def is_data_set(source: str) -> bool:
    """Whether a source has splits and named columns of its own: a data set of the hub, or a folder laid out like one.

    A folder is a path that ends with / or without a kind of file.
    """
    if source.startswith(("builtin/", "hub/")):
        return hub_name(source) != ""
    return file_kind(source) == "" and not is_pattern(source)


def file_kind(source: str) -> str:
    """How a file is written, by the end of its name: `.csv` for a.csv and a.csv.gz."""
    return posixpath.splitext(source.lower().removesuffix(".gz"))[1]


NAMED = (".jsonl", ".parquet")
"""Files whose columns have names and no numbers."""


def is_pattern(source: str) -> bool:
    """Whether a path stands for all files that fit it, as corpus/*.txt does."""
    return any(character in source for character in "*?[")


_TOKENS = ("data.tokenizer.type", "data.tokenizer.vocab_size")

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("val/exact_match", "max", "share of outputs equal to their reference"),
        Metric("val/accuracy", "max", "share of target tokens predicted right, given those before", _TOKENS),
        Metric("val/bleu", "max", "corpus BLEU, 0 to 100"),
        Metric("val/chrf", "max", "character n-gram F-score, 0 to 100"),
        Metric("val/bits_per_byte", "min", "bits that the model needs for a byte of the validation text"),
        Metric("val/loss", "min", "mean loss of a target token in nats", (*_TOKENS, "training.label_smoothing")),
        Metric("val/perplexity", "min", "exp of the mean loss of a token", (*_TOKENS, "training.label_smoothing")),
    )
}

TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "translation",
            "transformer",
            ("val/exact_match", "val/accuracy", "val/bleu", "val/chrf", "val/loss", "val/perplexity"),
        ),
        Task("language_modeling", "gpt", ("val/bits_per_byte", "val/accuracy", "val/loss", "val/perplexity")),
    )
}

_SEQUENCES: dict[str, tuple[str, ...]] = {
    **{f"builtin/{name}": ("min_length", "max_length", "symbols") for name in ("copy", "reverse", "sort")},
    "builtin/recall": ("min_length", "max_length", "symbols", "distractors"),
}
GENERATED: dict[str, tuple[str, ...]] = {"builtin/dates": (), "builtin/numbers": ("languages", "largest"), **_SEQUENCES}
"""Built-in data of any size, and the keys of data.generate that each follows."""

NUMBER_LANGUAGES = ("de", "en", "es", "fa", "fi", "fr", "id", "ja", "ko", "pl", "ru", "th")

TASK_DATA: dict[str, TaskData] = {
    "translation": TaskData(("source", "target"), tuple(GENERATED), (".tsv", ".txt", ".csv", ".jsonl", ".parquet")),
    "language_modeling": TaskData(("text",), ("builtin/stdlib", *_SEQUENCES), (".txt", ".csv", ".jsonl", ".parquet")),
}
BUILTIN_DATA: tuple[str, ...] = tuple(dict.fromkeys(name for held in TASK_DATA.values() for name in held.builtin))
DATA_FILES: tuple[str, ...] = tuple(dict.fromkeys(suffix for held in TASK_DATA.values() for suffix in held.files))

BYTE_VOCAB_SIZE = 4 + 256  # special tokens and bytes
TOKENIZERS_WITHOUT_SIZE = ("char", "byte")

GUESSED_CHARACTERS = 128  # until the data has been looked at


def vocab_size(values: Mapping[str, Any], characters: int) -> int:
    """Tokens in the vocabulary of a point, special ones included, when its data has so many `characters` (with them).

    Of bpe, the most there can be.
    """
    kinds = {"byte": BYTE_VOCAB_SIZE, "bpe": values.get("data.tokenizer.vocab_size"), "char": characters}
    return int(kinds[values["data.tokenizer.type"]] or characters)


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a point with what follows from others filled in, and without what does not apply to it."""
    complete = dict(values)
    if complete.get("model.architecture") is None:
        complete["model.architecture"] = TASKS[complete["task"]].architecture
    for key, default in architectures.find(complete["model.architecture"]).defaults.items():
        if complete.get(key) is None:
            complete[key] = default
    if complete.get("model.d_ff") is None:
        complete["model.d_ff"] = 4 * complete["model.d_model"]
    if complete.get("data.tokenizer.type") in TOKENIZERS_WITHOUT_SIZE:
        complete.pop("data.tokenizer.vocab_size", None)
    return {key: value for key, value in complete.items() if value is not None}


def expected_vocab_size(tokenizer: Tokenizer) -> int | None:
    """How many ids a tokenizer will have, special ones included; None for char, whose characters must be counted.

    That of bpe is its largest: little text may have fewer pairs to merge.
    """
    if tokenizer.type == "char":
        return None
    values = {"data.tokenizer.type": tokenizer.type, "data.tokenizer.vocab_size": tokenizer.vocab_size}
    return vocab_size(values, characters=0)
