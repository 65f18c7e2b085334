"""What infra/compose/compose.yaml runs, as plain processes on loopback: its commands, names, order and health checks.

Put in place of a container's are paths, hosts and ports, and one node of Ray that holds what trials need: where Ray
listens on loopback only, it takes no second one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import yaml
from mlflow_server import free_port
from postgres import Postgres
from waiting import until

from tuneyard.supervisor import Process, last_lines

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "infra" / "compose"
SERVICES: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
STARTED = ("mlflow", "ray-head", "api", "dispatcher")
PORTS = {"mlflow": (5000,), "ray-head": (6379, 8265, 52365), "api": (8700,)}
NUMBERS = "|".join(str(port) for ports in PORTS.values() for port in ports)
NAMED = re.compile(rf"(?:({'|'.join(PORTS)}):)?\b({NUMBERS})\b")


@dataclass
class Deployment:
    """One host, whose PostgreSQL listens in the folder `sockets`; `ray` holds Ray's own, whose names must be short."""

    folder: Path
    sockets: Path
    ray: Path
    ports: dict[str, dict[int, int]]
    running: dict[str, Process] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.ports['ray-head'][8265]}"

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{next(iter(self.ports[service].values()))}"

    def environment(self, service: str) -> dict[str, str]:
        """Its own names, besides what any process has here."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # no option of Ray's has all of it listen there only
        own = {name: self._here(service, value) for name, value in SERVICES[service]["environment"].items()}
        return {**os.environ, **loopback, "PATH": path, "HOME": str(self.folder), **own}

    def call(self, service: str, *command: str) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec` does."""
        environment = self.environment(service)
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True)

    def start(self) -> None:
        """Each once those are healthy that it waits for; returns once all are."""
        for service in STARTED:
            for before in SERVICES[service].get("depends_on", {}):
                self._await(before)
            command = [self._here(service, word) for word in SERVICES[service]["command"]]
            if service == "ray-head":
                command += ["--num-cpus=2", f"--temp-dir={self.ray}", f"--ray-client-server-port={free_port()}"]
                command += ["--min-worker-port=0", "--max-worker-port=0"]
            command[0] = str(Path(sys.executable).with_name(command[0]))
            with self._log(service).open("ab") as log:
                self.running[service] = Process(command, self.environment(service), log)
        for service in STARTED:
            self._await(service)

    def stop(self) -> None:
        for process in reversed(self.running.values()):
            process.end(30.0, threading.Event())

    def said(self) -> str:
        """The end of what each has said."""
        return "\n".join(f"{service}:\n{last_lines(self._log(service), 30)}" for service in self.running)

    def _log(self, service: str) -> Path:
        return self.folder / f"{service}.log"

    def _await(self, service: str) -> None:
        """Until it is healthy; what runs in no process here is so already."""
        if service in self.running and "healthcheck" in SERVICES[service]:
            until(lambda: self._healthy(service), looking_s=0.3)

    def _healthy(self, service: str) -> bool:
        assert self.running[service].exit_code() is None, self.said()
        kind, *command = [self._here(service, word) for word in SERVICES[service]["healthcheck"]["test"]]
        assert kind == "CMD"
        return self.call(service, *command).returncode == 0

    def _here(self, service: str, text: str) -> str:
        """What a container of this service reads, as it is to be read here."""
        text = text.replace("/var/lib/tuneyard", str(self.home)).replace("/run/secrets", str(self.secrets))
        text = re.sub(r"@postgres/(\w+)", rf"@/\1?host={self.sockets}", text)
        return NAMED.sub(lambda found: self._place(found, service), text).replace("0.0.0.0", "127.0.0.1")

    def _place(self, found: re.Match[str], service: str) -> str:
        port = self.ports[found[1] or service][int(found[2])]
        return f"127.0.0.1:{port}" if found[1] else str(port)


@contextlib.contextmanager
def deployed(folder: Path, postgres: Postgres) -> Iterator[Deployment]:
    """With all of it healthy, over the secrets that docs/deployment.md has one make."""
    ports = {service: {port: free_port() for port in of} for service, of in PORTS.items()}
    made = Deployment(folder, postgres.sockets, Path(tempfile.mkdtemp(prefix="tuneyard-")), ports)
    subprocess.run(["sh", "-euc", _commands_that_make_secrets()], cwd=folder, check=True)
    image = {name: made._here("postgres", value) for name, value in SERVICES["postgres"]["environment"].items()}
    user, database = image["POSTGRES_USER"], image["POSTGRES_DB"]
    postgres.let_in(user, Path(image["POSTGRES_PASSWORD_FILE"]).read_text().strip(), database)
    passwords = made.secrets / "pgpass"
    passwords.write_text(passwords.read_text().replace("postgres:", f"{postgres.sockets}:", 1))
    place = {"host": str(postgres.sockets), "user": user, "dbname": database, "passfile": str(passwords)}
    with psycopg.connect(**place, autocommit=True) as connection:
        connection.execute((COMPOSE / "databases.sql").read_bytes())
    try:
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.ray, ignore_errors=True)


def _commands_that_make_secrets() -> str:
    found = re.search(r"```sh\n(mkdir .*?)```", (ROOT / "docs" / "deployment.md").read_text(), re.DOTALL)
    assert found is not None
    return found[1]
