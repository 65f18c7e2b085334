"""R15, R16: a real tracking server that is gone, slow, refusing, deaf or late; training does not care, nothing is lost.

shipper --HTTP--> Proxy, which has the faults --HTTP--> `mlflow server` over SQLite
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from driven_sweep import DrivenSweep
from mlflow import MlflowClient
from mlflow_server import MlflowServer, free_port
from tiny_sweep import runs_of, tiny
from waiting import PATIENCE_S, until

from tuneyard.local import load_model
from tuneyard_pipelines import sweep, tracking
from tuneyard_pipelines.journal import LegEnded, LegStarted, SweepFolder, SweepState, Tail
from tuneyard_pipelines.metrics import MetricReader
from tuneyard_pipelines.standing import sweep_shown, trial_shown
from tuneyard_pipelines.tracking import Shipper, drain, in_background, trial_files

pytestmark = pytest.mark.integration

MakeSweep = Callable[..., DrivenSweep]
ALWAYS = 10**9


@dataclass
class Fault:
    """What happens to requests whose path holds `path`, so many times.

    `how`: a status that is answered at once, "silent" (no answer, nothing done), "lost" (done, no answer) or "late"
    (done after the client has given up), or "" (all is well).
    """

    how: str
    path: str = ""
    times: int = ALWAYS


class Proxy:
    """The way to the server. `seen` counts requests by path; `strangers` are connections from other processes."""

    def __init__(self, server: MlflowServer) -> None:
        self.server, self.port = server, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.delay_s = 0.0
        self.faults: list[Fault] = []
        self.seen: Counter[str] = Counter()
        self.strangers = 0
        self.healed = threading.Event()
        self.late = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.appear()

    def appear(self) -> None:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                proxy._connected(self.connection, self.client_address[1])

            def do_any(self) -> None:
                proxy._pass_on(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

            def log_message(self, *args: Any) -> None:
                pass

        self._listening = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._listening.daemon_threads = True
        self._listening.handle_error = lambda *args: None  # type: ignore[method-assign]
        threading.Thread(target=self._listening.serve_forever, args=(0.02,), daemon=True).start()

    def vanish(self) -> None:
        """Refuse connections and cut those that are open."""
        self._listening.shutdown()
        self._listening.server_close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def heal(self) -> None:
        self.faults.clear()
        self.delay_s = 0.0
        self.healed.set()

    @property
    def requests(self) -> int:
        return self.seen.total()

    def _connected(self, connection: socket.socket, port: int) -> None:
        ours = any(found.laddr.port == port for found in psutil.Process().net_connections("tcp"))
        with self._lock:
            self.strangers += not ours
            self._open.add(connection)

    def _pass_on(self, request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        body = self._body(request)
        with self._lock:
            self.seen[f"{request.command} {path.removeprefix('/api/2.0/mlflow/')}"] += 1
            fault = next((fault for fault in self.faults if fault.path in path and fault.times > 0), None)
            if fault is not None:
                fault.times -= 1
        how = fault.how if fault else ""
        time.sleep(self.delay_s)
        if how in ("silent", "late"):
            self.healed.wait(60)
        if how.isdecimal():
            self._answer(request, int(how), {}, b"out of order")
        elif how == "silent":
            self._cut(request)
        else:
            status, headers, content = self._forwarded(request, body)
            if how == "late":
                self.late.release()
            if how in ("lost", "late"):
                self._cut(request)
            else:
                self._answer(request, status, headers, content)

    def _body(self, request: BaseHTTPRequestHandler) -> bytes:
        if "chunked" in request.headers.get("Transfer-Encoding", ""):  # how an empty file is sent
            assert request.rfile.readline() + request.rfile.readline() == b"0\r\n\r\n"
            return b""
        return request.rfile.read(int(request.headers.get("Content-Length", 0)))

    def _forwarded(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE_S)
        try:
            kept = {k: v for k, v in request.headers.items() if k.lower() not in ("transfer-encoding", "connection")}
            upstream.request(request.command, request.path, body, {**kept, "Content-Length": str(len(body))})
            answer = upstream.getresponse()
            return answer.status, {"Content-Type": answer.headers.get("Content-Type", "")}, answer.read()
        except OSError:
            return 502, {}, b"no server"
        finally:
            upstream.close()

    def _answer(self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes) -> None:
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(content)

    def _cut(self, request: BaseHTTPRequestHandler) -> None:
        request.close_connection = True
        with contextlib.suppress(OSError):
            request.connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    made = MlflowServer(tmp_path_factory.mktemp("server"))
    yield made
    made.stop()


@pytest.fixture
def proxy(server: MlflowServer) -> Iterator[Proxy]:
    made = Proxy(server)
    yield made
    made.heal()
    made.vanish()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "PASS_S", 0.02)
    monkeypatch.setattr(tracking, "BACKOFF_MAX_S", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")


def everything_once(uri: str, folder: SweepFolder) -> None:
    """What the folder holds stands in MLflow: each run once, each value once, files, params and statuses."""
    client, header, state = MlflowClient(uri), folder.header(), folder.state()
    runs = runs_of(uri, folder)
    parent = runs["parent"]
    assert set(runs) == {"parent", *state.trials}
    assert parent.info.status == sweep_shown(state).status
    assert len(parent.inputs.dataset_inputs) == 1
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["report", "spec.yaml"]
    for trial in state.trials.values():
        run, shown = runs[trial.id], trial_shown(trial, state)
        assert (run.info.status, run.data.tags.get("tuneyard.outcome")) == (shown.status, shown.outcome)
        assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
        assert run.data.params["data.fingerprint"] == header.data_fingerprint
        written: dict[str, list[tuple[int, float, int]]] = {}
        for value in MetricReader(folder, trial.id).new(state):
            written.setdefault(value.key, []).append((value.step, value.value, value.time_ms))
        for key, values in written.items():
            history = client.get_metric_history(run.info.run_id, key)
            assert sorted((m.step, m.value, m.timestamp) for m in history) == sorted(values), (trial.id, key)
        for file, place in trial_files(folder, trial, header.spec.mode) if trial.outcome else ():
            there = [found.path for found in client.list_artifacts(run.info.run_id, place)]
            assert (f"{place}/{file.name}" if place else file.name) in there


def train(made: DrivenSweep, number: int, outcome: str | None = "completed", steps: int = 3) -> None:
    trial = made.create(number)
    made.start(trial, 2)
    for step in range(1, steps + 1):
        made.measure(trial, step, {"train/loss": 1 / step, "val/loss": 2 / step})
    if outcome:
        made.reach(trial, 2, 0.5)
        made.end(trial, outcome, "why")


@pytest.mark.parametrize("trouble", ["refuses", "500", "503", "silent", "killed and started again"])
def test_r15_what_was_trained_while_the_server_was_away_arrives_once(
    make_sweep: MakeSweep, proxy: Proxy, server: MlflowServer, trouble: str
) -> None:
    made = make_sweep(uri=proxy.uri)
    made.begin()
    train(made, 1)
    train(made, 2, None)
    with in_background(shipper := Shipper(made.folder, tracking.connect(proxy.uri))):
        until(lambda: proxy.seen["POST runs/log-batch"] >= 4)
        if trouble == "refuses":
            proxy.vanish()
        elif trouble == "killed and started again":
            server.stop()
        else:
            proxy.faults.append(Fault(trouble))
        made.measure("t002", 4, {"val/loss": 0.25})
        train(made, 3)
        train(made, 4, "diverged")
        until(lambda: tracking.outage(made.folder))
        since_ms = tracking.outage(made.folder).since_ms
        made.measure("t002", 5, {"val/loss": 0.2})
        if trouble == "refuses":
            proxy.appear()
        elif trouble == "killed and started again":
            assert tracking.outage(made.folder).since_ms == since_ms
            server.start()
        proxy.heal()
        made.reach("t002", 2, 0.75)
        made.end("t002", "completed")
        until(lambda: tracking.outage(made.folder) is None)
    made.close("finished")
    assert drain(shipper)
    everything_once(server.uri, made.folder)


def test_r15_a_request_that_was_done_without_an_answer_is_not_done_twice(
    make_sweep: MakeSweep, proxy: Proxy, server: MlflowServer
) -> None:
    made = make_sweep(uri=proxy.uri)
    paths = ("experiments/create", "runs/create", "runs/log-batch", "runs/set-tag", "runs/update", "runs/log-inputs")
    proxy.faults = [Fault("lost", path, times=2) for path in (*paths, "/artifacts/")]
    made.begin()
    for number in range(1, 5):
        train(made, number)
    made.close("finished")
    assert drain(Shipper(made.folder, MlflowClient(proxy.uri)))
    assert [fault.times for fault in proxy.faults] == [1, *[0] * 6], "an experiment that is there is not made again"
    everything_once(server.uri, made.folder)


def test_r15_a_run_that_is_made_after_the_shipper_gave_up_is_not_there_twice(
    make_sweep: MakeSweep, proxy: Proxy, server: MlflowServer
) -> None:
    made = make_sweep(uri=proxy.uri)
    made.begin()
    train(made, 1, None)
    client = tracking.connect(proxy.uri)
    proxy.faults = [Fault(how, "runs/create", times=1) for how in ("late", "", "late")]
    with in_background(shipper := Shipper(made.folder, client)):
        until(lambda: proxy.seen["POST runs/create"] == 4)  # the sweep's and the trial's, twice each
        proxy.healed.set()
        assert all(proxy.late.acquire(timeout=PATIENCE_S) for _ in range(2))
    made.reach("t001", 2, 0.5)
    made.end("t001", "completed")
    made.close("finished")
    assert drain(shipper)
    everything_once(server.uri, made.folder)


def test_r16_a_pass_asks_for_nothing_when_nothing_is_new(
    make_sweep: MakeSweep, proxy: Proxy, server: MlflowServer, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_sweep(uri=proxy.uri)
    made.begin()
    for number in range(1, 12):
        train(made, number, "completed" if number <= 3 else None, steps=1)
    shipper = Shipper(made.folder, tracking.connect(proxy.uri))

    def asked() -> dict[str, int]:
        proxy.seen.clear()
        shipper.ship()
        return {path.partition(" ")[2]: count for path, count in proxy.seen.items()}

    asked()
    assert asked() == {}
    made.measure("t011", 2, {"train/loss": 0.5, "val/loss": 0.5})
    assert asked() == {"runs/log-batch": 1}
    made.create(12)
    made.start("t012")
    assert asked() == {"runs/create": 1, "runs/log-batch": 1, "runs/set-tag": 1}, "params, and the sweep's note"
    made.create(13)
    waits = {"runs/get": 1, "runs/update": 1}
    assert asked() == {"runs/create": 1, "runs/log-batch": 1, "runs/set-tag": 1, **waits}
    assert asked() == {}
    made.close("interrupted")
    shipper.ship()
    assert capsys.readouterr().out == "", "a command may print JSON there"
    everything_once(server.uri, made.folder)


def test_r15_a_pass_without_an_answer_ends_at_once(make_sweep: MakeSweep, proxy: Proxy) -> None:
    made = make_sweep(uri=proxy.uri)
    made.begin()
    for number in range(1, 13):
        train(made, number, None, steps=1)
    shipper = Shipper(made.folder, tracking.connect(proxy.uri))
    shipper.ship()
    proxy.faults = [Fault("503")]
    for number in range(1, 13):
        made.measure(f"t{number:03d}", 2, {"val/loss": 1.0})
    proxy.seen.clear()
    with pytest.raises(Exception, match="503"):
        shipper.ship()
    assert proxy.requests == 2, "the run, and then whether it is the run or the server"
    proxy.faults = [Fault("500", "runs/log-batch", times=1)]
    with pytest.raises(Exception, match="500"):
        shipper.ship()
    assert proxy.seen["POST runs/log-batch"] == 1 + 12, "one run that is refused holds up no other"


def test_r15_r16_a_sweep_behind_a_slow_server_that_goes_away_trains_as_if_there_were_none(
    run: Callable[..., tuple[SweepFolder, SweepState]], proxy: Proxy, server: MlflowServer, home: Path
) -> None:
    """No answer comes from the first leg's start until all legs have ended: whatever waited for one would wait on."""
    spec = tiny(name="stressed", register={"name": "stressed"})
    _, undisturbed = run(spec)
    proxy.delay_s = 0.2
    watched: list[str] = []

    def watch(folder: SweepFolder) -> None:
        tail, ended = Tail(folder.journal), 0
        while ended < len(undisturbed.trials):
            for event in tail.events():
                ended += isinstance(event, LegEnded)
                if isinstance(event, LegStarted) and not watched:
                    proxy.faults = [Fault("silent")]
                    watched.append("silent")
            time.sleep(0.01)
        watched.append("heard again")
        proxy.faults.clear()
        proxy.healed.set()

    def announce(folder: SweepFolder) -> None:
        threading.Thread(target=watch, args=(folder,), daemon=True).start()

    folder = sweep.run(spec, "text", home=home, tracking_uri=proxy.uri, sweep_id="stressed", announce=announce)
    state = folder.state()
    assert watched == ["silent", "heard again"]
    assert state.ended is not None
    assert state.ended.state == "finished"
    assert {t.id: t.score for t in state.trials.values()} == {t.id: t.score for t in undisturbed.trials.values()}
    assert proxy.strangers == 0, "no process of a trial talks to the server"
    assert state.registered is not None
    everything_once(server.uri, folder)
    assert len(load_model("stressed", home=home, mlflow=server.uri).predict(["3 March 2024"])) == 1
