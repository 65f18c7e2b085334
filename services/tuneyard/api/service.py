"""What the routes stand on: the service's parts, who asks, and what that person may do."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

from anyio import CapacityLimiter
from fastapi import Depends, HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

from tuneyard import settings
from tuneyard.accounts import NAME, Accounts, Person, Role
from tuneyard.api.problems import NotAllowedError, StrangerError
from tuneyard.database import Database
from tuneyard.queue import Queue
from tuneyard.ray_jobs import RayJobs, find_token
from tuneyard.roots import UPLOADS, Roots
from tuneyard.store import Entry, Store
from tuneyard.uploads import Uploads
from tuneyard.webhooks import Webhooks
from tuneyard_pipelines.errors import InputError

log = logging.getLogger(__name__)
LONGEST_WAIT_S = 5.0  # for who tried one wrong token after another
LARGEST_BODY_BYTES = 16 << 20  # JSON may take twice what it says
ADDRESSES = 10_000  # of which it is remembered how often they were wrong
CHECKS_AT_ONCE = 4


@dataclass(frozen=True)
class TrustedHeader:
    """A header in which one of these proxies names a person who has logged in with it, who is a submitter."""

    name: str
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]

    def person(self, request: Request) -> Person | None:
        """None for a request that no such proxy brings, and for one without the header."""
        named = request.headers.getlist(self.name)
        if not named or request.client is None or not request.client.host:
            return None
        address = ipaddress.ip_address(request.client.host)
        if not any(address in network for network in self.proxies):
            return None
        if len(named) > 1 or NAME.fullmatch(named[0]) is None:  # a proxy that adds its own to the asker's
            raise StrangerError(f"header {self.name}: found {', '.join(named)[:80]!r}, which is no name of one person")
        return Person(named[0], "submitter")


@dataclass
class Slowdown:
    """How long wrong tokens from one address wait for their answer: twice as long each time; right ones never do."""

    wrong: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def wrong_s(self, address: str) -> float:
        """Once more: how long this one waits."""
        count = self.wrong[address] = self.wrong.pop(address, 0) + 1
        if len(self.wrong) > ADDRESSES:
            self.wrong.popitem(last=False)
        return float(min(LONGEST_WAIT_S, 0.1 * 2.0 ** min(count - 1, 10)))


@dataclass(frozen=True)
class Service:
    """One home's queue and what belongs to it.

    `roots`: where files may lie that a spec names. `base_url`: where people reach it, if elsewhere.
    `hub`: whether a spec may name data of the hub. `checks`: a few specs at once are looked at, which may take long, so
    that threads and processor are left for those who only read.
    """

    store: Store
    accounts: Accounts
    webhooks: Webhooks
    home: Path
    ray: RayJobs
    tracking_uri: str
    uploads: Uploads
    roots: Roots
    base_url: str = ""
    hub: bool = False
    trusted_header: TrustedHeader | None = None
    slowdown: Slowdown = field(default_factory=Slowdown)
    checks: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(CHECKS_AT_ONCE))

    @classmethod
    def configured(cls, environment: Mapping[str, str] = os.environ) -> Service:
        """As the environment says, each setting with its default; the database is brought to this version.

        Raises InputError for what it cannot say, and what opening the database raises.
        """
        settings.check_names(environment)
        home = settings.find_home(environment)
        settings.make_home(home)
        database = Database(settings.database_url(home, environment))
        store = Store(database)
        store.migrate()
        uploads = Uploads(home / UPLOADS, settings.size_bytes("TUNEYARD_UPLOAD_LIMIT", environment))
        return cls(
            store=store,
            accounts=Accounts(database),
            webhooks=Webhooks(database),
            home=home,
            ray=RayJobs(settings.value("TUNEYARD_RAY", environment), find_token(environment)),
            tracking_uri=settings.tracking_uri(home, None, environment),
            uploads=uploads,
            roots=Roots.configured(home, environment),
            base_url=settings.base_url("TUNEYARD_BASE_URL", environment),
            hub=settings.whole("TUNEYARD_HUB", environment) > 0,
            trusted_header=_trusted_header(environment),
        )

    def queue(self, person: Person) -> Queue:
        return Queue(self.store, self.home, person.name)


async def service_of(request: Request) -> Service:
    """The parts that the application was made with."""
    return cast(Service, request.app.state.service)


class Door(APIRoute):
    """A route that asks who is there before it reads what they bring, and of that no more than it must."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def let_in(request: Request) -> Response:
            request.state.person = await _who_asks(request, await service_of(request))
            return await answer(Request(request.scope, _limited(request)))

        return let_in


async def person_of(request: Request) -> Person:
    """Whom the door has let in."""
    return cast(Person, request.state.person)


def at_least(role: Role) -> Any:
    """The dependency of a route that takes this role; what the route is given is the person."""

    async def allowed(person: Annotated[Person, Depends(person_of)]) -> Person:
        if not person.may(role):
            raise NotAllowedError(f"{person.name} has the role {person.role}; this takes the role {role}: ask an admin")
        return person

    return Depends(allowed)


Parts = Annotated[Service, Depends(service_of)]
Viewer = Annotated[Person, at_least("viewer")]
Submitter = Annotated[Person, at_least("submitter")]
Admin = Annotated[Person, at_least("admin")]


def own(person: Person, entry: Entry) -> Entry:
    """The sweep, if it is theirs to change. Raises NotAllowedError for somebody else's, unless they are an admin."""
    if entry.owner != person.name and not person.may("admin"):
        raise NotAllowedError(
            f"sweep {entry.job.sweep_id} is {entry.owner}'s; only they and admins change it, {person.name} does not"
        )
    return entry


async def _who_asks(request: Request, service: Service) -> Person:
    """By a bearer token, or by what a trusted proxy says. Raises StrangerError for nobody."""
    if service.trusted_header is not None and (named := service.trusted_header.person(request)) is not None:
        return named
    address = request.client.host if request.client else ""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise StrangerError("no token came along; log in with: tuneyard login URL, or send Authorization: Bearer TOKEN")
    person = await asyncio.to_thread(service.accounts.let_in, token.strip(), int(time.time() * 1000))
    if person is None:
        log.warning("a token that lets nobody in, from %s", address)
        await asyncio.sleep(service.slowdown.wrong_s(address))
        raise StrangerError("the token is unknown, expired or revoked; ask an admin for: tuneyard token create")
    return person


def _limited(request: Request) -> Receive:
    """What comes of the request's body. It raises an HTTPException, which FastAPI lets through, for too much of it."""
    said = request.headers.get("Content-Length", "")
    said_bytes = int(said) if said.isdecimal() else 0
    received_bytes = 0

    async def receive() -> Message:
        nonlocal received_bytes
        _check_size(said_bytes)
        message = await request.receive()
        received_bytes += len(message.get("body", b""))
        _check_size(received_bytes)
        return message

    return receive


def _check_size(body_bytes: int) -> None:
    if body_bytes > LARGEST_BODY_BYTES:
        raise HTTPException(413, f"{body_bytes:,} bytes or more are sent; {LARGEST_BODY_BYTES:,} are taken at once")


def _trusted_header(environment: Mapping[str, str]) -> TrustedHeader | None:
    name = settings.value("TUNEYARD_TRUSTED_HEADER", environment)
    if not name:
        return None
    networks = settings.networks("TUNEYARD_TRUSTED_PROXIES", environment)
    if not networks:
        raise InputError("TUNEYARD_TRUSTED_HEADER: name the proxies that may send it with TUNEYARD_TRUSTED_PROXIES")
    return TrustedHeader(name, networks)
