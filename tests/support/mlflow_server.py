"""A tracking server as a team runs one: a process of its own, over HTTP, which tests may kill and start again."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from waiting import until


class MlflowServer:
    """`mlflow server` with one worker; it can be restarted on its port and its database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--host", "127.0.0.1", "--port", str(self.port)),
                *("--backend-store-uri", f"sqlite:///{self._folder / 'mlflow.db'}"),
                *("--artifacts-destination", str(self._folder / "artifacts")),
            ],
            env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._healthy)

    def stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _healthy(self) -> bool:
        assert self._process.poll() is None
        with contextlib.suppress(OSError):
            return bool(urllib.request.urlopen(f"{self.uri}/health", timeout=5).status == 200)
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
