"""The shipper: brings what stands in a sweep's folder to MLflow, one parent run a sweep, one child run a trial.

It reads the journal and the metric files like any other reader and keeps nothing of its own: whoever holds the lease
can ship, from the start, as often as needed. Runs are found again by tag; values carry their stored times, and MLflow
keeps the same key, step, value and time once. Training never waits for it. While MLflow does not take everything, a
file in the folder (`OUTAGE`) says since when and why; `shipped` says up to which attempt MLflow knows everything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneyard_pipelines import checkpoints, promotion, report
from tuneyard_pipelines.errors import UnreachableError, first_line
from tuneyard_pipelines.journal import (
    ATTENTION_NUMBERS,
    ATTENTION_PICTURE,
    SAMPLES,
    AttemptEnded,
    Header,
    Journal,
    SweepFolder,
    SweepState,
    Tail,
    TrialState,
    write_atomic,
)
from tuneyard_pipelines.lease import Lease, driven
from tuneyard_pipelines.metrics import MetricReader, MetricValue
from tuneyard_pipelines.mlflow_runs import Runs
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.standing import leader, sweep_shown, trial_shown

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

PASS_S = 1.0
BACKOFF_MAX_S = 30.0
DRAIN_S = 60.0
METRICS_A_BATCH = 1000
OUTAGE = "outage.json"


def connect(uri: str) -> MlflowClient:
    """A client whose calls fail within seconds when the server is gone. Raises UnreachableError if it is gone now."""
    for name, value in {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # a repeated POST could make a run twice
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is the command's own, and may be JSON
    }.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    # After the import, which sets them up. What a database refuses is raised, and said once, by those who asked.
    for name, level in {"mlflow": "WARNING", "alembic": "WARNING", "mlflow.store.db.utils": "CRITICAL"}.items():
        logging.getLogger(name).setLevel(level)
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    except Exception as cause:
        raise UnreachableError(
            f"MLflow at {uri} does not answer ({first_line(cause)}); start it and try again; what is new may name "
            "another with --mlflow URI, a sweep keeps its own"
        ) from cause
    return client


@contextlib.contextmanager
def as_default(uri: str) -> Iterator[None]:
    """Parts of MLflow look at nothing but the process's own setting: it names `uri` meanwhile.

    MLflow puts it into the environment, too, where it would later be taken for what the user has set.
    """
    import mlflow

    names = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
    before = {name: os.environ[name] for name in names if name in os.environ}
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)  # type: ignore[arg-type]  # what stands in the environment counts again
        mlflow.set_registry_uri(None)  # type: ignore[arg-type]
        for name in names:
            os.environ.pop(name, None)
        os.environ.update(before)


@dataclass(frozen=True)
class _Sending:
    """How far a trial's values have been sent to its run."""

    run_id: str
    reader: MetricReader
    unsent: list[MetricValue]


class Shipper:
    """One sweep's way to MLflow. `ship` makes one pass; it may be called again after any failure."""

    def __init__(self, folder: SweepFolder, client: MlflowClient) -> None:
        self.folder, self.client = folder, client
        self.header = folder.header()
        self._planned = plan(self.header.spec).expected_tokens
        self._reported_ms: int | None = None
        self._tail = Tail(folder.journal)
        self._state = SweepState()
        self._runs: Runs | None = None
        self._sending: dict[str, _Sending] = {}
        self._done: set[tuple[str, int | None]] = set()
        self._note = ""
        self._doubtful = False

    def ship(self) -> None:
        """Send all that is new. Raises whatever the client raises; nothing is lost then."""
        try:
            self._ship()
        except BaseException:
            self._runs, self._doubtful = None, True  # what arrived is not known: look again
            raise

    def make_sure(self) -> None:
        """The next pass looks again at what MLflow holds if any request went unanswered: it may be done late."""
        if self._doubtful:
            self._runs, self._doubtful = None, False

    def _ship(self) -> None:
        for event in self._tail.events():
            self._state = self._state.after(event)
        self._write_report()
        if self._runs is None:
            self._runs = Runs(self.client, self.header, self._state)
        refused: Exception | None = None
        for trial in self._state.trials.values():
            try:
                if (trial.id, trial.ended_ms) not in self._done:
                    self._ship_trial(self._runs, trial)
            except Exception as cause:  # a run that MLflow refuses must not hold up the others
                self.client.search_experiments(max_results=1)  # no answer: it is the server, and the pass ends here
                refused = cause
        self._ship_parent(self._runs)
        self._ship_score(self._runs)
        self._ship_report(self._runs)
        if refused is not None:
            raise refused

    def child(self, trial: str) -> str:
        """The id of a trial's run."""
        assert self._runs is not None
        return self._runs.child(self._state.trials[trial], attempts(self._state, self._state.trials[trial].attempts))

    def _ship_trial(self, runs: Runs, trial: TrialState) -> None:
        ran = attempts(self._state, trial.attempts)
        run_id = runs.child(trial, ran)
        ended = f"{trial.outcome} {trial.ended_ms}"  # one that goes on ends again
        if trial.outcome and runs.tag(run_id, "tuneyard.shipped") == ended:
            self._done.add((trial.id, trial.ended_ms))
            return
        sending = self._sending.get(trial.id)
        if sending is None or sending.run_id != run_id:  # a run that somebody deleted is made and filled again
            sending = self._sending[trial.id] = _Sending(run_id, MetricReader(self.folder, trial.id), [])
        sending.unsent.extend(sending.reader.new(self._state))
        while sending.unsent:
            runs.log_metrics(run_id, sending.unsent[:METRICS_A_BATCH])
            del sending.unsent[:METRICS_A_BATCH]
        if trial.outcome:
            for path, place in trial_files(self.folder, trial, self.header.spec.mode):
                self.client.log_artifact(run_id, str(path), place)
        runs.set_tag(run_id, "tuneyard.attempts", ran)
        if trial.idle_gpu_ms:
            runs.set_tag(run_id, "tuneyard.idle_gpu", trial.idle_gpu)
        runs.show(run_id, trial_shown(trial, self._state), trial.ended_ms)
        if trial.outcome:
            runs.set_tag(run_id, "tuneyard.shipped", ended)
            self._done.add((trial.id, trial.ended_ms))

    def _ship_score(self, runs: Runs) -> None:
        scored = self._state.scored
        if scored is None:
            return
        trial = self._state.trials[scored.trial]
        run_id = self.child(trial.id)
        if runs.tag(run_id, "tuneyard.evidence") != scored.evidence:
            step = trial.last.step if trial.last else 0
            runs.log_metrics(
                run_id, [MetricValue(key, step, value, scored.time_ms) for key, value in scored.metrics.items()]
            )
            self.client.log_artifacts(run_id, str(self.folder.evidence(trial.id)), "evidence")
            runs.set_tag(run_id, "tuneyard.evidence", scored.evidence)

    def _write_report(self) -> None:
        """Once an attempt has ended, into the folder, whether MLflow answers or not: a page and figures."""
        ended = self._state.ended
        if ended is None or self._reported_ms == ended.time_ms:
            return
        self._reported_ms = ended.time_ms
        try:
            report.write(report.from_folder(self.folder), self.folder.report)
        except Exception:  # a figure must not hold up what the runs show
            log.exception("the report of %s could not be written", self.folder.sweep_id)
            shutil.rmtree(self.folder.report, ignore_errors=True)  # one of an earlier attempt would not be true

    def _ship_report(self, runs: Runs) -> None:
        ended = self._state.ended
        if ended is None or not (self.folder.report / report.PAGE).exists():
            return
        if runs.tag(runs.parent, "tuneyard.report") != str(ended.time_ms):
            self.client.log_artifacts(runs.parent, str(self.folder.report), "report")
            runs.set_tag(runs.parent, "tuneyard.report", str(ended.time_ms))

    def _ship_parent(self, runs: Runs) -> None:
        reported = self._state.ended is not None and (self.folder.report / report.PAGE).exists()
        text = note(self.header, self._state, runs.link, self._planned, reported=reported)
        if text != self._note:
            runs.set_tag(runs.parent, "mlflow.note.content", text)
            self._note = text
        numbers = [started.attempt for started in self._state.attempts]
        runs.set_tag(runs.parent, "tuneyard.attempts", attempts(self._state, numbers))
        ended = self._state.ended
        runs.show(runs.parent, sweep_shown(self._state), ended.time_ms if ended else None)


@contextlib.contextmanager
def in_background(shipper: Shipper) -> Iterator[None]:
    """Ship in a thread for as long as the context lasts; trouble is logged, waited out and tried again."""
    over = threading.Event()

    def run() -> None:
        wait_s = PASS_S
        while not over.wait(wait_s):
            wait_s = PASS_S if _try(shipper) else min(2 * wait_s, BACKOFF_MAX_S)

    thread = threading.Thread(target=run, name="shipper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def drain(shipper: Shipper, *, timeout_s: float = DRAIN_S) -> bool:
    """Ship until everything has arrived and mark the folder so; False if the server did not take it in time."""
    deadline = time.monotonic() + timeout_s
    shipper.make_sure()
    while not _try(shipper):
        if time.monotonic() > deadline:
            return False
        time.sleep(min(1.0, timeout_s))
    write_atomic(shipper.folder.path / "shipped", str(shipper.folder.state().attempt))
    return True


def mark_lost(folder: SweepFolder, now_ms: int) -> bool:
    """Write down the end of an attempt whose driver is dead. True if there was one.

    Raises RefusedError where one drives.
    """
    state = folder.state()
    if not state.attempt or state.ended is not None:
        return False
    lease = Lease.take(folder.path)
    try:
        _mark_lost(Journal(folder, lease.held), now_ms)
    finally:
        lease.release()
    return True


def reconcile(folder: SweepFolder, now_ms: int) -> bool:
    """Close what a dead driver left open: its attempt is marked lost and MLflow is told. True if there was something.

    Raises UnreachableError when the sweep's MLflow does not answer; the next look tries again.
    """
    if driven(folder.path) or not unfinished_business(folder):
        return False
    lease = Lease.take(folder.path)
    try:
        _mark_lost(Journal(folder, lease.held), now_ms)
        if not drain(Shipper(folder, connect(folder.header().tracking_uri)), timeout_s=0):
            uri = folder.header().tracking_uri
            raise UnreachableError(f"MLflow at {uri} did not take the rest of {folder.sweep_id}; it is kept, try again")
    finally:
        lease.release()
    return True


def _mark_lost(journal: Journal, now_ms: int) -> None:
    state = journal.state
    if state.attempt and state.ended is None:
        sweep_id, host = journal.folder.sweep_id, state.attempts[-1].host
        message = f"the driver on {host} is gone; go on with: tuneyard sweep resume {sweep_id}"
        journal.append(AttemptEnded(state.attempt, "lost", message, now_ms))


@dataclass(frozen=True)
class Outage:
    """Since when MLflow has not taken everything of a sweep, and what it said then."""

    since_ms: int
    reason: str


def outage(folder: SweepFolder) -> Outage | None:
    """None while all is well."""
    try:
        return Outage(**json.loads((folder.path / OUTAGE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def unfinished_business(folder: SweepFolder) -> bool:
    """Whether MLflow may not know all that this folder holds."""
    try:
        shipped = int((folder.path / "shipped").read_text())
    except (OSError, ValueError):
        shipped = 0
    return shipped != folder.state().attempt


def trial_files(folder: SweepFolder, trial: TrialState, mode: promotion.Mode) -> Iterator[tuple[Path, str | None]]:
    """Files that belong to an ended trial's run, with their place among its artifacts."""
    for attempt in sorted(folder.trial(trial.id).glob("a*")):
        for file in (attempt / "trial.log", *sorted(attempt.glob("rank*.log")), *sorted(attempt.glob("stack-*.txt"))):
            if file.exists() and file.stat().st_size:
                yield file, attempt.name
    for name in (SAMPLES, ATTENTION_PICTURE, ATTENTION_NUMBERS):
        written = sorted(folder.trial(trial.id).glob(f"a*/{name}"), key=lambda file: file.stat().st_mtime)
        if written:
            yield written[-1], None
    best = checkpoints.best(checkpoints.whole(folder.trial(trial.id)), mode) if trial.outcome == "completed" else None
    if best is not None:
        yield from ((file, "checkpoint") for file in sorted(best.path.iterdir()))


def attempts(state: SweepState, numbers: Sequence[int]) -> str:
    """Where and with which versions these attempts ran, as JSON: what differs by attempt is no param of the point."""
    chosen = [started for started in state.attempts if started.attempt in numbers]
    return json.dumps([{"attempt": a.attempt, "host": a.host, "versions": dict(a.versions)} for a in chosen])


def note(header: Header, state: SweepState, link: Callable[[str], str], planned: int | None, *, reported: bool) -> str:
    """The parent's note, in Markdown: the best so far, what was planned against what became of it, how to go on."""
    spec = header.spec
    lines = [spec.description, ""] if spec.description else []
    best = leader(header, state)
    if best is not None and best.score is not None:
        lines += [
            f"**Best: [{best.name}]({link(best.id)})**, {spec.metric} {best.score:.4g}, {best.tokens:,} tokens",
            "",
        ]
    if state.scored:
        values = ", ".join(f"{key} {value:.4g}" for key, value in sorted(state.scored.metrics.items()))
        lines += [f"On the test split, {state.scored.trial}: {values}", ""]
    if state.registered:
        name, version = state.registered.name, state.registered.version
        lines += [f"Registered as [{name} version {version}](#/models/{name}/versions/{version})", ""]
    counts: dict[str, int] = {}
    for trial in state.trials.values():
        counts[trial.state] = counts.get(trial.state, 0) + 1
    asked = spec.search.trials or "all"
    lines.append(f"Trials: {asked} asked for, {len(state.trials)} created ({_counted(counts)})")
    trained = sum(trial.tokens for trial in state.trials.values())
    lines.append(f"Tokens trained: {trained:,}" + (f" of about {planned:,} planned" if planned else ""))
    if header.examples:
        counts_by_split = ", ".join(f"{count:,} {split}" for split, count in header.examples.items())
        examples = "Pairs" if spec.task == "translation" else "Documents"
        lines.append(f"{examples}: {counts_by_split}; {header.left_out:,} that cannot be used left out")
        lines += [f"- {one['fate']}: {one['count']:,} {one['what']}" for one in header.findings]
    if reported:
        lines.append(f"Report: `report/{report.PAGE}` among the artifacts of this run")
    lines += ["", f"Folder: `{header.home}/sweeps/{header.sweep_id}`; `tuneyard sweep show {header.sweep_id}`"]
    return "\n".join(lines)


def _try(shipper: Shipper) -> bool:
    file = shipper.folder.path / OUTAGE
    try:
        shipper.ship()
    except Exception as cause:
        reason = _reason(cause)
        log.warning("MLflow did not take the latest of %s, will try again: %s", shipper.folder.sweep_id, reason)
        if not file.exists():
            with contextlib.suppress(OSError):  # a full disk costs the notice, not the shipping
                write_atomic(file, json.dumps(asdict(Outage(int(time.time() * 1000), reason))))
        return False
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    return True


def _reason(cause: Exception) -> str:
    """The first line that says something: SQLAlchemy puts one of its own advice in front."""
    lines = [text for text in str(cause).strip().splitlines() if not text.startswith("(raised as a result of")]
    return lines[0][:500] if lines else type(cause).__name__


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
