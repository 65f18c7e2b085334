"""What the doctor says of homes, clocks, databases and addresses, and of machines that lack something."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from driven_sweep import DrivenSweep

from tuneyard import doctor, settings
from tuneyard.database import VERSION_TABLE, Database
from tuneyard.doctor import Finding

Cli = Callable[..., SimpleNamespace]
MakeSweep = Callable[..., DrivenSweep]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / ".tuneyard"
    home.mkdir()
    return home


def only(findings: object) -> Finding:
    (finding,) = findings  # type: ignore[attr-defined]
    assert isinstance(finding, Finding)
    return finding


def verdicts(home: Path, about: str) -> set[str]:
    return {finding.verdict for finding in doctor.examine(home, {}) if finding.about == about}


def test_a_new_machine_has_no_problem(cli: Cli, tmp_path: Path) -> None:
    done = cli("doctor", "--json")
    findings = json.loads(done.out)
    assert {finding["about"] for finding in findings} >= {"Python", "packages", "disk", "home", "database", "MLflow"}
    assert done.code == int(any(finding["verdict"] == "problem" for finding in findings))
    assert not (tmp_path / ".tuneyard").exists()


def test_a_moved_home_is_seen_and_a_link_mends_it(home: Path, make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    assert only(doctor.moved(home)).verdict == "ok"
    moved = home.rename(home.with_name("moved"))
    finding = only(doctor.moved(moved))
    assert finding.verdict == "problem"
    assert str(home) in finding.found
    assert sweep.folder.sweep_id in finding.found
    assert finding.do == f"move it back, or make {home} a link to {moved}"
    home.symlink_to(moved)
    assert only(doctor.moved(moved)).verdict == "ok"


def test_a_damaged_sweep_is_named(home: Path, make_sweep: MakeSweep) -> None:
    sweep = make_sweep()
    (sweep.folder.path / "sweep.json").write_text("{")
    finding = only(doctor.moved(home))
    assert finding.verdict == "problem"
    assert str(sweep.folder.path) in finding.do


@pytest.mark.parametrize(
    ("ahead_s", "verdict"), [(0.0, "ok"), (-1.9, "ok"), (5.0, "warning"), (-29.0, "warning"), (-30.0, "problem")]
)
def test_clocks_that_differ_are_told(home: Path, ahead_s: float, verdict: str) -> None:
    finding = doctor.clock_finding(home, ahead_s)
    assert finding.verdict == verdict
    assert bool(finding.do) == (verdict != "ok")


def test_this_machines_own_disk_has_its_clock(home: Path) -> None:
    assert only(doctor.clock(home)).verdict == "ok"
    assert list(home.iterdir()) == []


def test_a_database_is_of_this_version_of_an_older_or_of_a_newer_one(home: Path) -> None:
    file = home / settings.QUEUE
    assert "not there yet" in only(doctor.database(home, {})).found
    assert not file.exists()
    Database(f"sqlite:///{file}").migrate()
    assert only(doctor.database(home, {})).verdict == "ok"
    for version, verdict in {"0000": "warning", "9999": "problem"}.items():
        with sqlite3.connect(file) as connection:
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '{version}'")
        finding = only(doctor.database(home, {}))
        assert (finding.verdict, version in finding.found) == (verdict, True)
    file.write_text("no database at all, but a text that is long enough to be taken for one" * 20)
    assert only(doctor.database(home, {})).verdict == "problem"


def test_a_password_is_not_told(home: Path) -> None:
    finding = only(doctor.database(home, {"TUNEYARD_DATABASE": "postgresql://ann:secret@127.0.0.1:9/queue"}))
    assert finding.verdict == "problem"
    assert "secret" not in finding.found
    finding = only(doctor.mlflow(home, {"MLFLOW_TRACKING_URI": "http://ann:secret@127.0.0.1:9"}))
    assert finding.verdict == "problem"
    assert "secret" not in finding.found


def test_mlflows_database_is_looked_at_and_not_made(home: Path) -> None:
    assert only(doctor.mlflow(home, {})).verdict == "ok"
    assert list(home.iterdir()) == []
    (home / "mlflow.db").write_text("nothing of MLflow's")
    assert only(doctor.mlflow(home, {})).verdict == "problem"


def test_a_ray_that_does_not_answer_is_told(home: Path) -> None:
    assert only(doctor.ray(home, None, {})).verdict == "ok"
    assert only(doctor.ray(home, None, {"TUNEYARD_RAY": "http://127.0.0.1:9"})).verdict == "problem"


@pytest.mark.parametrize(
    ("script", "verdict", "found"),
    [
        ("echo 'NVIDIA H100, 81559 MiB'", "ok", "NVIDIA H100, 81559 MiB"),
        ("echo 'no driver' >&2; exit 9", "problem", "nvidia-smi: no driver"),
        ("exit 3", "problem", "nvidia-smi: exit code 3"),
    ],
)
def test_gpus_are_those_that_nvidia_smi_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, verdict: str, found: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    first = next(doctor.gpus())
    assert (first.verdict, first.found) == (verdict, found)


def test_what_cannot_be_looked_at_is_a_problem_and_keeps_no_other_from_being_looked_at(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "disk_usage", fails)
    assert verdicts(home, "disk") == {"problem"}
    assert verdicts(home, "Python") == {"ok"}


@pytest.mark.parametrize(
    ("loopback", "addresses"),
    [
        (True, ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"]),
        (False, ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1"]),
    ],
)
def test_addresses_that_other_machines_reach_are_told_apart(loopback: bool, addresses: list[str]) -> None:
    assert [doctor.is_loopback(address) for address in addresses] == [loopback] * len(addresses)
