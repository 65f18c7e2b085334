"""Room for checkpoints: the limit holds at every step, and what is needed stays."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tuneyard_pipelines import checkpoints, promotion, quota
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import (
    AttemptStarted,
    Journal,
    LegEnded,
    LegStarted,
    SweepFolder,
    TrialCreated,
    TrialEnded,
)

MakeFolder = Callable[..., SweepFolder]
EACH = 200_000  # bytes of a checkpoint, its manifest included
LIMIT = "budget.checkpoint_bytes=2MB"

SAVE = """
import os, sys
from pathlib import Path
from tuneyard_pipelines import checkpoints, quota
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.journal import SweepFolder
folder, trial = SweepFolder(Path(sys.argv[1])), sys.argv[2]
spec = folder.header().spec
def used():
    try:
        walked = [(path, names) for path, _, names in os.walk(folder.path / "trials", onerror=again)]
        return sum(os.stat(os.path.join(path, name)).st_size for path, names in walked for name in names)
    except FileNotFoundError:  # another trial renamed or removed one
        return used()
def again(error):
    raise error
def write(path):
    with quota.room(folder, spec, 200_000):
        path.write_bytes(bytes(199_000))
        print(used(), flush=True)
sys.stdin.readline()
for step in range(1, 21):
    checkpoints.save(folder.attempt(trial, 1) / "checkpoints", Facts(step, 1, 1, step / 20, float(step), {}), write)
    checkpoints.prune(folder.trial(trial), "max", 1)
"""


class Saving:
    """A sweep whose trials save checkpoints under the quota, as the trials' processes do; its size is always known."""

    def __init__(self, folder: SweepFolder, each_bytes: int = EACH) -> None:
        self.each_bytes = each_bytes
        self.folder, self.journal, self.spec = folder, Journal(folder), folder.header().spec
        self.journal.append(AttemptStarted(1, 0, "node-1", {}, {}))
        self.largest_bytes = 0

    @property
    def used_bytes(self) -> int:
        walked = os.walk(self.folder.path / "trials")
        return sum(os.stat(os.path.join(path, name)).st_size for path, _, names in walked for name in names)

    def start(self, number: int, variant: str = "") -> str:
        trial = f"t{number:03d}"
        self.journal.append(TrialCreated(trial, number, "", {}, 0, variant))
        self.journal.append(LegStarted(trial, 1, 0, 0))
        return trial

    def save(self, trial: str, step: int, score: float | None, amount_bytes: int = 0) -> None:
        amount_bytes = amount_bytes or self.each_bytes

        def write(path: Path) -> None:
            with quota.room(self.folder, self.spec, amount_bytes):
                path.write_bytes(bytes(amount_bytes - 1000))
                self.largest_bytes = max(self.largest_bytes, self.used_bytes)

        facts = Facts(step, step, step, step / 4, score, {})
        checkpoints.save(self.folder.attempt(trial, 1) / "checkpoints", facts, write)
        checkpoints.prune(self.folder.trial(trial), "max", 1)

    def reach(self, trial: str, rung: int, share: float, score: float | None) -> None:
        self.journal.append(LegEnded(trial, 1, rung, share, 1, 1, score, {}, 0))

    def end(self, trial: str, outcome: str) -> None:
        self.journal.append(TrialEnded(trial, outcome, "", 0))

    def steps(self, trial: str) -> list[int]:
        return sorted(int(path.parent.name) for path in self.folder.trial(trial).glob("a1/checkpoints/*/manifest.json"))

    @property
    def keeping(self) -> set[str]:
        return {trial for trial in self.journal.state.trials if self.steps(trial)}


def test_r18_a_hundred_trials_never_pass_the_quota_and_lose_nothing_that_is_needed(make_folder: MakeFolder) -> None:
    """Three at once; a checkpoint at each of three steps, of which a trial's best and last are kept."""
    sweep = Saving(make_folder(LIMIT, "search.trials=100"))
    chance = random.Random(18)
    running: dict[str, list[tuple[int, float]]] = {}
    began = 0
    while began < 100 or running:
        if began < 100 and len(running) < 3:
            began += 1
            running[sweep.start(began)] = []
            continue
        trial = chance.choice(list(running))
        seen = running[trial]
        seen.append((len(seen) + 1, round(chance.random(), 3)))
        sweep.save(trial, *seen[-1])
        assert sweep.largest_bytes <= 2_000_000
        for name, made in running.items():
            best = max(made, key=lambda entry: entry[1], default=(0, 0.0))
            assert sweep.steps(name) == sorted({best[0], len(made)} - {0}), "the best and the last of all that run"
        leader = promotion.best_so_far(sweep.journal.state.trials, "max")
        assert leader is None or sweep.steps(leader.id), "the best trial's"
        if len(seen) == 3:
            score = max(score for _, score in running.pop(trial))
            outcome = chance.choice(["completed", "completed", "completed", "stopped_early", "error"])
            if outcome == "error":
                sweep.end(trial, outcome)
                continue
            share = {"completed": (2, 1.0), "stopped_early": (0, 1 / 9)}[outcome]
            sweep.reach(trial, *share, score)
            sweep.end(trial, outcome)
    assert 1_600_000 < sweep.largest_bytes <= 2_000_000, "and what there is is used"
    assert len(sweep.keeping) <= 10
    winner = promotion.winner(sweep.journal.state.trials, "max")
    assert winner is not None
    assert sweep.steps(winner.id)


def test_r18_failed_trials_go_first_then_beaten_ones_then_those_that_wait_the_worst_first(
    make_folder: MakeFolder,
) -> None:
    sweep = Saving(make_folder("budget.checkpoint_bytes=1400KB"))
    for number in range(1, 8):
        sweep.save(sweep.start(number), 1, 0.5)
    for trial, rung, share, score, outcome in [
        ("t001", 2, 1.0, 0.9, "completed"),  # the best
        ("t002", 0, 1 / 9, 0.2, None),
        ("t003", 2, 1.0, 0.8, "completed"),
        ("t004", 1, 1 / 3, 0.7, None),
        ("t005", 2, 1.0, 0.4, "completed"),
        ("t006", 0, 1 / 9, None, "diverged"),
    ]:
        sweep.reach(trial, rung, share, score)
        if outcome:
            sweep.end(trial, outcome)
    assert sweep.keeping == {f"t00{number}" for number in range(1, 8)}
    gone = []
    for step in range(2, 7):
        before = sweep.keeping
        sweep.save("t007", step, float(step))
        gone += sorted(before - sweep.keeping)
        trial = sweep.start(100 + step)
        before = sweep.keeping
        if step < 6:
            sweep.save(trial, 1, 0.1)
        gone += sorted(before - sweep.keeping)
    assert gone[:5] == ["t006", "t005", "t003", "t002", "t004"]
    assert sweep.steps("t001"), "the best one's stay"


def test_r18_a_leg_that_runs_again_keeps_what_it_goes_on_from(make_folder: MakeFolder) -> None:
    sweep = Saving(make_folder("budget.checkpoint_bytes=1500KB"), 500_000)
    waiting, again, best = (sweep.start(number) for number in (1, 2, 3))
    for trial, score in ((waiting, 0.5), (again, 0.1), (best, 0.9)):
        sweep.save(trial, 1, score)
        sweep.reach(trial, 0, 1 / 9, score)
    sweep.journal.append(LegStarted(again, 1, 1, 0))
    sweep.save(again, 2, 0.2)
    assert sweep.keeping == {again, best}, "though it is the worst of all"


def test_r18_a_quota_that_is_too_small_says_what_to_do(make_folder: MakeFolder) -> None:
    sweep = Saving(make_folder("budget.checkpoint_bytes=1250KB"), 500_000)
    first, second = sweep.start(1), sweep.start(2)
    sweep.save(first, 1, 0.1)
    sweep.save(second, 1, 0.1)
    used_bytes = sweep.used_bytes
    with pytest.raises(TuneyardError) as caught:
        sweep.save(first, 2, 0.2)
    assert str(caught.value) == (
        f"budget.checkpoint_bytes: 1250KB is too little: a checkpoint of 500,000 bytes does not fit beside the "
        f"{used_bytes:,} bytes of running trials and of the best; raise it, or lower search.max_concurrent_trials"
    )
    assert sweep.used_bytes == used_bytes, "half a checkpoint is not left behind"
    assert (sweep.steps(first), sweep.steps(second)) == ([1], [1])


def test_r18_a_checkpoint_larger_than_the_quota_takes_nothing_from_those_that_run(make_folder: MakeFolder) -> None:
    sweep = Saving(make_folder("budget.checkpoint_bytes=1250KB"), 500_000)
    trial = sweep.start(1)
    sweep.save(trial, 1, 0.1)
    with pytest.raises(TuneyardError, match=r"a checkpoint of 1,250,001 bytes does not fit"):
        sweep.save(trial, 2, 0.1, amount_bytes=1_250_001)
    assert sweep.steps(trial) == [1]


def test_without_a_quota_nothing_goes(make_folder: MakeFolder) -> None:
    sweep = Saving(make_folder())
    for number in range(1, 30):
        trial = sweep.start(number)
        sweep.save(trial, 1, 0.1)
        sweep.reach(trial, 0, 1 / 9, 0.1)
    assert len(sweep.keeping) == 29
    assert not (sweep.folder.path / "checkpoints.lock").exists()


def test_r18_variants_share_the_quota(make_folder: MakeFolder) -> None:
    """Each is judged by its own rungs: 1/3 of the one ladder is further than 1/9 of the other."""
    variants = "variants={a: {}, b: {model: {num_heads: 2, num_layers: 1, sequence_length: 24}}}"
    sweep = Saving(make_folder("budget.checkpoint_bytes=1500KB", variants, "search.trials=10"), 500_000)
    low, high, best = sweep.start(1, "a"), sweep.start(2, "a"), sweep.start(3, "b")
    for trial, rung, share, score in ((low, 0, 1 / 9, 0.6), (high, 1, 1 / 3, 0.4), (best, 0, 1.0, 0.9)):
        sweep.save(trial, 1, score)
        sweep.reach(trial, rung, share, score)
    sweep.end(best, "completed")
    new = sweep.start(4, "b")
    sweep.save(new, 1, 0.1)
    assert sweep.keeping == {high, best, new}


def test_r18_several_processes_at_once_keep_to_the_quota(make_folder: MakeFolder) -> None:
    """Four trials at once that hold up to three checkpoints each for a moment, beside old ones that may go."""
    sweep = Saving(make_folder("budget.checkpoint_bytes=2600KB"))
    for number in range(1, 11):
        trial = sweep.start(number)
        sweep.save(trial, 1, 0.1)
        sweep.reach(trial, 0, 1 / 9, number / 10)
    trials = [sweep.start(number) for number in range(11, 15)]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVE, str(sweep.folder.path), trial],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for trial in trials
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    seen = []
    for writer in writers:
        out, err = writer.communicate()
        assert err == ""
        assert writer.returncode == 0
        seen += [int(line) for line in out.split()]
    assert len(seen) == 80
    assert max(seen) <= 2_600_000
    assert [sweep.steps(trial) for trial in trials] == [[20]] * 4
    assert sweep.steps("t010") == [1], "the best so far"
    assert sweep.used_bytes <= 2_600_000
