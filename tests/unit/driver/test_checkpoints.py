"""Checkpoints: whole or not there; the best and the newest stay."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.checkpoints import Checkpoint, Facts

SAVE_HALF = """
import sys, time
from pathlib import Path
from tuneyard_pipelines.checkpoints import Facts, save

def write(path):
    with path.open("wb") as out:
        out.write(b"half")
        out.flush()
        print("half", flush=True)
        time.sleep(60)

save(Path(sys.argv[1]), Facts(20, 20, 20, 0.2, 0.9, {}), write)
"""


def save(trial: Path, step: int, score: float | None, *, attempt: int = 1) -> Checkpoint:
    facts = Facts(step, position=step + 1, tokens=10 * step, share=step / 100, score=score, metrics={"val/loss": 1.5})
    return checkpoints.save(
        trial / f"a{attempt}" / "checkpoints", facts, lambda path: path.write_bytes(b"weights %d" % step) and None
    )


def steps(trial: Path) -> list[int]:
    return [checkpoint.facts.step for checkpoint in checkpoints.whole(trial)]


def test_what_was_saved_is_found_with_its_facts(tmp_path: Path) -> None:
    saved = save(tmp_path, 10, 0.5)
    assert checkpoints.whole(tmp_path) == [saved]
    assert saved.state.read_bytes() == b"weights 10"
    assert saved.facts == Facts(10, 11, 100, 0.1, 0.5, {"val/loss": 1.5})
    assert sorted(path.name for path in saved.path.iterdir()) == ["manifest.json", "state.ckpt"]


def test_the_order_is_by_step_over_all_attempts(tmp_path: Path) -> None:
    for step, attempt in ((30, 1), (10, 2), (1_000_000_000, 1), (20, 10)):
        save(tmp_path, step, None, attempt=attempt)
    assert steps(tmp_path) == [10, 20, 30, 1_000_000_000]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no state", "no manifest", "torn manifest", "odd manifest"])
def test_r9_a_damaged_newest_is_skipped_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    whole = save(tmp_path, 10, 0.5)
    newest = save(tmp_path, 20, 0.9, attempt=2)
    manifest = newest.path / "manifest.json"
    match damage:
        case "truncated":
            newest.state.write_bytes(newest.state.read_bytes()[:-1])
        case "flipped":
            newest.state.write_bytes(b"Weights 20")
        case "no state":
            newest.state.unlink()
        case "no manifest":
            manifest.unlink()
        case "torn manifest":
            manifest.write_text(manifest.read_text()[:-5])
        case "odd manifest":
            manifest.write_text('{"facts": {}}')
    with caplog.at_level(logging.WARNING, "tuneyard_pipelines"):
        assert checkpoints.whole(tmp_path) == [whole]
    assert [record.getMessage() for record in caplog.records if str(newest.path) in record.getMessage()]
    checkpoints.prune(tmp_path, "max", 9)
    assert not newest.path.exists()
    assert steps(tmp_path) == [10]


def test_a_process_killed_while_it_saves_leaves_nothing_that_counts(tmp_path: Path) -> None:
    before = save(tmp_path, 10, 0.5)
    folder = tmp_path / "a1" / "checkpoints"
    process = subprocess.Popen([sys.executable, "-c", SAVE_HALF, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    process.kill()
    process.communicate()
    assert checkpoints.whole(tmp_path) == [before]
    assert len(list(folder.iterdir())) == 2
    checkpoints.prune(tmp_path, "max", 9)
    assert list(folder.iterdir()) == [before.path]
    assert save(tmp_path, 20, 0.9) in checkpoints.whole(tmp_path)


def test_a_save_that_fails_takes_no_room(tmp_path: Path) -> None:
    before = save(tmp_path, 10, 0.5)

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        checkpoints.save(tmp_path / "a1" / "checkpoints", Facts(20, 20, 20, 0.2, 0.9, {}), full)
    assert list((tmp_path / "a1" / "checkpoints").iterdir()) == [before.path]


def test_a_step_saved_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    save(tmp_path, 10, 0.5).state.write_bytes(b"damaged")
    again = save(tmp_path, 10, 0.6)
    assert checkpoints.whole(tmp_path) == [again]


@pytest.mark.parametrize("worst", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_r3_r4_without_a_finite_score_it_is_never_the_best(
    tmp_path: Path, mode: checkpoints.Literal[min, max], worst: float | None
) -> None:
    save(tmp_path, 10, worst)
    assert checkpoints.best(checkpoints.whole(tmp_path), mode) is None
    only = save(tmp_path, 20, -3.0)
    save(tmp_path, 30, worst)
    assert checkpoints.best(checkpoints.whole(tmp_path), mode) == only


def test_r17_zero_and_negative_scores_are_ranked(tmp_path: Path) -> None:
    for step, score in ((10, -1.0), (20, 0.0), (30, -2.0), (40, 1.0)):
        save(tmp_path, step, score)
    found = checkpoints.whole(tmp_path)
    best, least = checkpoints.best(found, "max"), checkpoints.best(found, "min")
    assert best is not None
    assert least is not None
    assert (best.facts.step, least.facts.step) == (40, 30)
    zero = checkpoints.best(found[:3], "max")
    assert zero is not None
    assert zero.facts.step == 20


@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_newest_of_equals_is_the_best(tmp_path: Path, mode: checkpoints.Literal[min, max]) -> None:
    for step in (10, 30, 20):
        save(tmp_path, step, 0.0)
    best = checkpoints.best(checkpoints.whole(tmp_path), mode)
    assert best is not None
    assert best.facts.step == 30


def test_pruning_keeps_the_best_and_the_newest_over_attempts(tmp_path: Path) -> None:
    save(tmp_path, 10, 0.1)
    save(tmp_path, 20, 0.9)
    save(tmp_path, 30, None)
    save(tmp_path, 40, 0.2, attempt=2)
    save(tmp_path, 50, None, attempt=3)
    checkpoints.prune(tmp_path, "max", 9)
    assert steps(tmp_path) == [20, 50]
    checkpoints.prune(tmp_path, "max", 9)
    assert steps(tmp_path) == [20, 50]
    checkpoints.prune(tmp_path / "nothing", "max", 9)


def test_pruning_leaves_what_a_later_attempt_is_writing(tmp_path: Path) -> None:
    """An orphan of a dead driver may still prune while the next attempt saves."""
    save(tmp_path, 10, 0.5)
    half = {attempt: tmp_path / f"a{attempt}" / "checkpoints" / ".00000020.7" for attempt in (1, 2, 3)}
    for folder in half.values():
        folder.mkdir(parents=True)
    checkpoints.prune(tmp_path, "max", 2)
    assert [attempt for attempt, folder in half.items() if folder.exists()] == [3]
    assert steps(tmp_path) == [10]
