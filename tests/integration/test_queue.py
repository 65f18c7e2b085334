"""The queue over a real Ray head: what is killed at any point, cancelled, stopped or lost comes to one true end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_head import RayHead
from tiny_sweep import runs_of, tiny

from tuneyard.jobs import ENDED
from tuneyard.queue import Queue
from tuneyard.ray_jobs import RayJobs
from tuneyard.store import Entry, Event, Store
from tuneyard_pipelines import lease
from tuneyard_pipelines.spec import SweepSpec
from tuneyard_pipelines.tracking import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

TUNEYARD = Path(sys.executable).with_name("tuneyard")
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


@dataclass
class Platform:
    """A home with its queue, a Ray head, and a dispatcher, which tests may kill and start again."""

    home: Path
    head: RayHead
    jobs: RayJobs
    queue: Queue
    driver_command: str = str(TUNEYARD)
    dispatcher: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"sqlite:///{self.home / 'mlflow.db'}"

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "TUNEYARD_HOME": str(self.home),
            "TUNEYARD_RAY": self.head.address,
            "TUNEYARD_DRIVER": self.driver_command,
        }
        return {**os.environ, **self.head.environment, **own}

    def dispatch(self, *command: str) -> subprocess.Popen[bytes]:
        command = command or ("-m", "tuneyard.dispatcher")
        with (self.home / "dispatcher.out").open("ab") as out:
            self.dispatcher = subprocess.Popen(
                [sys.executable, *command], env=self.environment, stdout=out, stderr=out, cwd=self.home
            )
        return self.dispatcher

    def stop_dispatching(self, number: int = signal.SIGKILL) -> None:
        if self.dispatcher is not None:
            self.dispatcher.send_signal(number)
            self.dispatcher.wait(timeout=60)
            self.dispatcher = None

    def entry(self, entry: Entry) -> Entry:
        return self.queue.store.get(entry.job.sweep_id)

    def wait(self, condition: Callable[[], Any], timeout_s: float = 240) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < deadline, (self.home / "dispatcher.out").read_text()[-3000:]
            time.sleep(0.3)
        return found

    def wait_for(self, entry: Entry, *states: str) -> Entry:
        self.wait(lambda: self.entry(entry).job.state in states)
        return self.entry(entry)

    def ended_trials(self, entry: Entry) -> int:
        state = self.queue.folder(entry.job.sweep_id).state()
        return sum(trial.outcome is not None for trial in state.trials.values())

    def driver(self, entry: Entry) -> psutil.Process | None:
        holder = lease.read(self.queue.folder(entry.job.sweep_id).path / "lease")
        alive = holder is not None and holder.alive(time.time())
        return psutil.Process(holder.pid) if holder is not None and alive else None

    def events(self, entry: Entry) -> list[Event]:
        return self.queue.store.events(entry.job.sweep_id)

    def path(self, entry: Entry) -> list[str]:
        """The states that it went through."""
        return [event.after for event in self.events(entry) if event.after != event.before]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    home = tmp_path_factory.mktemp("home")
    head = RayHead(Path("/tmp") / f"tuneyard-ray-{os.getpid()}")  # sockets' paths must be short
    try:
        jobs = head.start()
        store = Store.open(f"sqlite:///{home / 'queue.db'}")
        store.migrate()
        connect(f"sqlite:///{home / 'mlflow.db'}")
        made = Platform(home, head, jobs, Queue(store, home, "ann"))
        yield made
        made.stop_dispatching()
    finally:
        head.kill()


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
    assert dying.wait(timeout=120) == -signal.SIGKILL
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
    entry = platform.queue.submit(spec("lost", trials=8, search__max_concurrent_trials=1))
    platform.dispatch()
    platform.wait(lambda: platform.ended_trials(entry) >= 2)
    driver = platform.driver(entry)
    assert driver is not None
    driver.kill()
    again = platform.wait(lambda: platform.entry(entry) if platform.entry(entry).job.attempt == 2 else None)
    assert again.job.losses == 1
    platform.wait(lambda: platform.ended_trials(entry) >= 4)
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
    assert len(runs) == 9
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert platform.queue.store.trial_states(entry.job.sweep_id) == {"completed": 8}


def test_q7_cancel_at_any_point_ends_in_one_state(platform: Platform) -> None:
    long = {"training__max_steps": 100_000, "search__max_concurrent_trials": 1}
    running = platform.queue.submit(spec("running", trials=1, **long))
    waiting = platform.queue.submit(spec("waiting", trials=1))
    assert platform.queue.cancel(waiting.job.sweep_id).job.state == "cancelled"
    assert platform.queue.cancel(waiting.job.sweep_id).job.state == "cancelled"
    platform.dispatch()
    platform.wait(lambda: platform.queue.folder(running.job.sweep_id).state().trials)
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
    assert not driver.is_running()
    statuses = {run.info.status for run in runs_of(platform.uri, platform.queue.folder(running.job.sweep_id)).values()}
    assert statuses == {"KILLED"}
    assert all(job.ended for job in platform.jobs.all())


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
