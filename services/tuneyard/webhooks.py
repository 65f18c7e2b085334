"""Webhooks: who is told what becomes of sweeps, what is owed to whom, and what came of each try to bring it.

An event of the queue is owed to every hook that asks for its kind. Up to which event a hook was given its own stands in
its row, and moves on in the transaction that writes down what is owed: whoever is killed at any point, nothing is left
out and nothing is owed twice. The `courier` brings it, if need be again: a receiver knows it by the id that it keeps.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, get_args

import httpx2
import sqlalchemy as sa

from tuneyard import sweeps
from tuneyard.database import Database
from tuneyard.jobs import ENDED
from tuneyard.settings import without_passwords
from tuneyard.store import REGISTERED, Event, Store, happened
from tuneyard.sweeps import Listed
from tuneyard.tables import DELIVERIES, EVENTS, TRIES, WEBHOOKS
from tuneyard_pipelines.errors import InputError, RefusedError

Format = Literal["json", "slack"]
FORMATS: tuple[Format, ...] = get_args(Format)
KINDS: Mapping[str, str] = {
    "sweep.succeeded": "a sweep has come to its end",
    "sweep.failed": "a sweep has failed for good",
    "sweep.cancelled": "a sweep was given up",
    "candidate.registered": "a sweep's best model is in the registry; the message says whether it is the candidate now",
}
"""What a hook may ask for."""
TEST = "webhook.test"

MOST_TRIES = 8
FIRST_WAIT_S, WAITS_GROW = 15.0, 4.0  # after the first failure, and so much longer after each further one
SPREAD = 0.2  # so much earlier or later, that receivers which come back are not all asked at once
ACTOR = "webhooks"
_SECRET = "whsec_"  # as https://www.standardwebhooks.com has it: the rest is the key, in base64
_MOST_AT_ONCE = 500
_LONGEST_URL = 2000


@dataclass(frozen=True)
class Hook:
    """Somebody who is told, without their secret; `waiting` counts what is owed to them at present.

    One that has ended (`ended_ms`, `ended_why`) is told nothing any more.
    """

    hook_id: str
    url: str
    events: tuple[str, ...]
    format: Format
    created_ms: int
    created_by: str
    ended_ms: int | None = None
    ended_why: str = ""
    waiting: int = 0


@dataclass(frozen=True)
class Try:
    """What came of it: the status that was answered, if any, and what is wrong; nothing is when it was taken."""

    number: int
    time_ms: int
    status: int | None
    error: str


@dataclass(frozen=True)
class Delivery:
    """One event for one hook. `next_ms`: when it is tried again; None once it was taken, or given up."""

    delivery_id: str
    event: str
    body: str
    created_ms: int
    next_ms: int | None
    delivered_ms: int | None
    tries: tuple[Try, ...] = ()

    @property
    def state(self) -> Literal["delivered", "waiting", "given up"]:
        if self.delivered_ms is not None:
            return "delivered"
        return "given up" if self.next_ms is None else "waiting"


@dataclass(frozen=True)
class Due:
    """What is to be sent now."""

    delivery_id: str
    body: str
    url: str
    secret: str = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What a receiver said, or why none was reached; no `error`: it took it."""

    status: int | None
    error: str = ""


class UnknownWebhookError(InputError):
    """There is no webhook of this id."""


class Webhooks:
    """The hooks in the queue's database. Every method may raise what `Database.writing` does."""

    def __init__(self, database: Database) -> None:
        self._database, self._store = database, Store(database)

    def create(
        self, url: str, events: Sequence[str], form: Format, *, created_by: str, now_ms: int
    ) -> tuple[Hook, str]:
        """A hook for what happens from now on, and its secret, which nobody is told again; no events: of every kind.

        Raises InputError for the URL, an event or the format.
        """
        host = _checked(url)
        for one in events:
            if one not in KINDS:
                raise InputError(f"event: found {one[:80]!r}; allowed: {', '.join(KINDS)}")
        if form not in FORMATS:
            raise InputError(f"format: found {form[:80]!r}; allowed: {', '.join(FORMATS)}")
        asked = tuple(kind for kind in KINDS if kind in events or not events)
        hook = Hook(secrets.token_hex(4), url, asked, form, now_ms, created_by)
        secret = _SECRET + base64.b64encode(secrets.token_bytes(32)).decode()
        with self._database.writing() as connection:
            connection.execute(
                sa.insert(WEBHOOKS).values(
                    hook_id=hook.hook_id,
                    url=url,
                    events=json.dumps(asked),
                    format=form,
                    secret=secret,
                    created_ms=now_ms,
                    created_by=created_by,
                    event_id=_newest(connection),
                    ended_why="",
                )
            )
            said = f"{hook.hook_id}: {host}, {', '.join(asked)}"  # a whole URL may be a secret
            happened(connection, None, created_by, "webhook made", now_ms, message=said)
        return hook, secret

    def all(self) -> list[Hook]:
        """The newest first."""
        waiting = sa.select(DELIVERIES.c.hook_id, sa.func.count().label("waiting"))
        waiting = waiting.where(DELIVERIES.c.next_ms.is_not(None)).group_by(DELIVERIES.c.hook_id)
        with self._database.reading() as connection:
            counts = {row.hook_id: row.waiting for row in connection.execute(waiting)}
            order = (WEBHOOKS.c.created_ms.desc(), WEBHOOKS.c.hook_id)
            rows = connection.execute(sa.select(WEBHOOKS).order_by(*order)).mappings().all()
        return [_hook(row, counts.get(row["hook_id"], 0)) for row in rows]

    def delete(self, hook_id: str, *, deleted_by: str, now_ms: int) -> Hook:
        """It is told nothing any more, and what was owed to it is forgotten. Raises InputError for an unknown one."""
        with self._database.writing() as connection:
            hook = _hook(_row(connection, hook_id))
            mine = sa.select(DELIVERIES.c.delivery_id).where(DELIVERIES.c.hook_id == hook_id)
            connection.execute(sa.delete(TRIES).where(TRIES.c.delivery_id.in_(mine)))
            connection.execute(sa.delete(DELIVERIES).where(DELIVERIES.c.hook_id == hook_id))
            connection.execute(sa.delete(WEBHOOKS).where(WEBHOOKS.c.hook_id == hook_id))
            happened(connection, None, deleted_by, "webhook deleted", now_ms, message=hook_id)
        return hook

    def test(self, hook_id: str, *, now_ms: int) -> Delivery:
        """Have it sent something that says it is a test, once. Raises RefusedError for one that has ended."""
        with self._database.writing() as connection:
            row = _row(connection, hook_id)
            if row["ended_ms"] is not None:
                raise RefusedError(
                    f"webhook {hook_id} has ended: {row['ended_why']}; delete it and make it anew once that is mended"
                )
            body = _body(row["format"], TEST, now_ms, {}, "A test of a webhook of Tuneyard's")
            return _owe(connection, hook_id, TEST, body, now_ms)

    def deliveries(self, hook_id: str, limit: int = 100) -> list[Delivery]:
        """What it was told or is owed, the newest first, each with what came of it. Raises InputError for no hook."""
        mine = sa.select(DELIVERIES).where(DELIVERIES.c.hook_id == hook_id)
        mine = mine.order_by(DELIVERIES.c.created_ms.desc(), DELIVERIES.c.event_id.desc()).limit(limit)
        with self._database.reading() as connection:
            _row(connection, hook_id)
            rows = connection.execute(mine).mappings().all()
            of = TRIES.c.delivery_id.in_([row["delivery_id"] for row in rows])
            tries: dict[str, list[Try]] = {}
            for delivery_id, *told in connection.execute(sa.select(TRIES).where(of).order_by(TRIES.c.number)):
                tries.setdefault(delivery_id, []).append(Try(*told))
        return [_delivery(row, tries.get(row["delivery_id"], ())) for row in rows]

    def owe(self, now_ms: int) -> None:
        """Write down what is owed to whom for what has happened since; two that do so at once owe nothing twice."""
        with self._database.reading() as connection:
            living = connection.execute(sa.select(WEBHOOKS).where(WEBHOOKS.c.ended_ms.is_(None))).mappings().all()
            known = min((row["event_id"] for row in living), default=None)
            upto = _newest(connection)
            if known is None or known >= upto:
                return
            tells = sa.or_(EVENTS.c.after.in_(sorted(ENDED)), EVENTS.c.what == REGISTERED)
            since = sa.and_(EVENTS.c.id > known, EVENTS.c.id <= upto)  # what comes meanwhile is the next pass's
            query = sa.select(EVENTS).where(since, tells).order_by(EVENTS.c.id).limit(_MOST_AT_ONCE)
            events = [Event(**row) for row in connection.execute(query).mappings()]
        if len(events) == _MOST_AT_ONCE:
            upto = events[-1].id
        told = [(event, kind, self._sweep(event)) for event in events if (kind := kind_of(event)) in KINDS]
        with self._database.writing() as connection:
            for row in living:
                as_read = sa.and_(WEBHOOKS.c.hook_id == row["hook_id"], WEBHOOKS.c.event_id == row["event_id"])
                move = sa.update(WEBHOOKS).where(as_read, WEBHOOKS.c.ended_ms.is_(None)).values(event_id=upto)
                if row["event_id"] >= upto or not connection.execute(move).rowcount:
                    continue
                asked = json.loads(row["events"])
                for event, kind, sweep in told:
                    if row["event_id"] < event.id and kind in asked:
                        body = payload(row["format"], kind, event, sweep)
                        _owe(connection, row["hook_id"], kind, body, now_ms, event.id)

    def due(self, now_ms: int) -> list[str]:
        """The hooks to which something is to be brought now."""
        query = sa.select(DELIVERIES.c.hook_id).where(DELIVERIES.c.next_ms <= now_ms).distinct()
        with self._database.reading() as connection:
            return list(connection.execute(query.order_by(DELIVERIES.c.hook_id)).scalars())

    def next_due(self, hook_id: str, now_ms: int) -> Due | None:
        """What is to be brought to it first."""
        columns = (DELIVERIES.c.delivery_id, DELIVERIES.c.body, WEBHOOKS.c.url, WEBHOOKS.c.secret)
        query = sa.select(*columns).join(WEBHOOKS, WEBHOOKS.c.hook_id == DELIVERIES.c.hook_id)
        query = query.where(DELIVERIES.c.hook_id == hook_id, DELIVERIES.c.next_ms <= now_ms)
        with self._database.reading() as connection:
            row = connection.execute(query.order_by(DELIVERIES.c.next_ms, DELIVERIES.c.event_id).limit(1)).one_or_none()
        return None if row is None else Due(*row)

    def tried(self, delivery_id: str, answer: Answer, *, now_ms: int, chance: float) -> None:
        """Write down what came of a try, and when the next one is (`wait_s`).

        The hook ends when its receiver says that it is gone, or when all tries were spent on something and nothing
        else was taken meanwhile. Of a hook that was deleted meanwhile nothing is written.
        """
        with self._database.writing() as connection:
            found = sa.select(DELIVERIES).where(DELIVERIES.c.delivery_id == delivery_id)
            row = connection.execute(found).mappings().one_or_none()
            if row is None:
                return
            number, taken = row["tries"] + 1, not answer.error
            told = {"delivery_id": delivery_id, "number": number, "time_ms": now_ms}
            connection.execute(sa.insert(TRIES).values(**told, status=answer.status, error=answer.error))
            spent = number >= (1 if row["event"] == TEST else MOST_TRIES)
            over = taken or spent or row["next_ms"] is None
            connection.execute(
                sa.update(DELIVERIES)
                .where(DELIVERIES.c.delivery_id == delivery_id)
                .values(
                    tries=number,
                    next_ms=None if over else now_ms + int(1000 * wait_s(number, chance)),
                    delivered_ms=now_ms if taken and row["delivered_ms"] is None else row["delivered_ms"],
                )
            )
            if answer.status == 410:
                _end(connection, row["hook_id"], "its receiver says that it is gone (410)", now_ms)
            elif spent and not taken and row["event"] != TEST and not _takes(connection, row):
                hook_id = row["hook_id"]  # what the receiver says may hold its URL, and stands with the tries only
                why = f"nothing was taken in {number} tries; see them with: tuneyard webhook deliveries {hook_id}"
                _end(connection, hook_id, why, now_ms)

    def _sweep(self, event: Event) -> Listed | None:
        """None where nothing more can be said of it than what the event does."""
        try:
            return sweeps.listed(self._store, [self._store.get(event.sweep_id or "")])[0]
        except InputError:
            return None


def kind_of(event: Event) -> str:
    """What a hook calls it; empty for what none is told."""
    if event.what == REGISTERED:
        return "candidate.registered"
    return f"sweep.{event.after}" if event.after in ENDED and event.before != event.after else ""


def wait_s(number: int, chance: float) -> float:
    """How long after the try of this number, if it failed, the next one is; `chance` is anything from 0 to 1."""
    return FIRST_WAIT_S * WAITS_GROW ** (number - 1) * (1 + SPREAD * (2 * chance - 1))


def payload(form: str, kind: str, event: Event, sweep: Listed | None) -> str:
    """What is sent."""
    best = sweep.best if sweep else None
    model, _, message = event.message.partition(": ") if event.what == REGISTERED else ("", "", event.message)
    said = without_passwords(message)
    data = {
        "sweep_id": event.sweep_id,
        "name": sweep.name if sweep else "",
        "owner": sweep.owner if sweep else "",
        "reason": event.reason,
        "message": said,
        "metric": sweep.metric if sweep else "",
        "score": best.score if best else None,
        "trial": best.trial if best else "",
        **({"model": model} if model else {}),
    }
    named = f"{data['name']} ({event.sweep_id}) of {data['owner']}"
    told = f"Model {model} of sweep {named}" if model else f"Sweep {named} {event.after}"
    why = ": ".join(part for part in (event.reason, said) if part)
    more = "; ".join(part for part in (why[:500], sweep.best_text if sweep else "") if part)
    return _body(form, kind, event.time_ms, data, f"{told}: {more}" if more else told)


def _body(form: str, kind: str, time_ms: int, data: Mapping[str, Any], text: str) -> str:
    if form == "slack":  # whose own marks, such as those that call everybody, text must not make
        return json.dumps({"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")})
    stamp = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"type": kind, "timestamp": stamp, "data": data})


def _checked(url: str) -> str:
    """The host of an address that may be told. Raises InputError, without the URL, which may be a secret."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as cause:
        raise InputError("url: no address; give one such as https://hooks.example.org/tuneyard") from cause
    if len(url) > _LONGEST_URL or parsed.scheme not in ("http", "https") or not parsed.host:
        raise InputError(
            f"url: not an http or https address of at most {_LONGEST_URL} characters; give one such as "
            "https://hooks.example.org/tuneyard"
        )
    if parsed.port is not None and not 0 < parsed.port < 1 << 16:
        raise InputError(f"url: found port {parsed.port}; allowed: 1 to 65535")
    if parsed.userinfo or parsed.fragment:
        raise InputError("url: holds a user, a password or a fragment, which are not sent; leave them out")
    return parsed.host


def _newest(connection: sa.Connection) -> int:
    return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(EVENTS.c.id), 0))).scalar_one())


def _row(connection: sa.Connection, hook_id: str) -> sa.RowMapping:
    row = connection.execute(sa.select(WEBHOOKS).where(WEBHOOKS.c.hook_id == hook_id)).mappings().one_or_none()
    if row is None:
        raise UnknownWebhookError(
            f"webhook {hook_id[:80]!r}: there is none of this id; see them with: tuneyard webhook list"
        )
    return row


def _hook(row: sa.RowMapping, waiting: int = 0) -> Hook:
    same = {name: row[name] for name in ("hook_id", "url", "format", "created_ms", "created_by")}
    ended = {name: row[name] for name in ("ended_ms", "ended_why")}
    return Hook(**same, **ended, events=tuple(json.loads(row["events"])), waiting=waiting)


def _delivery(row: sa.RowMapping | Mapping[str, Any], tries: Sequence[Try] = ()) -> Delivery:
    same = ("delivery_id", "event", "body", "created_ms", "next_ms", "delivered_ms")
    return Delivery(**{name: row[name] for name in same}, tries=tuple(tries))


def _owe(
    connection: sa.Connection, hook_id: str, kind: str, body: str, now_ms: int, event_id: int | None = None
) -> Delivery:
    told = {
        "delivery_id": f"msg_{secrets.token_hex(12)}",
        "event": kind,
        "body": body,
        "created_ms": now_ms,
        "next_ms": now_ms,
        "delivered_ms": None,
    }
    connection.execute(sa.insert(DELIVERIES).values(**told, hook_id=hook_id, event_id=event_id, tries=0))
    return _delivery(told)


def _takes(connection: sa.Connection, given_up: sa.RowMapping) -> bool:
    """Whether its hook's receiver took something since this was first owed."""
    mine = sa.and_(DELIVERIES.c.hook_id == given_up["hook_id"], DELIVERIES.c.delivered_ms >= given_up["created_ms"])
    return connection.execute(sa.select(sa.exists().where(mine))).scalar_one()


def _end(connection: sa.Connection, hook_id: str, why: str, now_ms: int) -> None:
    living = sa.and_(WEBHOOKS.c.hook_id == hook_id, WEBHOOKS.c.ended_ms.is_(None))
    if connection.execute(sa.update(WEBHOOKS).where(living).values(ended_ms=now_ms, ended_why=why)).rowcount:
        connection.execute(sa.update(DELIVERIES).where(DELIVERIES.c.hook_id == hook_id).values(next_ms=None))
        happened(connection, None, ACTOR, "webhook ended", now_ms, message=f"{hook_id}: {why}")
