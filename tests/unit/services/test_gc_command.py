"""`tuneyard gc`: what it says, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tuneyard.cli import app
from tuneyard.settings import size_bytes
from tuneyard_pipelines.data import folders
from tuneyard_pipelines.errors import InputError


def fill(partial: Path) -> dict[str, object]:
    (partial / "texts").write_bytes(b"x" * 3_000_000)
    return {}


def test_old_data_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNEYARD_HOME", str(tmp_path))
    for number in range(2):
        folder = tmp_path / "data" / f"{number:020x}"
        folders.build(folder, fill)
        os.utime(folder / "manifest.json", (1e6 + number, 1e6 + number))
    answer = CliRunner().invoke(app, ["gc", "--limit", "4MiB"])
    assert answer.exit_code == 0
    assert answer.stdout == f"removed 1 of prepared data, 2.9 MiB; 2.9 MiB stay in {tmp_path / 'data'}\n"
    again = CliRunner().invoke(app, ["gc", "--limit", "0", "--json"])
    assert json.loads(again.stdout)["removed"] == 1
    assert not list((tmp_path / "data").glob("0*0"))


def test_a_limit_that_is_no_amount(monkeypatch, tmp_path):
    monkeypatch.setenv("TUNEYARD_HOME", str(tmp_path))
    answer = CliRunner().invoke(app, ["gc", "--limit", "much"])
    assert isinstance(answer.exception, InputError)
    assert "--limit: found 'much'; allowed: 0, or" in str(answer.exception)
    with pytest.raises(InputError, match="TUNEYARD_CACHE_LIMIT: found '5'; allowed: "):
        size_bytes("TUNEYARD_CACHE_LIMIT", {"TUNEYARD_CACHE_LIMIT": "5"})
    assert size_bytes("TUNEYARD_CACHE_LIMIT", {}) == 50 * 2**30
