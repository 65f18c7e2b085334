"""What webhooks are sent to: a server of HTTP in a thread, which keeps what comes and answers what it is told to."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Request:
    """As it came."""

    path: str
    headers: dict[str, str]
    body: str


@dataclass
class Receiver:
    """`answers` are given in turn, the last one from then on; while `held`, none is."""

    port: int = 0
    answers: list[tuple[int, dict[str, str], bytes]] = field(default_factory=lambda: [(204, {}, b"")])
    requests: list[Request] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def bodies(self) -> list[str]:
        return [request.body for request in self.requests]


@contextlib.contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """On a port of loopback's."""
    receiver = Receiver()
    receiver.held.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            receiver.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            receiver.held.wait()
            status, headers, said = receiver.answers[min(len(receiver.requests), len(receiver.answers)) - 1]
            with contextlib.suppress(OSError):  # whoever sent it may be gone
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(said)

        def log_message(self, *words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # such as of one that does not like our certificate

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.held.set()
        server.shutdown()
        thread.join()
        server.server_close()
