"""A database behind two kinds of transaction, one to read and one to write: a SQLite file, or a PostgreSQL server.

Writers wait for their turn, in SQLite by BEGIN IMMEDIATE, in PostgreSQL by an advisory lock. So a writer sees all that
was written before it, none is ever refused because of another, and what has a higher number was committed later. The
price is that they go one by one, which short writes of a queue bear.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from tuneyard.settings import without_passwords
from tuneyard_pipelines.errors import InputError, RefusedError, TuneyardError, UnreachableError, first_line

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "tuneyard_version"  # MLflow keeps its own in alembic_version, perhaps in the same database
WAIT_S = 30
URLS = "sqlite:////absolute/path.db or postgresql://USER:PASSWORD@HOST/DATABASE"

_WRITER = 0x74756E6579617264  # "tuneyard": the key of the lock that PostgreSQL's writers take in turn
_WRITE = {"sqlite": "BEGIN IMMEDIATE", "postgresql": f"SELECT pg_advisory_xact_lock({_WRITER})"}
_READ = {"sqlite": "BEGIN", "postgresql": ""}
_NOT_LET_IN = ("authentication failed", "does not exist", "no password supplied", "pg_hba.conf", "permission denied")


class UnusableError(InputError):
    """The database cannot be opened or written as it is named."""


class Database:
    """Safe to use from many threads; nothing is opened before the first transaction."""

    def __init__(self, url: str) -> None:
        """Raises InputError for a URL that is neither SQLite's nor PostgreSQL's."""
        self._url = _parsed(url)
        self._engine = _sqlite(self._url) if self._url.drivername == "sqlite" else _postgresql(self._url)
        event.listen(self._engine, "begin", _begin)
        self._turn = threading.Lock()

    def close(self) -> None:
        self._engine.dispose()

    def reading(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """A transaction that only reads. Raises as `writing` does."""
        return self._transaction(_READ)

    def writing(self) -> contextlib.AbstractContextManager[sa.Connection]:
        """A transaction that no other writer's overlaps; an exception inside undoes it.

        Raises UnreachableError for a server that does not answer or a turn that did not come in `WAIT_S`, InputError
        for a database that cannot be opened or written.
        """
        return self._writing()

    def migrate(self) -> None:
        """Bring the tables to this version, however many processes do so at once; done already, nothing changes.

        Raises RefusedError for a database that a newer version has migrated, and what `writing` raises.
        """
        if self._url.drivername == "sqlite":
            self._write_ahead()
        with self.writing() as connection:
            config = _migrations(connection)
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            present = _version(connection)
            if present is not None and present not in known:
                raise RefusedError(
                    f"{self._shown}: its tables are of version {present}, this Tuneyard knows {max(known)} at most; "
                    "install the newer Tuneyard that wrote them, or name another database"
                )
            command.upgrade(config, "head")

    def versions(self) -> tuple[str | None, str]:
        """That of its tables, None where there are none, and that which this program knows as the newest."""
        with self.reading() as connection:
            newest = ScriptDirectory.from_config(_migrations(connection)).get_current_head()
            assert newest is not None
            return _version(connection), newest

    @property
    def _shown(self) -> str:
        return without_passwords(self._url.render_as_string(hide_password=False))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """The writers of this process take turns before they ask for the database's, which SQLite gives to no order."""
        if not self._turn.acquire(timeout=WAIT_S):
            raise _silent(self._shown, f"others have been writing for {WAIT_S} s")
        try:
            with self._transaction(_WRITE) as connection:
                yield connection
        finally:
            self._turn.release()

    @contextlib.contextmanager
    def _transaction(self, begin: dict[str, str]) -> Iterator[sa.Connection]:
        engine = self._engine.execution_options(begin=begin[self._engine.dialect.name])
        try:
            with engine.begin() as connection:
                yield connection
        except DBAPIError as cause:
            told = _told(self._shown, cause)
            if told is None:
                raise
            raise told from cause

    def _write_ahead(self) -> None:
        """Readers and the writer go side by side from now on, in every process.

        SQLite itself refuses one of two processes that switch a new file at once, so they take turns.
        """
        try:
            folder = os.open(Path(self._url.database or "").absolute().parent, os.O_RDONLY)
        except OSError as cause:
            raise _unusable(self._shown, cause) from cause
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            with self._transaction({"sqlite": ""}) as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        finally:
            os.close(folder)


def _migrations(connection: sa.Connection) -> Config:
    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _version(connection: sa.Connection) -> str | None:
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise InputError(f"database {without_passwords(url)!r}: not a URL; use {URLS}") from None
    # A relative path would mean another file to each process that has a folder of its own.
    if parsed.drivername == "sqlite" and Path(parsed.database or "").is_absolute():
        return parsed
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InputError(f"database {without_passwords(url)!r}: not a SQLite file and not PostgreSQL; use {URLS}")


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": WAIT_S}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # Python's own BEGIN comes too late, and is not IMMEDIATE
        # What was said to be accepted is there after a power cut, too; NORMAL may lose the last commits.
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def _postgresql(url: sa.URL) -> sa.Engine:
    # A server whose host is gone does not answer: a connection to it is given up instead of waited for.
    patience = {"connect_timeout": 10, "keepalives_idle": 10, "tcp_user_timeout": WAIT_S * 1000}
    engine = sa.create_engine(url, module=psycopg, pool_pre_ping=True, connect_args=patience, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection, entry: ConnectionPoolEntry) -> None:
        connection.autocommit = True
        # A writer that is frozen or cut off holds up the others so long and no longer.
        connection.execute(f"SET lock_timeout = '{WAIT_S}s'")
        connection.execute(f"SET idle_in_transaction_session_timeout = '{WAIT_S}s'")
        connection.autocommit = False

    return engine


def _begin(connection: sa.Connection) -> None:
    if begin := connection.get_execution_options().get("begin"):
        connection.exec_driver_sql(begin)


def _told(shown: str, cause: DBAPIError) -> TuneyardError | None:
    """What a person can do about it; None for a fault of ours."""
    if isinstance(cause.orig, sqlite3.Error):
        name = getattr(cause.orig, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return _silent(shown, f"another process has been writing for {WAIT_S} s")
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_NOTADB")):
            return _unusable(shown, cause.orig)
        return None
    if not isinstance(cause.orig, psycopg.OperationalError):
        return None
    if any(words in str(cause.orig) for words in _NOT_LET_IN):
        return UnusableError(f"{shown}: {first_line(cause.orig)}; correct user, password or database in the URL")
    return _silent(shown, first_line(cause.orig))


def _silent(shown: str, why: str) -> UnreachableError:
    return UnreachableError(f"{shown}: does not answer ({without_passwords(why)}); see that it runs, then try again")


def _unusable(shown: str, cause: BaseException) -> UnusableError:
    return UnusableError(
        f"{shown}: cannot be used ({first_line(cause)}); free space, change its owner, or name another file: {URLS}"
    )
