"""Texts in Arrow files: written a few at a time, read in the same parts or mapped, whatever their size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datasets
    import pyarrow

FILE = "data-00000-of-00001.arrow"
_PART_CHARACTERS = 1 << 20


class Writer:
    """Appends rows of a number and a text for each column to a file. Used as a context manager."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        import pyarrow as pa

        self._schema = pa.schema([("id", pa.int64()), *((column, pa.string()) for column in columns)])
        self._file = path.open("wb")
        self._stream = pa.ipc.new_stream(self._file, self._schema)
        self._held: list[tuple[Any, ...]] = []
        self._characters = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self._write()
            self._stream.close()
        self._file.close()

    def append(self, number: int, texts: Sequence[str]) -> None:
        """The next row."""
        self._held.append((number, *texts))
        self._characters += sum(map(len, texts))
        if self._characters >= _PART_CHARACTERS:
            self._write()

    def append_batch(self, batch: pyarrow.RecordBatch) -> None:
        """The next rows, as `record_batches` gives them."""
        if batch.num_rows:
            self._stream.write_batch(batch)

    def _write(self) -> None:
        import pyarrow as pa

        if self._held:
            columns = zip(*self._held, strict=True)
            arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
            self._stream.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._held, self._characters = [], 0


def batches(folder: Path) -> Iterator[dict[str, list[Any]]]:
    """All rows of a split by column, in the parts in which they were written; no more than one is in memory."""
    for path in _files(folder):
        for batch in record_batches(path):
            yield batch.to_pydict()


def record_batches(path: Path) -> Iterator[pyarrow.RecordBatch]:
    """The rows of one file, in the parts in which they were written."""
    import pyarrow as pa

    with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def mapped(folder: Path) -> datasets.Dataset:
    """The rows of a split, mapped into memory: id (int64) and a text (str) for each column."""
    library = datasets_library()
    parts = [library.Dataset.from_file(str(path)) for path in _files(folder)]
    return parts[0] if len(parts) == 1 else library.concatenate_datasets(parts)


def datasets_library() -> Any:
    """The datasets library, imported when it is needed (0.7 s), silent. What we ask of it needs no network."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import datasets

    datasets.disable_progress_bars()
    return datasets


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.arrow"))
