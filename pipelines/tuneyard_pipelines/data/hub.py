"""Data sets of the Hugging Face hub, and local folders laid out like one: fetched as files, read without running code.

    resolve    name, revision -> commit               asks the hub, unless the revision is a commit
    fetch      name, revision -> folder of a commit   asks it, too, for what the cache lacks
    identity   folder -> commit or digest             reads files only
    look       folder, config -> configs, splits      reads files only
    rows       folder, config, columns -> texts       reads files only

Which file belongs to which split, and which configs there are, follows from the names of the files or from the README,
as the hub itself reads them. Nothing but data files is fetched or read, and none from outside the folder.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from tuneyard_pipelines.data import arrow
from tuneyard_pipelines.data.errors import DataError
from tuneyard_pipelines.errors import UNWRITABLE, UnreachableError, first_line
from tuneyard_pipelines.spec_yaml import shown_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

COMMIT = re.compile(r"[0-9a-f]{40}")
KINDS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".txt")
_CARDS = ("README.md", ".huggingface.yaml")
_FILES = (*KINDS, *(f"{kind}.gz" for kind in KINDS))
_SPLITS = {
    word: split
    for split, words in {
        "train": ("train", "training"),
        "validation": ("validation", "valid", "val", "dev"),
        "test": ("test", "testing", "eval", "evaluation"),
    }.items()
    for word in words
}
_NOT_THERE = "no such data set, or a private one. Look at its name and at HF_TOKEN."


@dataclass(frozen=True)
class Layout:
    """What a folder holds: the config that is read and all there are, and which of its splits is which of ours.

    A split that is none of ours maps to None and is not read. Where there is one split only, it is no split at all:
    `whole` is true, and its examples are still to be split. `columns` are those of a row, a nested one as `name.part`,
    which stands in `name` of `top_columns`.
    """

    config: str
    configs: tuple[str, ...]
    splits: dict[str, str | None]
    whole: bool
    columns: tuple[str, ...]
    top_columns: tuple[str, ...]


class Row(NamedTuple):
    """One row: the split that it is given to (None for none), its place, and the texts that were asked for."""

    split: str | None
    place: str
    texts: tuple[str, ...]


def resolve(name: str, revision: str) -> str:
    """The commit, 40 hexadecimal digits, that `revision` (branch, tag or commit) of OWNER/NAME is now.

    Raises UnreachableError if the hub does not answer, DataError if it does not have that.
    """
    if COMMIT.fullmatch(revision):
        return revision
    hub = _hub()
    with _explained(name, revision):
        return str(hub.HfApi().dataset_info(name, revision=revision).sha)


def fetch(name: str, revision: str, cache: Path) -> Path:
    """The folder, named by the commit, of the data files and the README of OWNER/NAME; kept in `cache`.

    A commit that is whole in `cache` is not asked for again. Raises UnreachableError and DataError as `resolve` does.
    """
    hub = _hub()
    try:
        commit = resolve(name, revision)
    except UnreachableError as error:
        raise UnreachableError(f"{error}{_kept(name, cache)}") from None
    with _explained(name, revision):
        patterns = [pattern for kind in _FILES for pattern in (f"*{kind}", f"*{kind.upper()}")]
        found = hub.snapshot_download(
            name, repo_type="dataset", revision=commit, cache_dir=cache, allow_patterns=[*patterns, "README.md"]
        )
    return Path(found)


def identity(folder: Path) -> str:
    """What makes a folder unique: the commit that was fetched into it, or a digest of all that `rows` could read."""
    if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name):
        return folder.name
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.name in _CARDS or path.name.lower().endswith(_FILES)):
        if path.is_file():
            digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def look(folder: Path, config: str | None = None) -> Layout:
    """What `folder` holds, by its README and the names of its files. Raises DataError if it holds nothing to read."""
    with _reading(folder) as scratch:
        return _open(folder.resolve(), config, scratch)[0]


def rows(folder: Path, config: str | None, columns: Sequence[str]) -> Iterator[Row]:
    """The texts of `columns` in each row, in the order of the files.

    A text that is missing is "". Raises DataError for a folder that `look` refuses, for a column that is missing or
    holds no text, and for a file that cannot be read.
    """
    with _reading(folder) as scratch:
        layout, splits = _open(folder.resolve(), config, scratch, columns)
        if missing := [column for column in columns if column not in layout.columns]:
            there = ", ".join(layout.columns)
            raise DataError(f"data.columns: {folder} has no column {shown_value(missing[0])}; it has {there}")
        tops = [column if column in layout.top_columns else column.partition(".")[0] for column in columns]
        for theirs, ours in layout.splits.items():
            if ours is None and not layout.whole:
                continue
            for number, row in enumerate(splits[theirs].select_columns(list(dict.fromkeys(tops))), start=1):
                place = f"{folder}: row {number} of {theirs}"
                yield Row(None if layout.whole else ours, place, tuple(_text(row, name, place) for name in columns))


def _open(folder: Path, config: str | None, scratch: str, columns: Sequence[str] = ()) -> tuple[Layout, dict[str, Any]]:
    datasets = _datasets()
    from datasets.packaged_modules.json import json

    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    if (script := folder / f"{folder.name}.py").exists():
        raise DataError(f"{script}: the code of a data set is not run; put its data files into a folder of their own")
    _refuse_outside(folder, _named_in_cards(folder))
    names = tuple(datasets.get_dataset_config_names(str(folder)))
    builder = datasets.load_dataset_builder(str(folder), _config(folder, config, names), cache_dir=scratch)
    files = [file for held in (builder.config.data_files or {}).values() for file in held]
    if strange := [file for file in files if not file.lower().endswith(_FILES)]:
        raise DataError(
            f"{strange[0]}: no file of texts; of a data set, {' '.join(KINDS)} are read, packed by gz or not"
        )
    if isinstance(builder, json.Json):
        # Of what looks like a date, the library would make a time of day, and call that a string.
        builder.info.features = builder.config.features = None
    features = builder.config.features or builder.info.features
    if hasattr(builder.config, "keep_default_na"):
        builder.config.keep_default_na = False  # else the text "NA" is none at all
        builder.config.converters = None if features else dict.fromkeys(columns, str)  # else "007" is seven
    splits = builder.as_streaming_dataset()
    ours = {name: _SPLITS.get(name.lower()) for name in splits}
    if len(ours) > 1 and "train" not in ours.values():
        raise DataError(f"{folder}: no split to train on; there is {', '.join(ours)}: call one of them train")
    row: dict[str, Any] = features or next(iter(next(iter(splits.values()))), {})
    if any(name.startswith("__index_level_") for name in row):
        raise DataError(f"{folder}: rows with more fields than the header of their file has")
    nested = ([f"{name}.{part}" for part in _parts(held)] if _parts(held) else [name] for name, held in row.items())
    return Layout(
        config=builder.config.name,
        configs=names,
        splits=ours,
        whole=len(ours) == 1,
        columns=tuple(name for group in nested for name in group),
        top_columns=tuple(row),
    ), splits


def _config(folder: Path, config: str | None, names: tuple[str, ...]) -> str | None:
    if config is not None and config not in names:
        raise DataError(f"data.config: {folder} has no config {shown_value(config)}; it has {', '.join(names)}")
    default = _datasets().get_dataset_default_config_name(str(folder))
    if config is None and default is None and len(names) > 1:
        raise DataError(f"data.config: {folder} has several and no default; name one of {', '.join(names)}")
    return config or default


def _named_in_cards(folder: Path) -> Iterator[str]:
    """Every place of files that the data set itself names, before anything looks there."""
    readme, plain = (folder / name for name in _CARDS)
    for configs in (
        _hub().DatasetCard.load(readme).data.get("configs") if readme.is_file() else None,
        (yaml.safe_load(plain.read_text(encoding="utf-8")) or {}).get("configs") if plain.is_file() else None,
    ):
        for config in configs or ():
            yield from _words(config.get("data_files"))
            yield from _words(config.get("data_dir"))


def _words(held: Any) -> Iterator[str]:
    if isinstance(held, str):
        yield held
    elif isinstance(held, dict):
        yield from _words(held.get("path"))
    elif isinstance(held, list):
        for one in held:
            yield from _words(one)


def _refuse_outside(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        path = Path(os.path.normpath(folder / name))
        if "://" in name or "::" in name or not path.is_relative_to(folder):
            raise DataError(f"{folder}: names the data file {shown_value(name)}, which lies elsewhere and is not read")


def _parts(held: Any) -> list[str]:
    """The parts of a nested column, from its feature or from a value: {de: ..., en: ...}, or a translation of these."""
    if type(held).__name__ == "Translation":
        return list(held.languages)
    return list(held) if isinstance(held, dict) else []


def _text(row: dict[str, Any], column: str, place: str) -> str:
    top, _, part = column.partition(".")
    value = row[column] if column in row else (row[top] or {}).get(part)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(
            f"{place}: {column} is {shown_value(str(value))}, of type {type(value).__name__}, and no text. Name "
            "columns of texts in data.columns; what looks like a date in .json is one: keep it in .csv or .parquet."
        )
    return value


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[str]:
    """A scratch folder for the library, and whatever it raises for what it cannot read in our words."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            yield scratch
    except (DataError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            raise
        raise DataError(
            f"{folder}: cannot be read as a data set ({type(error).__name__}: {first_line(error)})"
        ) from error
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()  # a table that is not read to its end, the library leaves open


@contextlib.contextmanager
def _explained(name: str, revision: str) -> Iterator[None]:
    """What the hub answered, or why it did not, in our words."""
    hub = _hub()
    try:
        yield
    except Exception as error:
        cause = error.__cause__ if isinstance(error, hub.errors.LocalEntryNotFoundError) and error.__cause__ else error
        raise _told(cause, hub, name, revision) from error


def _told(error: BaseException, hub: Any, name: str, revision: str) -> Exception:
    where = f"hub/{name} at {hub.constants.ENDPOINT}"
    match error:
        case hub.errors.RevisionNotFoundError():
            return DataError(
                f"data.revision: {where} has no revision {shown_value(revision)}; give a branch, tag or commit"
            )
        case hub.errors.GatedRepoError():
            return DataError(f"{where}: its owner must let you in first: ask on its page, then set HF_TOKEN")
        case hub.errors.RepositoryNotFoundError() | hub.errors.HFValidationError():
            return DataError(f"{where}: {_NOT_THERE}")
        case hub.errors.HfHubHTTPError() if error.response.status_code == 401:  # said of one that is not there, too
            return DataError(f"{where}: {_NOT_THERE}")
        case hub.errors.HfHubHTTPError() if error.response.status_code == 403:
            return DataError(f"{where}: not allowed ({first_line(error)}). Look at HF_TOKEN.")
        case hub.errors.OfflineModeIsEnabled():
            return UnreachableError(f"{where}: HF_HUB_OFFLINE is set, so it is not asked. Unset it.")
        case hub.errors.HTTPError():
            return UnreachableError(f"{where}: no answer ({type(error).__name__}: {first_line(error)})")
        case OSError() if error.errno in UNWRITABLE:
            return DataError(f"{where}: its files cannot be kept here ({first_line(error)}). Make room.")
    return UnreachableError(f"{where}: cannot be fetched ({type(error).__name__}: {first_line(error)})")


def _kept(name: str, cache: Path) -> str:
    """Which commits a cache has, for one who cannot reach the hub."""
    commits = sorted(path.name for path in (cache / f"datasets--{name.replace('/', '--')}" / "snapshots").glob("*"))
    return f" To use what was fetched before, set data.revision: {' or '.join(commits)}." if commits else ""


def _hub() -> Any:
    """The hub's library, imported when it is needed, silent."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub
    import huggingface_hub.errors
    import huggingface_hub.utils

    hub: Any = huggingface_hub
    hub.utils.disable_progress_bars()
    hub.utils.logging.set_verbosity_error()
    return hub


def _datasets() -> Any:
    _hub()
    datasets = arrow.datasets_library()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # what it says is raised, too
    return datasets
