"""The queue as a whole: who runs and who waits, hold everything back, what each user may use."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from tuneyard import sweeps
from tuneyard.api.problems import responses
from tuneyard.api.service import Admin, Door, Parts, Viewer
from tuneyard.pages import QueueNow
from tuneyard.store import Limits

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["queue"], responses=responses(401, 403, 422, 503))
Owner = Annotated[str, Path(max_length=64, description="A user's name, or * for all that have no limits of their own.")]


class Why(BaseModel):
    """What those who wait are told."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field(min_length=1, max_length=1000)


@router.get("/queue")
def show(service: Parts, person: Viewer) -> QueueNow:
    """Who runs, who waits in which order and for what."""
    store = service.store
    active, waiting = (tuple(sweeps.listed(store, entries)) for entries in (store.active(), store.waiting()))
    return QueueNow(active, waiting, store.paused())


@router.post("/queue/pause", status_code=204)
def pause(why: Why, service: Parts, person: Admin) -> None:
    """Start nothing from now on; what runs goes on."""
    service.store.pause(why.reason, person.name, _now_ms())


@router.post("/queue/resume", status_code=204)
def resume(service: Parts, person: Admin) -> None:
    """Start sweeps again."""
    service.store.go_on(person.name, _now_ms())


@router.get("/limits")
def limits(service: Parts, person: Viewer) -> dict[str, Limits]:
    """What the sweeps of each user may use together; null for any amount."""
    return dict(service.store.limits())


@router.put("/limits/{owner}", status_code=204)
def set_limits(owner: Owner, wanted: Limits, service: Parts, person: Admin) -> None:
    """Of one that is left out there is no limit."""
    service.store.set_limits(owner, wanted, person.name, _now_ms())


@router.delete("/limits/{owner}", status_code=204)
def drop_limits(owner: Owner, service: Parts, person: Admin) -> None:
    """As everybody again."""
    service.store.set_limits(owner, None, person.name, _now_ms())


def _now_ms() -> int:
    return int(time.time() * 1000)
