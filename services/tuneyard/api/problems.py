"""What went wrong, as problem+json (RFC 9457): a stable code, the field, and what to do about it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from tuneyard.accounts import UnknownTokenError
from tuneyard.database import UnusableError
from tuneyard.logs import UnknownTrialError
from tuneyard.roots import OutsideError
from tuneyard.settings import without_passwords
from tuneyard.store import UnknownSweepError
from tuneyard.uploads import TooLargeError
from tuneyard.webhooks import UnknownWebhookError
from tuneyard_pipelines.errors import InputError, RefusedError, TuneyardError, UnreachableError
from tuneyard_pipelines.spec import SpecError

log = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class NotAllowedError(RefusedError):
    """Whoever asks has not the role, or it is somebody else's, or the service reads nothing of that kind."""


class StrangerError(RefusedError):
    """Nobody knows who asks."""


class NotFoundError(InputError):
    """There is nothing of that name."""


@dataclass(frozen=True)
class Field:
    """One thing that is wrong in what was sent: where, by its dotted path, and what about it."""

    path: str
    detail: str


@dataclass(frozen=True)
class Problem:
    """What an error answers. `code` never changes its meaning; `detail` names the value, the rule and the next step."""

    title: str
    status: int
    code: str
    detail: str
    type: str = "about:blank"
    errors: list[Field] = field(default_factory=list)


# The first that fits an error says what it is.
_KINDS: Sequence[tuple[type[Exception], int, str, str]] = (
    (StrangerError, 401, "not_logged_in", "Nobody is logged in"),
    (NotAllowedError, 403, "not_allowed", "This is not allowed"),
    (OutsideError, 403, "not_allowed", "This is not allowed"),
    (UnknownSweepError, 404, "not_found", "There is no such thing"),
    (UnknownTokenError, 404, "not_found", "There is no such thing"),
    (UnknownTrialError, 404, "not_found", "There is no such thing"),
    (UnknownWebhookError, 404, "not_found", "There is no such thing"),
    (NotFoundError, 404, "not_found", "There is no such thing"),
    (TooLargeError, 413, "too_large", "This is too much"),
    (SpecError, 422, "invalid_spec", "The spec cannot be accepted"),
    (UnusableError, 503, "unreachable", "A service does not answer"),
    (InputError, 422, "invalid_input", "What was sent is wrong"),
    (RefusedError, 409, "refused", "This cannot be done in the present state"),
    (UnreachableError, 503, "unreachable", "A service does not answer"),
)
_UNANSWERABLE = {400: "invalid_input", 404: "not_found", 405: "method_not_allowed", 413: "too_large"}
_CODES = [(500, "internal"), *_UNANSWERABLE.items(), *((status, code) for _, status, code, _ in _KINDS)]
CODES: Mapping[int, Sequence[str]] = {
    status: sorted({code for other, code in _CODES if other == status}) for status, _ in _CODES
}


def answer_with_problems(app: FastAPI) -> None:
    """Have every error of the application answered so; what was nobody's fault but ours says only where to look."""

    @app.exception_handler(TuneyardError)
    def told(request: Request, error: TuneyardError) -> JSONResponse:
        kind = next(((status, code, title) for of, status, code, title in _KINDS if isinstance(error, of)), None)
        if kind is None:
            return unexpected(request, error)
        status, code, title = kind
        detail = without_passwords(str(error))
        errors = [Field(one.key, one.message) for one in error.problems] if isinstance(error, SpecError) else []
        return _answer(Problem(title, status, code, detail, errors=errors))

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        errors = [Field(".".join(map(str, one["loc"])), str(one["msg"])) for one in error.errors()]
        detail = "; ".join(f"{one.path}: {one.detail}" for one in errors[:5])
        return _answer(Problem("What was sent is wrong", 422, "invalid_input", detail, errors=errors))

    def unanswerable(request: Request, error: HTTPException) -> JSONResponse:
        code = _UNANSWERABLE[error.status_code]
        detail = f"{request.method} {request.url.path}: {error.detail}; see what there is in /openapi.json"
        return _answer(Problem(str(error.detail), error.status_code, code, detail), error.headers)

    for status in _UNANSWERABLE:
        app.add_exception_handler(status, unanswerable)  # type: ignore[arg-type]

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        mark = secrets.token_hex(4)
        log.error("%s: %s %s", mark, request.method, request.url.path, exc_info=error)
        detail = f"a fault of ours; whoever runs the service finds more in its log, under {mark}"
        return _answer(Problem("The service failed", 500, "internal", detail))


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: what a route answers besides what it is for."""
    return {
        status: {
            "description": f"problem+json, code {' or '.join(CODES[status])}",
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in statuses
    }


def _answer(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    told = {**vars(problem), "errors": [vars(one) for one in problem.errors]}
    more = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return JSONResponse(told, problem.status, {**(headers or {}), **more}, media_type=MEDIA_TYPE)
