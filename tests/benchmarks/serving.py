"""What the service takes over HTTP, in a process of its own: to list and show, and to accept submits."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from measurement import Measured, spread
from postgres import Postgres

from tuneyard.accounts import Accounts
from tuneyard.client import Client
from tuneyard.database import Database
from tuneyard.queue import Queue
from tuneyard.store import Store
from tuneyard_pipelines.errors import UnreachableError
from tuneyard_pipelines.spec import load

SPEC = Path(__file__).parents[2] / "examples" / "dates.yaml"
SWEEPS, LONGEST_READ_S, READS = 10_000, 0.1, 100
CLIENTS, SUBMITS_EACH, LONGEST_SUBMIT_S = 20, 10, 0.05


@dataclass(frozen=True)
class _Served:
    queue: Queue
    url: str
    token: str


def reading() -> Measured:
    """The 95th percentile of lists of 50 sweeps, or of shows of one, the longer, of 0.1 s; there are 10,000 sweeps."""
    with _service() as served:
        return _reading(served)


def reading_postgresql() -> Measured:
    """As `reading`, with the queue in PostgreSQL."""
    with _postgresql() as url, _service(url) as served:
        return _reading(served)


def submitting_at_once() -> Measured:
    """The 99th percentile of submits, of 0.05 s: 20 clients each send the next as soon as the last was answered."""
    with _service() as served:
        return _submitting(served, every_s=0.0)


def submitting_at_once_postgresql() -> Measured:
    """As `submitting_at_once`, with the queue in PostgreSQL."""
    with _postgresql() as url, _service(url) as served:
        return _submitting(served, every_s=0.0)


def submitting_paced() -> Measured:
    """As `submitting_at_once`, where each of the 20 clients sends one each second."""
    with _service() as served:
        return _submitting(served, every_s=1.0)


def submitting_paced_postgresql() -> Measured:
    """As `submitting_paced`, with the queue in PostgreSQL."""
    with _postgresql() as url, _service(url) as served:
        return _submitting(served, every_s=1.0)


def _reading(served: _Served) -> Measured:
    first = served.queue.submit(load(SPEC))
    for number in range(SWEEPS - 1):
        entry = replace(first, job=replace(first.job, sweep_id=f"s{number:07d}"))
        served.queue.store.submit(entry, "somebody", number)
    client = Client(served.url, served.token)
    lists_s = _took_s(READS, lambda number: client.page())
    shows_s = _took_s(READS, lambda number: client.sweep(f"s{number * 97:07d}"))
    return Measured(
        ratio=max(_percentile(lists_s, 95), _percentile(shows_s, 95)) / LONGEST_READ_S,
        bound=1.0,
        side="at_most",
        details={"list_s": spread(lists_s), "show_s": spread(shows_s)},
    )


def _submitting(served: _Served, *, every_s: float) -> Measured:
    """No two specs are the same; the clients begin one after the other within `every_s`."""
    text, took_s = load(SPEC).text(), list[float]()
    Client(served.url, served.token).submit(text)

    def submit(of: int) -> None:
        client = Client(served.url, served.token)
        client.whoami()  # so that it is connected
        began_s = time.perf_counter() + of / CLIENTS * every_s

        def one(number: int) -> None:
            client.submit(text.replace("name: dates\n", f"name: dates-{of}-{number}\n", 1))

        for number in range(SUBMITS_EACH):
            time.sleep(max(0.0, began_s + number * every_s - time.perf_counter()))
            took_s.extend(_took_s(1, lambda _, number=number: one(number)))

    threads = [threading.Thread(target=submit, args=(of,)) for of in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Measured(
        ratio=_percentile(took_s, 99) / LONGEST_SUBMIT_S,
        bound=1.0,
        side="at_most",
        details={"submit_s": spread(took_s)},
    )


def _took_s(times: int, call: Callable[[int], object]) -> list[float]:
    took_s = []
    for number in range(times):
        began_s = time.perf_counter()
        call(number)
        took_s.append(time.perf_counter() - began_s)
    return took_s


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


@contextmanager
def _postgresql() -> Iterator[str]:
    """The URL of a database in a server of its own, which writes each commit to its disk."""
    server = Postgres(fsync=True)
    try:
        yield server.url()
    finally:
        server.stop()


@contextmanager
def _service(database_url: str | None = None) -> Iterator[_Served]:
    """Over SQLite in its home, or the database of that URL."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        home, port = Path(folder), probe.getsockname()[1]
        probe.close()
        url = database_url or f"sqlite:///{home}/queue.db"
        database = Database(url)
        database.migrate()
        _, token = Accounts(database).create("me", "admin", created_by="me", now_ms=int(time.time() * 1000))
        listen = f"127.0.0.1:{port}"
        own = {"TUNEYARD_HOME": str(home), "TUNEYARD_DATABASE": url, "TUNEYARD_LISTEN": listen}
        process = subprocess.Popen(
            [sys.executable, "-m", "tuneyard.api"], env={**os.environ, **own}, stderr=subprocess.DEVNULL
        )
        try:
            while not _answers(Client(f"http://{listen}", token)):
                assert process.poll() is None
                time.sleep(0.1)
            yield _Served(Queue(Store(database), home, "somebody"), f"http://{listen}", token)
        finally:
            process.terminate()
            process.wait()
            database.close()


def _answers(client: Client) -> bool:
    try:
        client.whoami()
    except UnreachableError:
        return False
    return True
