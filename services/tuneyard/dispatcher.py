"""The dispatcher: takes sweeps out of the queue, has Ray run their drivers, and says what becomes of them.

    one pass     lead held -> each sweep with a driver: what Ray, its folder and its lease say -> its next state
                 -> who of those that wait may start (`admission`) -> claimed, submitted
                 -> what stands open with nothing behind it is closed (`reconciler`)

Nothing is remembered between two passes but what makes the next one shorter: killed at any point, the next dispatcher
finds the same in database, Ray and folders, and goes on. A claim raises the attempt in the transaction that takes the
sweep; only then is `SWEEP-aN` submitted, as often as it takes, and Ray runs one name once.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tuneyard import admission, driver, jobs, settings
from tuneyard.jobs import DriverEnd, Job
from tuneyard.ray_jobs import RayJob, RayJobs, find_token
from tuneyard.reconciler import Reconciler
from tuneyard.store import EVERYBODY, Conflict, Entry, Lead, LeadLost, Rival, Store
from tuneyard.trial_rows import TrialFeed
from tuneyard_pipelines import control, lease
from tuneyard_pipelines.capacity import Node
from tuneyard_pipelines.errors import TuneyardError, UnreachableError
from tuneyard_pipelines.journal import SweepFolder

log = logging.getLogger(__name__)

PASS_S = 1.0
CLUSTER_GONE_S = 30.0  # without an answer for so long, Ray is taken to be gone, and not to be slow
NODE_AWAY_S = 300.0  # a node that is only restarted comes back sooner
GCS_TIMEOUT_S = 8  # a driver whose cluster is gone for so long ends itself; Ray's own default is a minute
MEASURED_MS = 30_000  # of GPU time, between two changes of what a sweep has used
ACTOR = "dispatcher"


PASSED = ("OMP_NUM_THREADS", "TUNEYARD_CACHE_LIMIT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")  # on to the drivers


@dataclass(frozen=True)
class Settings:
    """How drivers are started and how many. `entrypoint` is the command that a sweep's `run` is appended to."""

    home: Path
    entrypoint: str = "tuneyard"
    environment: Mapping[str, str] = field(default_factory=dict)
    most_drivers: int = 8
    most_losses: int = 5
    preempt: bool = False


class Dispatcher:
    """One process's hand on the queue. `work` blocks; `step` is one pass."""

    def __init__(
        self,
        store: Store,
        ray: RayJobs,
        how: Settings,
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._ray, self._how = store, ray, how
        self._now_ms, self._clock_s = now_ms, clock_s
        self._holder, self._token = f"{socket.gethostname()}:{secrets.token_hex(3)}", secrets.token_hex(16)
        self._lead: Lead | None = None
        self._rival: Rival | None = None
        self._feed = TrialFeed(store)
        self._reconciler = Reconciler(store, ray, how.home, now_ms, clock_s)
        self._told: set[str] = set()  # attempts that Ray was asked to stop: a second signal would cut their clean-up
        self._silent_since_s: float | None = None
        self._never_since_s: dict[str, float] = {}  # since when no node could hold a trial of a sweep that waits

    def work(self, over: threading.Event) -> None:
        """Dispatch until `over`; whatever goes wrong in a pass is logged, and the next one tries again."""
        try:
            while not over.is_set():
                began_s = self._clock_s()
                try:
                    self.step()
                except LeadLost as lost:
                    log.warning("%s", lost)
                    self._lead = None
                except TuneyardError as error:
                    log.warning("%s", error)
                except Exception:
                    log.exception("a pass of the dispatcher failed")
                over.wait(max(0.05, PASS_S - (self._clock_s() - began_s)))
        finally:
            if self._lead is not None:
                with contextlib.suppress(TuneyardError):
                    self._store.release(self._lead)

    def step(self) -> None:
        """One pass; nothing while another dispatcher leads."""
        if not self._leads():
            return
        nodes = self._nodes()
        for entry in self._store.active():
            with contextlib.suppress(Conflict):  # a person was faster; the next pass sees what they did
                self._watch(entry)
        self._admit(nodes)
        self._reconciler.step(self._lead, self._answers)

    @property
    def _answers(self) -> bool:
        return self._silent_since_s is None

    @property
    def _gone(self) -> bool:
        """Whether the cluster has been silent for too long to be only slow."""
        return self._silent_since_s is not None and self._clock_s() - self._silent_since_s >= CLUSTER_GONE_S

    def _leads(self) -> bool:
        if self._lead is not None:
            self._store.beat(self._lead)
            return True
        found = self._store.take_lead(
            self._holder, self._token, self._now_ms(), clock_s=self._clock_s(), rival=self._rival
        )
        if isinstance(found, Rival):
            self._rival = found
            return False
        self._lead, self._rival = found, None
        return True

    def _nodes(self) -> list[Node]:
        """None while Ray does not answer, and since when."""
        try:
            found = self._ray.nodes()
        except UnreachableError as silent:
            if self._silent_since_s is None:
                self._silent_since_s = self._clock_s()
                self._store.note(None, ACTOR, "cluster silent", str(silent), self._now_ms())
            return []
        if self._silent_since_s is not None:
            self._silent_since_s = None
            self._store.note(None, ACTOR, "cluster answers", "", self._now_ms())
        return found

    # One sweep that may have a driver.

    def _watch(self, entry: Entry) -> None:
        folder = self._folder(entry)
        gpu_ms = self._feed.read(folder, entry, self._lead, self._now_ms())
        if gpu_ms - entry.gpu_ms >= MEASURED_MS:
            entry = self._change(entry, entry.job, "measured", gpu_ms=gpu_ms)
        job = entry.job
        if job.state == "submitting":
            self._submit(entry)
            return
        found = self._ask_ray(job)
        if isinstance(found, RayJob) and not found.ended:
            self._told_to_end(job)
            return
        end = self._end(job, folder, found)
        if end is not None:
            self._ended(entry, folder, end)

    def _submit(self, entry: Entry) -> None:
        """Submit the present attempt, or find it submitted."""
        job = entry.job
        environment = {
            **self._how.environment,
            "TUNEYARD_HOME": str(self._how.home),
            driver.SUBMISSION_ID: job.submission_id,
            driver.MOST_TRIALS: "" if entry.most_trials is None else str(entry.most_trials),
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(GCS_TIMEOUT_S),
        }
        command = f"{self._how.entrypoint} sweep run --sweep-id {job.sweep_id}"
        try:
            self._ray.submit(job.submission_id, command, environment, home=str(self._how.home))
        except UnreachableError as silent:
            if self._gone:
                self._change(entry, jobs.not_taken(job, str(silent), self._now_ms()), "not taken")
            return
        self._change(entry, jobs.started(job, self._now_ms()), "started")

    def _ask_ray(self, job: Job) -> RayJob | UnreachableError | None:
        try:
            return self._ray.get(job.submission_id)
        except UnreachableError as silent:
            return silent

    def _told_to_end(self, job: Job) -> None:
        """Pass on that it is to end, once; that it is to finish, its driver reads by itself."""
        if job.state == "stopping" and job.reason != "user_stop" and job.submission_id not in self._told:
            self._ray.stop(job.submission_id)
            self._told.add(job.submission_id)

    def _end(self, job: Job, folder: SweepFolder, found: RayJob | UnreachableError | None) -> DriverEnd | None:
        """How its driver ended, once it is sure that it did."""
        word = driver.ended(folder, job.submission_id)
        holder = lease.read(folder.path / "lease")
        lives = holder is not None and holder.alive(self._now_ms() / 1000)
        if isinstance(found, UnreachableError):
            if word is None and (lives or (holder is None and not self._gone)):
                return None
            return word or DriverEnd("lost", "cluster_lost", str(found))
        if lives and word is None:  # Ray forgot it, and it goes on
            lease.end(folder.path)
            return None
        if word is not None:
            return word
        if found is None:
            return DriverEnd("lost", "cluster_lost", f"the cluster does not know {job.submission_id} any more")
        said = f"the driver ended without a word (exit code {found.exit_code}); its log is {folder.path / 'driver.log'}"
        return DriverEnd("lost", "driver_lost", said)

    def _ended(self, entry: Entry, folder: SweepFolder, end: DriverEnd) -> None:
        """Close what it left open, and let the job go on to its next state."""
        job, now_ms = entry.job, self._now_ms()
        self._reconciler.close(folder)
        gpu_ms = self._feed.read(folder, entry, self._lead, now_ms)
        unheard = end.how == "succeeded" and job.reason != "user_cancel" and _asked_meanwhile(folder)
        after = jobs.asked_more(job, now_ms) if unheard else None
        after = after or jobs.driver_ended(
            job, end, now_ms, most_losses=self._how.most_losses, progressed=self._feed.progressed(folder)
        )
        self._change(entry, after, "asked for more" if unheard else "driver ended", gpu_ms=gpu_ms)
        self._feed.forget(job.sweep_id)
        self._told.discard(job.submission_id)

    # Who starts.

    def _admit(self, nodes: list[Node]) -> None:
        waiting = self._store.waiting()
        if not waiting:
            return
        active = self._store.active()
        decision = admission.decide(
            [_waits(entry) for entry in waiting],
            [self._active(entry) for entry in active],
            nodes,
            self._rules([*waiting, *active]),
        )
        by_id = {entry.job.sweep_id: entry for entry in [*waiting, *active]}
        waits = dict(decision.waits)
        for sweep_id, (reason, text) in decision.never.items():
            entry = by_id[sweep_id]
            if not self._surely_never(entry):
                waits[sweep_id] = text
                continue
            with contextlib.suppress(Conflict):
                self._change(entry, jobs.refused(entry.job, reason, text, self._now_ms()), "refused")
        for sweep_id in decision.preempt:
            entry = by_id[sweep_id]
            with contextlib.suppress(Conflict):
                self._change(entry, jobs.stopped(entry.job, "preempted", self._now_ms()), "preempted")
        self._store.put_waits(waits, self._lead)
        self._never_since_s = {one: at for one, at in self._never_since_s.items() if one in decision.never}
        for sweep_id in decision.start:
            entry = by_id[sweep_id]
            if lease.driven(self._folder(entry).path):
                continue  # the driver of an attempt that was lost is still there; it must be gone first
            with contextlib.suppress(Conflict):
                most = decision.most_trials.get(sweep_id, entry.most_trials)
                claimed = self._change(entry, jobs.claimed(entry.job, self._now_ms()), "claimed", most_trials=most)
                self._submit(claimed)

    def _surely_never(self, entry: Entry) -> bool:
        """Not where only a node may be away for a while: as soon as it is submitted, or once that has gone on."""
        since_s = self._never_since_s.setdefault(entry.job.sweep_id, self._clock_s())
        new = entry.job.attempt == 0 and self._now_ms() - entry.job.queued_ms < 1000 * NODE_AWAY_S
        return new or self._clock_s() - since_s >= NODE_AWAY_S

    def _active(self, entry: Entry) -> admission.Active:
        trials = self._feed.trials(self._folder(entry))
        return admission.Active(
            **vars(_waits(entry)),
            trials=trials.running,
            begun=trials.begun,
            ending=entry.job.state == "stopping",
        )

    def _rules(self, entries: list[Entry]) -> admission.Rules:
        paused, own = self._store.paused(), self._store.limits()
        limits = {
            owner: admission.Limits(
                **vars(own.get(owner, own[EVERYBODY])), used_gpu_hours=self._store.used_gpu_ms(owner) / 3_600_000
            )
            for owner in {entry.owner for entry in entries}
        }
        return admission.Rules(
            most_drivers=self._how.most_drivers,
            limits=limits,
            preempt=self._how.preempt,
            paused=None if paused is None else paused.reason,
        )

    def _change(
        self, entry: Entry, job: Job, what: str, *, gpu_ms: int | None = None, most_trials: int | None = None
    ) -> Entry:
        return self._store.change(
            entry,
            job,
            actor=ACTOR,
            now_ms=self._now_ms(),
            what=what,
            lead=self._lead,
            gpu_ms=gpu_ms,
            most_trials=most_trials,
        )

    def _folder(self, entry: Entry) -> SweepFolder:
        return SweepFolder(self._how.home / "sweeps" / entry.job.sweep_id)


def _waits(entry: Entry) -> admission.Sweep:
    return admission.Sweep(
        id=entry.job.sweep_id,
        owner=entry.owner,
        priority=entry.priority,
        queued_ms=entry.job.queued_ms,
        shape=entry.shape,
        most_trials=entry.most_trials,
    )


def _asked_meanwhile(folder: SweepFolder) -> bool:
    """Whether something was asked of it that its driver did not read any more."""
    ended = folder.state().ended
    return ended is not None and control.wishes(folder).heard > ended.heard


def configured(environment: Mapping[str, str] = os.environ) -> tuple[Store, RayJobs, Settings]:
    """What the environment says, each with its default. Raises InputError for what it cannot say."""
    home = settings.find_home(environment)
    settings.make_home(home)
    passed = {name: environment[name] for name in PASSED if name in environment}
    how = Settings(
        home=home,
        entrypoint=environment.get("TUNEYARD_DRIVER", "tuneyard"),
        environment={**passed, "MLFLOW_TRACKING_URI": settings.tracking_uri(home, None, environment)},
        most_drivers=settings.whole("TUNEYARD_MAX_DRIVERS", 8, environment),
        most_losses=settings.whole("TUNEYARD_MAX_LOSSES", 5, environment),
        preempt=settings.whole("TUNEYARD_PREEMPT", 0, environment) > 0,
    )
    ray = RayJobs(environment.get("TUNEYARD_RAY", "http://127.0.0.1:8265"), find_token(environment))
    return Store.open(settings.database_url(home, environment)), ray, how


def main() -> None:
    """Dispatch until SIGINT or SIGTERM. Exit 2 for settings that are wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    over = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    try:
        store, ray, how = configured()
        store.migrate()
    except TuneyardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    Dispatcher(store, ray, how).work(over)


if __name__ == "__main__":
    main()
