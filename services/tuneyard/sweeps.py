"""Sweeps as people look at them: local ones by their folders, those of the queue by its database, too."""

from __future__ import annotations

import math
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuneyard.settings import is_default, without_passwords
from tuneyard_pipelines import control, lease, reach, report, spec_yaml, standing, tracking
from tuneyard_pipelines.catalog import METRICS, TASKS, Mode
from tuneyard_pipelines.errors import InputError, TuneyardError
from tuneyard_pipelines.journal import FAILURES, Header, SweepFolder, SweepState, TrialState
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.spec import Scalar, short_name

if TYPE_CHECKING:
    from tuneyard.store import Entry, Event, Store, TrialRow

HISTORY = 8  # events that are shown of one sweep


@dataclass(frozen=True)
class Row:
    """A trial on the leaderboard. `share` of its budget; `seconds` that it trained in legs that are over."""

    trial: str
    name: str
    variant: str
    point: Mapping[str, Scalar]
    state: str
    score: float | None
    share: float
    tokens: int
    message: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "point": dict(self.point)}


@dataclass(frozen=True)
class View:
    """What there is to say about one sweep; passwords are masked.

    `state`: running, finished, failed, interrupted or lost; of one in the queue, that of its job (`jobs`), and `queue`
    says more about that. `elsewhere`: commands must be told its tracking server. `resumable`: something is left to do.
    `trial_states` counts all trials by state, of which `leaderboard` may hold the best only. `test`: None for what is
    not finite.
    """

    sweep_id: str
    name: str
    state: str
    message: str
    created_ms: int
    metric: str
    folder: str
    report: str
    tracking_uri: str
    leaderboard: tuple[Row, ...]
    trial_states: Mapping[str, int]
    asked: int | None
    test: Mapping[str, float | None]
    scored: str | None
    model: str | None
    candidate: str
    elsewhere: bool
    resumable: bool
    warning: str = ""
    where: str = "local"
    queue: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[str, ...] = ()

    @property
    def counted(self) -> str:
        return counted(self.trial_states)

    @property
    def ended(self) -> bool:
        """Whether nothing goes on any more unless somebody asks for it."""
        from tuneyard.jobs import ACTIVE

        return self.state not in {"queued", "running", *ACTIVE}

    @property
    def state_text(self) -> str:
        """The state, and while it waits, for what."""
        waits_for = self.queue.get("waits_for", "")
        return f"{self.state}: {waits_for}" if waits_for else self.state

    @property
    def best(self) -> Row | None:
        """The trial that was scored, or before there is one, the first with a score."""
        scored = [row for row in self.leaderboard if row.score is not None]
        return next((row for row in scored if row.trial == self.scored), next(iter(scored), None))

    @property
    def best_text(self) -> str:
        return best_text(self.best, self.metric)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "leaderboard": [row.to_dict() for row in self.leaderboard]}

    def facts(self) -> list[tuple[str, str]]:
        """Label and value, one a line."""
        facts = [("sweep", f"{self.sweep_id} ({self.name}), {self.state}"), ("trials", self.counted)]
        if self.message:
            facts.append(("why", self.message))
        facts += [(key.replace("_", " "), str(value)) for key, value in self.queue.items() if value != ""]
        facts += [("history", line) for line in self.history]
        if self.best_text:
            facts.append(("best", self.best_text))
        if self.test:
            values = ", ".join(f"{key} {figure(value)}" for key, value in sorted(self.test.items()))
            facts.append(("test", f"{self.scored}: {values}"))
        facts.append(("folder", self.folder))
        if self.report:
            facts.append(("report", self.report))
        if self.tracking_uri:
            facts += [("runs", f"experiment {self.name!r} in {self.tracking_uri}")]
        if self.model:
            facts += [("model", f"{self.model}; {self.candidate}")]
        facts += [("next", command) for command in self._next()]
        if self.warning:
            facts.append(("warning", self.warning))
        return facts

    def _next(self) -> list[str]:
        browse = f"mlflow server --backend-store-uri {shlex.quote(self.tracking_uri)} --port 5000"
        served = ("http:", "https:", "databricks")
        commands = [browse] if self.tracking_uri and not self.tracking_uri.startswith(served) else []
        if self.resumable:
            commands.insert(0, f"tuneyard sweep resume {self.sweep_id}")
        if self.model:
            commands.append(
                predict_command(self.model.replace(" version ", "/"), self.tracking_uri if self.elsewhere else None)
            )
        return commands

    def leaderboard_table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        keys = list(dict.fromkeys(key for row in self.leaderboard for key in row.point))
        variants = ["variant"] if any(row.variant for row in self.leaderboard) else []
        head = ["trial", *variants, *(short_name(key) for key in keys), "tokens", self.metric, "state"]
        return head, [
            [
                row.trial,
                *([row.variant] if variants else []),
                *(cell(row.point.get(key, "")) for key in keys),
                f"{row.tokens:,}",
                "" if row.score is None else f"{row.score:.4f}",
                row.state + (f": {row.message[:60]}" if row.message else ""),
            ]
            for row in self.leaderboard
        ]


def utilisation(folder: SweepFolder, trials: Sequence[str]) -> str:
    """The model FLOPs utilisation of these trials at their last logged step, in words; empty where none is known."""
    state = folder.state()
    newest = {trial: {one.key: one.value for one in MetricReader(folder, trial).new(state)} for trial in trials}
    known = [f"{trial} {values[reach.MFU]:.1%}" for trial, values in newest.items() if reach.MFU in values]
    return f"{', '.join(known)} of what their devices could compute at most" if known else ""


@dataclass(frozen=True)
class Listed:
    """A sweep as a list shows it. What concerns the queue is as of one that is in none, where it is local."""

    sweep_id: str
    name: str
    state: str
    created_ms: int
    metric: str
    trial_states: Mapping[str, int]
    best: Row | None
    where: str = "local"
    reason: str = ""
    owner: str = ""
    priority: int | None = None
    waits_for: str = ""
    attempt: int | None = None
    started_ms: int | None = None
    ended_ms: int | None = None
    gpu_hours: float = 0.0

    @classmethod
    def of(cls, view: View) -> Listed:
        """A local one, or one of a queue whose service is away, as its folder tells it."""
        best = view.best
        of = (view.sweep_id, view.name, view.state, view.created_ms, view.metric, view.trial_states, best)
        return cls(*of, where=view.where)

    @property
    def counted(self) -> str:
        return counted(self.trial_states)

    @property
    def best_text(self) -> str:
        return best_text(self.best, self.metric)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "best": self.best.to_dict() if self.best else None}


def counted(trial_states: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(trial_states.items())) or "none"


def best_text(best: Row | None, metric: str) -> str:
    return f"{best.trial} {metric} {best.score:.4g}" if best and best.score is not None else ""


def all_folders(home: Path) -> list[SweepFolder]:
    """The folders of all accepted sweeps, newest first."""
    folders = [SweepFolder(path.parent) for path in (home / "sweeps").glob("*/sweep.json")]
    return sorted(folders, key=_created_ms, reverse=True)


def find(home: Path, sweep_id: str) -> SweepFolder:
    """The sweep whose id begins so. Raises InputError when none or several do."""
    found = [folder for folder in all_folders(home) if folder.sweep_id.startswith(sweep_id)] if sweep_id else []
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(f"sweep {sweep_id!r}: {', '.join(f.sweep_id for f in found)} begin so; give more of the id")
    known = ", ".join(f.sweep_id for f in all_folders(home)) or "none"
    raise InputError(f"sweep {sweep_id!r}: not in {home / 'sweeps'}; there are: {known}")


def look(folder: SweepFolder) -> View:
    """The sweep as it is now. A driver that died without a word is noticed here, and its runs are closed."""
    warning = ""
    try:
        tracking.reconcile(folder, int(time.time() * 1000))
    except (TuneyardError, OSError) as cause:  # a home that cannot be written can still be read
        warning = without_passwords(str(cause))
    header, state = folder.header(), folder.state()
    warning = warning or outage_text(folder, header)
    leaderboard = tuple(_row(trial, header, state) for trial in standing.standings(header, state))
    return View(
        sweep_id=header.sweep_id,
        name=header.spec.name,
        state=_sweep_state(folder, state),
        message=without_passwords(state.ended.message) if state.ended else "",
        created_ms=header.created_ms,
        metric=header.spec.metric,
        folder=str(folder.path),
        report=str(folder.report / report.PAGE) if (folder.report / report.PAGE).exists() else "",
        tracking_uri=without_passwords(header.tracking_uri),
        leaderboard=leaderboard,
        trial_states=dict(Counter(row.state for row in leaderboard)),
        asked=asked(header, folder),
        test=dict(state.scored.metrics) if state.scored else {},
        scored=state.scored.trial if state.scored else None,
        model=f"{state.registered.name} version {state.registered.version}" if state.registered else None,
        candidate=state.registered.candidate if state.registered else "",
        elsewhere=not is_default(header.home, header.tracking_uri),
        resumable=_resumable(folder, header, state),
        warning=warning,
        where="queued" if folder.submitted.exists() else "local",
    )


def listed(store: Store, entries: Sequence[Entry]) -> list[Listed]:
    """Sweeps of the queue by what the database knows, in the order given."""
    held = {entry.job.sweep_id: terms(entry.spec_text) for entry in entries}
    begun = [entry.job.sweep_id for entry in entries if entry.job.attempt]  # the others have no trials
    states = store.trial_states(begun) if begun else {}
    best: dict[str, TrialRow] = {}
    for mode in ("min", "max"):
        if ids := [sweep_id for sweep_id in begun if held[sweep_id].mode == mode]:
            best |= store.best_trials(ids, mode)
    return [
        Listed(
            sweep_id=entry.job.sweep_id,
            name=entry.name,
            state=entry.job.state,
            created_ms=entry.submitted_ms,
            metric=held[entry.job.sweep_id].metric,
            trial_states=states.get(entry.job.sweep_id, {}),
            best=_stored_row(best[entry.job.sweep_id]) if entry.job.sweep_id in best else None,
            where="queued",
            reason=entry.job.reason,
            owner=entry.owner,
            priority=entry.priority,
            waits_for=entry.waits_for,
            attempt=entry.job.attempt,
            started_ms=entry.job.started_ms,
            ended_ms=entry.job.ended_ms,
            gpu_hours=entry.gpu_ms / 3_600_000,
        )
        for entry in entries
    ]


@dataclass(frozen=True)
class Terms:
    """What the queue goes by in a spec that it has accepted: `trials` None for every point, `most_trials` for any.

    `project`: its tag of that name, or none.
    """

    metric: str
    mode: Mode
    trials: int | None
    most_trials: int | None
    project: str | None


@lru_cache(maxsize=1000)
def terms(text: str) -> Terms:
    """Those of a stored spec. It is read as plain data: what later rules refuse is listed and shown all the same."""
    try:
        said = spec_yaml.read(text, "spec.yaml").data
    except spec_yaml.UnreadableError:
        said = {}
    task, search = TASKS.get(said.get("task", "")), said.get("search", {})
    metric = search.get("metric") or (task.metrics[0] if task else "")
    mode = METRICS[metric].mode if metric in METRICS else "max"
    project = said.get("tags", {}).get("project")
    named = None if project is None else str(project)
    return Terms(metric, mode, search.get("trials"), search.get("max_concurrent_trials"), named)


def queued_view(store: Store, entry: Entry, home: Path, *, leaderboard: int | None = None) -> View:
    """A sweep of the queue by what the database knows, with so many of its best trials; all for None."""
    from tuneyard.jobs import ENDED, REASONS

    job, folder = entry.job, SweepFolder(home / "sweeps" / entry.job.sweep_id)
    held = terms(entry.spec_text)
    begun = (folder.path / "sweep.json").exists()
    header, state, warning = None, SweepState(), ""
    if begun:
        try:
            header, state = folder.header(), folder.state()
            warning = outage_text(folder, header)
        except InputError as damaged:  # the database's part is right all the same
            warning = without_passwords(str(damaged))
    reported = folder.report / report.PAGE
    return View(
        sweep_id=job.sweep_id,
        name=entry.name,
        state=job.state,
        message=without_passwords(job.message or REASONS.get(job.reason, "")),
        created_ms=entry.submitted_ms,
        metric=held.metric,
        folder=str(folder.path),
        report=str(reported) if reported.exists() else "",
        tracking_uri=without_passwords(header.tracking_uri) if header else "",
        leaderboard=tuple(
            _stored_row(row) for row in store.trials(job.sweep_id, order="best", mode=held.mode, limit=leaderboard)
        ),
        trial_states=store.trial_states([job.sweep_id])[job.sweep_id],
        asked=asked(header, folder) if header else held.trials,
        test=_finite(state.scored.metrics) if state.scored else {},
        scored=state.scored.trial if state.scored else None,
        model=f"{state.registered.name} version {state.registered.version}" if state.registered else None,
        candidate=state.registered.candidate if state.registered else "",
        elsewhere=not is_default(home, header.tracking_uri) if header else False,
        resumable=job.state in ENDED and header is not None and unfinished(folder),
        warning=warning,
        where="queued",
        history=tuple(_told(event) for event in store.last_events(job.sweep_id, HISTORY)),
        queue={
            "waits_for": entry.waits_for,
            "reason": job.reason,
            "owner": entry.owner,
            "priority": entry.priority,
            "attempt": job.attempt,
        },
    )


def outage_text(folder: SweepFolder, header: Header) -> str:
    """Since when MLflow has not taken what a running sweep sends; empty while it takes everything."""
    outage = tracking.outage(folder)
    if outage is None:
        return ""
    since = datetime.fromtimestamp(outage.since_ms / 1000, UTC).strftime("%H:%M:%SZ")
    said = f"MLflow fails since {since}; training goes on and nothing is lost ({header.tracking_uri}: {outage.reason})"
    return without_passwords(said)


def predict_command(model: str, uri: str | None) -> str:
    """How to use a model, ready to be typed; `uri` unless it is found without."""
    command = f"tuneyard model predict {shlex.quote(model)} TEXT"
    return f"{command} --mlflow {shlex.quote(without_passwords(uri))}" if uri else command


def _created_ms(folder: SweepFolder) -> int:
    """0 for a damaged folder, which `look` names."""
    try:
        return folder.header().created_ms
    except InputError:
        return 0


def asked(header: Header, folder: SweepFolder) -> int | None:
    """How many trials were asked for in all; None for every point of a grid."""
    if header.spec.search.trials is None:
        return None
    wishes = control.wishes(folder)
    return header.spec.search.trials + wishes.more + len(wishes.added)


def unfinished(folder: SweepFolder) -> bool:
    """Whether there is something to go on with: an attempt that did not finish, or ended early, or a new request."""
    state = folder.state()
    if state.ended is None or state.ended.state != "finished" or state.ended.early:
        return True
    return asked_more(folder, state)


def asked_more(folder: SweepFolder, state: SweepState) -> bool:
    """Whether something was asked of it that the driver that has ended did not read; a stop asks for nothing more."""
    wishes = control.wishes(folder)
    return state.ended is not None and wishes.heard > state.ended.heard and not wishes.stopped


def _resumable(folder: SweepFolder, header: Header, state: SweepState) -> bool:
    """Whether `resume` would do anything: not while it runs, or when every trial failed for good."""
    if _sweep_state(folder, state) == "running" or not unfinished(folder):
        return False
    if asked_more(folder, state):
        return True
    failed = [trial for trial in state.trials.values() if trial.outcome in FAILURES]
    return len(failed) < max(len(state.trials), plan(header.spec).trials)


def _sweep_state(folder: SweepFolder, state: SweepState) -> str:
    if state.ended is not None:
        return state.ended.state
    return "running" if lease.driven(folder.path) else "lost"


def _row(trial: TrialState, header: Header, state: SweepState) -> Row:
    shown = trial.state if state.ended is None else standing.trial_shown(trial, state).outcome or trial.state
    return Row(
        trial=trial.id,
        name=trial.name,
        variant=trial.variant,
        point=trial.point,
        state=shown,
        score=trial.score if trial.score is not None and math.isfinite(trial.score) else None,
        share=trial.share,
        tokens=trial.tokens,
        message=trial.message,
        seconds=trial.trained_ms / 1000,
    )


def _stored_row(row: TrialRow) -> Row:
    return Row(
        trial=row.trial,
        name=row.name,
        variant=row.variant,
        point=row.point,
        state=row.state,
        score=row.score,
        share=row.share,
        tokens=row.tokens,
        message=row.message,
        seconds=row.trained_ms / 1000,
    )


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """None for others, such as an infinite perplexity."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


def _told(event: Event) -> str:
    """Who did what, and why."""
    clock = datetime.fromtimestamp(event.time_ms / 1000, UTC).strftime("%H:%M:%SZ")
    why = ": ".join(text for text in (event.reason, without_passwords(event.message)) if text)
    return f"{clock} {event.actor}: {event.what}{f' ({why})' if why else ''}"


def figure(value: float | None) -> str:
    """A score on the test split."""
    return "not finite" if value is None else f"{value:.4g}"


def cell(value: Scalar) -> str:
    """A value of a key in a table."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
