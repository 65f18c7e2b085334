"""Registered models, as MLflow's registry has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from tuneyard import registry
from tuneyard.api.problems import NotFoundError, responses
from tuneyard.api.service import Parts, Viewer
from tuneyard.registry import Version
from tuneyard_pipelines import tracking

router = APIRouter(prefix="/api/v1", tags=["models"], responses=responses(401, 403, 422, 503))


@router.get("/models")
def list_(service: Parts, person: Viewer) -> list[Version]:
    """Every version of every registered model, by name, newest first."""
    if not registry.exists(service.tracking_uri):
        return []
    return registry.list_models(tracking.connect(service.tracking_uri))


@router.get("/models/{name}", responses=responses(404))
def show(name: Annotated[str, Path(max_length=255)], service: Parts, person: Viewer) -> list[Version]:
    """The versions of one, newest first."""
    found = [version for version in list_(service, person) if version.name == name]
    if not found:
        raise NotFoundError(f"model {name!r}: there is none of this name; see those there are: tuneyard model list")
    return found
