"""The queue over a real Ray head: what is killed at any point, cancelled, stopped or lost comes to one true end.

What people do and see goes through the service; what is behind it is looked at on its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from queue_platform import TUNEYARD, Platform, platform_in
from service import serving
from tiny_sweep import runs_of, tiny

from tuneyard.client import Client
from tuneyard.jobs import ENDED
from tuneyard.store import Entry
from tuneyard.sweeps import View
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


@dataclass(frozen=True)
class Person:
    """Somebody at the platform, whose door is the service."""

    platform: Platform
    client: Client

    def submit(self, spec: SweepSpec, *, priority: int = 50) -> Entry:
        """What the platform calls the sweep."""
        return self.platform.queue.store.get(self.client.submit(spec.text(), priority=priority).sweep_id)

    def cancel(self, entry: Entry) -> str:
        """The state that is answered."""
        return self.client.cancel(entry.job.sweep_id).state

    def show(self, entry: Entry) -> View:
        return self.client.sweep(entry.job.sweep_id)

    def wait_for(self, entry: Entry, *states: str) -> View:
        self.platform.wait(lambda: self.show(entry).state in states)
        return self.show(entry)

    def path(self, entry: Entry) -> list[tuple[str, str]]:
        """The states that it went through, each with its reason."""
        told = self.client.events(entry.job.sweep_id)
        return [(event.after, event.reason) for event in told if event.after != event.before]


@pytest.fixture(scope="module")
def ann(platform: Platform) -> Iterator[Person]:
    own = {"TUNEYARD_DATABASE": platform.database, "TUNEYARD_RAY": platform.head.address}
    with serving(platform.home, **own, MLFLOW_TRACKING_URI=platform.uri) as served:
        yield Person(platform, served.client("ann"))


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
    platform: Platform, ann: Person, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = platform.home / "driver-on-paper"
    script.write_text(ON_PAPER.format(python=sys.executable))
    script.chmod(0o755)
    monkeypatch.setattr(platform, "driver_command", str(script))
    entry = ann.submit(spec(f"q3-{moment}", trials=1))
    dying = platform.dispatch("-c", DYING, moment)
    assert dying.wait() == -signal.SIGKILL
    assert ann.show(entry).state == "submitting"
    assert len(_jobs_of(platform, entry)) == (moment == "after")
    platform.dispatch()
    done = ann.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.state, done.queue["attempt"]) == ("succeeded", 1)
    assert _jobs_of(platform, entry) == [f"{entry.job.sweep_id}-a1"]
    assert [state for state, _ in ann.path(entry)] == ["queued", "submitting", "running", "succeeded"]
    assert (platform.queue.folder(entry.job.sweep_id).path / "started").read_text() == "once\n"


def test_q4_q5_r1_a_sweep_outlives_its_driver_and_its_cluster(platform: Platform, ann: Person) -> None:
    entry = ann.submit(spec("lost", trials=5, search__max_concurrent_trials=1))
    platform.dispatch()
    platform.wait(lambda: platform.ended_trials(entry) >= 1)
    driver = platform.driver(entry)
    assert driver is not None
    driver.kill()
    platform.wait(lambda: ann.show(entry).queue["attempt"] == 2)
    assert platform.entry(entry).job.losses == 1
    platform.wait(lambda: platform.ended_trials(entry) >= 3)
    platform.head.kill()
    lost = ann.wait_for(entry, "queued")
    assert lost.queue["reason"] == "cluster_lost"
    runs = runs_of(platform.uri, platform.queue.folder(entry.job.sweep_id))
    assert not [run for run in runs.values() if run.info.status in ("RUNNING", "SCHEDULED")]
    log = subprocess.run(
        [TUNEYARD, "sweep", "logs", entry.job.sweep_id], env=platform.environment, capture_output=True, text=True
    )
    assert "GCS" in log.stdout, "the driver of the cluster that is gone said why it ended"
    assert "".join(ann.client.logs(entry.job.sweep_id)) == log.stdout
    platform.head.start()
    done = ann.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.state, done.queue["attempt"], done.trial_states) == ("succeeded", 3, {"completed": 5})
    assert [reason for state, reason in ann.path(entry) if state == "queued"][1:] == ["driver_lost", "cluster_lost"]
    runs = runs_of(platform.uri, platform.queue.folder(entry.job.sweep_id))
    assert len(runs) == 6
    assert {run.info.status for run in runs.values()} == {"FINISHED"}


def test_q7_cancel_at_any_point_ends_in_one_state(platform: Platform, ann: Person) -> None:
    long = {"training__max_steps": 100_000, "search__max_concurrent_trials": 1}
    running = ann.submit(spec("running", trials=1, **long))
    waiting = ann.submit(spec("waiting", trials=1))
    assert [ann.cancel(waiting) for _ in range(2)] == ["cancelled", "cancelled"]
    platform.dispatch()
    at_work = platform.wait(lambda: platform.at_a_leg(running))
    driver = platform.driver(running)
    assert driver is not None
    assert [ann.cancel(running) for _ in range(2)] == ["stopping", "stopping"]
    done = ann.wait_for(running, *ENDED)
    starting = ann.submit(spec("starting", trials=1, **long))
    ann.wait_for(starting, "submitting", "running")
    assert [ann.cancel(starting) for _ in range(2)] == ["stopping", "stopping"]
    started = ann.wait_for(starting, *ENDED)
    finishing = ann.submit(spec("finishing", trials=1, **long))
    at_work += platform.wait(lambda: platform.at_a_leg(finishing))
    assert ann.client.stop(finishing.job.sweep_id).reason == "user_stop"
    assert [ann.cancel(finishing) for _ in range(2)] == ["stopping", "stopping"]
    end = ann.wait_for(finishing, *ENDED).state
    platform.stop_dispatching(signal.SIGTERM)
    assert end in ("cancelled", "succeeded"), "it may have come to its own end first"
    for entry, view in ((running, done), (starting, started)):
        assert (view.state, view.queue["reason"]) == ("cancelled", "user_cancel")
        assert ann.cancel(entry) == "cancelled", "once more is harmless, too"
        assert platform.driver(entry) is None
    for entry, state in ((running, "cancelled"), (waiting, "cancelled"), (starting, "cancelled"), (finishing, end)):
        assert [after for after, _ in ann.path(entry) if after in ENDED] == [state]
    assert not any(process.is_running() for process in (driver, *at_work))
    statuses = {run.info.status for run in runs_of(platform.uri, platform.queue.folder(running.job.sweep_id)).values()}
    assert statuses == {"KILLED"}
    assert all(job.ended for job in platform.jobs.all())


def test_r10_a_sweep_that_makes_room_saves_where_it_is_and_goes_on_there(
    platform: Platform, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEYARD_PREEMPT", "1")
    monkeypatch.setenv("TUNEYARD_MAX_DRIVERS", "1")
    long = {"training__max_steps": 1_000_000, "training__evaluations": 1}
    low = ann.submit(spec("low", trials=1, **long), priority=10)
    platform.dispatch()
    folder = platform.queue.folder(low.job.sweep_id)
    platform.wait(lambda: trained(folder, attempt=1))
    driver = platform.driver(low)
    assert driver is not None
    at_work = platform.at_a_leg(low)
    high = ann.submit(spec("high", trials=1), priority=90)
    done = ann.wait_for(high, *ENDED)
    assert (done.state, done.queue["attempt"]) == ("succeeded", 1)
    [saved] = checkpoints.whole(folder.trial("t001"))
    assert saved.facts.step >= max(trained(folder, attempt=1)), "nothing that was trained is lost"
    assert saved.facts.score is None, "it was not validated"
    assert at_work
    platform.wait(lambda: not any(process.is_running() for process in (driver, *at_work)))

    platform.wait(lambda: trained(folder, attempt=2))
    ann.cancel(low)
    ended = ann.wait_for(low, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert min(trained(folder, attempt=2)) > saved.facts.step
    path = ann.path(low)
    assert [state for state, _ in path][:5] == ["queued", "submitting", "running", "stopping", "queued"]
    assert path[3] == ("stopping", "preempted")
    assert (ended.state, platform.entry(low).job.losses) == ("cancelled", 0)


def trained(folder: SweepFolder, attempt: int) -> list[int]:
    """The steps whose loss an attempt wrote down."""
    written = folder.attempt("t001", attempt) / "metrics.jsonl"
    found = [json.loads(line) for line in written.read_text().splitlines()] if written.exists() else []
    return [one["step"] for one in found if one["key"] == "train/loss"]


def test_q11_a_stopped_sweep_keeps_its_best(platform: Platform, ann: Person) -> None:
    entry = ann.submit(spec("plateau", trials=50, search__max_concurrent_trials=1, training__max_steps=8))
    platform.dispatch()
    platform.wait(lambda: platform.ended_trials(entry) >= 1)
    assert [ann.client.stop(entry.job.sweep_id).state for _ in range(2)] == ["stopping", "stopping"]
    done = ann.wait_for(entry, *ENDED)
    platform.stop_dispatching(signal.SIGTERM)
    assert (done.state, done.queue["reason"], done.asked) == ("succeeded", "user_stop", 50)
    assert sum(done.trial_states.values()) < 50
    assert done.best is not None
    assert (done.model, done.scored) == ("plateau version 1", done.best.trial)
    assert done.test, "it was scored"
    [model] = [model for model in ann.client.models() if model.name == "plateau"]
    assert model.tags["sweep_id"] == entry.job.sweep_id


def _jobs_of(platform: Platform, entry: Entry) -> list[str]:
    return sorted(job.submission_id for job in platform.jobs.all() if job.submission_id.startswith(entry.job.sweep_id))
