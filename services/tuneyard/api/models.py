"""Registered models, as MLflow's registry has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tuneyard import registry
from tuneyard.api.problems import NotFoundError, responses
from tuneyard.api.service import Door, Parts, Viewer
from tuneyard.registry import Version
from tuneyard_pipelines import tracking
from tuneyard_pipelines.errors import UnreachableError, first_line

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["models"], responses=responses(401, 403, 422, 503))


@router.get("/models")
def list_(service: Parts, person: Viewer) -> list[Version]:
    """Every version of every registered model, by name, newest first."""
    if not registry.exists(service.tracking_uri):
        return []
    return registry.list_models(tracking.connect(service.tracking_uri))


@router.get("/models/{name}", responses=responses(404))
def show(name: Annotated[str, Path(max_length=255)], service: Parts, person: Viewer) -> list[Version]:
    """The versions of one, newest first."""
    uri = service.tracking_uri
    unknown = NotFoundError(f"model {name!r}: there is none of this name; see those there are: tuneyard model list")
    if not registry.exists(uri):
        raise unknown
    client = tracking.connect(uri)
    from mlflow.exceptions import MlflowException  # it takes a second to import, and is by now

    try:
        return registry.versions(client, name)
    except MlflowException as cause:
        if cause.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise unknown from cause
        raise UnreachableError(f"MLflow at {uri} failed ({first_line(cause)}); see its log") from cause
