"""A typed client of the service, for the command line and for programs.

    from tuneyard import Client
    sweep = Client.find().submit("version: 1\n...")

What the service refuses is raised as the same kinds of error that the library itself has.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter, ValidationError

from tuneyard import logins, settings
from tuneyard.accounts import Person, Role, Token
from tuneyard.pages import Made, MadeHook, QueueNow, SweepPage, TrialPage
from tuneyard.registry import Version
from tuneyard.store import Event, Limits
from tuneyard.sweeps import Listed, View
from tuneyard.uploads import PIECE_BYTES, Upload, digest_of
from tuneyard.usage import By, Usage
from tuneyard.webhooks import Delivery, Format, Hook
from tuneyard_pipelines.errors import InputError, RefusedError, TuneyardError, UnreachableError, first_line

log = logging.getLogger(__name__)
Answer = TypeVar("Answer")
TIMEOUT = httpx2.Timeout(60.0, connect=5.0)
LONGEST_PAUSE_S = 30.0  # between two tries to follow a log again
TRIES = 3
RESTART_S, RETRY_S = 30.0, 0.5
PAGE = 500
_KINDS: Mapping[int, type[TuneyardError]] = {
    400: InputError,
    401: RefusedError,
    403: RefusedError,
    404: InputError,
    409: RefusedError,
    413: InputError,
    422: InputError,
    502: UnreachableError,
    503: UnreachableError,
    504: UnreachableError,
}


class UnknownError(InputError):
    """The service knows nothing of that name."""


class Client:
    """One service, for one person.

    Every method raises UnreachableError when it does not answer, RefusedError for what it does not allow, InputError
    for what is wrong.
    """

    def __init__(self, url: str, token: str) -> None:
        """Raises InputError for what is no address, and for what can be no token."""
        try:
            parsed = httpx2.URL(url)
        except (httpx2.InvalidURL, ValueError) as cause:
            raise InputError(f"service {url!r}: {cause}; give an address such as http://127.0.0.1:8700") from cause
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
            raise InputError(
                f"service {url!r}: no address; give one such as http://127.0.0.1:8700, without a name in it"
            )
        if re.fullmatch(r"[!-~]+", token) is None:
            raise InputError(
                f"the token for {url}: none, or not as tokens are; ask an admin for: tuneyard token create"
            )
        self.url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"}
        # On this machine no proxy that the environment names is in between, and none is to see the token.
        here = parsed.host in ("127.0.0.1", "::1", "localhost")
        self._http = httpx2.Client(base_url=self.url, headers=headers, timeout=TIMEOUT, trust_env=not here)
        self.close = weakref.finalize(self, self._http.close)  # by itself with the last that uses it, or when called

    @classmethod
    def find(cls, home: Path | None = None) -> Client:
        """The service of this home, or that of the last login. Raises UnreachableError where there is none."""
        home = home or settings.find_home()
        found = cls.of(home)
        if found is None:
            raise UnreachableError(
                f"{home}: no service here; start one with: tuneyard up, or name one: tuneyard login URL"
            )
        return found

    @classmethod
    def of(cls, home: Path) -> Client | None:
        """None where there is none."""
        login = logins.find(home)
        return None if login is None else cls(login.url, login.token)

    def whoami(self) -> Person:
        return self._ask("GET", "/whoami", Person)

    def submit(self, spec: str, *, overrides: Sequence[str] = (), priority: int = 50, key: str | None = None) -> Listed:
        """Queue a sweep, once, however often the network makes this try it; `key` names it across programs, too.

        A service that is being started again is waited for, up to half a minute, which the log says.
        """
        body = {"spec": spec, "overrides": list(overrides), "priority": priority}
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        began_s, said = time.monotonic(), False
        while True:
            try:
                answer = self._send("POST", "/sweeps", body, headers=headers)
                break
            except UnreachableError as silent:
                if time.monotonic() - began_s >= RESTART_S:
                    raise
                if not said:
                    log.warning("%s; trying again for %.0f s", silent, RESTART_S)
                    said = True
                time.sleep(RETRY_S)
        return self._read(answer, Listed)

    def upload(self, path: Path) -> Upload:
        """Have the service keep a file, whose `path` is then where its cluster finds it; one that it has is not sent.

        What an earlier try has sent is not sent again. Raises InputError for a file that changes meanwhile.
        """
        digest, total_bytes = digest_of(path), path.stat().st_size
        place, failures = f"/uploads/{digest}", 0
        there = self._ask("GET", place, Upload, query={"name": path.name})
        with path.open("rb") as source:
            while there.path is None:
                source.seek(there.received_bytes)
                piece = source.read(PIECE_BYTES)
                if not piece and total_bytes:
                    raise InputError(f"{path}: it became shorter while it was sent; try again")
                query: dict[str, str | int] = {
                    "name": path.name,
                    "offset": there.received_bytes,
                    "total_bytes": total_bytes,
                }
                try:
                    answer = self._http.put(f"/api/v1{place}", params=query, content=piece)
                except httpx2.HTTPError as cause:
                    failures += 1
                    if failures == TRIES:
                        raise self._silent(cause) from cause
                    time.sleep(0.2 * failures)
                    there = self._ask("GET", place, Upload, query={"name": path.name})
                else:
                    there, failures = self._read(answer, Upload), 0
        return there

    def uploads(self) -> list[Upload]:
        return self._ask("GET", "/uploads", list[Upload])

    def plan(self, spec: str, *, overrides: Sequence[str] = ()) -> dict[str, Any]:
        return self._ask("POST", "/plans", dict[str, Any], {"spec": spec, "overrides": list(overrides)})

    def page(
        self,
        *,
        states: Sequence[str] = (),
        owner: str | None = None,
        name: str | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> SweepPage:
        """Sweeps of the queue, newest first."""
        wanted = {"state": list(states), "owner": owner, "name": name, "limit": limit, "after": after}
        return self._ask("GET", "/sweeps", SweepPage, query=wanted)

    def sweeps(self, **wanted: Any) -> Iterator[Listed]:
        """All of them, as `page`."""
        after = None
        while True:
            page = self.page(limit=PAGE, after=after, **wanted)
            yield from page.sweeps
            if (after := page.after) is None:
                return

    def sweep(self, sweep_id: str, *, trials: int = 1) -> View:
        """One sweep, with so many of its best trials. Raises UnknownError for one that the queue does not have."""
        return self._ask("GET", f"/sweeps/{_part(sweep_id)}", View, query={"trials": trials})

    def trials(
        self, sweep_id: str, *, order: str = "best", state: str | None = None, limit: int = 100, offset: int = 0
    ) -> TrialPage:
        wanted = {"order": order, "state": state, "limit": limit, "offset": offset}
        return self._ask("GET", f"/sweeps/{_part(sweep_id)}/trials", TrialPage, query=wanted)

    def events(self, sweep_id: str, *, after: int = 0, limit: int = 100) -> list[Event]:
        wanted = {"after": after, "limit": limit}
        return self._ask("GET", f"/sweeps/{_part(sweep_id)}/events", list[Event], query=wanted)

    def spec(self, sweep_id: str) -> str:
        """What it was asked to do, as YAML."""
        return self._sent("GET", f"/api/v1/sweeps/{_part(sweep_id)}/spec").text

    def logs(self, sweep_id: str, *, trial: str | None = None, follow: bool = False) -> Iterator[str]:
        """What the sweep's driver said, or its trial `t007`, in pieces.

        With `follow` until the sweep has ended, however often the service is away meanwhile.
        """
        path = f"/api/v1/sweeps/{_part(sweep_id)}/logs"
        wanted = {} if trial is None else {"trial": trial}
        if not follow:
            yield self._sent("GET", path, params=wanted).text
            return
        known, failures = 0, 0
        while True:
            try:
                for name, data, offset in self._events(path, wanted, known):
                    known, failures = offset, 0
                    if name == "end":
                        return
                    yield data
            except (httpx2.HTTPError, UnreachableError):  # the sweep goes on without us, and so we wait
                failures += 1
                time.sleep(min(LONGEST_PAUSE_S, 0.5 * 2 ** min(failures, 10)))

    def cancel(self, sweep_id: str) -> Listed:
        return self._act(sweep_id, "cancel")

    def stop(self, sweep_id: str) -> Listed:
        return self._act(sweep_id, "stop")

    def resume(self, sweep_id: str) -> Listed:
        return self._act(sweep_id, "resume")

    def retry(self, sweep_id: str) -> Listed:
        return self._act(sweep_id, "retry")

    def extend(self, sweep_id: str, trials: int) -> Listed:
        return self._act(sweep_id, "extend", {"trials": trials})

    def add(self, sweep_id: str, points: Sequence[str]) -> Listed:
        return self._act(sweep_id, "add", {"points": list(points)})

    def prioritise(self, sweep_id: str, priority: int) -> Listed:
        return self._ask("PATCH", f"/sweeps/{_part(sweep_id)}", Listed, {"priority": priority})

    def queue(self) -> QueueNow:
        return self._ask("GET", "/queue", QueueNow)

    def pause(self, reason: str) -> None:
        self._send("POST", "/queue/pause", {"reason": reason})

    def go_on(self) -> None:
        self._send("POST", "/queue/resume")

    def limits(self) -> dict[str, Limits]:
        return self._ask("GET", "/limits", dict[str, Limits])

    def set_limits(self, owner: str, limits: Limits | None) -> None:
        """None: as everybody."""
        if limits is None:
            self._send("DELETE", f"/limits/{_part(owner)}")
        else:
            self._send("PUT", f"/limits/{_part(owner)}", vars(limits))

    def usage(self, by: By = "user", *, since_ms: int | None = None) -> Usage:
        """Since a week ago, where nothing is said."""
        return self._ask("GET", "/usage", Usage, query={"by": by, "since_ms": since_ms})

    def models(self) -> list[Version]:
        return self._ask("GET", "/models", list[Version])

    def tokens(self) -> list[Token]:
        return self._ask("GET", "/tokens", list[Token])

    def create_token(self, name: str, role: Role, *, expires_ms: int | None = None) -> Made:
        return self._ask("POST", "/tokens", Made, {"name": name, "role": role, "expires_ms": expires_ms})

    def revoke_token(self, token_id: str) -> Token:
        return self._ask("DELETE", f"/tokens/{_part(token_id)}", Token)

    def webhooks(self) -> list[Hook]:
        return self._ask("GET", "/webhooks", list[Hook])

    def create_webhook(self, url: str, *, events: Sequence[str] = (), format: Format = "json") -> MadeHook:
        """No events: of every kind."""
        return self._ask("POST", "/webhooks", MadeHook, {"url": url, "events": list(events), "format": format})

    def delete_webhook(self, hook_id: str) -> Hook:
        return self._ask("DELETE", f"/webhooks/{_part(hook_id)}", Hook)

    def test_webhook(self, hook_id: str) -> Delivery:
        """Have it sent a test, which `webhook_deliveries` tells the end of."""
        return self._ask("POST", f"/webhooks/{_part(hook_id)}/test", Delivery)

    def webhook_deliveries(self, hook_id: str, *, limit: int = 50) -> list[Delivery]:
        return self._ask("GET", f"/webhooks/{_part(hook_id)}/deliveries", list[Delivery], query={"limit": limit})

    def _act(self, sweep_id: str, what: str, body: Mapping[str, Any] | None = None) -> Listed:
        return self._ask("POST", f"/sweeps/{_part(sweep_id)}/{what}", Listed, body)

    def _ask(
        self,
        method: str,
        path: str,
        form: type[Answer],
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        return self._read(self._send(method, path, body, query=query, headers=headers), form)

    def _read(self, answer: httpx2.Response, form: type[Answer]) -> Answer:
        try:
            read: Answer = _adapter(form).validate_json(self._good(answer).content)  # type: ignore[arg-type]
            return read
        except ValidationError as cause:
            said = first_line(cause)
            raise UnreachableError(
                f"{self.url} answers what this version does not understand ({said}); is it a Tuneyard service of "
                "this version?"
            ) from cause

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        wanted = {key: value for key, value in (query or {}).items() if value is not None}
        return self._sent(method, f"/api/v1{path}", json=body, params=wanted, headers=headers)

    def _sent(self, method: str, path: str, **more: Any) -> httpx2.Response:
        """What may be sent twice is, when the connection breaks: a read, and a submit, which has its key."""
        again = method == "GET" or "Idempotency-Key" in (more.get("headers") or {})
        for failures in range(1, TRIES + 1):
            try:
                answer = self._http.request(method, path, **more)
            except UnicodeEncodeError as cause:
                raise InputError(f"{cause.object[:80]!r} is no text that can be sent; write it in Unicode") from cause
            except httpx2.HTTPError as cause:
                if not again or failures == TRIES or isinstance(cause, (httpx2.ConnectError, httpx2.ConnectTimeout)):
                    raise self._silent(cause) from cause
                time.sleep(0.2 * failures)
                continue
            return self._good(answer)
        raise AssertionError("unreachable")

    def _events(self, path: str, wanted: Mapping[str, str], known: int) -> Iterator[tuple[str, str, int]]:
        """Server-sent events from there on: name, data and the bytes known after it."""
        query = {**wanted, "follow": "true", "offset": str(known)}
        with self._http.stream("GET", path, params=query) as answer:
            if answer.status_code != 200:
                answer.read()
            self._good(answer)
            name = data = ""
            for line in answer.iter_lines():
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    known = int(value)
                elif field == "data":
                    data = json.loads(value)
                elif not line and name:
                    yield name, data, known
                    name = data = ""
        raise httpx2.RemoteProtocolError("the stream ended early")

    def _good(self, answer: httpx2.Response) -> httpx2.Response:
        if answer.is_success:
            return answer
        try:
            problem = answer.json()
            detail, code = str(problem["detail"]), str(problem.get("code", ""))
        except (ValueError, KeyError, TypeError, AttributeError):
            detail, code = f"{self.url} answers {answer.status_code}; is it a Tuneyard service?", ""
        if code == "not_found":
            raise UnknownError(detail)
        raise _KINDS.get(answer.status_code, TuneyardError)(detail)

    def _silent(self, cause: Exception) -> UnreachableError:
        return UnreachableError(
            f"the service at {self.url} does not answer ({first_line(cause)}); see that it runs "
            "(tuneyard status, on its machine), or name another: tuneyard login URL"
        )


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    """It takes ten times as long to make one as to read an answer with it."""
    return TypeAdapter(form)


def _part(text: str) -> str:
    """As one part of a path, whatever stands in it. Raises InputError for none, which would name something else."""
    if text in ("", ".", ".."):
        raise InputError(f"id {text!r}: give an id, or enough of its beginning")
    return quote(text, safe="", errors="replace")
