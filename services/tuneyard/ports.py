"""Where the parts of a platform listen: asked for, or any that is free, and who is in the way."""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass

import psutil

from tuneyard_pipelines.errors import InputError, RefusedError

HOST = "127.0.0.1"
OPTIONS = {"api": "--port", "mlflow": "--mlflow-port", "ray": "--ray-port", "dashboard": "--dashboard-port"}


@dataclass(frozen=True)
class Ports:
    """Where the parts listen; 0 for any free port."""

    api: int = 8700
    mlflow: int = 5000
    ray: int = 6379
    dashboard: int = 8265


def choose(wanted: Ports, before: Ports | None) -> Ports:
    """The ports to listen at: for 0 that of the time before, where it is free, since sweeps keep MLflow's address.

    Raises InputError for one port given twice, RefusedError for one that is taken, with who has it.
    """
    given: dict[int, str] = {}
    for part, port in vars(wanted).items():
        if port and port in given:
            raise InputError(f"{OPTIONS[part]} {port}: this is {given[port]}, too; give each a port of its own")
        given[port] = OPTIONS[part]
    for part, port in vars(wanted).items():
        if port and not is_free(port):
            raise RefusedError(
                f"port {port} is taken by {who_listens(port)}; end that, or choose another with {OPTIONS[part]} "
                "(0 takes any that is free)"
            )
    chosen = dict(vars(wanted))
    for part, port in chosen.items():
        last = getattr(before, part, 0)
        if not port and last and last not in chosen.values() and is_free(last):
            chosen[part] = last
    open_ports = iter(free_ports(len(chosen)))
    return Ports(**{part: port or next(open_ports) for part, port in chosen.items()})


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just ended there is no obstacle
        try:
            probe.bind((HOST, port))
            probe.listen()
        except PermissionError:
            raise InputError(f"port {port}: only the administrator may listen there; choose one above 1023") from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def who_listens(port: int) -> str:
    """`python3 (process 42)`, as far as this user may know."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            at = connection.laddr
            if connection.status == psutil.CONN_LISTEN and at and at.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    return "another user's process"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at now; all are held until the last is found, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in sockets]
