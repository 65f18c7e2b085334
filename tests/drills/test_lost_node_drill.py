"""R1: a node that is lost in the midst of a sweep costs the trial that it trained one leg, and nobody else anything."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from queue_platform import platform_in
from ray_head import lose
from tiny_sweep import runs_of, tiny

from tuneyard.jobs import ENDED
from tuneyard_pipelines import checkpoints, tracking

pytestmark = pytest.mark.e2e

STEPS, EVALUATIONS = 600, 4
SPEC = tiny(
    name="lost-node",
    training__learning_rate={"loguniform": [1e-3, 1e-2]},
    training__max_steps=STEPS,
    training__evaluations=EVALUATIONS,
    search__algorithm="random",
    search__trials=4,
    resources__cpus_per_worker=2,  # one trial a node
)


def test_r1_a_trial_whose_node_is_lost_goes_on_elsewhere_from_its_checkpoint(tmp_path: Path) -> None:
    databases = {"database": f"sqlite:///{tmp_path / 'queue.db'}", "uri": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    with platform_in(tmp_path, **databases) as platform:
        second = platform.head.add_node(cpus=2)
        entry = platform.queue.submit(SPEC)
        folder = platform.queue.folder(entry.job.sweep_id)
        platform.dispatch()

        def saved_there() -> str | None:
            """A trial that the second node trains and that has been saved."""
            here = [one for one in platform.at_a_leg(entry) if one in second.children(recursive=True)]
            files = [Path(file.path) for process in here for file in process.open_files()]
            trials = {file.parent.parent.name for file in files if file.name == "metrics.jsonl"}
            return next((trial for trial in trials if checkpoints.whole(folder.trial(trial))), None)

        lost = platform.wait(saved_there)
        kept = checkpoints.whole(folder.trial(lost))[-1].facts.step
        lose(second)
        done = platform.wait_for(entry, *ENDED)
        platform.stop_dispatching(signal.SIGTERM)

        assert (done.job.state, done.job.attempt, done.job.losses) == ("succeeded", 1, 0), done.job.message
        state = folder.state()
        [failure] = [failure for trial in state.trials.values() for failure in trial.failures]
        assert failure in state.trials[lost].failures
        assert "its node was lost" in failure.message
        assert [trial.outcome for trial in state.trials.values()] == ["completed"] * 4
        runs = runs_of(platform.uri, folder)
        assert {run.info.status for run in runs.values()} == {"FINISHED"}
        client = tracking.connect(platform.uri)
        for name, run in runs.items():
            if name != "parent":
                steps = [one.step for one in client.get_metric_history(run.info.run_id, "val/loss")]
                assert sorted(steps) == [STEPS * turn // EVALUATIONS for turn in range(1, EVALUATIONS + 1)], name
        written = folder.attempt(lost, 1) / "metrics.jsonl"
        assert written.read_text().count(f'"val/loss", "step": {kept},') == 1, "it began anew"
