"""The queue over real parts: a home, a Ray head and a dispatcher, which tests may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from ray_head import RayHead
from waiting import Found, until

from tuneyard.queue import Queue
from tuneyard.ray_jobs import RayJobs
from tuneyard.store import Entry, Event, Store
from tuneyard_pipelines import lease
from tuneyard_pipelines.tracking import connect

METRICS = "metrics.jsonl"
TUNEYARD = Path(sys.executable).with_name("tuneyard")


@dataclass
class Platform:
    """What a team runs. `database` is the URL of the queue's, `uri` that of MLflow."""

    home: Path
    database: str
    uri: str
    head: RayHead
    jobs: RayJobs
    queue: Queue
    driver_command: str = str(TUNEYARD)
    dispatcher: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        own = {
            "TUNEYARD_HOME": str(self.home),
            "TUNEYARD_RAY": self.head.address,
            "TUNEYARD_DRIVER": self.driver_command,
            "TUNEYARD_DATABASE": self.database,
            "MLFLOW_TRACKING_URI": self.uri,
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
            self.dispatcher.wait()
            self.dispatcher = None

    def entry(self, entry: Entry) -> Entry:
        return self.queue.store.get(entry.job.sweep_id)

    def wait(self, condition: Callable[[], Found]) -> Found:
        try:
            return until(condition, looking_s=0.3)
        except AssertionError as late:
            late.add_note((self.home / "dispatcher.out").read_text()[-3000:])
            raise

    def wait_for(self, entry: Entry, *states: str) -> Entry:
        self.wait(lambda: self.entry(entry).job.state in states)
        return self.entry(entry)

    def ended_trials(self, entry: Entry) -> int:
        state = self.queue.folder(entry.job.sweep_id).state()
        return sum(trial.outcome is not None for trial in state.trials.values())

    def driver(self, entry: Entry) -> psutil.Process | None:
        """The process that drives it; not the dispatcher, which holds the lease while it closes a sweep."""
        holder = lease.read(self.queue.folder(entry.job.sweep_id).path / "lease")
        if holder is None or not holder.alive(time.time()):
            return None
        closing = self.dispatcher is not None and self.dispatcher.pid == holder.pid
        return None if closing else psutil.Process(holder.pid)

    def at_a_leg(self, entry: Entry) -> list[psutil.Process]:
        """The processes that train its trials now, on whatever node."""
        folder, found = str(self.queue.folder(entry.job.sweep_id).path), []
        for process in self.head.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(one.path.startswith(folder) and one.path.endswith(METRICS) for one in process.open_files()):
                    found.append(process)
        return [process for process in found if process != self.driver(entry)]

    def events(self, entry: Entry) -> list[Event]:
        return self.queue.store.events(entry.job.sweep_id)


@contextlib.contextmanager
def platform_in(home: Path, *, database: str, uri: str) -> Iterator[Platform]:
    """With its Ray head started and its dispatcher not yet; the databases are made if need be."""
    head = RayHead(Path("/tmp") / f"tuneyard-ray-{os.getpid()}")  # sockets' paths must be short
    try:
        jobs = head.start()
        store = Store.open(database)
        store.migrate()
        connect(uri)
        made = Platform(home, database, uri, head, jobs, Queue(store, home, "ann"))
        try:
            yield made
        finally:
            made.stop_dispatching()
    finally:
        head.kill()
