"""The reconciler: finds what is shown as running with nothing behind it, closes it, and says so as an event.

Ray       a driver of ours that is no sweep's present attempt                     stopped
folders   an attempt without an end and without a driver; values not sent yet     closed, shipped (`tracking`)
MLflow    a run that is RUNNING or SCHEDULED with no driver behind it             shown as its folder has it; killed
                                                                                  where the folder is gone
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tuneyard.jobs import ACTIVE
from tuneyard.ray_jobs import RayJobs
from tuneyard.store import Entry, Lead, Store
from tuneyard_pipelines import lease, tracking
from tuneyard_pipelines.errors import InputError, RefusedError, UnreachableError
from tuneyard_pipelines.journal import SweepFolder

if TYPE_CHECKING:
    from mlflow.entities import Run

log = logging.getLogger(__name__)

EVERY_S = 5.0
AWAY_S = 30.0  # a tracking server that did not answer is left alone for so long
ACTOR = "reconciler"
OPEN = ("RUNNING", "SCHEDULED")


class Reconciler:
    """Of one home. `step` does nothing until its time has come again."""

    def __init__(
        self,
        store: Store,
        ray: RayJobs,
        home: Path,
        now_ms: Callable[[], int],
        clock_s: Callable[[], float],
    ) -> None:
        self._store, self._ray, self._home = store, ray, home
        self._now_ms, self._clock_s = now_ms, clock_s
        self._next_s = float("-inf")
        self._closed: dict[str, int] = {}  # by sweep, the size of its journal when all of it was closed
        self._away_until_s: dict[str, float] = {}  # by tracking server
        self._stopped: set[str] = set()  # strays that were told to end

    def step(self, lead: Lead | None, ray_answers: bool) -> None:
        """Compare, and close. Trouble with one sweep is logged and keeps no other from being looked at."""
        if self._clock_s() < self._next_s:
            return
        self._next_s = self._clock_s() + EVERY_S
        active = {entry.job.sweep_id: entry for entry in self._store.active()}
        if ray_answers:
            self._strays(active, lead)
        folders = [SweepFolder(path.parent) for path in sorted((self._home / "sweeps").glob("*/sweep.json"))]
        idle = [folder for folder in folders if folder.sweep_id not in active and not lease.driven(folder.path)]
        for folder in idle:
            if self._closed.get(folder.sweep_id) != _size(folder):
                self.close(folder)
        behind = {folder.sweep_id for folder in folders} - {folder.sweep_id for folder in idle} | active.keys()
        for uri in {uri for folder in folders if (uri := _tracking_uri(folder))}:
            self._runs(uri, behind)

    def close(self, folder: SweepFolder) -> None:
        """Bring a sweep without a driver to its end in folder and MLflow, now or, if that fails, at a later step."""
        uri = _tracking_uri(folder)
        if uri is None:
            return
        try:
            lost = tracking.mark_lost(folder, self._now_ms())
            if lost:
                self._store.note(folder.sweep_id, ACTOR, "closed", "its driver was gone", self._now_ms())
            if self._away_until_s.get(uri, 0.0) > self._clock_s():
                return  # MLflow is told later
            if tracking.reconcile(folder, self._now_ms()) and not lost:
                self._store.note(folder.sweep_id, ACTOR, "closed", "its driver was gone", self._now_ms())
            self._closed[folder.sweep_id] = _size(folder)
        except UnreachableError as away:
            log.warning("%s", away)
            self._away_until_s[uri] = self._clock_s() + AWAY_S
        except RefusedError:
            return  # a driver is there again
        except Exception as trouble:  # one sweep's trouble keeps no other from being looked at
            log.warning("sweep %s could not be closed: %s", folder.sweep_id, trouble)

    def _strays(self, active: dict[str, Entry], lead: Lead | None) -> None:
        for job in self._ray.all():
            if job.ended or job.home != str(self._home) or job.submission_id in self._stopped:
                continue
            sweep_id, _, _ = job.submission_id.rpartition("-a")
            entry = active.get(sweep_id)
            if entry is None or entry.job.submission_id != job.submission_id:
                if lead is not None:
                    self._store.beat(lead)  # another that leads by now may have submitted it
                self._ray.stop(job.submission_id)
                self._stopped.add(job.submission_id)
                said = f"{job.submission_id} ran on the cluster and is not the sweep's present attempt"
                self._store.note(sweep_id, ACTOR, "stray stopped", said, self._now_ms())

    def _runs(self, uri: str, behind: set[str]) -> None:
        """Every open run of a sweep of ours that has no driver."""
        if self._away_until_s.get(uri, 0.0) > self._clock_s():
            return
        try:
            client = tracking.connect(uri)
            experiments = [experiment.experiment_id for experiment in client.search_experiments()]
            found = [
                run
                for status in OPEN
                for run in client.search_runs(experiments, f"attributes.status = '{status}'", max_results=5000)
            ]
            for sweep_id, runs in _by_sweep(found).items():
                folder = SweepFolder(self._home / "sweeps" / sweep_id)
                if sweep_id in behind or lease.driven(folder.path):
                    continue
                if (folder.path / "sweep.json").exists():
                    (folder.path / "shipped").unlink(missing_ok=True)  # what it says is not so
                    self.close(folder)
                elif self._knows(sweep_id):
                    for run in runs:
                        client.set_tag(run.info.run_id, "tuneyard.outcome", "cancelled")
                        client.set_tag(run.info.run_id, "tuneyard.reason", "the sweep's folder was removed")
                        client.set_terminated(run.info.run_id, "KILLED", self._now_ms())
                    said = f"{len(runs)} open runs, and its folder was removed"
                    self._store.note(sweep_id, ACTOR, "runs killed", said, self._now_ms())
        except Exception as trouble:  # whatever a database, a server or a connection raises
            log.warning("MLflow at %s: %s", uri, trouble)
            self._away_until_s[uri] = self._clock_s() + AWAY_S

    def _knows(self, sweep_id: str) -> bool:
        """Another home may keep its runs on the same server."""
        try:
            return self._store.get(sweep_id).job.state not in ACTIVE
        except InputError:
            return False


def _by_sweep(runs: list[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if sweep_id := run.data.tags.get("tuneyard.sweep_id"):
            found.setdefault(sweep_id, []).append(run)
    return found


def _tracking_uri(folder: SweepFolder) -> str | None:
    try:
        return folder.header().tracking_uri
    except InputError:
        return None  # damaged; those who look at it are told


def _size(folder: SweepFolder) -> int:
    try:
        return folder.journal.stat().st_size
    except OSError:
        return 0
