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
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from tuneyard import admission, courier, driver, jobs, roots, settings, sweeps
from tuneyard.courier import Courier
from tuneyard.database import Database
from tuneyard.jobs import DriverEnd, Job
from tuneyard.ray_jobs import RayJob, RayJobs, find_token
from tuneyard.reconciler import Reconciler
from tuneyard.store import EVERYBODY, LEAD_TTL_S, Conflict, Entry, Lead, LeadLost, Rival, Store
from tuneyard.trial_rows import TrialFeed
from tuneyard.webhooks import Webhooks
from tuneyard_pipelines import lease
from tuneyard_pipelines.capacity import Node
from tuneyard_pipelines.errors import TuneyardError, UnreachableError
from tuneyard_pipelines.journal import SweepFolder, write_atomic

log = logging.getLogger(__name__)

PASS_S = 1.0
CLUSTER_GONE_S = 30.0  # without an answer for so long, Ray is taken to be gone, and not to be slow
NODE_JOINS_S, NODE_AWAY_S = 20.0, 300.0  # one that starts with the head is there, one that is restarted is back
HANGS_S = 60.0  # a driver that has said its last word, and is there so long after, hangs
FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0  # after a loss, and twice as long after each further one
GCS_TIMEOUT_S = 8  # a driver whose cluster is gone for so long ends itself; Ray's own default is a minute
MEASURED_MS = 30_000  # of GPU time, between two changes of what a sweep has used
ACTOR = "dispatcher"


PASSED = (  # on to the drivers
    "OMP_NUM_THREADS",
    "TUNEYARD_CACHE_LIMIT",
    roots.VARIABLE,
    "HF_HUB_OFFLINE",
    "HF_DATASETS_OFFLINE",
)


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
        self._silence: UnreachableError | None = None  # what Ray's last silence was
        self._silent_since_s = 0.0
        self._never_since_s: dict[str, float] = {}  # since when no node could hold a trial of a sweep that waits
        # When a sweep whose driver was lost may start again: by the own clock, and as it is said.
        self._not_before: dict[str, tuple[float, str]] = {}
        self._legs: dict[str, int] = {}  # how many legs there were when an attempt was claimed
        self._first_s: dict[tuple[str, str], float] = {}  # when something was first seen of an attempt, or done to it

    def work(self, over: threading.Event) -> None:
        """Dispatch until `over`; whatever goes wrong in a pass is logged, and the next one tries again."""
        beating = threading.Thread(target=self._beat, args=(over,), name="lead", daemon=True)
        beating.start()
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
            over.set()
            beating.join()
            if self._lead is not None:
                with contextlib.suppress(TuneyardError):
                    self._store.release(self._lead)

    def _beat(self, over: threading.Event) -> None:
        """A pass may take longer than a lead lasts: a server that is away, values that wait to be sent."""
        while not over.wait(LEAD_TTL_S / 4):
            if (lead := self._lead) is not None:
                with contextlib.suppress(TuneyardError):  # the pass that next writes finds out
                    self._store.beat(lead)

    def step(self) -> None:
        """One pass; nothing while another dispatcher leads."""
        if not self._leads():
            return
        nodes = self._nodes()
        for entry in self._store.active():
            with _alone(entry.job.sweep_id):
                self._watch(entry)
        self._admit(nodes)
        self._reconciler.step(self._lead, self._silence is None)

    @property
    def leading(self) -> bool:
        """Whether it led the queue at its last pass."""
        return self._lead is not None

    @property
    def _gone(self) -> bool:
        """Whether the cluster has been silent for too long to be only slow."""
        return self._silence is not None and self._clock_s() - self._silent_since_s >= CLUSTER_GONE_S

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
        """None while Ray does not answer."""
        try:
            found = self._ray.nodes()
        except UnreachableError as silent:
            if self._silence is None:
                self._silent_since_s = self._clock_s()
                self._store.note(None, ACTOR, "cluster silent", str(silent), self._now_ms())
            self._silence = silent
            return []
        if self._silence is not None:
            self._silence = None
            self._store.note(None, ACTOR, "cluster answers", "", self._now_ms())
        return found

    def _watch(self, entry: Entry) -> None:
        """What became of a sweep that may have a driver."""
        folder = self._folder(entry)
        gpu_ms = self._feed.read(folder, entry, self._lead, self._now_ms())
        if gpu_ms - entry.gpu_ms >= MEASURED_MS:
            entry = self._change(entry, entry.job, "measured", gpu_ms=gpu_ms)
        job = entry.job
        if job.state == "submitting":
            self._submit(entry)
            return
        found = self._ask_ray(job)
        word = driver.ended(folder, job.submission_id)
        if isinstance(found, RayJob) and not job.ran:  # submitted, but nobody wrote it down
            entry = self._change(entry, jobs.started(job, self._now_ms()), "started")
            job = entry.job
        if isinstance(found, RayJob) and not found.ended:
            self._tell_to_end(job, word)
        elif found is None and word is None and not job.ran:  # it was asked to end before it was submitted
            self._change(entry, jobs.not_taken(job, "", self._now_ms()), "not submitted")
        elif (end := self._end(job, folder, found, word)) is not None:
            self._ended(entry, folder, end)

    def _submit(self, entry: Entry) -> None:
        """Submit the present attempt, or find it submitted."""
        job, folder = entry.job, self._folder(entry)
        if not _holds(folder.submitted, entry.spec_text):  # a loss of power may have taken it, or its end
            folder.path.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.submitted, entry.spec_text)
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
        except UnreachableError as refused:
            log.warning("%s", refused)
            if self._lasts(job, "refused", CLUSTER_GONE_S):
                self._not_taken(entry, str(refused))
            return
        self._change(entry, jobs.started(job, self._now_ms()), "started")

    def _not_taken(self, entry: Entry, message: str) -> None:
        """A cluster that is away costs it nothing but time; one that answers and will not take it is a loss."""
        job, now_ms = entry.job, self._now_ms()
        if self._silence is not None:
            self._change(entry, jobs.not_taken(job, message, now_ms), "not taken")
        elif job.losses >= self._how.most_losses:
            self._change(entry, jobs.refused(job, "unreachable", message, now_ms), "refused")
        else:
            self._change(entry, jobs.not_taken(replace(job, losses=job.losses + 1), message, now_ms), "not taken")
            self._wait_a_while(job, job.losses + 1)

    def _ask_ray(self, job: Job) -> RayJob | UnreachableError | None:
        """Not once more in a pass in which it was silent: each call would take its time to fail."""
        if self._silence is not None:
            return self._silence
        try:
            return self._ray.get(job.submission_id)
        except UnreachableError as silent:
            return silent

    def _tell_to_end(self, job: Job, word: DriverEnd | None) -> None:
        """Once; that it is to finish, its driver reads by itself. One that said its last word and hangs is ended."""
        hangs = word is not None and self._lasts(job, "word", HANGS_S)
        if hangs or (job.state == "stopping" and job.reason != "user_stop"):
            self._once(job, "told", lambda: self._ray.stop(job.submission_id))

    def _end(
        self, job: Job, folder: SweepFolder, found: RayJob | UnreachableError | None, word: DriverEnd | None
    ) -> DriverEnd | None:
        """How its driver ended, once it is sure that it did."""
        if isinstance(found, RayJob) and found.exit_code is not None:
            lease.free(folder.path, surely_gone=True)
        holder = lease.read(folder.path / "lease")
        lives = holder is not None and holder.alive(self._now_ms() / 1000)
        if word is not None:
            return word
        if isinstance(found, UnreachableError):
            known = lives or (holder is None and not self._gone)
            return None if known else DriverEnd("lost", "cluster_lost", str(found))
        if lives:  # Ray forgot it, and it goes on
            self._once(job, "ended", lambda: lease.end(folder.path))
            return None
        if found is None:
            return DriverEnd("lost", "cluster_lost", f"the cluster does not know {job.submission_id} any more")
        said = f"the driver ended without a word (exit code {found.exit_code}); its log is {folder.path / 'driver.log'}"
        return DriverEnd("lost", "driver_lost", said)

    def _ended(self, entry: Entry, folder: SweepFolder, end: DriverEnd) -> None:
        """Close what it left open, and let the job go on to its next state."""
        job, now_ms = entry.job, self._now_ms()
        self._reconciler.close(folder)
        gpu_ms = self._feed.read(folder, entry, self._lead, now_ms)
        heard_all = end.how == "lost" or job.reason == "user_cancel" or not sweeps.asked_more(folder, folder.state())
        if heard_all:
            progressed = self._feed.legs(folder) > self._legs.get(job.submission_id, math.inf)
            after = jobs.driver_ended(job, end, now_ms, most_losses=self._how.most_losses, progressed=progressed)
        else:
            after = jobs.asked_more(job, now_ms)
        self._change(entry, after, "driver ended" if heard_all else "asked for more", gpu_ms=gpu_ms)
        if after.losses > job.losses or after.reason in jobs.LOSSES:
            self._wait_a_while(job, after.losses)
        self._feed.forget(job.sweep_id)
        self._legs.pop(job.submission_id, None)
        self._first_s = {of: at for of, at in self._first_s.items() if of[0] != job.submission_id}

    def _admit(self, nodes: list[Node]) -> None:
        """Who starts, who gives way, and what the others wait for."""
        everybody = self._store.waiting()
        if not everybody:
            return
        waits = {entry.job.sweep_id: text for entry in everybody if (text := self._not_yet(entry))}
        waiting = [entry for entry in everybody if entry.job.sweep_id not in waits]
        active = self._store.active()
        decision = admission.decide(
            [_waits(entry) for entry in waiting],
            [self._active(entry) for entry in active],
            nodes,
            self._rules([*waiting, *active]),
        )
        by_id = {entry.job.sweep_id: entry for entry in [*waiting, *active]}
        waits |= decision.waits
        for sweep_id, (reason, text) in decision.never.items():
            entry = by_id[sweep_id]
            if not self._surely_never(entry):
                waits[sweep_id] = text
                continue
            with _alone(sweep_id):
                self._change(entry, jobs.refused(entry.job, reason, text, self._now_ms()), "refused")
        for sweep_id in decision.preempt:
            entry = by_id[sweep_id]
            with _alone(sweep_id):
                self._change(entry, jobs.stopped(entry.job, "preempted", self._now_ms()), "preempted")
        self._never_since_s = {one: at for one, at in self._never_since_s.items() if one in decision.never}
        self._store.put_waits(waits, self._lead)
        for sweep_id in decision.start:
            with _alone(sweep_id):
                self._start(by_id[sweep_id], decision.most_trials.get(sweep_id))

    def _start(self, entry: Entry, most_trials: int | None) -> None:
        job, folder = entry.job, self._folder(entry)
        most = _own_most_trials(entry) if most_trials is None else most_trials
        claimed = self._change(entry, jobs.claimed(job, self._now_ms()), "claimed", most_trials=most or 0)
        self._legs[claimed.job.submission_id] = self._feed.legs(folder)
        self._submit(claimed)

    def _not_yet(self, entry: Entry) -> str:
        """Why its turn does not count yet."""
        not_before_s, at = self._not_before.get(entry.job.sweep_id, (0.0, ""))
        if entry.job.losses and not_before_s > self._clock_s():
            return f"starts again at {at}, since its last driver was lost"
        if entry.job.attempt and not lease.free(self._folder(entry).path):
            return "the driver of its last attempt is still there"
        return ""

    def _wait_a_while(self, job: Job, losses: int) -> None:
        """What goes wrong at once must not use up its tries at once."""
        wait_s = min(FIRST_WAIT_S * 2 ** max(0, losses - 1), LONGEST_WAIT_S)
        at = datetime.fromtimestamp(self._now_ms() / 1000 + wait_s, UTC).strftime("%H:%M:%SZ")
        self._not_before[job.sweep_id] = (self._clock_s() + wait_s, at)

    def _lasts(self, job: Job, what: str, long_s: float) -> bool:
        """Whether something that is seen of this attempt in this pass was first seen so long ago."""
        return self._clock_s() - self._first_s.setdefault((job.submission_id, what), self._clock_s()) >= long_s

    def _once(self, job: Job, what: str, act: Callable[[], None]) -> None:
        """A second signal would cut a driver's clean-up."""
        if (job.submission_id, what) not in self._first_s:
            act()
            self._first_s[job.submission_id, what] = self._clock_s()

    def _surely_never(self, entry: Entry) -> bool:
        """Not where only a node may be away for a while: soon after it is submitted, or once that has gone on."""
        since_s = self._never_since_s.setdefault(entry.job.sweep_id, self._clock_s())
        new = entry.job.attempt == 0 and self._now_ms() - entry.job.queued_ms < 1000 * NODE_AWAY_S
        return self._clock_s() - since_s >= (NODE_JOINS_S if new else NODE_AWAY_S)

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
        most_trials=_own_most_trials(entry) if entry.job.state == "queued" else entry.most_trials,
    )


def _own_most_trials(entry: Entry) -> int | None:
    """What its spec says, whatever a limit of its owner's made of it in an earlier attempt."""
    return sweeps.terms(entry.spec_text).most_trials if entry.job.attempt else entry.most_trials


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode()
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _alone(sweep_id: str) -> Iterator[None]:
    """Trouble with one sweep keeps no other from its turn; what a person did meanwhile the next pass sees."""
    try:
        yield
    except LeadLost:
        raise
    except Conflict:
        return
    except Exception:
        log.exception("sweep %s", sweep_id)


def configured(environment: Mapping[str, str] = os.environ) -> tuple[Database, RayJobs, Settings]:
    """What the environment says, each with its default. Raises InputError for what it cannot say."""
    settings.check_names(environment)
    home = settings.find_home(environment)
    settings.make_home(home)
    if uri := environment.get("MLFLOW_TRACKING_URI"):
        settings.keep_tracking_uri(home, settings.tracking_uri(home, uri))
    how = Settings(
        home=home,
        entrypoint=settings.value("TUNEYARD_DRIVER", environment),
        environment={name: environment[name] for name in PASSED if name in environment},
        most_drivers=settings.whole("TUNEYARD_MAX_DRIVERS", environment),
        most_losses=settings.whole("TUNEYARD_MAX_LOSSES", environment),
        preempt=settings.whole("TUNEYARD_PREEMPT", environment) > 0,
    )
    ray = RayJobs(settings.value("TUNEYARD_RAY", environment), find_token(environment))
    return Database(settings.database_url(home, environment)), ray, how


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
        database, ray, how = configured()
        networks = settings.networks(courier.NETWORKS)
        database.migrate()
    except TuneyardError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    dispatcher = Dispatcher(Store(database), ray, how)
    telling = Courier(Webhooks(database), networks, lambda: dispatcher.leading)
    thread = threading.Thread(target=telling.work, args=(over,), name="webhooks")
    thread.start()
    dispatcher.work(over)
    thread.join()


if __name__ == "__main__":
    main()
