"""Data made ready once and kept in files that trials map into memory: texts by split, token ids by tokenizer.

    CACHE/FINGERPRINT/          train/ validation/ test/ (id, source, target; or id, text)
        tokens/TYPE-SETTINGS/   tokenizer.json or one for each column, train/ validation/ test/ (as `tokens` keeps ids)

A fingerprint covers the source's content, not its path: a changed file is prepared anew, a moved one is not.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from tuneyard_pipelines.catalog import TASK_DATA, TOKENIZER_KEYS, vocab_sizes
from tuneyard_pipelines.data import folders, sources
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.splits import SPLITS, split
from tuneyard_pipelines.data.text_tokenizer import (
    SPECIALS,
    UNK,
    TextTokenizer,
    load_tokenizers,
    normalized,
    save_tokenizers,
    segmenter_version,
    sizes,
)
from tuneyard_pipelines.data.tokens import EncodedSplit, TokenWriter
from tuneyard_pipelines.formulas import VocabSizes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import datasets
    import pyarrow

    from tuneyard_pipelines.spec import DataSpec, Tokenizer

_FORMAT = 1
_TOKENS_FORMAT = 3
_CHUNK_CHARACTERS = 1 << 20
_COUNTED_CHARACTERS = 1 << 24
_DIGESTED_BYTES = 128 << 20
_SIZING = ("type", "vocab_size", "normalization", "segmenter", "vocabulary")  # what tells the size of a vocabulary


@dataclass(frozen=True)
class PreparedData:
    """Examples by split: pairs of texts, or documents.

    The fingerprints are hexadecimal SHA-256; those of a split cover its texts in order. `columns` name the texts of an
    example; `text_bytes` are the UTF-8 bytes of each split's texts, and `version` that of a built-in source; both
    are empty for data that was prepared before they were kept.
    """

    folder: Path
    fingerprint: str
    validation_fingerprint: str
    test_fingerprint: str
    examples: dict[str, int]
    source: str
    left_out: int
    """Pairs of the source with an empty side, empty documents, files that are not UTF-8."""
    columns: tuple[str, ...] = ("source", "target")
    text_bytes: dict[str, int] = field(default_factory=dict)
    version: str = ""

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """What `prepare` left in `folder`. Raises DataError if it is missing or not whole."""
        facts = folders.read(folder)
        if facts is None:
            raise DataError(f"{folder}: no whole prepared data in this folder. Prepare the data again.")
        return cls._of(folder, facts)

    @classmethod
    def _of(cls, folder: Path, facts: dict[str, Any]) -> PreparedData:
        return cls(folder=folder, **{**facts, "columns": tuple(facts.get("columns", cls.columns))})

    def split(self, name: str) -> datasets.Dataset:
        """The split `name` (train, validation, test), memory-mapped: id (int64) and the texts of `columns` (str)."""
        return _load(self.folder / name)


@dataclass(frozen=True)
class TokenCounts:
    """Of the texts of a column: their tokens, how many of these are unknown, and for how many characters they stand."""

    tokens: int
    unknown: int
    unknown_characters: int


@dataclass(frozen=True)
class EncodedData:
    """Token ids by split, without special tokens, and the tokenizer of each column: the same one where it is joint.

    `counts` are by split and column.
    """

    folder: Path
    tokenizers: Mapping[str, TextTokenizer]
    counts: Mapping[str, Mapping[str, TokenCounts]]

    def split(self, name: str) -> EncodedSplit:
        """The split `name`, memory-mapped: the token ids of each text."""
        return EncodedSplit.open(self.folder / name, tuple(self.tokenizers))

    @property
    def sizes(self) -> VocabSizes:
        """How many ids a model needs."""
        return sizes(self.tokenizers)

    def unknown_share(self, split: str) -> float:
        """The share of unknown tokens among those of a split, all columns together."""
        counts = self.counts[split].values()
        return sum(count.unknown for count in counts) / max(sum(count.tokens for count in counts), 1)


def prepare(data: DataSpec, seed: int, cache: Path, task: str = "translation") -> PreparedData:
    """Read or generate what `task` learns from, split it by `seed` and keep it in a folder of `cache`.

    Translation has pairs, and shares of their number; language_modeling has documents, and shares of their bytes. Found
    again if the content, the seed and the split are the same. Several processes may call this at once.
    Raises DataError for a source that cannot be used, a split that would be empty, or a cache that cannot be written.
    """
    folder, fingerprint, origin = _place(data, task, seed, cache)
    columns = TASK_DATA[task].columns

    def fill(partial: Path) -> dict[str, Any]:
        texts = sources.read(data, task, seed, origin)
        by_bytes = task == "language_modeling"
        sizes = [_text_bytes(row) if by_bytes else 1 for row in texts.rows]
        positions = split(
            texts.keys,
            sizes=sizes,
            validation=data.split.validation,
            test=data.split.test,
            seed=seed,
            place=data.source,
            unit="documents" if by_bytes else "pairs",
        )
        for name in SPLITS:
            _save(partial / name, _text_table(texts.rows, positions[name], columns))
        return {
            "fingerprint": fingerprint,
            "validation_fingerprint": _digest([texts.rows[position] for position in positions["validation"]]),
            "test_fingerprint": _digest([texts.rows[position] for position in positions["test"]]),
            "examples": {name: len(positions[name]) for name in SPLITS},
            "source": data.source,
            "left_out": texts.left_out,
            "columns": columns,
            "text_bytes": {name: sum(_text_bytes(texts.rows[place]) for place in positions[name]) for name in SPLITS},
            "version": origin.get("version", ""),
        }

    return PreparedData._of(folder, {**folders.build(folder, fill), "source": data.source})


def encode(prepared: PreparedData, config: Tokenizer) -> EncodedData:
    """Learn the tokenizer of `config` on the training split, or one for each column, and encode every split by it.

    Kept below the prepared data's folder, with the same promises as `prepare`. Raises DataError like it.
    """
    made_by = _made_by(config)
    folder = _tokens(prepared.folder, config)

    def fill(partial: Path) -> dict[str, Any]:
        tokenizers = _learned(prepared, config)
        save_tokenizers(tokenizers, partial)
        counts = {name: _write(prepared.split(name), tokenizers, partial / name) for name in SPLITS}
        return {**made_by, "sizes": asdict(sizes(tokenizers)), "counts": counts}

    facts = folders.build(folder, fill)
    counts = {
        name: {column: TokenCounts(*count) for column, count in columns.items()}
        for name, columns in facts["counts"].items()
    }
    return EncodedData(folder, load_tokenizers(folder, prepared.columns), counts)


def count_vocabulary(
    data: DataSpec, config: Tokenizer, cache: Path, *, seed: int, task: str = "translation"
) -> tuple[VocabSizes, bool]:
    """How many ids the tokenizers have, special ones included, and whether those are the exact numbers.

    Exact where the encoded data lies in `cache`, and for bytes; else the largest of word, bpe and unigram, or the
    characters in the first part of the source. Raises DataError for a source that cannot be used.
    """
    expected = vocab_sizes({f"data.tokenizer.{key}": getattr(config, key) for key in _SIZING}, {})
    if config.type == "byte":
        return expected, True
    if _quickly_digested(data) and (facts := folders.read(_tokens(_place(data, task, seed, cache).folder, config))):
        return VocabSizes(**facts["sizes"]), True
    if config.type != "char":
        return expected, False
    alphabets: list[set[str]] = [set() for _ in TASK_DATA[task].columns]
    counted = 0
    for number, text in enumerate(sources.beginning(data, task, seed)):
        first = text[:_COUNTED_CHARACTERS]
        alphabets[number % len(alphabets)].update(normalized(first, config))
        counted += len(text)
        if counted >= _COUNTED_CHARACTERS:
            break
    if config.vocabulary == "separate":
        return VocabSizes(len(SPECIALS) + len(alphabets[-1]), len(SPECIALS) + len(alphabets[0])), False
    return VocabSizes(len(SPECIALS) + len(set().union(*alphabets))), False


def _learned(prepared: PreparedData, config: Tokenizer) -> dict[str, TextTokenizer]:
    train = prepared.split("train")
    if config.vocabulary == "separate":
        return {column: TextTokenizer.train(_Texts(train, (column,)), config) for column in prepared.columns}
    return dict.fromkeys(prepared.columns, TextTokenizer.train(_Texts(train, prepared.columns), config))


class _Texts:
    """The texts of some columns, row by row, as often as they are asked for; never all in memory."""

    def __init__(self, split: datasets.Dataset, columns: Sequence[str]) -> None:
        self._split, self._columns = split, columns

    def __iter__(self) -> Iterator[str]:
        for rows in _batches(self._split):
            for texts in zip(*(rows[column] for column in self._columns), strict=True):
                yield from texts


def _write(
    split: datasets.Dataset, tokenizers: Mapping[str, TextTokenizer], folder: Path
) -> dict[str, tuple[int, int, int]]:
    """Encode a split into `folder`; the token counts of each column."""
    counts = dict.fromkeys(tokenizers, (0, 0, 0))
    largest = max(tokenizer.vocab_size for tokenizer in tokenizers.values())
    with TokenWriter(folder, tuple(tokenizers), largest) as writer:
        for rows in _batches(split):
            ids = {column: tokenizer.encode_batch(rows[column]) for column, tokenizer in tokenizers.items()}
            writer.append(rows["id"], ids)
            for column, tokenizer in tokenizers.items():
                tokens, unknown, characters = counts[column]
                for text, row in zip(rows[column], ids[column], strict=True):
                    tokens, unknown = tokens + len(row), unknown + row.count(UNK)
                    characters += tokenizer.unknown_characters(text, row)
                counts[column] = tokens, unknown, characters
    return counts


def _quickly_digested(data: DataSpec) -> bool:
    """Whether the content's digest, which the place in a cache follows from, is known within a second."""
    try:
        return data.source.startswith("builtin/") or Path(data.source).stat().st_size <= _DIGESTED_BYTES
    except OSError:
        return True  # reading it says what is wrong


class _Place(NamedTuple):
    folder: Path
    fingerprint: str
    origin: dict[str, Any]


def _made_by(config: Tokenizer) -> dict[str, Any]:
    sized = config.type in TOKENIZER_KEYS["vocab_size"]
    settings = {"type": config.type, "vocab_size": config.vocab_size if sized else None}
    cut = {
        "normalization": config.normalization,
        "segmenter": segmenter_version(config.segmenter),
        "vocabulary": config.vocabulary,
    }
    return {"format": _TOKENS_FORMAT, "tokenizers": tokenizers.__version__, **settings, **cut}


def _tokens(folder: Path, config: Tokenizer) -> Path:
    return folder / "tokens" / f"{config.type}-{_digest(_made_by(config))[:12]}"


def _place(data: DataSpec, task: str, seed: int, cache: Path) -> _Place:
    origin = sources.origin(data, task)
    shares = {"validation": data.split.validation, "test": data.split.test}
    fingerprint = _digest({"format": _FORMAT, "origin": origin, "split": shares, "seed": seed})
    return _Place(cache / fingerprint[:20], fingerprint, origin)


def _text_bytes(row: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in row)


def _text_table(rows: Sequence[Sequence[str]], positions: Sequence[int], columns: Sequence[str]) -> pyarrow.Table:
    import pyarrow as pa

    texts = (pa.array([rows[position][place] for position in positions], pa.string()) for place in range(len(columns)))
    return pa.table([pa.array(positions, pa.int64()), *texts], names=["id", *columns])


def _batches(texts: datasets.Dataset) -> Iterator[dict[str, list[Any]]]:
    """Rows by column, a few at a time: what an encoder keeps of each token beside its id is large."""
    start, size = 0, 0
    lengths = zip(*(map(len, texts[column]) for column in texts.column_names if column != "id"), strict=True)
    for number, row in enumerate(lengths, start=1):
        size += sum(row)
        if size >= _CHUNK_CHARACTERS or number == len(texts):
            yield texts[start:number]
            start, size = number, 0


def _save(folder: Path, table: pyarrow.Table) -> None:
    _datasets().Dataset(table).save_to_disk(folder)


def _load(folder: Path) -> datasets.Dataset:
    return _datasets().Dataset.load_from_disk(folder, keep_in_memory=False)


def _datasets() -> Any:
    """The datasets library, imported when it is needed (0.7 s), silent and without a network."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets

    datasets.disable_progress_bars()
    return datasets


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
