"""What people do with the queue: submit a sweep, have it stop, end or go on, and move it up or down.

What concerns a sweep's trials is written into its folder first, for its driver, and then into its job: whoever is
killed between the two has asked for less than was meant, never for something else.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuneyard import jobs, requests, sweeps
from tuneyard.jobs import ENDED, Job
from tuneyard.store import Conflict, Entry, Store
from tuneyard_pipelines import control
from tuneyard_pipelines.capacity import largest
from tuneyard_pipelines.control import Request
from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.journal import SweepFolder
from tuneyard_pipelines.spec import SweepSpec

TRIES = 20


@dataclass(frozen=True)
class Queue:
    """The queue of one home, for one person, whose name stands at what they do."""

    store: Store
    home: Path
    person: str

    def submit(self, spec: SweepSpec, *, priority: int = 50, key: str | None = None) -> Entry:
        """Queue a sweep, one that can run (`plan.check`); what this person queued under the same key is given instead.

        Whatever it raises, nothing is left behind then.
        """
        sweep_id = secrets.token_hex(4)
        folder = self.folder(sweep_id)
        text = spec.text()
        entry = Entry(
            job=Job(sweep_id),
            name=spec.name,
            owner=self.person,
            priority=priority,
            spec_version=spec.version,
            spec_text=text,
            shape=largest(spec.shapes),
            most_trials=spec.search.max_concurrent_trials,
            submit_key=key,
        )
        folder.path.mkdir(parents=True)
        try:
            folder.submitted.write_text(text, encoding="utf-8")  # the database keeps it; the dispatcher mends this one
            queued = self.store.submit(entry, self.person, _now_ms())
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        if queued.job.sweep_id != sweep_id:
            shutil.rmtree(folder.path, ignore_errors=True)
        return queued

    def cancel(self, sweep_id: str) -> Entry:
        """Give it up, whatever it is doing. Raises RefusedError for one that has ended another way."""
        return self._change(sweep_id, lambda job: jobs.stopped(job, "user_cancel", _now_ms()), "cancelled")

    def stop(self, sweep_id: str) -> Entry:
        """Have it come to its end with what it has: the best so far is scored and registered."""
        if self.store.get(sweep_id).job.state not in ENDED:
            control.ask(self.folder(sweep_id), [control.Stop(_now_ms())])
        return self._change(sweep_id, lambda job: jobs.stopped(job, "user_stop", _now_ms()), "stopped")

    def resume(self, sweep_id: str) -> Entry:
        """Go on with what is unfinished. Raises RefusedError for one of which nothing is left to do."""
        folder = self.folder(sweep_id)
        if self._begun(sweep_id) and not sweeps.unfinished(folder):
            raise RefusedError(f"sweep {sweep_id}: nothing is left to do; have more tried with: tuneyard sweep extend")
        return self._ask(sweep_id, requests.resume(folder))

    def retry(self, sweep_id: str) -> Entry:
        """Run its failed trials again."""
        return self._ask(sweep_id, requests.retry(self._begun_folder(sweep_id)))

    def extend(self, sweep_id: str, trials: int) -> Entry:
        """Try so many more points."""
        return self._ask(sweep_id, requests.extend(self._begun_folder(sweep_id), trials))

    def add(self, sweep_id: str, points: Sequence[str]) -> Entry:
        """Try these points, too."""
        return self._ask(sweep_id, requests.add(self._begun_folder(sweep_id), points))

    def prioritise(self, sweep_id: str, priority: int) -> Entry:
        """0 to 100; it counts while the sweep waits, and keeps one that runs from being preempted by a lower one."""
        return self.store.prioritise(sweep_id, priority, self.person, _now_ms())

    def folder(self, sweep_id: str) -> SweepFolder:
        return SweepFolder(self.home / "sweeps" / sweep_id)

    def _ask(self, sweep_id: str, asked: Sequence[Request]) -> Entry:
        """Put it down for the driver, and have one come where none is.

        Raises RefusedError for one that is being given up: its driver reads nothing any more.
        """
        job = self.store.get(sweep_id).job
        if job.state == "stopping" and job.reason == "user_cancel":
            raise RefusedError(f"sweep {sweep_id} is being given up; ask again once it has ended")
        if asked:
            control.ask(self.folder(sweep_id), asked)

        def goes_on(job: Job) -> Job:
            return jobs.reopened(job, _now_ms()) if job.state in ENDED else jobs.kept(job, _now_ms())

        return self._change(sweep_id, goes_on, "goes on")

    def _begun(self, sweep_id: str) -> bool:
        return (self.folder(sweep_id).path / "sweep.json").exists()

    def _begun_folder(self, sweep_id: str) -> SweepFolder:
        if not self._begun(sweep_id):
            raise InputError(f"sweep {sweep_id} has not begun: its trials are not there yet; ask again once it runs")
        return self.folder(sweep_id)

    def _change(self, sweep_id: str, how: Callable[[Job], Job], what: str) -> Entry:
        """Whatever state it is in by then."""
        for _ in range(TRIES):
            entry = self.store.get(sweep_id)
            job = how(entry.job)
            if job == entry.job:
                return entry
            try:
                return self.store.change(entry, job, actor=self.person, now_ms=_now_ms(), what=what)
            except Conflict:
                continue
        raise RefusedError(f"sweep {sweep_id} keeps changing; try again")


def _now_ms() -> int:
    return int(time.time() * 1000)
