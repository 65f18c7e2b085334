"""Whether the service lives, whether what it stands on answers, and numbers for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import httpx2
from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from tuneyard import registry
from tuneyard.api.problems import responses
from tuneyard.api.service import Door, Parts, Service, Viewer
from tuneyard.jobs import STATES
from tuneyard.settings import without_passwords
from tuneyard_pipelines.errors import TuneyardError, UnreachableError, first_line

alive = APIRouter(tags=["system"])
router = APIRouter(tags=["system"], route_class=Door)
MLFLOW_TIMEOUT_S = 5.0


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Part(BaseModel):
    """Whether it answers, and if not, what is wrong."""

    ok: bool
    message: str = ""


class Ready(BaseModel):
    """What the service stands on, each told apart."""

    ready: bool
    database: Part
    ray: Part
    mlflow: Part


@alive.get("/healthz")
async def healthz() -> Alive:
    """The one route that takes no token; it waits for nothing and nobody."""
    return Alive()


@router.get(
    "/readyz", responses={**responses(401, 403), 503: {"model": Ready, "description": "Something does not answer."}}
)
def readyz(service: Parts, person: Viewer, response: Response) -> Ready:
    """Whether database, Ray and MLflow answer."""
    parts = {
        "database": _asked(service.store.paused),
        "ray": _asked(service.ray.nodes),
        "mlflow": _asked(lambda: _ask_mlflow(service.tracking_uri)),
    }
    ready = all(part.ok for part in parts.values())
    response.status_code = 200 if ready else 503
    return Ready(ready=ready, **parts)


@router.get("/metrics", response_class=PlainTextResponse, responses=responses(401, 403, 503))
def metrics(service: Parts, person: Viewer) -> Response:
    """For Prometheus: how long the queue is, how long the oldest waits, what runs, what failed and why."""
    numbers = CollectorRegistry(auto_describe=False)
    numbers.register(_Numbers(service))
    return Response(generate_latest(numbers), media_type=CONTENT_TYPE_LATEST)


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, person: Viewer) -> dict[str, Any]:
    """What the service can be asked."""
    document: dict[str, Any] = request.app.openapi()
    return document


class _Numbers:
    """Read from the database at each scrape, so that several services of one queue tell the same."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        store = self._service.store
        counts = store.counts()
        sweeps = GaugeMetricFamily("tuneyard_sweeps", "Sweeps by state.", labels=["state"])
        for state in STATES:
            sweeps.add_metric([state], sum(count for (of, _), count in counts.items() if of == state))
        yield sweeps
        failed = GaugeMetricFamily("tuneyard_sweeps_failed", "Failed sweeps by reason.", labels=["reason"])
        for (state, reason), count in sorted(counts.items()):
            if state == "failed":
                failed.add_metric([reason], count)
        yield failed
        since_ms = [entry.job.queued_ms for entry in store.waiting()]
        waits_s = time.time() - min(since_ms) / 1000 if since_ms else 0.0
        yield GaugeMetricFamily("tuneyard_queue_oldest_wait_seconds", "How long the oldest waits.", value=waits_s)
        yield GaugeMetricFamily("tuneyard_trials_running", "Trials that train.", value=store.running_trials())
        paused = GaugeMetricFamily("tuneyard_queue_paused", "1 while nothing is started.")
        paused.add_metric([], store.paused() is not None)
        yield paused

    def describe(self) -> Iterable[Metric]:
        return ()


def _asked(ask: Callable[[], object]) -> Part:
    try:
        ask()
    except TuneyardError as error:
        return Part(ok=False, message=without_passwords(str(error)))
    return Part(ok=True)


def _ask_mlflow(uri: str) -> None:
    """Raises UnreachableError for a server that is away; a file of SQLite comes into being with the first run."""
    if not uri.startswith(("http:", "https:")):
        registry.exists(uri)
        return
    try:
        answer = httpx2.get(f"{uri.rstrip('/')}/health", timeout=MLFLOW_TIMEOUT_S, trust_env=False)
    except httpx2.HTTPError as cause:
        raise UnreachableError(f"MLflow at {uri} does not answer ({first_line(cause)}); start it") from cause
    if answer.status_code != 200:
        raise UnreachableError(f"MLflow at {uri} is not well ({answer.status_code}); see its log")
