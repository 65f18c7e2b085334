"""Local sweeps as people look at them: found by the beginning of their id, and ordered by what was reached."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tuneyard import registry, sweeps
from tuneyard_pipelines import tracking
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.journal import (
    AttemptEnded,
    AttemptStarted,
    Journal,
    LegEnded,
    LegStarted,
    SweepFolder,
    TrialCreated,
    TrialEnded,
)
from tuneyard_pipelines.lease import Lease

MakeFolder = Callable[..., SweepFolder]


@pytest.fixture
def folder(make_folder: MakeFolder) -> SweepFolder:
    """Four trials: t001 reached rung 0 with 0.9, t002 and t003 rung 1 with 0.0 and 0.2, t004 failed without a score."""
    folder = make_folder()
    journal = Journal(folder)
    journal.append(AttemptStarted(1, 5, "node-1", {}, {}))
    for number, scores in enumerate([[0.9], [0.1, 0.0], [0.3, 0.2], []], start=1):
        trial = f"t00{number}"
        journal.append(TrialCreated(trial, number, f"t0{number} heads=2", {"model.num_heads": 2}, 5))
        for rung, score in enumerate(scores):
            journal.append(LegStarted(trial, 1, rung, 6))
            journal.append(LegEnded(trial, 1, rung, (rung + 1) / 9, 330, 5, score, {}, 7))
    journal.append(TrialEnded("t004", "diverged", "loss is nan", 8))
    return folder


def close(folder: SweepFolder) -> None:
    """The attempt has ended and MLflow knows everything."""
    Journal(folder).append(AttemptEnded(1, "interrupted", "stopped", 9))
    (folder.path / "shipped").write_text("1")


def test_r17_the_leaderboard_is_by_rung_then_score_and_shows_zero(folder: SweepFolder) -> None:
    close(folder)
    view = sweeps.look(folder)
    assert [row.trial for row in view.leaderboard] == ["t003", "t002", "t001", "t004"]
    assert [row.score for row in view.leaderboard] == [0.2, 0.0, 0.9, None]
    assert [row.state for row in view.leaderboard] == ["cancelled", "cancelled", "cancelled", "diverged"]
    assert view.state == "interrupted"
    assert view.counted == "3 cancelled, 1 diverged"
    assert view.best_text == "t003 val/exact_match 0.2"
    head, rows = view.leaderboard_table()
    assert head == ["trial", "heads", "tokens", "val/exact_match", "state"]
    assert rows[1] == ["t002", "2", "330", "0.0000", "cancelled"]
    assert rows[3][-1] == "diverged: loss is nan"
    assert "tuneyard sweep resume 5eed0001" in dict(view.facts())["next"]
    assert view.to_dict()["where"] == "local"


def test_a_sweep_that_is_driven_is_running(folder: SweepFolder) -> None:
    lease = Lease.take(folder.path)
    view = sweeps.look(folder)
    assert (view.state, view.warning) == ("running", "")
    (folder.path / tracking.OUTAGE).write_text('{"since_ms": 1700000000000, "reason": "503"}')
    warned = sweeps.look(folder).facts()[-1]
    assert warned[0] == "warning"
    assert warned[1].startswith("MLflow fails since 22:13:20Z; training goes on")
    assert [row.state for row in view.leaderboard] == ["waiting", "waiting", "waiting", "diverged"]
    lease.release()


def test_an_accepted_sweep_that_never_began_shows_nothing_yet(make_folder: MakeFolder) -> None:
    view = sweeps.look(make_folder())
    assert (view.leaderboard, view.counted, view.best_text, view.warning) == ((), "none", "", "")
    assert view.facts()


def test_a_sweep_is_found_by_the_beginning_of_its_id(make_folder: MakeFolder, tmp_path: Path) -> None:
    for sweep_id, created_ms in (("abc1", 1), ("abd2", 3), ("b003", 2)):
        make_folder(sweep_id=sweep_id, created_ms=created_ms)
    (tmp_path / "sweeps" / "half-made").mkdir()
    assert [folder.sweep_id for folder in sweeps.all_folders(tmp_path)] == ["abd2", "b003", "abc1"]
    assert sweeps.find(tmp_path, "b").sweep_id == "b003"
    assert sweeps.find(tmp_path, "abc1").sweep_id == "abc1"
    with pytest.raises(InputError, match="'ab': abd2, abc1 begin so; give more of the id"):
        sweeps.find(tmp_path, "ab")
    for missing in ("", "x", "half"):
        with pytest.raises(InputError, match="there are: abd2, b003, abc1"):
            sweeps.find(tmp_path, missing)


def test_where_there_is_no_sweep_it_says_so(tmp_path: Path) -> None:
    assert sweeps.all_folders(tmp_path) == []
    with pytest.raises(InputError, match="there are: none"):
        sweeps.find(tmp_path, "x")


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("dates", ("dates", "candidate", None)),
        ("dates@champion", ("dates", "champion", None)),
        ("dates/12", ("dates", None, 12)),
        ("team/dates", ("team/dates", "candidate", None)),
        ("team/dates/3", ("team/dates", None, 3)),
        ("dates@", ("dates", "", None)),
    ],
)
def test_a_model_is_named_by_alias_or_version(model: str, parts: tuple[str, str | None, int | None]) -> None:
    assert registry._parse(model) == parts
