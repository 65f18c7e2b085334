"""The driver: one attempt at a sweep is a fresh Tune experiment over the sweep's folder, whatever happened before.

Torch and Lightning are imported in the trials' processes only: the driver starts seconds sooner without them.

    run      spec -> data prepared, MLflow answers, resources exist -> the folder, and nothing is made before that
    drive    lease -> journal replayed -> legs under Ray Tune until none is left -> winner scored, packed, registered
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray import tune
from ray.tune.error import TuneError

from tuneyard_pipelines import architectures, budget, control, data, promotion, tracking
from tuneyard_pipelines.budget import SAVE_S
from tuneyard_pipelines.capacity import Shape, fit, fits_beside
from tuneyard_pipelines.cluster import cluster, nodes, only_own_gpus, quiet, reserved
from tuneyard_pipelines.data import folders
from tuneyard_pipelines.data.prepare import Progress
from tuneyard_pipelines.errors import InputError, TuneyardError, UnreachableError, first_line
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import (
    FULL,
    AttemptEnded,
    AttemptStarted,
    Header,
    Journal,
    SweepFolder,
    SweepState,
    TrialEnded,
    TrialState,
    WinnerRegistered,
    WinnerScored,
)
from tuneyard_pipelines.lease import Lease
from tuneyard_pipelines.leg import Leg
from tuneyard_pipelines.plan import Machine, runnable
from tuneyard_pipelines.searcher import LegSearcher, rules
from tuneyard_pipelines.spec import Resources, SweepSpec
from tuneyard_pipelines.watchdog import last_words

log = logging.getLogger(__name__)

LOOK_S = 0.5
FULL_BYTES = 1 << 20  # a disk with less is taken for full
MakeCallbacks = Callable[[Leg], Sequence[Any]]


def run(
    spec: SweepSpec,
    spec_text: str,
    *,
    home: Path,
    tracking_uri: str,
    sweep_id: str,
    announce: Callable[[SweepFolder], None] = lambda folder: None,
    preparing: Progress = lambda doing, share: None,
    callbacks: MakeCallbacks | None = None,
    forecast: Mapping[str, float] | None = None,
    most_trials: int | None = None,
) -> SweepFolder:
    """Accept a sweep and drive it to its end: its data is prepared, its MLflow answers, its resources exist.

    `preparing` is told what is done to the data, and its share. Only then is the sweep's folder written, and `announce`
    called with it. Raises InputError, DataError or UnreachableError
    before that, and leaves no folder and no run (prepared data stays cached); then whatever `drive` raises.
    """
    runnable(spec)
    spec = spec.model_copy(update={"data": data.pinned(spec.data)})
    prepared = data.prepare(spec.data, spec.seed, home / "data", spec.task, preparing)
    with folders.held(prepared.folder):
        vocabularies = _encode(prepared, spec, preparing)
    runnable(spec, Machine(vocabularies=vocabularies, exact=True))  # now that the vocabulary is known
    tracking.connect(tracking_uri)
    folder = SweepFolder(home / "sweeps" / sweep_id)
    preparing("starting Ray", math.nan)
    with cluster(spec.shapes):
        folder.create(
            Header(
                sweep_id=sweep_id,
                spec=spec,
                spec_text=spec_text,
                home=home,
                data=prepared.folder,
                data_fingerprint=prepared.fingerprint,
                tracking_uri=tracking_uri,
                created_ms=now_ms(),
                versions=versions(spec),
                examples=prepared.examples,
                left_out=prepared.left_out,
                findings=[one.to_dict() for one in prepared.findings],
                vocabularies=vocabularies,
                forecast=forecast or {},
            )
        )
        announce(folder)
        drive(folder, callbacks, most_trials=most_trials)
    return folder


def drive(folder: SweepFolder, callbacks: MakeCallbacks | None = None, *, most_trials: int | None = None) -> SweepState:
    """Bring the sweep to its end, from wherever it stands; the state says how the attempt ended.

    `callbacks(leg)` gives Lightning callbacks that watch each leg; at most `most_trials` run at once, if that is less
    than the spec allows. Raises RefusedError while another driver is at it,
    InputError when the cluster lacks the resources, UnreachableError when MLflow does not answer.
    """
    header = _holding_back(folder.header(), most_trials)
    lease = Lease.take(folder.path)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_log_file(folder.path / "driver.log"))
            stack.enter_context(cluster(header.spec.shapes))
            client = tracking.connect(header.tracking_uri)
            _prepare_again(header)
            stack.enter_context(folders.held(header.data))
            journal = Journal(folder, lease.held)
            journal.append(
                AttemptStarted(
                    attempt=journal.state.attempt + 1,
                    time_ms=now_ms(),
                    host=socket.gethostname(),
                    versions=versions(header.spec),
                    sealed=folder.seals(),
                )
            )
            shipper = tracking.Shipper(folder, client)
            end = _End("failed", "the driver was ended")
            try:
                with _Signals() as signals:
                    end = _attempt(journal, header, callbacks, shipper, signals)
            except KeyboardInterrupt:
                end = _interrupted(header)
            except (TuneyardError, OSError) as cause:
                end = _End("failed", str(cause))
                raise
            except Exception as cause:
                log.exception("the driver failed")
                end = _End("failed", f"{_reason(cause)}; more in {folder.path / 'driver.log'}")
                raise TuneyardError(f"sweep {header.sweep_id}: {end.message}; {_go_on(header)}") from cause
            finally:
                _close(journal, shipper, end)
            return journal.state
    finally:
        lease.release()


def _holding_back(header: Header, most_trials: int | None) -> Header:
    search = header.spec.search
    if most_trials is None or most_trials >= (search.max_concurrent_trials or math.inf):
        return header
    held = search.model_copy(update={"max_concurrent_trials": most_trials})
    return replace(header, spec=header.spec.model_copy(update={"search": held}))


def _encode(prepared: data.PreparedData, spec: SweepSpec, preparing: Progress) -> dict[str, VocabSizes]:
    """Make the tokens that trials will look for, where it is known which; the sizes of their vocabularies."""
    return {name: data.encode(prepared, tokenizer, preparing).sizes for name, tokenizer in spec.tokenizers.items()}


def _prepare_again(header: Header) -> None:
    """Prepared data that was deleted is made anew. Raises InputError if its source is another one by now."""
    try:
        data.PreparedData.open(header.data)
    except data.DataError:
        spec = header.spec
        if data.prepare(spec.data, spec.seed, header.home / "data", spec.task).fingerprint != header.data_fingerprint:
            raise InputError(
                f"data.source: {spec.data.source} is not what sweep {header.sweep_id} began with, and its prepared "
                f"data in {header.data} is gone; put the old file back, or start a new sweep"
            ) from None


@dataclass(frozen=True)
class _End:
    """How an attempt ended and why, and how many requests it has followed; `early`: before all was done."""

    state: str
    message: str = ""
    heard: int = 0
    early: bool = False


def _attempt(
    journal: Journal, header: Header, callbacks: MakeCallbacks | None, shipper: tracking.Shipper, signals: _Signals
) -> _End:
    """Train and choose, until nothing more is asked for."""
    while True:
        end = _train_and_choose(journal, header, callbacks, shipper, signals)
        if end.state != "finished" or end.early or control.wishes(journal.folder).heard <= end.heard:
            return end


def _train_and_choose(
    journal: Journal, header: Header, callbacks: MakeCallbacks | None, shipper: tracking.Shipper, signals: _Signals
) -> _End:
    spec = header.spec
    with tracking.in_background(shipper):
        searcher = _train(journal, header, callbacks, signals)
        if searcher.stopping:
            return _interrupted(header)
        early = searcher.finishing
        for trial in journal.state.trials.values():
            if trial.outcome is None:
                outcome = "completed" if trial.share >= FULL else "stopped_early"
                if early is not None and trial.rung is None and not trial.final:
                    outcome = early.outcome
                journal.append(TrialEnded(trial.id, outcome, "", now_ms()))
        choose = promotion.winner if early is None else promotion.best_so_far
        best = choose(journal.state.trials, spec.mode)
        if best is None:
            why = f"{early.reason} before any trial had a validation: no result" if early else "no trial completed"
            return _End("failed", f"{why}; see more with: tuneyard sweep trials {header.sweep_id}", searcher.heard)
        scored = journal.state.scored
        if scored is None or scored.trial != best.id or scored.score not in (None, best.score):
            scored = _score(journal, header, best)
    registered = journal.state.registered
    if spec.registration is not None and (
        registered is None or registered.trial != best.id or registered.model not in ("", scored.model)
    ):
        journal.append(_register(journal, header, best, shipper))
    if early is not None:
        return _End("finished", early.reason, searcher.heard, early=True)
    if searcher.exhausted and spec.search.trials is not None:
        asked = sum(rule.trials for rule in rules(spec, control.wishes(journal.folder)).values())
        reason = f"all {len(journal.state.trials)} feasible points were tried; {asked} were asked for"
        return _End("finished", reason, searcher.heard)
    return _End("finished", heard=searcher.heard)


def _train(journal: Journal, header: Header, callbacks: MakeCallbacks | None, signals: _Signals) -> LegSearcher:
    """Run legs until nothing is left to run, the sweep must end, or a signal comes; the searcher knows which."""
    while True:
        searcher = LegSearcher(journal, header.spec, journal.state.attempt, now_ms, header.vocabularies, _fits)
        signals.searcher = searcher
        with _ends_in_time(journal, header, searcher):
            if searcher.finishing is None:
                _tune(journal, header, callbacks, searcher)
        signals.searcher = None
        if searcher.stopping or searcher.finishing or not searcher.asked_meanwhile():
            return searcher


def _tune(journal: Journal, header: Header, callbacks: MakeCallbacks | None, searcher: LegSearcher) -> None:
    spec = header.spec
    there = nodes()
    slots = max(fit(shape, there) for shape in spec.shapes)

    def reserve(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([reserved(resources_of(Leg(**config["leg"])))])

    def resources_of(order: Leg) -> Resources:
        return spec.variant(order.variant).resources_at(order.point)

    def leg(config: dict[str, Any]) -> None:
        quiet()
        order = Leg(**config["leg"])
        resources = resources_of(order)
        if resources.workers > 1:
            from tuneyard_pipelines import worker_group

            result = worker_group.train(order, resources, spec.mode, storage, callbacks)
        else:
            from tuneyard_pipelines.trial import run_leg

            only_own_gpus(resources)
            result = run_leg(order, callbacks(order) if callbacks else ())
        tune.report({"leg": json.dumps(result.to_dict())})  # Tune would flatten a mapping

    with tempfile.TemporaryDirectory(prefix="tune-", dir=journal.folder.path) as storage:
        tune.Tuner(
            tune.with_resources(leg, reserve),
            tune_config=tune.TuneConfig(
                search_alg=searcher,
                num_samples=-1,
                max_concurrent_trials=min(spec.search.max_concurrent_trials or slots, slots),
                reuse_actors=True,
                trial_dirname_creator=lambda trial: str(trial.trial_id),  # Tune's own would hold the point's values
            ),
            run_config=tune.RunConfig(
                name=f"a{journal.state.attempt}",
                storage_path=storage,
                verbose=0,
                progress_reporter=_Silent(),
                failure_config=tune.FailureConfig(max_failures=0),
            ),
        ).fit()


def _fits(running: Sequence[Shape], shape: Shape) -> bool:
    """Whether the cluster, as it is now, has room for one more trial beside those that run."""
    return fits_beside(shape, running, nodes())


class _Silent(tune.ProgressReporter):
    """Tune's own, silent or not, clears the output of a notebook's cell."""

    def should_report(self, trials: list[Any], done: bool = False) -> bool:
        return False


@contextlib.contextmanager
def _ends_in_time(journal: Journal, header: Header, searcher: LegSearcher) -> Iterator[None]:
    """Watch meanwhile for a reason to come to an end; when there is one, searcher and trials are told."""
    over = threading.Event()
    inbox = control.Inbox(journal.folder)

    shape = header.spec.shapes[0]  # what a point does not vary is the same in all

    def gpus(trial: TrialState) -> float:
        return shape.gpus_at(trial.point)

    def look() -> bool:
        why = budget.reason_to_end(header.spec.budget, journal.state, inbox.read(), now_ms(), gpus=gpus)
        if why is not None:
            searcher.tell(why)
            searcher.finishing = why
            searcher.heard = max(searcher.heard, inbox.wishes.heard if inbox.wishes.stopped else 0)
        return why is not None

    def watch() -> None:
        while not over.wait(LOOK_S):
            try:
                if look():
                    return
            except OSError:
                log.exception("could not look whether the sweep must end")

    look()
    thread = threading.Thread(target=watch, name="budget", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _score(journal: Journal, header: Header, best: TrialState) -> WinnerScored:
    """Score and pack the winner in a process with the resources of one of its workers, once."""

    def score(folder: str, trial: str) -> WinnerScored:
        from tuneyard_pipelines.trial import score_and_pack

        quiet()
        only_own_gpus(resources)
        found, model = score_and_pack(folder, trial)
        return WinnerScored(trial, found.metrics, found.digest, model, now_ms(), best.score)

    resources = header.spec.variant(best.variant).resources_at(best.point)
    task = ray.remote(score).options(
        num_cpus=resources.cpus_per_worker,
        num_gpus=resources.gpus_per_worker,
        memory=resources.memory_per_worker_bytes,
        accelerator_type=resources.accelerator_type,
        max_retries=1,
    )
    try:
        scored: WinnerScored = ray.get(task.remote(str(journal.folder.path), best.id))
    except ray.exceptions.RayTaskError as failed:  # its text is a whole remote traceback
        raise failed.cause from failed
    except ray.exceptions.RayError as failed:
        words = last_words(journal.folder.scoring(best.id))
        reason = words[1] if words else first_line(failed)
        raise TuneyardError(f"scoring {best.id} on the test split: {reason}; {_go_on(header)}") from failed
    journal.append(scored)
    return scored


def _register(journal: Journal, header: Header, best: TrialState, shipper: tracking.Shipper) -> WinnerRegistered:
    from tuneyard_pipelines import registration

    try:
        shipper.ship()
        return registration.register(journal, header, best, shipper.child(best.id), shipper.client, now_ms)
    except TuneyardError:
        raise
    except Exception as cause:  # a database's, a server's or a connection's, by what the URI names
        log.exception("registration failed")
        raise UnreachableError(
            f"MLflow at {header.tracking_uri} did not take the model of {best.id} ({first_line(cause)}); it is kept in "
            f"{journal.folder.model(best.id)}; {_go_on(header)}"
        ) from cause


def _close(journal: Journal, shipper: tracking.Shipper, end: _End) -> None:
    """Write down how the attempt ended and tell MLflow; what cannot be written is left for the next look to find."""
    try:
        attempt = journal.state.attempt
        journal.append(AttemptEnded(attempt, end.state, end.message, now_ms(), end.heard, end.early))
    except (OSError, TuneyardError):
        log.exception("the end of the attempt could not be written")
        return
    if isinstance(sys.exception(), OSError) or shutil.disk_usage(journal.folder.path).free < FULL_BYTES:
        return  # MLflow's database may lie on the same full disk: the next look sends the rest
    if not tracking.drain(shipper):
        log.error("MLflow at %s did not take everything; it is kept and sent later", shipper.header.tracking_uri)


def _reason(cause: Exception) -> str:
    """The last line of what Tune raises is the exception itself, the first only says that a traceback follows."""
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    return lines[-1] if isinstance(cause, TuneError) else f"{type(cause).__name__}: {lines[0]}"


def _interrupted(header: Header) -> _End:
    return _End("interrupted", f"stopped by a signal; {_go_on(header)}")


def _go_on(header: Header) -> str:
    return f"go on with: tuneyard sweep resume {header.sweep_id}"


def versions(spec: SweepSpec) -> dict[str, str]:
    """Of Python, of what trains, and of the packages whose architectures `spec` names."""
    names = ("tuneyard", "torch", "pytorch-lightning", "ray", "mlflow", "tokenizers", "datasets")
    added = architectures.packages(spec.architectures)
    return {
        "python": sys.version.split()[0],
        **{name: version(name) for name in names},
        **{package.name: package.version for package in added},
    }


class _Signals:
    """SIGINT and SIGTERM raise KeyboardInterrupt, but under Tune they end its run in order: no leg counts as failed.

    Legs that train have SAVE_S to save a last checkpoint first. Ray puts a SIGTERM handler of its own in place when it
    starts, so enter this afterwards. Tune ends on SIGUSR1 as it does on SIGINT. A second signal raises at once. Outside
    the main thread nothing is caught.
    """

    def __init__(self) -> None:
        self.searcher: LegSearcher | None = None
        self._before: dict[int, Any] = {}
        self._over = threading.Event()
        self._saving: threading.Thread | None = None

    def __enter__(self) -> _Signals:
        if threading.current_thread() is threading.main_thread():
            handlers: dict[int, Any] = {
                signal.SIGINT: self._stop,
                signal.SIGTERM: self._stop,
                signal.SIGUSR1: signal.SIG_IGN,
            }
            self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *args: object) -> None:
        self._over.set()
        if self._saving is not None:
            self._saving.join()
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.searcher is None or self.searcher.stopping:
            raise KeyboardInterrupt
        self.searcher.stopping = True
        self._saving = threading.Thread(target=self._let_save, args=(self.searcher,), name="saving", daemon=True)
        self._saving.start()

    def _let_save(self, searcher: LegSearcher) -> None:
        """Have Tune end its run once no leg trains any more, or when their time is over."""
        until_s = time.monotonic() + SAVE_S
        try:
            searcher.interrupt()
            while searcher.training() and time.monotonic() < until_s and not self._over.wait(LOOK_S):
                pass
        except OSError:  # a disk that is full or gone: there is nothing to wait for
            log.exception("trials could not be told to save")
        if not self._over.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)


@contextlib.contextmanager
def _log_file(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("tuneyard_pipelines")
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def now_ms() -> int:
    return int(time.time() * 1000)
