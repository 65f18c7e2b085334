"""The winner as a version in MLflow's registry, and the alias `candidate`, which is the driver's to move.

A version carries in its tags all that its rule needs, so that any process can judge it again: metric, mode, score, the
signature of the metrics and the fingerprint of the validation data. Versions with equal group tags can be compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.entities import LoggedModel, LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from tuneyard_pipelines import evidence, tracking
from tuneyard_pipelines.catalog import MASK
from tuneyard_pipelines.data import PreparedData
from tuneyard_pipelines.errors import TuneyardError
from tuneyard_pipelines.journal import Header, Journal, TrialState, WinnerRegistered, WinnerScored

log = logging.getLogger(__name__)

CANDIDATE = "candidate"
EXAMPLE_CHARACTERS = 500
GROUP = ("tuneyard.metric", "tuneyard.metric_signature", "tuneyard.validation_fingerprint")
REQUIREMENTS = ("torch", "tokenizers", "safetensors", "datasets", "sacrebleu", "mlflow")
CODE = Path(__file__).with_name("mlflow_model.py")


def register(
    journal: Journal, header: Header, best: TrialState, run_id: str, client: MlflowClient, now_ms: Callable[[], int]
) -> WinnerRegistered:
    """Make the winner a version, or find the one that an earlier attempt made, and settle `candidate`."""
    assert header.spec.registration is not None
    name = header.spec.registration.name
    _ensure_registered_model(client, name)
    with tracking.as_default(header.tracking_uri):
        version = _found(client, name, header.sweep_id, journal.state.scored) or _create(
            journal, header, best, run_id, client, name
        )
    said = settle_candidate(client, name, version)
    return WinnerRegistered(best.id, name, int(version.version), said, now_ms(), version.tags["tuneyard.digest"])


def settle_candidate(client: MlflowClient, name: str, new: ModelVersion) -> str:
    """Point `candidate` at the best version of the new one's group, unless it is in another group; says what it did.

    It is computed from the tags of all versions, so that sweeps that end at the same time come to the same answer.
    """
    while True:  # until what stands there is what a look at all versions gives: another sweep may register meanwhile
        present = _candidate(client, name)
        if present is not None and _group(present) != _group(new):
            differing = [
                key.removeprefix("tuneyard.")
                for key, a, b in zip(GROUP, _group(present), _group(new), strict=True)
                if a != b
            ]
            return (
                f"{CANDIDATE} stays at version {present.version}: {' and '.join(differing)} differ, so the scores "
                f"cannot be compared; move it by hand if version {new.version} is meant to follow"
            )
        best = best_version([v for v in _versions(client, name) if _group(v) == _group(new)])
        if present is not None and int(best.version) == int(present.version):
            break
        client.set_registered_model_alias(name, CANDIDATE, str(best.version))
    if int(best.version) == int(new.version):
        return f"{CANDIDATE} is now version {best.version}"
    theirs, ours = best.tags["tuneyard.score"], new.tags["tuneyard.score"]
    scores = f"scores {theirs} against {ours}" if float(theirs) != float(ours) else f"scores the same, {ours}"
    return f"{CANDIDATE} is version {best.version}, which {scores}"


def best_version(versions: Sequence[ModelVersion]) -> ModelVersion:
    """The best score by its tags; the oldest among equals. Pure."""
    sign = -1 if versions[0].tags["tuneyard.mode"] == "max" else 1
    return min(versions, key=lambda v: (sign * float(v.tags["tuneyard.score"]), int(v.version)))


def _create(
    journal: Journal, header: Header, best: TrialState, run_id: str, client: MlflowClient, name: str
) -> ModelVersion:
    folder, scored = journal.folder, journal.state.scored
    assert scored is not None
    found = evidence.read(folder.evidence(best.id))
    if found is None:
        raise TuneyardError(f"{folder.evidence(best.id)}: the evidence is gone or damaged; it cannot be registered")
    model = _logged(client, run_id, scored.model) or _log(journal, header, best, run_id, client)
    tags = {
        "tuneyard.sweep_id": header.sweep_id,
        "tuneyard.trial_id": best.id,
        "tuneyard.metric": header.spec.metric,
        "tuneyard.mode": header.spec.mode,
        "tuneyard.score": repr(best.score),
        "tuneyard.metric_signature": evidence.signature_digest(found.metric_signature),
        "tuneyard.validation_fingerprint": PreparedData.open(header.data).validation_fingerprint,
        "tuneyard.test_fingerprint": found.test_fingerprint,
        "tuneyard.evidence": found.digest,
        "tuneyard.evidence_uri": f"runs:/{run_id}/evidence",
        "tuneyard.digest": scored.model,
        **{f"tuneyard.{key}": repr(value) for key, value in found.metrics.items()},
    }
    return client.create_model_version(
        name,
        model.model_uri,
        run_id=run_id,
        tags=tags,
        model_id=model.model_id,
        description=f"{best.name} of sweep {header.sweep_id}",
    )


def _logged(client: MlflowClient, run_id: str, digest: str) -> LoggedModel | None:
    """This model, where an interrupted registration left it whole at its run; what it left unfinished is deleted."""
    mine: list[LoggedModel] = []
    token = None
    while True:
        page = client.search_logged_models([client.get_run(run_id).info.experiment_id], page_token=token)
        mine += [model for model in page if model.source_run_id == run_id]
        token = page.token
        if not token:
            break
    for model in mine:
        if model.status != LoggedModelStatus.READY:
            client.delete_logged_model(model.model_id)
    whole = (model for model in mine if model.status == LoggedModelStatus.READY)
    return next((model for model in whole if model.tags.get("tuneyard.digest") == digest), None)


def _log(journal: Journal, header: Header, best: TrialState, run_id: str, client: MlflowClient) -> LoggedModel:
    assert journal.state.scored is not None
    run = client.get_run(run_id)
    prepared = PreparedData.open(header.data)
    example = prepared.split("test")[0][prepared.columns[0]][:EXAMPLE_CHARACTERS]
    if header.spec.task == "masked_lm":
        example = f"{example[:1]}{MASK}"
    # Made by hand: `Model.log` alone would put it into whichever experiment is active in this process.
    model = client.create_logged_model(
        run.info.experiment_id,
        name="model",
        source_run_id=run_id,
        params=dict(run.data.params),
        tags={"tuneyard.digest": journal.state.scored.model},
    )
    Model.log(
        artifact_path=None,
        name="model",
        flavor=mlflow.pyfunc,
        run_id=run_id,
        model_id=model.model_id,
        python_model=str(CODE),
        artifacts={"model": str(journal.folder.model(best.id))},
        input_example=[example],
        pip_requirements=requirements(journal.folder.model(best.id)),
    )
    return model


def requirements(model: Path) -> list[str]:
    """What serving a packaged model needs, pinned to what trained it."""
    from importlib.metadata import version

    needed: dict[str, str] = json.loads((model / "model.json").read_text()).get("packages", {})
    return [
        f"tuneyard=={version('tuneyard')}",
        *(f"{name}=={version(name).split('+')[0]}" for name in REQUIREMENTS),
        *(f"{name}=={held}" for name, held in needed.items()),
    ]


def _ensure_registered_model(client: MlflowClient, name: str) -> None:
    try:
        client.create_registered_model(name)
    except MlflowException as cause:
        if cause.error_code != "RESOURCE_ALREADY_EXISTS":
            raise


def _found(client: MlflowClient, name: str, sweep_id: str, scored: WinnerScored | None) -> ModelVersion | None:
    assert scored is not None
    mine = {"tuneyard.sweep_id": sweep_id, "tuneyard.trial_id": scored.trial, "tuneyard.digest": scored.model}
    return next((v for v in _versions(client, name) if mine.items() <= v.tags.items()), None)


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """All versions that the driver made; others in the same registry are none of its business."""
    found: list[Any] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", page_token=token)
        found += [version for version in page if "tuneyard.score" in version.tags]
        token = page.token
        if not token:
            return found


def _candidate(client: MlflowClient, name: str) -> ModelVersion | None:
    number = client.get_registered_model(name).aliases.get(CANDIDATE)
    return None if number is None else client.get_model_version(name, number)


def _group(version: ModelVersion) -> tuple[str | None, ...]:
    return tuple(version.tags.get(key) for key in GROUP)
