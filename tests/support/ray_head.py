"""A Ray head with its Jobs interface, as a platform runs one: with a token, on ports that nobody else has."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
from waiting import until

from tuneyard.ray_jobs import RayJobs
from tuneyard_pipelines.cluster import OBJECT_STORE_BYTES
from tuneyard_pipelines.errors import UnreachableError

PORTS = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
RAY = Path(sys.executable).with_name("ray")


class RayHead:
    """One node. `start` again after `kill` gives a new cluster at the same address, which knows no job."""

    def __init__(self, folder: Path, *, cpus: int = 2) -> None:
        self._folder, self._cpus = folder, cpus
        self._ports = dict(zip(PORTS, _free(len(PORTS)), strict=True))
        self.token = secrets.token_hex(32)
        self.address = f"http://127.0.0.1:{self._ports['dashboard-port']}"
        self._process: subprocess.Popen[bytes] | None = None
        self._nodes: list[psutil.Process] = []

    @property
    def environment(self) -> dict[str, str]:
        """For those who ask it, and for those who start with it."""
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0"}

    def start(self) -> RayJobs:
        """Returns once it takes jobs."""
        command = ["--head", "--include-log-monitor=False", "--dashboard-host", "127.0.0.1"]
        command += ["--temp-dir", str(self._folder)]
        command += [text for name, port in self._ports.items() for text in (f"--{name}", str(port))]
        self._process = self._start(self._cpus, *command)
        until(lambda: self._answers(self.jobs), looking_s=0.2)
        return self.jobs

    def add_node(self, cpus: int) -> psutil.Process:
        """One more node, which goes with the head; returns once it has joined."""
        [port] = _free(1)
        there = len(self.jobs.nodes())
        address = f"127.0.0.1:{self._ports['port']}"
        node = psutil.Process(self._start(cpus, "--address", address, "--dashboard-agent-listen-port", str(port)).pid)
        self._nodes.append(node)
        until(lambda: len(self.jobs.nodes()) > there, looking_s=0.2)
        return node

    @property
    def jobs(self) -> RayJobs:
        return RayJobs(self.address, self.token)

    def _start(self, cpus: int, *options: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.environment, "RAY_JOB_STOP_WAIT_TIME_S": "30"}
        command = [RAY, "start", "--block", "--disable-usage-stats", "--num-cpus", str(cpus), *options]
        command += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
        command += ["--min-worker-port", "0", "--max-worker-port", "0"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "head.out").open("ab") as out:
            return subprocess.Popen(
                command, env=environment, stdout=out, stderr=out, start_new_session=True, cwd=self._folder
            )

    def _answers(self, jobs: RayJobs) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "head.out").read_text()
        with contextlib.suppress(UnreachableError):
            return bool(jobs.nodes()) and not jobs.all()
        return False

    def processes(self) -> list[psutil.Process]:
        """All that run under it now, the drivers' and the trials' among them."""
        heads = [psutil.Process(self._process.pid)] if self._process is not None else []
        nodes = [node for node in (*heads, *self._nodes) if node.is_running()]
        return [process for node in nodes for process in node.children(recursive=True)]

    def kill(self) -> None:
        """With -9, the head and all that it has started, but not the drivers, which Ray starts apart from itself."""
        if self._process is None:
            return
        for node in self._nodes:
            lose(node)
        self._nodes = []
        lose(psutil.Process(self._process.pid))
        self._process.wait()
        self._process = None


def lose(node: psutil.Process) -> None:
    """A node with all that it has started, at once."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in [node, *node.children()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)


def _free(count: int) -> list[int]:
    """Ports that nobody listens at now; all are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
