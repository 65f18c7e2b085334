"""Who one is, and the tokens that let people and programs in."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field

from tuneyard.accounts import Person, Role, Token
from tuneyard.api.problems import responses
from tuneyard.api.service import Admin, Door, Parts, Viewer
from tuneyard.pages import Made

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["tokens"], responses=responses(401, 403, 422, 503))


YEAR_9999_MS = 253_402_300_799_000  # the last that calendars of Python's kind know


class Wanted(BaseModel):
    """Whose token, what it may do, and how long it lives; without that, until it is revoked."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "ann", "role": "submitter"}]})
    name: str = Field(max_length=64)
    role: Role
    expires_ms: int | None = Field(None, ge=0, le=YEAR_9999_MS, description="Milliseconds since 1970, UTC.")


@router.get("/whoami")
async def whoami(person: Viewer) -> Person:
    """Who the service takes one for, and what one may do."""
    return person


@router.get("/tokens")
def list_(service: Parts, person: Admin) -> list[Token]:
    """Every token there ever was, the newest first, without their texts."""
    return service.accounts.all()


@router.post("/tokens", status_code=201)
def create(wanted: Wanted, service: Parts, person: Admin) -> Made:
    """Make a token."""
    token, secret = service.accounts.create(
        wanted.name, wanted.role, created_by=person.name, now_ms=_now_ms(), expires_ms=wanted.expires_ms
    )
    return Made(token, secret)


@router.delete("/tokens/{token_id}", responses=responses(404))
def revoke(token_id: Annotated[str, Path(max_length=64)], service: Parts, person: Admin) -> Token:
    """It lets nobody in from now on."""
    return service.accounts.revoke(token_id, revoked_by=person.name, now_ms=_now_ms())


def _now_ms() -> int:
    return int(time.time() * 1000)
