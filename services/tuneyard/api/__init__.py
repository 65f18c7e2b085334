"""The door over HTTP: thin routers over the queue, accounts and registry, and one way to say what went wrong."""

from __future__ import annotations

from fastapi import FastAPI

import tuneyard
from tuneyard.api import models, queue, sweeps, system, tokens, uploads, usage, webhooks
from tuneyard.api.problems import Problem, answer_with_problems
from tuneyard.api.service import Service

_PARTS = (system, sweeps, queue, uploads, models, usage, webhooks, tokens)
ROUTERS = (system.alive, *(module.router for module in _PARTS))


def create_app(service: Service) -> FastAPI:
    """The application over these parts."""
    app = FastAPI(
        title="Tuneyard",
        version=tuneyard.__version__,
        description="Submit sweeps, see what becomes of them, find their models.",
        openapi_url=None,  # `system` gives it, for a token
        docs_url=None,
        redoc_url=None,
        servers=[{"url": service.base_url}] if service.base_url else None,
        responses={500: {"model": Problem, "description": "A fault of ours."}},
    )
    app.state.service = service
    for router in ROUTERS:
        app.include_router(router)
    answer_with_problems(app)
    return app
