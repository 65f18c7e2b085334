"""What users and projects have used of the cluster."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query

from tuneyard.api.problems import responses
from tuneyard.api.service import Door, Parts, Viewer
from tuneyard.usage import By, Usage, usage

router = APIRouter(prefix="/api/v1", route_class=Door, tags=["usage"], responses=responses(401, 403, 422, 503))
WEEK_MS = 7 * 86_400_000


@router.get("/usage")
def show(
    service: Parts,
    person: Viewer,
    by: By = "user",
    since_ms: Annotated[
        int | None, Query(ge=0, le=2**53, description="Milliseconds since 1970, UTC; left out, a week ago.")
    ] = None,
) -> Usage:
    """How long trials trained, and on how many GPUs, who used most first."""
    now_ms = int(time.time() * 1000)
    return usage(service.store, by, since_ms=now_ms - WEEK_MS if since_ms is None else since_ms, now_ms=now_ms)
