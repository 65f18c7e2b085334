"""The one door to training and models on this machine, for the command line and the Python API.

Ray and Lightning take seconds to import: what only reads or predicts does not pay for them.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import yaml

from tuneyard import registry, requests, settings, sweeps
from tuneyard.progress import OnProgress, telling
from tuneyard.results import Sweep, open_sweep
from tuneyard_pipelines import tracking
from tuneyard_pipelines.errors import InputError, TuneyardError
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.plan import Machine, Plan, extremes, plan, runnable
from tuneyard_pipelines.report import TRAINING
from tuneyard_pipelines.spec import SweepSpec, load

if TYPE_CHECKING:
    from tuneyard_pipelines.package import TextModel as TextModel

Announce = Callable[[SweepFolder], None]
Preparing = Callable[[str, float], None]


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
    values = accepted.model_dump(mode="json", by_alias=True, exclude_none=True)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    home = home or settings.find_home()
    uri = settings.tracking_uri(home, mlflow)
    settings.make_home(home)
    planned = runnable(accepted, _machine(accepted, home, calibrate=calibrate))
    return sweep.run(
        accepted,
        text,
        home=home,
        tracking_uri=uri,
        sweep_id=secrets.token_hex(4),
        announce=announce,
        preparing=preparing,
        forecast=_forecast(planned),
    )


def go_on(folder: SweepFolder, *, announce: Announce = lambda folder: None) -> SweepState:
    """Go on with what is unfinished or was asked for meanwhile; a sweep of which nothing is left stays as it is."""
    from tuneyard_pipelines import sweep

    if not sweeps.unfinished(folder):
        tracking.reconcile(folder, sweep.now_ms())
        return folder.state()
    announce(folder)
    return sweep.drive(folder)


def plan_sweep(spec: SweepSpec, *, home: Path | None = None, calibrate: bool = True) -> Plan:
    """What a sweep would run, on this machine. The calibration takes some seconds once and is kept in the home."""
    home = home or settings.find_home()
    machine = _machine(spec, home, calibrate=calibrate)
    return plan(spec, machine)


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
    """What there is to know for a plan: this machine, the data's vocabularies, and the speed of training."""
    vocabularies, exact = _vocabularies(spec, home)
    resources = spec.resources
    memory_bytes = psutil.virtual_memory().total
    cores = os.cpu_count() or 1
    slots = max(1, min(cores // resources.cpus_per_worker, memory_bytes // resources.memory_per_worker_bytes))
    if resources.gpus_per_worker:
        slots = 1  # how many GPUs there are is not known here
    machine = Machine(
        vocabularies=vocabularies,
        exact=exact,
        slots=min(slots, spec.search.max_concurrent_trials or slots),
        memory_bytes=None if os.environ.get("RAY_ADDRESS") else memory_bytes,  # trials may run elsewhere
    )
    if not calibrate or plan(spec, machine).problems:
        return machine
    from tuneyard_pipelines import calibration

    try:
        speed = calibration.measure(
            extremes(spec, machine),
            threads=resources.cpus_per_worker,
            gpus=resources.gpus_per_worker,
            folder=home / "speed",
        )
    except TuneyardError as cause:  # a forecast is nothing to fail for
        print(f"warning: no forecast of the time: {cause}", file=sys.stderr)
        return machine
    return replace(machine, speed=speed)


def _vocabularies(spec: SweepSpec, home: Path) -> tuple[dict[str, VocabSizes], bool]:
    """How many ids tokenizers will have where their settings do not tell, and whether all of that is exact."""
    from tuneyard_pipelines import data

    found: dict[str, VocabSizes] = {}
    whole = True
    for name, tokenizer in spec.tokenizers.items():
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
