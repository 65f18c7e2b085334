"""A sweep whose trials differ in what they take of the cluster, under real Ray, on all cores there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tiny_sweep import runs_of, tiny

from tuneyard_pipelines.journal import SweepFolder, SweepState

pytestmark = pytest.mark.integration

SPEC = tiny(
    model__num_heads=[1, 2],
    model__sequence_length=24,
    training__max_steps=4,
    resources__workers=[1, 2],
    resources__memory_per_worker="2GiB",
    search__trials=4,
)


def test_trials_of_one_worker_and_of_two_all_come_to_their_end(
    run: Callable[..., tuple[SweepFolder, SweepState]], mlflow_uri: str
) -> None:
    """Each is begun once it fits beside the others on two cores."""
    folder, state = run(SPEC)
    assert [trial.outcome for trial in state.trials.values()] == ["completed"] * 4
    points = [tuple(trial.point.values()) for trial in state.trials.values()]
    assert points == [(heads, workers) for heads in (1, 2) for workers in (1, 2)]
    assert state.scored is not None
    runs = runs_of(mlflow_uri, folder)
    for trial in state.trials.values():
        workers = trial.point["resources.workers"]
        assert runs[trial.id].data.params["resources.workers"] == str(workers)
        assert f"workers={workers}" in trial.name
