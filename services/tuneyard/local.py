"""The one door to training and models on this machine, for the command line and the Python API.

Ray and Lightning take seconds to import: what only reads or predicts does not pay for them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tuneyard import registry, settings, sweeps
from tuneyard_pipelines import tracking
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.journal import SweepFolder, SweepState
from tuneyard_pipelines.spec import SweepSpec, load

if TYPE_CHECKING:
    from tuneyard_pipelines.package import Translator

Announce = Callable[[SweepFolder], None]


def run_sweep(
    spec: SweepSpec | str | Path,
    *,
    home: Path | None = None,
    mlflow: str | None = None,
    overrides: Sequence[str] = (),
    announce: Announce = lambda folder: None,
) -> SweepFolder:
    """Train a sweep here and now and return its folder; blocks until it has ended.

    `spec`: a path, read with the `KEY=VALUE` overrides, or a spec that is loaded already. `mlflow`: a tracking URI.
    `announce` is called once the sweep is accepted. Raises InputError for what is wrong with spec, data or resources,
    UnreachableError without MLflow; nothing is left behind then.
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
    return sweep.run(accepted, text, home=home, tracking_uri=uri, sweep_id=secrets.token_hex(4), announce=announce)


def resume_sweep(folder: SweepFolder, *, announce: Announce = lambda folder: None) -> SweepState:
    """Go on with what is unfinished; a sweep that is finished is left as it is."""
    from tuneyard_pipelines import sweep

    state = folder.state()
    if state.ended is not None and state.ended.state == "finished":
        tracking.reconcile(folder, sweep.now_ms())
        return state
    announce(folder)
    return sweep.drive(folder)


def load_model(name: str, *, home: Path | None = None, mlflow: str | None = None) -> Translator:
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
