"""Data made ready once and kept in files that trials map into memory: texts by split, token ids by tokenizer.

    CACHE/FINGERPRINT/          train/ validation/ test/ (id, source, target; or id, text)
        tokens/TYPE-SETTINGS/   tokenizer.json or one for each column, train/ validation/ test/ (as `tokens` keeps ids)

A fingerprint covers the source's content, not its path: a changed file is prepared anew, a moved one is not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from tuneyard_pipelines.catalog import GOES_WITH, TASK_DATA, hub_name, vocab_sizes
from tuneyard_pipelines.data import arrow, folders, sources
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.examples import Finding, Tally, findings_of, refuse
from tuneyard_pipelines.data.splits import SPLITS, Assignment, Ledger
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
    from collections.abc import Iterable, Iterator, Sequence

    import datasets

    from tuneyard_pipelines.spec import DataSpec, Tokenizer

_FORMAT = 2
_TOKENS_FORMAT = 4
_TOLD_EVERY = 1000
_COUNTED_CHARACTERS = 1 << 24
_DIGESTED_BYTES = 128 << 20
_SIZING = ("type", "vocab_size", "normalization", "segmenter", "vocabulary")  # what tells the size of a vocabulary


Progress = Callable[[str, float], None]
"""What is being done to the data, and how much of it is done, from 0 to 1; NaN where the whole is not known."""


@dataclass(frozen=True)
class PreparedData:
    """Examples by split: pairs of texts, or documents.

    The fingerprints are hexadecimal SHA-256; those of a split cover its texts in order. `columns` name the texts of an
    example; `text_bytes` are the UTF-8 bytes of each split's texts, and `version` that of a built-in source or of
    a data set (its commit, or a digest); both are empty for data that was prepared before they were kept.
    """

    folder: Path
    fingerprint: str
    validation_fingerprint: str
    test_fingerprint: str
    examples: dict[str, int]
    source: str
    left_out: int
    """Examples of the source that cannot be used."""
    columns: tuple[str, ...] = ("source", "target")
    text_bytes: dict[str, int] = field(default_factory=dict)
    version: str = ""
    findings: tuple[Finding, ...] = ()
    """What is not as it should be in the source."""
    lines: int = 0
    """Lines that were read of plain text, of which documents are made; 0 for other sources."""

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """What `prepare` left in `folder`. Raises DataError if it is missing or not whole."""
        facts = folders.read(folder)
        if facts is None:
            raise DataError(f"{folder}: no whole prepared data in this folder. Prepare the data again.")
        return cls._of(folder, facts)

    @classmethod
    def _of(cls, folder: Path, facts: dict[str, Any]) -> PreparedData:
        columns, findings = tuple(facts.get("columns", cls.columns)), findings_of(facts.get("findings", ()))
        return cls(folder=folder, **{**facts, "columns": columns, "findings": findings})

    def split(self, name: str) -> datasets.Dataset:
        """The split `name` (train, validation, test), memory-mapped: id (int64) and the texts of `columns` (str)."""
        return arrow.mapped(self.folder / name)

    def first(self, name: str, count: int) -> list[dict[str, str]]:
        """The texts by column of the first `count` examples of the split `name`."""
        found: list[dict[str, str]] = []
        for rows in arrow.batches(self.folder / name):
            texts = zip(*(rows[column] for column in self.columns), strict=True)
            found += [dict(zip(self.columns, one, strict=True)) for one in texts]
            if len(found) >= count:
                break
        return found[:count]


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


def prepare(
    data: DataSpec,
    seed: int,
    cache: Path,
    task: str = "translation",
    progress: Progress = lambda doing, share: None,
) -> PreparedData:
    """Read or generate what `task` learns from, split it by `seed` and keep it in a folder of `cache`.

    Translation has pairs, and shares of their number; other tasks have documents, and shares of their bytes. Found
    again if the content, the seed and the split are the same. Several processes may call this at once. A source may be
    larger than memory. Raises DataError for a source that cannot be used or holds too much that cannot, a split that
    would be empty, or a cache that cannot be written.
    """
    here = sources.local(data, cache)
    folder, fingerprint, origin = _place(here, task, seed, cache)

    def fill(partial: Path) -> dict[str, Any]:
        facts = _Preparation(here, task, seed, partial, progress).run()
        if sources.origin(here, task) != origin:
            raise DataError(f"{data.source}: it was changed while it was read. Start again once it is complete.")
        return {"fingerprint": fingerprint, "source": data.source, "version": origin.get("version", ""), **facts}

    prepared = PreparedData._of(folder, {**folders.build(folder, fill), "source": data.source})
    kept = sum(prepared.examples.values())
    refuse(prepared.findings, kept, data.max_bad_share, data.source, lines=prepared.lines)
    return prepared


def encode(prepared: PreparedData, config: Tokenizer, progress: Progress = lambda doing, share: None) -> EncodedData:
    """Learn the tokenizer of `config` on the training split, or one for each column, and encode every split by it.

    Kept below the prepared data's folder, with the same promises as `prepare`. Raises DataError like it.
    """
    made_by = _made_by(config)
    folder = _tokens(prepared.folder, config)

    def fill(partial: Path) -> dict[str, Any]:
        progress(f"learning a vocabulary ({config.type})", math.nan)
        tokenizers = _learned(prepared, config)
        save_tokenizers(tokenizers, partial)
        done, total = 0, sum(prepared.examples.values())
        counts = {}
        for name in SPLITS:
            with _Encoder(partial / name, tokenizers) as encoder:
                for rows in arrow.batches(prepared.folder / name):
                    encoder.append(rows)
                    done += len(rows["id"])
                    progress(f"cutting texts into tokens ({config.type})", done / total)
            counts[name] = {column: asdict(count) for column, count in encoder.counts.items()}
        return {**made_by, "sizes": asdict(sizes(tokenizers)), "counts": counts}

    return _encoded(prepared, folder, folders.build(folder, fill))


def kept(
    data: DataSpec, configs: Sequence[Tokenizer], cache: Path, *, seed: int, task: str
) -> tuple[PreparedData, list[EncodedData]] | None:
    """What `prepare` and `encode` left in `cache`; None unless all of it is there, or where to look takes long."""
    here = sources.local(data, cache)
    if not _quickly_digested(here):
        return None
    folder = _place(here, task, seed, cache).folder
    facts = folders.read(folder)
    encoded = [folders.read(_tokens(folder, config)) for config in configs]
    if facts is None or None in encoded:
        return None
    prepared = PreparedData._of(folder, {**facts, "source": data.source})
    return prepared, [
        _encoded(prepared, _tokens(folder, config), made) for config, made in zip(configs, encoded, strict=True) if made
    ]


def _encoded(prepared: PreparedData, folder: Path, facts: Mapping[str, Any]) -> EncodedData:
    counts = {
        name: {column: TokenCounts(**count) for column, count in columns.items()}
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
    if config.type != "char" and hub_name(data.source):  # fetched when it is needed
        return expected, False
    data = sources.local(data, cache)
    if _quickly_digested(data) and (facts := folders.read(_tokens(_place(data, task, seed, cache).folder, config))):
        return VocabSizes(**facts["sizes"]), True
    if config.type != "char":
        return expected, False
    alphabets: list[set[str]] = [set() for _ in TASK_DATA[task].columns]
    counted = 0
    for texts in sources.beginning(data, task, seed):
        for alphabet, text in zip(alphabets, texts, strict=True):
            alphabet.update(normalized(text[:_COUNTED_CHARACTERS], config))
            counted += len(text)
        if counted >= _COUNTED_CHARACTERS:
            break
    if config.vocabulary == "separate":
        return VocabSizes(len(SPECIALS) + len(alphabets[-1]), len(SPECIALS) + len(alphabets[0])), False
    return VocabSizes(len(SPECIALS) + len(set().union(*alphabets))), False


def _learned(prepared: PreparedData, config: Tokenizer) -> dict[str, TextTokenizer]:
    train = prepared.folder / "train"
    if config.vocabulary == "separate":
        return {column: TextTokenizer.train(_Texts(train, (column,)), config) for column in prepared.columns}
    return dict.fromkeys(prepared.columns, TextTokenizer.train(_Texts(train, prepared.columns), config))


class _Texts:
    """The texts of some columns, row by row, as often as they are asked for; never all in memory."""

    def __init__(self, folder: Path, columns: Sequence[str]) -> None:
        self._folder, self._columns = folder, columns

    def __iter__(self) -> Iterator[str]:
        for rows in arrow.batches(self._folder):
            for texts in zip(*(rows[column] for column in self._columns), strict=True):
                yield from texts


class _Encoder:
    """Appends the tokens of rows to a split, and counts them. Used as a context manager."""

    def __init__(self, folder: Path, tokenizers: Mapping[str, TextTokenizer]) -> None:
        self._tokenizers = tokenizers
        self._writer = TokenWriter(folder, tuple(tokenizers), max(one.vocab_size for one in tokenizers.values()))
        self.counts = dict.fromkeys(tokenizers, TokenCounts(0, 0, 0))

    def __enter__(self) -> _Encoder:
        self._writer.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._writer.__exit__(*exception)

    def append(self, rows: Mapping[str, list[Any]]) -> None:
        ids = {column: tokenizer.encode_batch(rows[column]) for column, tokenizer in self._tokenizers.items()}
        self._writer.append(rows["id"], ids)
        for column, tokenizer in self._tokenizers.items():
            before = self.counts[column]
            self.counts[column] = TokenCounts(
                before.tokens + sum(map(len, ids[column])),
                before.unknown + sum(row.count(UNK) for row in ids[column]),
                before.unknown_characters + sum(map(tokenizer.unknown_characters, rows[column], ids[column])),
            )


def _quickly_digested(data: DataSpec) -> bool:
    """Whether the content's digest, which the place in a cache follows from, is known within a second."""
    if data.source.startswith("builtin/"):
        return True
    try:
        held = [path for place in sources.places(data).values() for path in sources.files(place)]
        whole = (one for path in held for one in (path.rglob("*") if path.is_dir() else [path]))
        return sum(one.stat().st_size for one in whole) <= _DIGESTED_BYTES
    except (OSError, DataError):
        return True  # reading it says what is wrong


class _Place(NamedTuple):
    folder: Path
    fingerprint: str
    origin: dict[str, Any]


def _made_by(config: Tokenizer) -> dict[str, Any]:
    sized = config.type in GOES_WITH["data.tokenizer.vocab_size"][1]
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
    shares = {"validation": _amount(data.split.validation), "test": _amount(data.split.test)}
    split = {**shares, "group_by": data.split.group_by}
    fingerprint = _digest({"format": _FORMAT, "origin": origin, "split": split, "seed": seed})
    return _Place(cache / fingerprint[:20], fingerprint, origin)


class _Preparation:
    """The texts of a source on their way to a folder: read once into one file, then parted into the splits."""

    def __init__(self, data: DataSpec, task: str, seed: int, folder: Path, progress: Progress) -> None:
        self._data, self._task, self._seed, self._folder, self._progress = data, task, seed, folder, progress
        self._columns = TASK_DATA[task].columns
        self._by_bytes = TASK_DATA[task].documents
        self._ledger = Ledger(folder / "ledger", seed)
        self._tally = Tally()

    def run(self) -> dict[str, Any]:
        """Read, part, and say what there is."""
        self._read()
        given = sources.given_splits(self._data)
        data, count = self._data, self._ledger.count
        refuse(self._tally.findings, count, data.max_bad_share, data.source, lines=self._tally.lines)
        made = self._ledger.assign(
            validation=None if "validation" in given else _amount(data.split.validation),
            test=None if "test" in given else _amount(data.split.test),
            place=data.source,
            unit="documents" if self._by_bytes else "pairs",
        )
        if made.duplicates:
            self._tally.add("examples that stood before", "kept", "", made.duplicates)
        if made.shared:
            self._tally.add("training examples that share a text with a given split", "kept", "", made.shared)
        if made.in_both:
            self._tally.add("examples of two given splits that share a text", "kept", "", made.in_both)
        facts = self._part(made)
        shutil.rmtree(self._folder / "ledger")
        (self._folder / "read").unlink()
        findings = self._tally.findings
        return {
            **facts,
            "left_out": sum(one.count for one in findings if one.fate == "left out"),
            "columns": self._columns,
            "findings": [one.to_dict() for one in findings],
            "lines": self._tally.lines,
        }

    def _read(self) -> None:
        total = sources.size_bytes(self._data)
        done = 0
        with arrow.Writer(self._folder / "read", self._columns) as writer:
            found = sources.examples(self._data, self._task, self._seed, self._tally)
            for number, example in enumerate(found):
                size = sum(len(text.encode()) for text in example.texts)
                self._ledger.append(example.keys, size if self._by_bytes else 1, example.split)
                writer.append(number, example.texts)
                done += size
                if number % _TOLD_EVERY == 0:
                    self._progress("reading", min(done / total, 1.0) if total else math.nan)

    def _part(self, made: Assignment) -> dict[str, Any]:
        from pyarrow import compute

        digests = {name: TextsDigest() for name in ("validation", "test")}
        text_bytes = dict.fromkeys(SPLITS, 0)
        with contextlib.ExitStack() as stack:
            writers = {}
            for name in SPLITS:
                (self._folder / name).mkdir()
                path = self._folder / name / arrow.FILE
                writers[name] = stack.enter_context(arrow.Writer(path, self._columns))
            done = 0
            for batch in arrow.record_batches(self._folder / "read"):
                codes = made.codes[done : done + batch.num_rows]
                for code, name in enumerate(SPLITS):
                    part = batch.filter(codes == code)
                    writers[name].append_batch(part)
                    for column in self._columns:
                        text_bytes[name] += compute.sum(compute.binary_length(part[column])).as_py() or 0
                    if name in digests:
                        digests[name].add(zip(*(part[column].to_pylist() for column in self._columns), strict=True))
                done += batch.num_rows
                self._progress("splitting", done / len(made.codes))
        return {
            "validation_fingerprint": digests["validation"].hexdigest(),
            "test_fingerprint": digests["test"].hexdigest(),
            "examples": made.counts,
            "text_bytes": text_bytes,
        }


class TextsDigest:
    """SHA-256 of texts in their order, as of the JSON list of their lists."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b"[")
        self._between = b""

    def add(self, examples: Iterable[Sequence[str]]) -> None:
        """The next examples."""
        for texts in examples:
            self._digest.update(self._between + json.dumps(texts, ensure_ascii=False).encode())
            self._between = b", "

    def hexdigest(self) -> str:
        """Of all of them; more may follow."""
        whole = self._digest.copy()
        whole.update(b"]")
        return whole.hexdigest()


def _amount(held_back: float | str) -> float | None:
    """A share or a number of examples; None for a split that is given."""
    return None if isinstance(held_back, str) else held_back


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
