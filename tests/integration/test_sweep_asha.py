"""A whole sweep with TPE and ASHA under real Ray: legs, promotions, an exhausted space, what MLflow shows of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines.journal import SweepFolder, SweepState

pytestmark = pytest.mark.integration

SPEC = tiny(
    model__num_heads=[1, 2, 3],
    model__sequence_length=[24, 48],
    search__algorithm="tpe",
    search__scheduler={"type": "asha", "min_share": 0.25, "reduction_factor": 2},
    search__trials=8,
    constraints=["num_heads != 3 or sequence_length > 24"],
)


@pytest.fixture(scope="module")
def ended(run: Callable[..., tuple[SweepFolder, SweepState]]) -> tuple[SweepFolder, SweepState]:
    return run(SPEC)


def test_every_feasible_point_starts_and_only_the_best_go_on(ended: tuple[SweepFolder, SweepState]) -> None:
    _, state = ended
    points = [tuple(trial.point.values()) for trial in state.trials.values()]
    assert sorted(points) == [(1, 24), (1, 48), (2, 24), (2, 48)], "16 is not divisible by 3, so those are never trials"
    reached = [trial.rung for trial in state.trials.values()]
    assert None not in reached
    assert 1 <= reached.count(2) <= 2
    for trial in state.trials.values():
        assert [leg.rung for leg in trial.legs] == list(range(len(trial.legs)))
        assert [leg.step for leg in trial.legs] == [2, 4, 8][: len(trial.legs)]
        assert trial.outcome == ("completed" if trial.rung == 2 else "stopped_early")


def test_an_exhausted_space_ends_the_sweep_and_says_so(ended: tuple[SweepFolder, SweepState]) -> None:
    _, state = ended
    assert state.ended is not None
    assert (state.ended.state, state.ended.message) == (
        "finished",
        "all 4 feasible points were tried; 8 were asked for",
    )


def test_mlflow_shows_the_outcome_the_data_and_what_was_cut_off(
    ended: tuple[SweepFolder, SweepState], mlflow_uri: str
) -> None:
    folder, state = ended
    runs = runs_of(mlflow_uri, folder)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    for trial in state.trials.values():
        run: Any = runs[trial.id]
        assert run.data.tags["tuneyard.outcome"] == trial.outcome
        assert run.info.run_name == trial.name
        cut_off = run.data.metrics["data/val_cut_off"]
        assert (cut_off > 0) == (trial.point["model.sequence_length"] == 24)
    note = runs["parent"].data.tags["mlflow.note.content"]
    assert "(#/experiments/" in note
    assert "validation" in note
    (given,) = runs["parent"].inputs.dataset_inputs
    assert given.dataset.digest == folder.header().data_fingerprint[:32]
    assert state.scored is not None
    assert {"test/exact_match", "test/bleu", "test/chrf"} <= runs[state.scored.trial].data.metrics.keys()
