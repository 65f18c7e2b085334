"""What exists by name: tasks, metrics, built-in data; and what a point implies. Architectures: `architectures.py`."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuneyard_pipelines import architectures
from tuneyard_pipelines.formulas import VocabSizes

Vocabularies = Mapping[str, VocabSizes]
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

    @property
    def documents(self) -> bool:
        """Whether an example is one text, not a pair."""
        return len(self.columns) == 1

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


_TOKENS = tuple(f"data.tokenizer.{key}" for key in ("type", "vocab_size", "normalization", "segmenter", "vocabulary"))

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("val/exact_match", "max", "share of outputs equal to their reference"),
        Metric("val/accuracy", "max", "share of target tokens predicted right, given those before", _TOKENS),
        Metric("val/bleu", "max", "corpus BLEU, 0 to 100"),
        Metric("val/chrf", "max", "character n-gram F-score, 0 to 100"),
        # nfkc takes differences out of the text that a model would have to pay for.
        Metric(
            "val/bits_per_byte",
            "min",
            "bits that the model needs for a byte of the validation text",
            ("data.tokenizer.normalization",),
        ),
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
        Task("masked_lm", "bert", ("val/loss", "val/accuracy", "val/perplexity")),
    )
}

_SEQUENCES: dict[str, tuple[str, ...]] = {
    **{f"builtin/{name}": ("min_length", "max_length", "symbols") for name in ("copy", "reverse", "sort")},
    "builtin/recall": ("min_length", "max_length", "symbols", "distractors"),
}
GENERATED: dict[str, tuple[str, ...]] = {"builtin/dates": (), "builtin/numbers": ("languages", "largest"), **_SEQUENCES}
"""Built-in data of any size, and the keys of data.generate that each follows."""

NUMBER_LANGUAGES = ("de", "en", "es", "fa", "fi", "fr", "id", "ja", "ko", "pl", "ru", "th")

_DOCUMENTS = TaskData(("text",), ("builtin/stdlib", *_SEQUENCES), (".txt", ".csv", ".jsonl", ".parquet"))

TASK_DATA: dict[str, TaskData] = {
    "translation": TaskData(("source", "target"), tuple(GENERATED), (".tsv", ".txt", ".csv", ".jsonl", ".parquet")),
    "language_modeling": _DOCUMENTS,
    "masked_lm": _DOCUMENTS,
}
BUILTIN_DATA: tuple[str, ...] = tuple(dict.fromkeys(name for held in TASK_DATA.values() for name in held.builtin))
DATA_FILES: tuple[str, ...] = tuple(dict.fromkeys(suffix for held in TASK_DATA.values() for suffix in held.files))

MASK = "[MASK]"
"""What stands in a text for a token that a masked language model is to tell."""

BYTE_VOCAB_SIZE = 4 + 256  # special tokens and bytes
GOES_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "data.tokenizer.vocab_size": ("data.tokenizer.type", ("bpe", "word", "unigram")),
    "data.tokenizer.segmenter": ("data.tokenizer.type", ("word",)),
    "training.decay": ("training.schedule", ("warmup_stable_decay",)),
    "training.ema_decay": ("training.average", ("ema",)),
    "training.last_checkpoints": ("training.average", ("last",)),
}
"""Keys that mean something beside some words of another key only: that other, and those words."""

GUESSED_CHARACTERS = 128  # until the data has been looked at


def vocab_sizes(values: Mapping[str, Any], known: Vocabularies) -> VocabSizes:
    """How many ids the tokenizers of a point have, special ones included.

    `known` are those of the data, by `tokenizer_name`. Of others it is the most there can be for word, bpe and unigram,
    and a guess for char.
    """
    if (found := known.get(tokenizer_name(values))) is not None:
        return found
    guesses = {"byte": BYTE_VOCAB_SIZE, "char": GUESSED_CHARACTERS}
    kind = values["data.tokenizer.type"]
    size = guesses[kind] if kind in guesses else int(values["data.tokenizer.vocab_size"])
    return VocabSizes(size, size if values.get("data.tokenizer.vocabulary") == "separate" else None)


def tokenizer_name(values: Mapping[str, Any]) -> str:
    """`char`, `bpe 4000`, `word 900 jieba separate`: what the vocabulary of a point depends on, beside its data."""
    kind = values["data.tokenizer.type"]
    words = [kind]
    for key, default in (
        ("vocab_size", None),
        ("normalization", "nfc"),
        ("segmenter", "none"),
        ("vocabulary", "joint"),
    ):
        value = values.get(f"data.tokenizer.{key}", default)
        _, kinds = GOES_WITH.get(f"data.tokenizer.{key}", ("", (kind,)))
        if value != default and kind in kinds:
            words.append(str(value))
    return " ".join(words)


def complete(values: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a point with what follows from others filled in, and without what does not apply to it."""
    complete = dict(values)
    if complete.get("model.architecture") is None:
        complete["model.architecture"] = TASKS[complete["task"]].architecture
    architecture = architectures.find(complete["model.architecture"])
    for key, default in architecture.defaults.items():
        if complete.get(key) is None:
            complete[key] = default
    if complete.get("model.d_ff") is None and architecture.follows("model.d_ff"):
        complete["model.d_ff"] = 4 * complete["model.d_model"]
    for key, (other, words) in GOES_WITH.items():
        if complete.get(other) not in words:
            complete.pop(key, None)
    if complete.get("task") != "translation":
        complete.pop("data.tokenizer.vocabulary", None)
    return {key: value for key, value in complete.items() if value is not None and architecture.follows(key)}
