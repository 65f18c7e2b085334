"""The one door to training and models on this machine, for the command line and the Python API.

Ray and Lightning take seconds to import: what only reads or predicts does not pay for them.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tuneyard import registry, requests, settings, sweeps
from tuneyard.progress import OnProgress, telling
from tuneyard.results import Sweep, open_sweep
from tuneyard.roots import Roots
from tuneyard_pipelines import tracking
from tuneyard_pipelines.capacity import Node, Shape, fit, largest
from tuneyard_pipelines.errors import InputError, TuneyardError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.plan import Machine, Plan, extremes, plan, runnable
from tuneyard_pipelines.report import TRAINING
from tuneyard_pipelines.spec import Resources, SweepSpec, load

if TYPE_CHECKING:
    from tuneyard_pipelines.answers import Answer as Answer
    from tuneyard_pipelines.answers import Step as Step
    from tuneyard_pipelines.data.cache import Collected
    from tuneyard_pipelines.data.examples import Finding
    from tuneyard_pipelines.data.look import Look
    from tuneyard_pipelines.data_facts import DataFacts
    from tuneyard_pipelines.gpu_test import GpuTest as GpuTest
    from tuneyard_pipelines.package import TextModel as TextModel
    from tuneyard_pipelines.suggest import Reading

Announce = Callable[[SweepFolder], None]
Preparing = Callable[[str, float], None]
SHOWN_EXAMPLES = 3  # of each split
CHECKED_BYTES = 128 << 20  # of a source that is prepared to see that it can be
UNMEASURED_TOKEN_S = 1e-4  # a token of a small model on a core, where the speed is not measured


def run_sweep(
    spec: SweepSpec | str | Path,
    *,
    home: Path | None = None,
    mlflow: str | None = None,
    overrides: Sequence[str] = (),
    calibrate: bool = True,
    on_progress: OnProgress | None = None,
) -> Sweep:
    """Train a sweep here and now; blocks until it has ended.

    >>> sweep = tuneyard.run_sweep("examples/dates.yaml", on_progress=print)
    >>> sweep.trials().head()
    >>> sweep.model().predict(["3. März 2024"])

    `spec`: a path, read with the `KEY=VALUE` overrides, or a spec that is loaded already. `home`: the folder of state,
    else that of `tuneyard` on the command line. `mlflow`: a tracking URI. `calibrate`: measure this machine for some
    seconds, once, so that the report sets a forecast beside what was. `on_progress` is called with a `Progress` at each
    change, at most twice a second, from one thread that is not the caller's; the trials do not wait for it. If it
    raises, that is logged, it is not called again, and the sweep goes on.

    Ctrl-C, or a notebook's "interrupt", ends the trials in order: the sweep comes back as `interrupted`, and
    `resume_sweep` goes on from the last checkpoints. One in which no trial completed comes back as `failed`.

    Raises InputError for what is wrong with spec, data or resources, UnreachableError without MLflow; nothing is left
    behind then. Raises TuneyardError for what goes wrong later; what is done is kept, and can be resumed.
    """
    with telling(on_progress) as teller:
        folder = train(
            spec,
            home=home,
            mlflow=mlflow,
            overrides=overrides,
            calibrate=calibrate,
            announce=teller.accepted,
            preparing=teller.preparing,
        )
    return Sweep(folder)


def resume_sweep(sweep: Sweep | str, *, home: Path | None = None, on_progress: OnProgress | None = None) -> Sweep:
    """Go on with what is unfinished in a sweep, or in the one whose id begins so; blocks as `run_sweep` does.

    One that was stopped goes on, too; one of which nothing is left stays as it is. Raises RefusedError while another
    process drives it.
    """
    held = open_sweep(sweep, home=home) if isinstance(sweep, str) else sweep
    requests.ask(held.folder, requests.resume(held.folder))
    with telling(on_progress) as teller:
        teller.accepted(held.folder)
        go_on(held.folder)
    return held


def train(
    spec: SweepSpec | str | Path,
    *,
    home: Path | None = None,
    mlflow: str | None = None,
    overrides: Sequence[str] = (),
    calibrate: bool = True,
    announce: Announce = lambda folder: None,
    preparing: Preparing = lambda doing, share: None,
) -> SweepFolder:
    """`run_sweep` for who watches the folder: `announce` is called with it once the sweep is accepted.

    `preparing` is told before that what is done to the data, and its share, from this thread.
    """
    if isinstance(spec, SweepSpec) and overrides:
        raise InputError(
            f"overrides: {', '.join(overrides)}: a spec that is loaded already takes none; give them to load, or give "
            "run_sweep the path of the spec"
        )
    from tuneyard_pipelines import sweep

    accepted = spec if isinstance(spec, SweepSpec) else load(Path(spec), overrides)
    home = home or settings.find_home()
    uri = settings.tracking_uri(home, mlflow)
    settings.make_home(home)
    collect_garbage(home, settings.size_bytes("TUNEYARD_CACHE_LIMIT"))
    planned = runnable(accepted, _machine(accepted, home, calibrate=calibrate))
    return sweep.run(
        accepted,
        accepted.text(),
        home=home,
        tracking_uri=uri,
        sweep_id=secrets.token_hex(4),
        announce=announce,
        preparing=preparing,
        forecast=_forecast(planned),
    )


def collect_garbage(home: Path, limit_bytes: int) -> Collected:
    """Remove prepared data that no unfinished sweep needs, the longest unused first, until the limit is kept."""
    from tuneyard_pipelines.data import cache

    needed = []
    for folder in sweeps.all_folders(home):
        with contextlib.suppress(InputError):  # a damaged folder needs no data
            if sweeps.unfinished(folder):
                needed.append(folder.header().data)
    return cache.collect(home / "data", limit_bytes, now_s=time.time(), keep=needed)


def go_on(
    folder: SweepFolder, *, announce: Announce = lambda folder: None, most_trials: int | None = None
) -> SweepState:
    """Go on with what is unfinished or was asked for meanwhile; a sweep of which nothing is left stays as it is."""
    from tuneyard_pipelines import sweep

    if not sweeps.unfinished(folder):
        tracking.reconcile(folder, sweep.now_ms())
        return folder.state()
    announce(folder)
    return sweep.drive(folder, most_trials=most_trials)


def drive_queued(folder: SweepFolder, home: Path, most_trials: int | None, announce: Announce) -> SweepState:
    """One attempt at a sweep of the queue: accept it, if no driver has yet, and go on with what is unfinished.

    It runs at most `most_trials` at once, if that is less than its spec allows. A file that its spec names may be
    another one since it was submitted, so it is asked once more where it lies; raises InputError for one elsewhere.
    """
    from tuneyard_pipelines.spec import parse

    allowed = Roots.configured(home)
    if (folder.path / "sweep.json").exists():
        allowed.check(folder.header().spec.data)
        return go_on(folder, announce=announce, most_trials=most_trials)
    file = folder.submitted
    text = file.read_text(encoding="utf-8")
    uri = settings.tracking_uri(home, None)
    collect_garbage(home, settings.size_bytes("TUNEYARD_CACHE_LIMIT"))
    spec = parse(text, file=str(file))
    allowed.check(spec.data)
    from tuneyard_pipelines import sweep  # last: it imports Ray

    forecast = _forecast(runnable(spec, _machine(spec, home, calibrate=True)))
    sweep.run(
        spec,
        text,
        home=home,
        tracking_uri=uri,
        sweep_id=folder.sweep_id,
        announce=announce,
        forecast=forecast,
        most_trials=most_trials,
    )
    return folder.state()


def try_gpus(home: Path) -> GpuTest:
    """Have each GPU of the cluster at RAY_ADDRESS, else of this machine, train a small model."""
    from tuneyard_pipelines import gpu_test

    return gpu_test.run(home)


def plan_sweep(spec: SweepSpec, *, home: Path | None = None, calibrate: bool = True) -> Plan:
    """What a sweep would run, on this machine. The calibration takes some seconds once and is kept in the home."""
    home = home or settings.find_home()
    machine = _machine(spec, home, calibrate=calibrate)
    return plan(spec, machine)


@dataclass(frozen=True)
class DataView:
    """What `data show` says: facts, findings, and the first examples of each split, their texts by column."""

    facts: DataFacts
    findings: tuple[Finding, ...]
    examples: Mapping[str, Sequence[Mapping[str, str]]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **self.facts.to_dict(),
            "findings": [one.to_dict() for one in self.findings],
            "first_examples": {name: [dict(one) for one in found] for name, found in self.examples.items()},
        }


@dataclass(frozen=True)
class Found:
    """A source as it was looked at, and the ways to take it, the likeliest first; that one is clear, or not."""

    look: Look
    readings: tuple[Reading, ...]
    clear: bool


def look_at(source: str, *, task: str | None = None, home: Path | None = None) -> Found:
    """Look at a data file, a pattern, a data set, or built-in data. Raises DataError for what cannot be used."""
    from tuneyard_pipelines import suggest
    from tuneyard_pipelines.catalog import TASK_DATA, hub_name, is_data_set
    from tuneyard_pipelines.data import look, sources
    from tuneyard_pipelines.spec import DataSpec

    if is_data_set(source) or hub_name(source):
        named = sources.pinned(DataSpec.model_validate({"source": source}))
        cache = (home or settings.find_home()) / "data"
        seen = look.look_at_data_set(source, Path(sources.local(named, cache).source).expanduser())
        return Found(seen, *suggest.readings(seen, task))
    if not source.startswith("builtin/"):
        seen = look.look(str(Path(source).expanduser()))
        return Found(seen, *suggest.readings(seen, task))
    data = DataSpec.model_validate({"source": source})
    tasks = [name for name, takes in TASK_DATA.items() if takes.takes(source) and task in (None, name)]
    if not tasks:
        raise InputError(f"--task {task}: {source} is nothing that this task takes; leave the option out")
    seen = look.look_at_examples(data, tasks[0], seed=1)
    return Found(seen, (suggest.Reading(tasks[0], seen.columns, "what this built-in data is for"),), True)


def draft_spec(look: Look, reading: Reading, *, out: Path, home: Path | None = None, try_it: bool = True) -> str:
    """The text of a spec for `reading` that will lie at `out`, with a budget of about ten minutes on this machine.

    To `try_it`, this machine is measured, and data of up to 128 MB is prepared to see that it can be. Raises InputError
    for data that cannot be used.
    """
    from tuneyard_pipelines import data, suggest
    from tuneyard_pipelines.data.profile import measure
    from tuneyard_pipelines.spec import parse

    home = home or settings.find_home()
    name = spec_name(str(out))
    path = look.source if look.source.startswith(("builtin/", "hub/")) else _relative(Path(look.source), out.parent)
    made = suggest.draft(look, reading, path=path, name=name, measure=measure)
    spec = parse(made.text(), file=str(out))
    if try_it and look.size_bytes <= CHECKED_BYTES:
        settings.make_home(home)
        data.prepare(spec.data, spec.seed, home / "data", spec.task)
    planned = plan(spec, _machine(spec, home, calibrate=try_it))
    training_s = planned.training_s or UNMEASURED_TOKEN_S * (planned.expected_tokens or 0)
    return suggest.within(made, training_s / made.training["max_tokens"], slots=planned.slots).text()


def spec_name(file: str) -> str:
    """The name of a spec for the data in `file`."""
    from tuneyard_pipelines.suggest import slug

    return slug(Path(file).name.partition(".")[0])


def write_spec(text: str, out: Path) -> SweepSpec:
    """Put an accepted spec at `out`, whole or not at all. Raises SpecError for one that is not accepted."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        spec = load(partial)
        partial.replace(out)
    except OSError as cause:
        raise InputError(f"{out}: cannot be written ({cause.strerror}); name another place with --out") from cause
    finally:
        partial.unlink(missing_ok=True)
    return spec


def find_data(source: str, *, task: str | None = None, overrides: Sequence[str] = ()) -> SweepSpec:
    """The spec that a path names, or the one that `init` would write for data. Raises InputError like them."""
    from tuneyard_pipelines.spec import parse

    if source.lower().endswith((".yaml", ".yml")):
        return load(Path(source), overrides)
    found = look_at(source, task=task)
    out = Path.cwd() / f"{Path(source).name}.yaml"
    return parse(draft_spec(found.look, found.readings[0], out=out, try_it=False), file=str(out), overrides=overrides)


def _relative(path: Path, folder: Path) -> str:
    """The path as a spec in `folder` names it."""
    written = os.path.relpath(path.absolute(), folder.absolute())
    return str(path.absolute()) if written.startswith(f"..{os.sep}..") else written


def show_data(
    spec: SweepSpec, *, home: Path | None = None, progress: Preparing = lambda doing, share: None
) -> DataView:
    """Prepare the data of a sweep, cut it by each of its tokenizers, and say what that gives.

    Both are kept in the cache of the home, where a sweep finds them. Raises DataError for data that cannot be used.
    """
    from tuneyard_pipelines import data
    from tuneyard_pipelines.data import profile

    home = home or settings.find_home()
    settings.make_home(home)
    prepared = data.prepare(spec.data, spec.seed, home / "data", spec.task, progress)
    wanted = profile.candidates(spec)
    looked_at = wanted[: profile.MOST_TOKENIZERS]
    with data.folders.held(prepared.folder):
        encoded = [(one, data.encode(prepared, one.tokenizer, progress)) for one in looked_at]
    omitted = len(wanted) - len(looked_at)
    return DataView(
        facts=profile.facts(prepared, encoded, task=spec.task, seed=spec.seed, omitted=omitted),
        findings=prepared.findings,
        examples={name: prepared.first(name, SHOWN_EXAMPLES) for name in prepared.examples},
    )


def _forecast(planned: Plan) -> dict[str, float]:
    """The quantities that a report sets beside what was measured; nothing without a calibration."""
    if planned.training_s is None or planned.expected_tokens is None:
        return {}
    return {
        "trials": float(planned.trials),
        "tokens": float(planned.expected_tokens),
        TRAINING: planned.training_s * planned.slots,
    }


def _machine(spec: SweepSpec, home: Path, *, calibrate: bool) -> Machine:
    """What there is to know for a plan: this machine, the data's vocabularies, and the speed of training.

    Without `calibrate`, neither the machine nor the data is looked at for longer than counting characters takes.
    """
    vocabularies, exact = _vocabularies(spec, home, all_of_them=calibrate)
    data = None
    if calibrate:
        from tuneyard_pipelines.data import profile

        data = profile.quickly(spec, home / "data")
    shape = largest(spec.shapes) if spec.shapes else Shape.of(Resources())  # what cannot run, the plan says
    memory_bytes = psutil.virtual_memory().total
    cores = os.cpu_count() or 1
    slots = max(1, fit(shape, [Node(cores, 0, memory_bytes)]))  # with a GPU 1: how many there are is not known here
    machine = Machine(
        vocabularies=vocabularies,
        exact=exact,
        data=data,
        slots=min(slots, spec.search.max_concurrent_trials or slots),
        memory_bytes=None if os.environ.get("RAY_ADDRESS") else memory_bytes,  # trials may run elsewhere
    )
    if not calibrate or plan(spec, machine).problems or not (measured := extremes(spec, machine)):
        return machine
    from tuneyard_pipelines import calibration

    try:
        speed = calibration.measure(
            measured,
            threads=shape.cpus,
            gpus=shape.gpus,
            folder=home / "speed",
        )
    except TuneyardError as cause:  # a forecast is nothing to fail for
        print(f"warning: no forecast of the time: {cause}", file=sys.stderr)
        return machine
    return replace(machine, speed=speed)


def _vocabularies(spec: SweepSpec, home: Path, *, all_of_them: bool) -> tuple[dict[str, VocabSizes], bool]:
    """How many ids tokenizers will have where their settings do not tell, and whether all of that is exact."""
    found: dict[str, VocabSizes] = {}
    whole = True
    wanted = {name: one for name, one in spec.tokenizers.items() if all_of_them or one.type == "char"}
    if not wanted:
        return found, whole
    from tuneyard_pipelines import data

    for name, tokenizer in wanted.items():
        sizes, exact = data.count_vocabulary(spec.data, tokenizer, home / "data", seed=spec.seed, task=spec.task)
        if exact or tokenizer.type == "char":
            found[name] = sizes
            whole = whole and exact
    return found, whole


def load_model(name: str, *, home: Path | None = None, mlflow: str | None = None) -> TextModel:
    """The model `NAME`, `NAME@ALIAS`, `NAME/VERSION` or `sweep:ID/TRIAL`, its files checked against its digest.

    `NAME` alone is its candidate. Raises InputError when there is none, RefusedError when its files are not those that
    were registered.
    """
    home = home or settings.find_home()
    folder, digest = _winner(home, name) if name.startswith("sweep:") else _registered(home, name, mlflow)
    from tuneyard_pipelines import package  # last: it imports torch, and a wrong name is told without

    return package.load(folder, digest)


def _registered(home: Path, name: str, mlflow: str | None) -> tuple[Path, str]:
    uri = settings.tracking_uri(home, mlflow)
    version = registry.look_up(uri, name)
    return _download(version, uri), version.tags["digest"]


def _download(version: registry.Version, uri: str) -> Path:
    """The folder of a version's packaged model, on this machine."""
    from mlflow.artifacts import download_artifacts

    if "digest" not in version.tags:
        raise InputError(
            f"{version.name}/{version.version} was not packaged by Tuneyard; load it with mlflow.pyfunc.load_model"
        )
    with tracking.as_default(uri):  # the folder within: MLflow writes a file of its own into that of the whole model
        return Path(download_artifacts(f"models:/{version.name}/{version.version}/artifacts/model"))


def _winner(home: Path, name: str) -> tuple[Path, str]:
    """The folder of `sweep:ID/TRIAL` and the digest that its journal holds."""
    sweep_id, _, trial = name.removeprefix("sweep:").partition("/")
    folder = sweeps.find(home, sweep_id)
    scored = folder.state().scored
    if scored is None or scored.trial != trial:
        there = f"sweep:{folder.sweep_id}/{scored.trial}" if scored else "none, for it has no winner yet"
        raise InputError(f"{name}: only the winner of a sweep is packaged; this sweep has: {there}")
    return folder.model(trial), scored.model
