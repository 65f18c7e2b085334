"""What the service takes over HTTP, in a process of its own over SQLite: to list and show, and to accept submits."""

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


def submitting_at_once() -> Measured:
    """The 99th percentile of 200 submits by 20 clients at once, of 0.05 s; each is planned before it is accepted."""
    text, took_s = load(SPEC).text(), []
    with _service() as served:
        Client(served.url, served.token).submit(text)

        def submit() -> None:
            client = Client(served.url, served.token)
            took_s.extend(_took_s(SUBMITS_EACH, lambda number: client.submit(text)))

        threads = [threading.Thread(target=submit) for _ in range(CLIENTS)]
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
def _service() -> Iterator[_Served]:
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as probe:
        home, port = Path(folder), probe.getsockname()[1]
        probe.close()
        database = Database(f"sqlite:///{home}/queue.db")
        database.migrate()
        _, token = Accounts(database).create("me", "admin", created_by="me", now_ms=int(time.time() * 1000))
        environment = {**os.environ, "TUNEYARD_HOME": str(home), "TUNEYARD_LISTEN": f"127.0.0.1:{port}"}
        process = subprocess.Popen([sys.executable, "-m", "tuneyard.api"], env=environment, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            while not _answers(Client(url, token)):
                assert process.poll() is None
                time.sleep(0.1)
            yield _Served(Queue(Store(database), home, "somebody"), url, token)
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
