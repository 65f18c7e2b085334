"""The service as others reach it: over HTTP, in a thread of this process, with a token for whoever asks."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from waiting import until

from tuneyard.accounts import Role
from tuneyard.api import create_app
from tuneyard.api.service import Service
from tuneyard.client import Client


@dataclass(frozen=True)
class Served:
    """A service that answers at `url`."""

    service: Service
    url: str

    def token(self, name: str, role: Role = "submitter") -> str:
        now_ms = int(time.time() * 1000)
        return self.service.accounts.create(name, role, created_by="tests", now_ms=now_ms)[1]

    def client(self, name: str, role: Role = "submitter") -> Client:
        return Client(self.url, self.token(name, role))


@contextlib.contextmanager
def serving(home: Path, **environment: str) -> Iterator[Served]:
    """With settings from this environment only."""
    service = Service.configured({"TUNEYARD_HOME": str(home), **environment})
    # With its protocol named, asyncio sends small answers at once; otherwise each takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(service), log_config=None, proxy_headers=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        yield Served(service, f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        thread.join()
    service.store.close()
