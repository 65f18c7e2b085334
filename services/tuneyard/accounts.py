"""Who may come in, and what they may do there: bearer tokens, each with a name and a role.

    viewer      sees everything
    submitter   and submits sweeps, and does with their own what they like
    promoter    and promotes models
    admin       and does so with everybody's, holds the queue back, sets limits, makes tokens and webhooks

A token is `ty_ID_SECRET`. It is shown once; kept are its id and the digest of its secret, which is random and long, so
that a plain hash is enough.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import sqlalchemy as sa

from tuneyard.database import Database
from tuneyard.store import happened
from tuneyard.tables import TOKENS
from tuneyard_pipelines.errors import InputError, TuneyardError

Role = Literal["viewer", "submitter", "promoter", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)

NAME = re.compile(r"[\w.@+-]{1,64}")
USED_MS = 60_000  # that a token is used is written down so often at most
_FORM = re.compile(r"ty_([0-9a-f]{8})_([\w-]{43})", re.ASCII)
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Person:
    """Who asks; `token_id` is empty for one whom a proxy vouches for."""

    name: str
    role: Role
    token_id: str = ""

    def may(self, role: Role) -> bool:
        """Whether they are at least that."""
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True)
class Token:
    """What is known of a token: not its secret. Times are milliseconds since the epoch."""

    token_id: str
    name: str
    role: Role
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    used_ms: int | None = None
    revoked_ms: int | None = None

    def why_not(self, now_ms: int) -> str:
        """Why it lets nobody in; empty for one that does."""
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else ""


class UnknownTokenError(InputError):
    """There is no token of this id."""


class Accounts:
    """The tokens in the queue's database. Every method may raise what `Database.writing` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self, name: str, role: Role, *, created_by: str, now_ms: int, expires_ms: int | None = None
    ) -> tuple[Token, str]:
        """A new token, and its text, which nobody can find out later. Raises InputError for a name, role or time."""
        if NAME.fullmatch(name) is None:
            raise InputError(f"name: found {name[:80]!r}; allowed: 1 to 64 letters, digits and any of . _ @ + -")
        if role not in ROLES:
            raise InputError(f"role: found {role!r}; allowed: {', '.join(ROLES)}")
        if expires_ms is not None and expires_ms <= now_ms:
            raise InputError("expires: found a time that is over; allowed: one to come, or none")
        token = Token(secrets.token_hex(4), name, role, now_ms, created_by, expires_ms)
        secret = secrets.token_urlsafe(32)
        with self._database.writing() as connection:
            connection.execute(sa.insert(TOKENS).values(**vars(token), digest=_digest(secret)))
            happened(connection, None, created_by, "token made", now_ms, message=f"{token.token_id}: {name}, {role}")
        return token, f"ty_{token.token_id}_{secret}"

    def all(self) -> list[Token]:
        """Every token there ever was, the newest first."""
        query = sa.select(*_COLUMNS).order_by(TOKENS.c.created_ms.desc(), TOKENS.c.token_id)
        with self._database.reading() as connection:
            return [Token(**row) for row in connection.execute(query).mappings()]

    def revoke(self, token_id: str, *, revoked_by: str, now_ms: int) -> Token:
        """It lets nobody in from now on; revoked already, nothing changes. Raises InputError for an unknown one."""
        with self._database.writing() as connection:
            row = connection.execute(sa.select(*_COLUMNS).where(TOKENS.c.token_id == token_id)).mappings().one_or_none()
            if row is None:
                raise UnknownTokenError(
                    f"token {token_id[:80]!r}: there is none of this id; see them with: tuneyard token list"
                )
            if row["revoked_ms"] is not None:
                return Token(**row)
            connection.execute(sa.update(TOKENS).where(TOKENS.c.token_id == token_id).values(revoked_ms=now_ms))
            happened(connection, None, revoked_by, "token revoked", now_ms, message=f"{token_id}: {row['name']}")
            return Token(**{**row, "revoked_ms": now_ms})

    def still_good(self, person: Person, now_ms: int) -> bool:
        """Whether who was let in would be now; whom a proxy vouches for is."""
        query = sa.select(*_COLUMNS).where(TOKENS.c.token_id == person.token_id)
        with self._database.reading() as connection:
            row = connection.execute(query).mappings().one_or_none()
        return not person.token_id or (row is not None and not Token(**row).why_not(now_ms))

    def let_in(self, text: str, now_ms: int) -> Person | None:
        """Whose token this is; None for what lets nobody in. It takes as long for any text of a token's form."""
        found = _FORM.fullmatch(text)
        if found is None:
            return None
        with self._database.reading() as connection:
            row: dict[str, Any] = dict(
                connection.execute(_WITH_DIGEST, {"of": found[1]}).mappings().one_or_none() or {}
            )
        digest = row.pop("digest", _NOBODY)
        if not hmac.compare_digest(digest, _digest(found[2])):
            return None
        token = Token(**row)
        if token.why_not(now_ms):
            return None
        if token.used_ms is None or now_ms - token.used_ms >= USED_MS:
            # For people to read: a database that takes nothing at present keeps nobody out.
            with contextlib.suppress(TuneyardError), self._database.writing() as connection:
                connection.execute(sa.update(TOKENS).where(TOKENS.c.token_id == found[1]).values(used_ms=now_ms))
        return Person(token.name, token.role, token.token_id)


_COLUMNS = [TOKENS.c[part.name] for part in fields(Token)]
_WITH_DIGEST = sa.select(TOKENS.c.digest, *_COLUMNS).where(TOKENS.c.token_id == sa.bindparam("of"))  # at each request


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
