"""Prepared data may be deleted: a sweep that goes on makes it anew, if its source is still the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_sweep import tiny

from tuneyard_pipelines import data
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.journal import Header
from tuneyard_pipelines.sweep import _prepare_again

pytestmark = pytest.mark.integration


def begun(home: Path, source: Path) -> Header:
    spec = tiny(data={"source": str(source)})
    prepared = data.prepare(spec.data, spec.seed, home / "data")
    return Header("s", spec, "text", home, prepared.folder, prepared.fingerprint, "http://127.0.0.1:9", 1, {})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"word {number}\tWort {number}\n" for number in range(100)))
    return path


def test_deleted_data_is_prepared_again(tmp_path: Path, source: Path) -> None:
    header = begun(tmp_path, source)
    shutil.rmtree(tmp_path / "data")
    _prepare_again(header)
    assert data.PreparedData.open(header.data).fingerprint == header.data_fingerprint


def test_data_that_is_there_needs_no_source(tmp_path: Path, source: Path) -> None:
    header = begun(tmp_path, source)
    source.unlink()
    _prepare_again(header)


def test_another_source_is_refused(tmp_path: Path, source: Path) -> None:
    header = begun(tmp_path, source)
    shutil.rmtree(tmp_path / "data")
    source.write_text(source.read_text().replace("Wort", "Satz"))
    with pytest.raises(InputError, match="is not what sweep s began with"):
        _prepare_again(header)
