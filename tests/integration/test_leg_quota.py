"""A leg of a variant under the sweep's quota: the room it needs is made among the trials of all variants."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_sweep import tiny

from tuneyard_pipelines import checkpoints, data
from tuneyard_pipelines.checkpoints import Facts
from tuneyard_pipelines.journal import AttemptStarted, Header, Journal, LegEnded, LegStarted, SweepFolder, TrialCreated
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.trial import run_leg

pytestmark = pytest.mark.integration

SPEC = tiny(
    variants={"one": {"model": {"num_heads": 1, "sequence_length": 24}}, "two": {"model": {"sequence_length": 24}}},
    budget__checkpoint_bytes="1200KB",
    resources__memory_per_worker="64GiB",  # this process holds much else
)


def test_r18_a_leg_of_a_variant_makes_room_among_all(tmp_path: Path) -> None:
    prepared = data.prepare(SPEC.data, SPEC.seed, tmp_path / "data")
    folder = SweepFolder(tmp_path / "sweeps" / "quota")
    header = Header("quota", SPEC, "text", tmp_path, prepared.folder, prepared.fingerprint, "http://127.0.0.1:9", 1, {})
    folder.create(header)
    journal = Journal(folder)
    journal.append(AttemptStarted(1, 1, "node-1", {}, {}))
    points = {"t001": {"model.num_heads": 2}, "t002": {"model.num_heads": 1}, "t003": {}}
    for number, (trial, point) in enumerate(points.items(), start=1):
        journal.append(TrialCreated(trial, number, "", point, 1, "two" if point else "one"))
    for trial, loss in (("t001", 9.0), ("t002", 1.0)):
        facts = Facts(1, 1, 1, 1.0, loss, {})
        place = folder.attempt(trial, 1) / "checkpoints"
        checkpoints.save(place, facts, lambda path: path.write_bytes(bytes(500_000)) and None)
        journal.append(LegEnded(trial, 1, 0, 1.0, 1, 1, loss, {}, 1))
    journal.append(LegStarted("t003", 1, 0, 1))
    result = run_leg(Leg(str(folder.path), "t003", {}, 1, 0, "one"))
    assert (result.outcome, result.share) == (None, 1.0), result.message
    assert [trial for trial in points if checkpoints.any_left(folder.trial(trial))] == ["t002", "t003"]
