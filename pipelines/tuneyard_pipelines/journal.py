"""The sweep's folder: the truth of its trials, written by the driver that holds the lease and read by everyone.

    sweep.json            what was accepted: spec, data, tracking server, versions        written once
    trials.jsonl          events, appended and synced by the driver                       `Event` below
    control.jsonl         what people ask of it; finish.aN: attempt N comes to its end    `control.py`
    report/               what came of it                                                 `report/`
    outage.json, shipped  since when MLflow fails, and up to which attempt it knows all   `tracking.py`
    lease                 who drives, which attempt, when it was last seen                `lease.py`
    driver.log
    trials/ID/aN/         what the trial's process wrote under attempt N of the driver
        metrics.jsonl     `metrics.py`
        checkpoints/      `checkpoints.py`

A reader replays the events into a `SweepState`. A torn or damaged line is stepped over. When a new attempt begins, the
metric files of older attempts are sealed at their present size, so that an orphan of a dead driver can add nothing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ValidationError

from tuneyard_pipelines.catalog import Vocabularies
from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.spec import Point, SweepSpec

OUTCOMES = (
    "completed",
    "stopped_early",
    "out_of_budget",
    "diverged",
    "out_of_memory",
    "stalled",
    "no_metric",
    "error",
    "cancelled",
)
FAILURES = frozenset({"diverged", "out_of_memory", "stalled", "no_metric", "error"})
SAMPLES, ATTENTION_PICTURE, ATTENTION_NUMBERS = "samples.tsv", "attention.png", "attention.json"  # of an attempt
CUT = frozenset({"out_of_budget", "cancelled"})  # ended from outside, in the middle of a leg
EARLY = CUT | {"stopped_early"}  # may go on from their checkpoint, but for those that are final
FULL = 1.0 - 1e-9  # of the budget


@dataclass(frozen=True)
class Header:
    """`sweep.json`. `data` is the prepared data's folder, `home` the folder of state it lives under.

    `examples` counts the examples of each split, `left_out` those that cannot be used, and `findings` says what is not
    as it should be in the source. `vocabularies` are the sizes of those that are known, by `catalog.tokenizer_name`;
    `forecast` what was expected before it began.
    """

    sweep_id: str
    spec: SweepSpec
    spec_text: str
    home: Path
    data: Path
    data_fingerprint: str
    tracking_uri: str
    created_ms: int
    versions: Mapping[str, str]
    examples: Mapping[str, int] = field(default_factory=dict)
    left_out: int = 0
    vocabularies: Vocabularies = field(default_factory=dict)
    forecast: Mapping[str, float] = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()


# Events: what `trials.jsonl` holds, one JSON object a line, `event` naming the class.


@dataclass(frozen=True)
class AttemptStarted:
    """A driver began. `sealed`: size in bytes of each metric file that older attempts left."""

    attempt: int
    time_ms: int
    host: str
    versions: Mapping[str, str]
    sealed: Mapping[str, int]


@dataclass(frozen=True)
class TrialCreated:
    trial: str
    number: int
    name: str
    point: Point
    time_ms: int
    variant: str = ""


@dataclass(frozen=True)
class LegStarted:
    """The trial goes on from its newest checkpoint to rung number `rung`."""

    trial: str
    attempt: int
    rung: int
    time_ms: int


@dataclass(frozen=True)
class LegEnded:
    """The trial reached rung `rung`. `score` is its best validation so far (None: none was finite).

    `idle_gpu_ms`: for how long it held idle GPUs meanwhile, in milliseconds of all of them; so in the events below.
    """

    trial: str
    attempt: int
    rung: int
    share: float
    tokens: int
    step: int
    score: float | None
    metrics: Mapping[str, float]
    time_ms: int
    idle_gpu_ms: int = 0


@dataclass(frozen=True)
class LegFailed:
    trial: str
    attempt: int
    rung: int
    outcome: str
    message: str
    time_ms: int
    idle_gpu_ms: int = 0


@dataclass(frozen=True)
class LegCut:
    """The leg was ended on its way to `rung`, after a last validation if there was time for one.

    Its fields are those of LegEnded; share, tokens and step are where it came to. `final`: by its own early stopping,
    so that it would come no further.
    """

    trial: str
    attempt: int
    rung: int
    share: float
    tokens: int
    step: int
    score: float | None
    metrics: Mapping[str, float]
    time_ms: int
    final: bool = False
    idle_gpu_ms: int = 0


@dataclass(frozen=True)
class TrialEnded:
    """`idle_gpu_ms`: of a leg that was cut before it got anywhere, of which no other event tells."""

    trial: str
    outcome: str
    message: str
    time_ms: int
    idle_gpu_ms: int = 0


@dataclass(frozen=True)
class WinnerScored:
    """The best trial's metrics on the test split, computed once, and its packaged model.

    `evidence` and `model` are the digests of the per-example table and of the model's manifest; `score` is the
    validation score of the checkpoint that was taken.
    """

    trial: str
    metrics: Mapping[str, float]
    evidence: str
    model: str
    time_ms: int
    score: float | None = None


@dataclass(frozen=True)
class WinnerRegistered:
    trial: str
    name: str
    version: int
    candidate: str
    time_ms: int
    model: str = ""


@dataclass(frozen=True)
class AttemptEnded:
    """`state`: finished (all that was asked is done), failed (nothing to choose), interrupted, lost (found dead).

    `heard`: how many requests of `control.jsonl` it has followed; `early`: it came to its end before all was done.
    """

    attempt: int
    state: str
    message: str
    time_ms: int
    heard: int = 0
    early: bool = False


Event = (
    AttemptStarted
    | TrialCreated
    | LegStarted
    | LegEnded
    | LegFailed
    | LegCut
    | TrialEnded
    | WinnerScored
    | WinnerRegistered
    | AttemptEnded
)
EVENTS: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        AttemptStarted,
        TrialCreated,
        LegStarted,
        LegEnded,
        LegFailed,
        LegCut,
        TrialEnded,
        WinnerScored,
        WinnerRegistered,
        AttemptEnded,
    )
}


@dataclass(frozen=True)
class TrialState:
    """One logical trial. `pending`: the rung it was sent to and has not reached yet; `running`: a process is at it.

    `trained_ms`: how long it has trained in legs that are over; `idle_gpu_ms`: for how long it held idle GPUs in them,
    in milliseconds of all of them. A trial that has ended is open again once a leg of it starts.
    """

    id: str
    number: int
    name: str
    point: Point
    created_ms: int
    variant: str = ""
    pending: int | None = None
    running: bool = False
    started_ms: int = 0
    trained_ms: int = 0
    idle_gpu_ms: int = 0
    attempts: tuple[int, ...] = ()
    legs: tuple[LegEnded, ...] = ()
    failures: tuple[LegFailed, ...] = ()
    cut: LegCut | None = None
    outcome: str | None = None
    message: str = ""
    ended_ms: int | None = None

    @property
    def rung(self) -> int | None:
        """The highest rung it reached."""
        return self.legs[-1].rung if self.legs else None

    @property
    def last(self) -> LegEnded | LegCut | None:
        """Where it stands."""
        return self.cut or (self.legs[-1] if self.legs else None)

    @property
    def score(self) -> float | None:
        return self.last.score if self.last else None

    @property
    def share(self) -> float:
        return self.last.share if self.last else 0.0

    @property
    def tokens(self) -> int:
        return self.last.tokens if self.last else 0

    @property
    def final(self) -> bool:
        """Whether it stopped itself for good: what it has is what its full budget would have come to."""
        return self.cut is not None and self.cut.final

    @property
    def state(self) -> str:
        if self.outcome:
            return self.outcome
        return "running" if self.running else "waiting"

    @property
    def idle_gpu(self) -> str:
        """For how long it held idle GPUs, in words; empty where it held none."""
        return f"its GPUs were idle for {self.idle_gpu_ms / 3_600_000:.2f} GPU-hours" if self.idle_gpu_ms else ""

    def rested(self, now_ms: int, idle_gpu_ms: int = 0) -> TrialState:
        """No process is at it any more; the last one held idle GPUs for so long."""
        trained_ms = self.trained_ms + (max(0, now_ms - self.started_ms) if self.running else 0)
        return replace(self, running=False, trained_ms=trained_ms, idle_gpu_ms=self.idle_gpu_ms + idle_gpu_ms)


@dataclass(frozen=True)
class SweepState:
    """`last_ms`: when the last of its events happened."""

    attempt: int = 0
    started_ms: int | None = None
    last_ms: int = 0
    sealed: Mapping[str, int] = field(default_factory=dict)
    attempts: tuple[AttemptStarted, ...] = ()
    trials: Mapping[str, TrialState] = field(default_factory=dict)
    scored: WinnerScored | None = None
    registered: WinnerRegistered | None = None
    ended: AttemptEnded | None = None

    def of(self, variant: str) -> SweepState:
        """The same with the trials of one variant only."""
        return replace(self, trials={id: trial for id, trial in self.trials.items() if trial.variant == variant})

    def after(self, event: Event) -> SweepState:
        """The state once `event` has happened; pure. An event of a trial whose creation was lost changes nothing."""
        if not isinstance(event, AttemptStarted | AttemptEnded | TrialCreated) and event.trial not in self.trials:
            return self
        # That a driver was lost is written when somebody looks, not when it fell.
        lost = isinstance(event, AttemptEnded) and event.state == "lost"
        return replace(self._after(event), last_ms=self.last_ms if lost else max(self.last_ms, event.time_ms))

    def _after(self, event: Event) -> SweepState:
        match event:
            case AttemptStarted():
                stopped = {
                    name: trial.rested(self.last_ms) if trial.running else trial for name, trial in self.trials.items()
                }
                left = f"/a{self.attempt}/"  # files of attempts before that one were sealed when it began
                return replace(
                    self,
                    attempt=event.attempt,
                    started_ms=self.started_ms or event.time_ms,
                    sealed={**self.sealed, **{file: size for file, size in event.sealed.items() if left in file}},
                    attempts=(*self.attempts, event),
                    trials=stopped,
                    ended=None,
                )
            case TrialCreated() if event.trial in self.trials:
                return self
            case TrialCreated():
                return self._with(
                    TrialState(event.trial, event.number, event.name, event.point, event.time_ms, event.variant)
                )
            case LegStarted():
                trial = self.trials[event.trial]
                among = trial.attempts if event.attempt in trial.attempts else (*trial.attempts, event.attempt)
                return self._with(
                    replace(
                        trial,
                        pending=event.rung,
                        running=True,
                        started_ms=event.time_ms,
                        attempts=among,
                        outcome=None,
                        message="",
                        ended_ms=None,
                    )
                )
            case LegEnded():
                trial = self.trials[event.trial].rested(event.time_ms, event.idle_gpu_ms)
                return self._with(replace(trial, pending=None, cut=None, legs=(*trial.legs, event)))
            case LegFailed():
                trial = self.trials[event.trial].rested(event.time_ms, event.idle_gpu_ms)
                return self._with(replace(trial, failures=(*trial.failures, event)))
            case LegCut():
                return self._with(replace(self.trials[event.trial].rested(event.time_ms, event.idle_gpu_ms), cut=event))
            case TrialEnded():
                trial = self.trials[event.trial].rested(event.time_ms, event.idle_gpu_ms)
                return self._with(replace(trial, outcome=event.outcome, message=event.message, ended_ms=event.time_ms))
            case WinnerScored():
                return replace(self, scored=event)
            case WinnerRegistered():
                return replace(self, registered=event)
            case AttemptEnded():
                return replace(self, ended=event)

    def _with(self, trial: TrialState) -> SweepState:
        return replace(self, trials={**self.trials, trial.id: trial})


@dataclass(frozen=True)
class SweepFolder:
    """Paths and whole-file reads of one sweep's folder."""

    path: Path
    JOURNAL: ClassVar[str] = "trials.jsonl"

    @property
    def sweep_id(self) -> str:
        return self.path.name

    @property
    def submitted(self) -> Path:
        """The spec of a sweep that came through the queue, as it was submitted; a local one has none."""
        return self.path / "submitted.yaml"

    @property
    def control(self) -> Path:
        return self.path / "control.jsonl"

    @property
    def journal(self) -> Path:
        return self.path / self.JOURNAL

    def trial(self, trial: str) -> Path:
        return self.path / "trials" / trial

    def attempt(self, trial: str, attempt: int) -> Path:
        return self.trial(trial) / f"a{attempt}"

    def scoring(self, trial: str) -> Path:
        """Where the watchdog of the test scoring leaves its last words."""
        return self.trial(trial) / "scoring"

    @property
    def report(self) -> Path:
        return self.path / "report"

    def evidence(self, trial: str) -> Path:
        return self.trial(trial) / "evidence"

    def model(self, trial: str) -> Path:
        """The trial's packaged model."""
        return self.trial(trial) / "model"

    def header(self) -> Header:
        """Raises InputError when the folder holds no whole `sweep.json`."""
        try:
            raw = json.loads((self.path / "sweep.json").read_text())
            if (characters := raw.pop("characters", None)) is not None:  # once the only vocabulary that was kept
                raw["vocabularies"] = {"char": {"target": characters}}
            return Header(
                **{
                    **raw,
                    "spec": SweepSpec.model_validate(_of_one_gpu(raw["spec"])),
                    "home": Path(raw["home"]),
                    "data": Path(raw["data"]),
                    "vocabularies": {name: VocabSizes(**size) for name, size in raw.get("vocabularies", {}).items()},
                }
            )
        except (OSError, ValueError, TypeError, KeyError) as cause:
            if isinstance(cause, ValidationError) and raw.get("versions"):  # such as of an architecture no longer there
                wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: found {one['input']!r}" for one in cause.errors())
                made_with = ", ".join(f"{name} {held}" for name, held in raw["versions"].items())
                raise InputError(
                    f"{self.path}: its spec does not fit what is installed here ({wrong}); it was made with {made_with}"
                ) from cause
            raise InputError(
                f"{self.path}: sweep.json cannot be read ({cause}); this is not the folder of a sweep"
            ) from cause

    def create(self, header: Header) -> None:
        """Write `sweep.json` once, whole or not at all; a folder that waits with its spec only takes it."""
        waits = self.path.is_dir() and not (self.path / "sweep.json").exists()
        self.path.mkdir(parents=True, exist_ok=waits)
        values = {f.name: getattr(header, f.name) for f in fields(header)}
        values |= {
            "spec": header.spec.model_dump(mode="json", by_alias=True),
            "home": str(header.home),
            "data": str(header.data),
            "versions": dict(header.versions),
            "examples": dict(header.examples),
            "vocabularies": {name: asdict(sizes) for name, sizes in header.vocabularies.items()},
            "forecast": dict(header.forecast),
        }
        try:
            (self.path / "spec.yaml").write_text(header.spec_text, encoding="utf-8")
            write_atomic(self.path / "sweep.json", json.dumps(values, indent=1))
        except BaseException:
            if not waits:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def state(self) -> SweepState:
        state = SweepState()
        for event in Tail(self.journal).events():
            state = state.after(event)
        return state

    def last_number(self, state: SweepState) -> int:
        """The highest number a trial has had, also one whose creation is lost and of which only the folder is left."""
        left = [int(path.name[1:]) for path in self.path.glob("trials/t*") if path.name[1:].isdecimal()]
        return max((*left, *(trial.number for trial in state.trials.values())), default=0)

    def seals(self) -> dict[str, int]:
        """Size in bytes of every metric file there is, by path relative to the folder."""
        return {
            str(file.relative_to(self.path)): file.stat().st_size
            for file in self.path.glob("trials/*/a*/metrics.jsonl")
        }


class Journal:
    """The driver's hand on `trials.jsonl`: every event is on disk before anything acts on it."""

    def __init__(self, folder: SweepFolder, held: Callable[[], bool] = lambda: True) -> None:
        """`held` tells whether this process still has the sweep's lease."""
        self.folder, self._held = folder, held
        end_torn_line(folder.journal)  # first, since it may complete an event that lacks its line end only
        self.state = folder.state()

    def append(self, event: Event) -> None:
        """Raises RefusedError when another driver has taken over meanwhile."""
        if not self._held():
            raise RefusedError(f"sweep {self.folder.sweep_id} was taken over by another driver; this one stops here")
        end_torn_line(self.folder.journal)  # of a write that failed on a full disk
        with self.folder.journal.open("a") as out:
            out.write(json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n")
            out.flush()
            os.fsync(out.fileno())
        self.state = self.state.after(event)


class Tail:
    """Reads a file of JSON lines as it grows, whole lines only; nothing counts past `limit` bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def lines(self, limit: int | None = None) -> Iterator[dict[str, Any]]:
        try:
            with self.path.open("rb") as source:
                source.seek(self.offset)
                data = source.read() if limit is None else source.read(max(0, limit - self.offset))
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        for line in whole.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict):
                yield record

    def events(self) -> Iterator[Event]:
        for record in self.lines():
            kind = EVENTS.get(str(record.pop("event", "")))
            known = {f.name: f.default is MISSING for f in fields(kind)} if kind is not None else {}
            needed = {name for name, required in known.items() if required}
            if kind is not None and needed <= record.keys() <= known.keys():
                yield kind(**record)


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` in one step, synced to disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    scratch.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Names of files, too, outlive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def end_torn_line(path: Path) -> None:
    """A writer that was killed may have left half a line: close it, so that the next line stands alone."""
    try:
        with path.open("rb+") as file:
            if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END) or True) and file.read(1) != b"\n":
                file.write(b"\n")
    except FileNotFoundError:
        return


def _of_one_gpu(spec: dict[str, Any]) -> dict[str, Any]:
    """A stored spec with one GPU where it gave a worker several, as was once possible: it trained on one of them."""
    resources = spec.get("resources", {})
    several = isinstance(gpus := resources.get("gpus_per_worker"), int) and gpus > 1
    return {**spec, "resources": {**resources, "gpus_per_worker": 1}} if several else spec
