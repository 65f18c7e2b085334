"""Where files may lie that a spec of the queue names, asked at the submit and once more by its driver."""

from __future__ import annotations

from pathlib import Path

import pytest
from driven_sweep import SPEC

from tuneyard import dispatcher, local
from tuneyard.roots import OutsideError
from tuneyard_pipelines.journal import SweepFolder


@pytest.mark.parametrize("named", ["a.csv", "*.csv", ""])
def test_a_driver_reads_no_file_that_became_a_link_to_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    data, home = tmp_path / "data", tmp_path / ".tuneyard"
    data.mkdir()
    (tmp_path / "secret.csv").write_text("text,target\na,b\n")
    (data / "a.csv").symlink_to(tmp_path / "secret.csv")
    read = "columns: {source: text, target: target}" + (", header: true" if named else "")
    folder = SweepFolder(home / "sweeps" / "5eed0001")
    folder.path.mkdir(parents=True)
    folder.submitted.write_text(
        SPEC.replace("source: builtin/dates, examples: 200", f"source: '{data}/{named}', {read}")
    )
    monkeypatch.setenv("TUNEYARD_DATA_ROOTS", str(data))
    with pytest.raises(OutsideError, match=r"data\.source: .* is outside what this service reads"):
        local.drive_queued(folder, home, None, lambda folder: None)


def test_the_dispatcher_tells_drivers_where_files_may_lie(tmp_path: Path) -> None:
    told = {"TUNEYARD_HOME": str(tmp_path / "home"), "TUNEYARD_DATA_ROOTS": str(tmp_path)}
    store, ray, how = dispatcher.configured(told)
    store.close()
    ray.close()
    assert how.environment == {"TUNEYARD_DATA_ROOTS": str(tmp_path)}
