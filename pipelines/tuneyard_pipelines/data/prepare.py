"""Data made ready once and kept as Arrow files that trials map into memory: texts by split, token ids by tokenizer.

    CACHE/FINGERPRINT/          train/ validation/ test/ (id, source, target)
        tokens/TYPE-SETTINGS/   tokenizer.json, train/ validation/ test/ (id, source_ids, target_ids)

A fingerprint covers the source's content, not its path: a changed file is prepared anew, a moved one is not.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from tuneyard_pipelines.data import dates, folders, pairs
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.data.splits import SPLITS, split
from tuneyard_pipelines.data.text_tokenizer import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    import datasets
    import pyarrow

    from tuneyard_pipelines.spec import DataSpec, Tokenizer

DATES = "builtin/dates"
_FORMAT = 1
_TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class PreparedData:
    """Text pairs by split. The fingerprints are hexadecimal SHA-256; those of a split cover its texts in order."""

    folder: Path
    fingerprint: str
    validation_fingerprint: str
    test_fingerprint: str
    examples: dict[str, int]
    source: str
    left_out: int
    """Pairs of the source with an empty side."""

    @classmethod
    def open(cls, folder: Path) -> PreparedData:
        """What `prepare` left in `folder`. Raises DataError if it is missing or not whole."""
        facts = folders.read(folder)
        if facts is None:
            raise DataError(f"{folder}: no whole prepared data in this folder. Prepare the data again.")
        return cls(folder=folder, **facts)

    def split(self, name: str) -> datasets.Dataset:
        """The split `name` (train, validation, test), memory-mapped: columns id (int64), source, target (str)."""
        return _load(self.folder / name)


@dataclass(frozen=True)
class EncodedData:
    """Token ids by split, without special tokens, and the tokenizer that gave them."""

    folder: Path
    tokenizer: TextTokenizer

    def split(self, name: str) -> datasets.Dataset:
        """The split `name`, memory-mapped: columns id (int64), source_ids, target_ids (lists of int32)."""
        return _load(self.folder / name)


def prepare(data: DataSpec, seed: int, cache: Path) -> PreparedData:
    """Read or generate the pairs of `data`, split them by `seed` and keep them in a folder of `cache`.

    Found again if the content, the seed and the split are the same. Several processes may call this at once.
    Raises DataError for a source that cannot be used, a split that would be empty, or a cache that cannot be written.
    """
    origin = _origin(data)
    shares = {"validation": data.split.validation, "test": data.split.test}
    fingerprint = _digest({"format": _FORMAT, "origin": origin, "split": shares, "seed": seed})
    folder = cache / fingerprint[:20]

    def fill(partial: Path) -> dict[str, Any]:
        texts, left_out = _texts(data, seed, origin)
        positions = split(texts, **shares, seed=seed, place=data.source)
        for name in SPLITS:
            _save(partial / name, _text_table(texts, positions[name]))
        return {
            "fingerprint": fingerprint,
            "validation_fingerprint": _digest([texts[position] for position in positions["validation"]]),
            "test_fingerprint": _digest([texts[position] for position in positions["test"]]),
            "examples": {name: len(positions[name]) for name in SPLITS},
            "source": data.source,
            "left_out": left_out,
        }

    return PreparedData(folder=folder, **{**folders.build(folder, fill), "source": data.source})


def encode(prepared: PreparedData, config: Tokenizer) -> EncodedData:
    """Learn the tokenizer of `config` on the training split, source and target together, and encode every split by it.

    Kept below the prepared data's folder, with the same promises as `prepare`. Raises DataError like it.
    """
    settings = {"type": config.type, "vocab_size": config.vocab_size if config.type == "bpe" else None}
    made_by = {"format": _FORMAT, "tokenizers": tokenizers.__version__, **settings}
    folder = prepared.folder / "tokens" / f"{config.type}-{_digest(made_by)[:12]}"

    def fill(partial: Path) -> dict[str, Any]:
        train = prepared.split("train")
        tokenizer = TextTokenizer.train((text for side in ("source", "target") for text in train[side]), config)
        tokenizer.save(partial / _TOKENIZER_FILE)
        for name in SPLITS:
            _save(partial / name, _token_table(prepared.split(name), tokenizer))
        return {**made_by, "vocab_size_reached": tokenizer.vocab_size}

    folders.build(folder, fill)
    return EncodedData(folder, TextTokenizer.load(folder / _TOKENIZER_FILE))


def _origin(data: DataSpec) -> dict[str, Any]:
    if data.source == DATES:
        return {"builtin": DATES, "version": dates.VERSION, "examples": data.examples}
    if data.source.startswith("builtin/"):
        raise DataError(
            f"data.source: there is no {data.source!r}. Built in is {DATES}; other data is a path to a .tsv file."
        )
    return {"sha256": pairs.sha256(Path(data.source)), "header": data.header, **_columns(data)}


def _columns(data: DataSpec) -> dict[str, int | str]:
    return (
        {"source": 1, "target": 2}
        if data.columns is None
        else {"source": data.columns.source, "target": data.columns.target}
    )


def _texts(data: DataSpec, seed: int, origin: dict[str, Any]) -> tuple[list[tuple[str, str]], int]:
    if data.source == DATES:
        return dates.generate(data.examples, seed), 0
    found = pairs.read(Path(data.source), header=data.header, **_columns(data))
    if found.sha256 != origin["sha256"]:
        raise DataError(f"{data.source}: the file was changed while it was read. Start again once it is complete.")
    return found.pairs, found.empty


def _text_table(texts: Sequence[tuple[str, str]], positions: Sequence[int]) -> pyarrow.Table:
    import pyarrow as pa

    sides = ([texts[position][side] for position in positions] for side in (0, 1))
    columns = [pa.array(positions, pa.int64()), *(pa.array(side, pa.string()) for side in sides)]
    return pa.table(columns, names=["id", "source", "target"])


def _token_table(texts: datasets.Dataset, tokenizer: TextTokenizer) -> pyarrow.Table:
    import pyarrow as pa

    columns: dict[str, pyarrow.Array] = {"id": pa.array(texts["id"][:], pa.int64())}
    for side in ("source", "target"):
        columns[f"{side}_ids"] = pa.array(tokenizer.encode_batch(texts[side][:]), pa.list_(pa.int32()))
    return pa.table(columns)


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
