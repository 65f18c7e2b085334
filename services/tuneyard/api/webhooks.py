"""Webhooks: who is told what becomes of sweeps, and what came of telling them."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from tuneyard.api.problems import responses
from tuneyard.api.service import Admin, Door, Parts
from tuneyard.pages import MadeHook
from tuneyard.webhooks import Delivery, Format, Hook

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["webhooks"], responses=responses(401, 403, 422, 503))
Id = Annotated[str, Path(max_length=64)]
URL_EXAMPLE = "https://hooks.example.org/tuneyard"


class Wanted(BaseModel):
    """Who is told, of what, and in which form."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": URL_EXAMPLE, "events": ["sweep.failed"]}]}
    )
    url: str = Field(max_length=2000)
    events: list[Annotated[str, Field(max_length=64)]] = Field([], max_length=50, description="Left out: all.")
    format: Format = "json"


@router.get("/webhooks")
def list_(service: Parts, person: Admin) -> list[Hook]:
    """Every hook, the newest first, without its secret; of one that has ended, why."""
    return service.webhooks.all()


@router.post("/webhooks", status_code=201)
def create(wanted: Wanted, service: Parts, person: Admin) -> MadeHook:
    """Make one; it is told what happens from now on."""
    made = service.webhooks.create(wanted.url, wanted.events, wanted.format, created_by=person.name, now_ms=_now_ms())
    return MadeHook(*made)


@router.delete("/webhooks/{hook_id}", responses=responses(404))
def delete(hook_id: Id, service: Parts, person: Admin) -> Hook:
    """It is told nothing any more."""
    return service.webhooks.delete(hook_id, deleted_by=person.name, now_ms=_now_ms())


@router.post("/webhooks/{hook_id}/test", status_code=202, responses=responses(404, 409))
def test(hook_id: Id, service: Parts, person: Admin) -> Delivery:
    """Have the dispatcher send it something that says it is a test, once; its deliveries tell what came of it."""
    return service.webhooks.test(hook_id, now_ms=_now_ms())


@router.get("/webhooks/{hook_id}/deliveries", responses=responses(404))
def deliveries(
    hook_id: Id, service: Parts, person: Admin, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[Delivery]:
    """What it was told or is owed, the newest first, each with its tries."""
    return service.webhooks.deliveries(hook_id, limit)


def _now_ms() -> int:
    return int(time.time() * 1000)
