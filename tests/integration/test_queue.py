"""The queue over a real Ray head: what is killed at any point, cancelled, stopped or lost comes to one true end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from queue_platform import TUNEYARD, Platform, platform_in
from tiny_sweep import runs_of, tiny

from tuneyard.jobs import ENDED
from tuneyard.store import Entry
from tuneyard_pipelines import checkpoints
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.spec import SweepSpec

pytestmark = pytest.mark.integration

DYING = """
import os, signal, sys
from tuneyard import dispatcher, ray_jobs

class Dying(ray_jobs.RayJobs):
    def submit(self, *arguments, **options):
        if sys.argv[1] == "after":
            super().submit(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

dispatcher.RayJobs = Dying
dispatcher.main()
"""
ON_PAPER = """#!{python}
import json, os, pathlib, sys
folder = pathlib.Path(os.environ["TUNEYARD_HOME"], "sweeps", sys.argv[-1])
with (folder / "started").open("a") as out:
    out.write("once\\n")
end = {{"submission_id": os.environ["TUNEYARD_SUBMISSION_ID"], "how": "succeeded", "reason": "", "message": ""}}
(folder / "driver_end.json").write_text(json.dumps(end))
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("home")
    databases = {"database": f"sqlite:///{home / 'queue.db'}", "uri": f"sqlite:///{home / 'mlflow.db'}"}
    with platform_in(home, **databases) as made:
        yield made


def spec(name: str, trials: int = 3, **changes: Any) -> SweepSpec:
    return tiny(
        name=name,
        model__num_heads=[1, 2, 4],
        training__learning_rate={"loguniform": [1e-3, 1e-2]},
        search__algorithm="random",
        search__trials=trials,
        register={"name": name},
        **changes,
    )


@pytest.mark.parametrize("moment", ["before", "after"])
def test_q3_a_dispatcher_killed_around_its_submit_leaves_one_job(
    platform: Platform, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = platform.home / "driver-on-paper"
    script.write_text(ON_PAPER.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(platform, "driver_command", str(script))
    entry = platform.queue.submit(spec(f"q3-{moment}", trials=1))
    dying = platform.dispatch("-c", DYING, moment)
    assert dying.wait() == -signal.SIGKILL
    assert platform.entry(entry).job.state == "submitting"
    assert len(_jobs_of(platform, entry)) == (moment == "after")
    platform.dispatch()
    done = platform.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.job.state, done.job.attempt) == ("succeeded", 1)
    assert _jobs_of(platform, entry) == [f"{entry.job.sweep_id}-a1"]
    assert platform.path(entry) == ["queued", "submitting", "running", "succeeded"]
    assert (platform.queue.folder(entry.job.sweep_id).path / "started").read_text() == "once\n"


def test_q4_q5_r1_a_sweep_outlives_its_driver_and_its_cluster(platform: Platform) -> None:
    entry = platform.queue.submit(spec("lost", trials=5, search__max_concurrent_trials=1))
    platform.dispatch()
    platform.wait(lambda: platform.ended_trials(entry) >= 1)
    driver = platform.driver(entry)
    assert driver is not None
    driver.kill()
    again = platform.wait(lambda: platform.entry(entry) if platform.entry(entry).job.attempt == 2 else None)
    assert again.job.losses == 1
    platform.wait(lambda: platform.ended_trials(entry) >= 3)
    platform.head.kill()
    lost = platform.wait_for(entry, "queued")
    assert lost.job.reason == "cluster_lost"
    runs = runs_of(platform.uri, platform.queue.folder(entry.job.sweep_id))
    assert not [run for run in runs.values() if run.info.status in ("RUNNING", "SCHEDULED")]
    log = subprocess.run(
        [TUNEYARD, "sweep", "logs", entry.job.sweep_id], env=platform.environment, capture_output=True, text=True
    )
    assert "GCS" in log.stdout, "the driver of the cluster that is gone said why it ended"
    platform.head.start()
    done = platform.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.job.state, done.job.attempt) == ("succeeded", 3)
    assert [event.reason for event in platform.events(entry) if event.after == "queued"][1:] == [
        "driver_lost",
        "cluster_lost",
    ]
    runs = runs_of(platform.uri, platform.queue.folder(entry.job.sweep_id))
    assert len(runs) == 6
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert platform.queue.store.trial_states([entry.job.sweep_id]) == {entry.job.sweep_id: {"completed": 5}}


def test_q7_cancel_at_any_point_ends_in_one_state(platform: Platform) -> None:
    long = {"training__max_steps": 100_000, "search__max_concurrent_trials": 1}
    running = platform.queue.submit(spec("running", trials=1, **long))
    waiting = platform.queue.submit(spec("waiting", trials=1))
    assert platform.queue.cancel(waiting.job.sweep_id).job.state == "cancelled"
    assert platform.queue.cancel(waiting.job.sweep_id).job.state == "cancelled"
    platform.dispatch()
    at_work = platform.wait(lambda: platform.at_a_leg(running))
    driver = platform.driver(running)
    assert driver is not None
    assert platform.queue.cancel(running.job.sweep_id).job.state == "stopping"
    assert platform.queue.cancel(running.job.sweep_id).job.state == "stopping"
    done = platform.wait_for(running, *ENDED)
    starting = platform.queue.submit(spec("starting", trials=1, **long))
    platform.wait_for(starting, "submitting", "running")
    platform.queue.cancel(starting.job.sweep_id)
    started = platform.wait_for(starting, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    for entry in (done, started):
        assert (entry.job.state, entry.job.reason) == ("cancelled", "user_cancel")
        assert platform.driver(entry) is None
        assert [event.after for event in platform.events(entry)].count("cancelled") == 1
    assert not any(process.is_running() for process in (driver, *at_work))
    statuses = {run.info.status for run in runs_of(platform.uri, platform.queue.folder(running.job.sweep_id)).values()}
    assert statuses == {"KILLED"}
    assert all(job.ended for job in platform.jobs.all())


def test_r10_a_sweep_that_makes_room_saves_where_it_is_and_goes_on_there(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEYARD_PREEMPT", "1")
    monkeypatch.setenv("TUNEYARD_MAX_DRIVERS", "1")
    long = {"training__max_steps": 1_000_000, "training__evaluations": 1}
    low = platform.queue.submit(spec("low", trials=1, **long), priority=10)
    platform.dispatch()
    folder = platform.queue.folder(low.job.sweep_id)
    platform.wait(lambda: trained(folder, attempt=1))
    driver = platform.driver(low)
    assert driver is not None
    at_work = platform.at_a_leg(low)
    high = platform.queue.submit(spec("high", trials=1), priority=90)
    done = platform.wait_for(high, *ENDED)
    assert (done.job.state, done.job.attempt) == ("succeeded", 1)
    [saved] = checkpoints.whole(folder.trial("t001"))
    assert saved.facts.step >= max(trained(folder, attempt=1)), "nothing that was trained is lost"
    assert saved.facts.score is None, "it was not validated"
    assert at_work
    platform.wait(lambda: not any(process.is_running() for process in (driver, *at_work)))

    platform.wait(lambda: trained(folder, attempt=2))
    platform.queue.cancel(low.job.sweep_id)
    ended = platform.wait_for(low, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert min(trained(folder, attempt=2)) > saved.facts.step
    assert platform.path(low)[:5] == ["queued", "submitting", "running", "stopping", "queued"]
    assert next(event.reason for event in platform.events(low) if event.after == "stopping") == "preempted"
    assert (ended.job.state, ended.job.losses) == ("cancelled", 0)


def trained(folder: SweepFolder, attempt: int) -> list[int]:
    """The steps whose loss an attempt wrote down."""
    written = folder.attempt("t001", attempt) / "metrics.jsonl"
    found = [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []
    return [one["step"] for one in found if one["key"] == "train/loss"]


def test_q11_a_stopped_sweep_keeps_its_best(platform: Platform) -> None:
    entry = platform.queue.submit(spec("plateau", trials=50, search__max_concurrent_trials=1, training__max_steps=8))
    platform.dispatch()
    platform.wait(lambda: platform.ended_trials(entry) >= 1)
    platform.queue.stop(entry.job.sweep_id)
    done = platform.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.job.state, done.job.reason) == ("succeeded", "user_stop")
    state = platform.queue.folder(entry.job.sweep_id).state()
    assert state.registered is not None
    assert len(state.trials) < 50


def _jobs_of(platform: Platform, entry: Entry) -> list[str]:
    return sorted(job.submission_id for job in platform.jobs.all() if job.submission_id.startswith(entry.job.sweep_id))
