"""The platform on one machine: MLflow, a Ray head, the dispatcher and the API under one supervisor, with one command.

    HOME/platform/lock              held by the supervisor as long as it lives: the truth of whether the platform is up
    HOME/platform/state.json        its parts, processes and addresses, for `status`, `down` and the next `up`
    HOME/platform/PART.log          what a part says; of the time before it is PART.log.1
    HOME/platform/supervisor.log    what the supervisor says, where it runs in the background
    HOME/platform/ray_token         without it the Ray head answers nobody
    HOME/service.json               the command line's token, while the platform is up
    HOME/platform/tracking_uri_before   the MLflow that the home had been given before, put back at the end

All of them are read by their owner only, and every part listens on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import httpx2
import psutil

from tuneyard import logins, settings
from tuneyard.accounts import NAME, Accounts
from tuneyard.database import Database
from tuneyard.ports import HOST, Ports, choose, free_ports
from tuneyard.ray_jobs import RayJobs
from tuneyard.store import Rival, Store
from tuneyard.supervisor import Part, Standing, Supervisor, left_over, lives
from tuneyard_pipelines.errors import InputError, RefusedError, TuneyardError, UnreachableError

OBJECT_STORE_BYTES = 200 << 20  # trials read memory-mapped files; Ray's own default takes a third of the memory
RAY_FOLDER, LONGEST_TEMP = "tuneyard-", 25  # characters of a folder that leave enough for the names Ray gives
BEFORE = "tracking_uri_before"
DATABASE = ("TUNEYARD_DATABASE", "PGPASSFILE", "PGPASSWORD")  # its address, and where libpq finds a password
ASK_TIMEOUT_S = 5.0
LEFT_S, DRIVERS_S, DOWN_S = 5.0, 40.0, 240.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class State:
    """`state.json`. `mark` tells this platform's processes from others', `tracking_uri` is what it gave the home."""

    mark: str
    host: str
    pid: int
    started: float
    state: str
    since_ms: int
    ports: Ports
    database: str
    tracking_uri: str
    ray_folder: str
    parts: tuple[Standing, ...] = ()

    def addresses(self) -> dict[str, str]:
        return {"API": _url(self.ports.api), "MLflow": self.tracking_uri, "Ray": _url(self.ports.dashboard)}


@dataclass(frozen=True)
class Look:
    """A part as it is now: what the supervisor says of it, and whether it answers."""

    standing: Standing
    answers: bool


def run(home: Path, ports: Ports, say: Say) -> None:
    """Be the supervisor until SIGINT, SIGTERM or SIGHUP; a second one has no patience with the parts.

    Raises RefusedError where the platform is up or a port is taken, InputError for a home or a machine that cannot
    hold it, TuneyardError with the end of its log for a part that does not start. Nothing is left running then.
    """
    settings.check_names(os.environ)
    _make_folder(home)
    with _lock(home), _told_to_end() as (over, hurry):
        _clear(home, say)
        url = settings.database_url(home)
        chosen = choose(ports, _last_ports(home))
        _beside_python("ray")
        with contextlib.closing(Database(url)) as database:
            database.migrate()
            _Platform(home, chosen, url, database).run(over, hurry, say)


def detach(home: Path, ports: Ports, say: Say) -> None:
    """Have a supervisor go on in the background, and return once all is ready. Raises what `run` raises."""
    settings.check_names(os.environ)
    _make_folder(home)
    if is_up(home):
        raise RefusedError(_already(home))
    log = home / "platform" / "supervisor.log"
    _rotate(log)
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tuneyard.platform", *(str(port) for port in astuple(ports))],
            env={**os.environ, "TUNEYARD_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _follow(process, home, log, say)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def down(home: Path, say: Say) -> bool:
    """End the platform of this home and what an earlier one left; whether there was any."""
    state = read(home)
    if not is_up(home):
        if state is None:
            return False
        with _lock(home):
            return _clear(home, say)
    if state is None or not lives(state.pid, state.started):
        host = socket.gethostname() if state is None else state.host
        raise RefusedError(f"{home}: the platform is starting, or runs on {host}; end it there")
    say(f"ending the platform of {home} (process {state.pid})")
    if state.state != "ending":  # being told twice, it would lose its patience
        os.kill(state.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + DOWN_S
    while is_up(home) or lives(state.pid, state.started):
        if time.monotonic() > deadline_s:
            raise TuneyardError(f"the supervisor (process {state.pid}) has not ended; see {home / 'platform'}")
        time.sleep(0.1)
    return True


def is_up(home: Path) -> bool:
    """Whether a supervisor holds the lock of this home."""
    try:
        descriptor = os.open(home / "platform" / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read(home: Path) -> State | None:
    """What the last supervisor wrote, whether it lives or not; None where none did."""
    try:
        found = json.loads((home / "platform" / "state.json").read_text())
        ports, parts = Ports(**found.pop("ports")), tuple(Standing(**part) for part in found.pop("parts"))
        return State(**found, ports=ports, parts=parts)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def look(home: Path, state: State) -> list[Look]:
    """Ask each part now."""
    asks = _asks(home, state.ports)
    return [
        Look(part, _runs(part) and part.state == "ready" and asks.get(part.name, lambda: True)())
        for part in state.parts
    ]


def left(state: State) -> list[psutil.Process]:
    """What still runs of a platform whose supervisor is gone."""
    if state.host != socket.gethostname():
        return []
    known = [(part.pid, part.started) for part in state.parts]
    return [
        process
        for pid, started in known
        if pid is not None and started is not None
        for process in left_over(pid, started, state.mark)
    ]


def ray_jobs(home: Path, ports: Ports) -> RayJobs:
    """The Ray head of this home's platform."""
    return RayJobs(_url(ports.dashboard), _ray_token(home))


class _Platform:
    """What one supervisor holds from its start to its end."""

    def __init__(self, home: Path, ports: Ports, database_url: str, database: Database) -> None:
        self._home, self._folder, self._database = home, home / "platform", database
        self._supervisor: Supervisor | None = None
        self._state = State(
            mark=secrets.token_hex(8),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            state="starting",
            since_ms=_now_ms(),
            ports=ports,
            database=settings.without_passwords(database_url),
            tracking_uri=_url(ports.mlflow),
            ray_folder=_short_folder(),
        )
        self._save()

    def run(self, over: threading.Event, hurry: threading.Event, say: Say) -> None:
        state = self._state
        parts = self._parts()
        for part in parts:
            _rotate(part.log)
        supervisor = self._supervisor = Supervisor(parts, state.mark, say=say, changed=self._write)
        failed = True
        try:
            say(f"starting {', '.join(part.name for part in parts)} in {self._home}")
            give_tracking_uri(self._home, state.tracking_uri)
            if supervisor.start(over):
                log_in(self._home, _url(state.ports.api), self._database)
                self._turn("ready")
                say(f"the platform is ready: {addresses_text(state)}")
                supervisor.watch(over)
            failed = False
        finally:
            self._end(supervisor, hurry, say)
            if not failed:  # else Ray's own logs may say why
                shutil.rmtree(state.ray_folder, ignore_errors=True)

    def _end(self, supervisor: Supervisor, hurry: threading.Event, say: Say) -> None:
        """The dispatcher first, so that nobody starts drivers again; those end while MLflow and Ray still answer."""
        self._turn("ending")
        supervisor.end("dispatcher", hurry)
        supervisor.end("api", hurry)
        drivers = self._end_drivers(supervisor, hurry, say)
        supervisor.end("mlflow", hurry)
        supervisor.end("ray", hurry)
        for process in drivers:
            with contextlib.suppress(psutil.Error):
                process.kill()
        take_tracking_uri(self._home, self._state.tracking_uri)
        log_out(self._home, _url(self._state.ports.api), self._database)
        self._turn("ended")
        say("the platform has ended")

    def _end_drivers(self, supervisor: Supervisor, hurry: threading.Event, say: Say) -> list[psutil.Process]:
        """Through Ray, which kills those that do not end in time. Gives what runs apart from the head."""
        head = supervisor.pid("ray")
        if head is None or hurry.is_set():
            return [] if head is None else _apart(head)
        apart, deadline_s = _apart(head), time.monotonic() + DRIVERS_S
        with contextlib.suppress(UnreachableError), contextlib.closing(ray_jobs(self._home, self._state.ports)) as jobs:
            running = [job.submission_id for job in jobs.all() if not job.ended]
            for submission_id in running:
                say(f"ending the driver {submission_id}; its sweep goes on the next time")
                jobs.stop(submission_id)
            while running and time.monotonic() < deadline_s and not hurry.wait(0.5):
                running = [one for one in running if (job := jobs.get(one)) is not None and not job.ended]
        return apart

    def _parts(self) -> list[Part]:
        ports, home, python = self._state.ports, self._home, sys.executable
        agent, client = free_ports(2)
        ray = [
            *(_beside_python("ray"), "start", "--head", "--block", "--disable-usage-stats"),
            *("--include-log-monitor=False", "--temp-dir", self._state.ray_folder),
            *("--port", str(ports.ray), "--dashboard-host", HOST, "--dashboard-port", str(ports.dashboard)),
            *("--dashboard-agent-listen-port", str(agent), "--ray-client-server-port", str(client)),
            *("--min-worker-port", "0", "--max-worker-port", "0", "--object-store-memory", str(OBJECT_STORE_BYTES)),
        ]
        mlflow = [
            *(python, "-m", "mlflow", "server", "--workers", "1", "--host", HOST, "--port", str(ports.mlflow)),
            *("--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}"),
            # Where `sweep run` without a server puts them, too: what either wrote, both can read.
            *("--default-artifact-root", (home / "artifacts").as_uri(), "--no-serve-artifacts"),
        ]
        outer, inner = environment_of_services(home, ports), environment_of_servers(home)
        asks, folder = _asks(home, ports), self._folder
        return [
            Part("mlflow", mlflow, inner, folder / "mlflow.log", lambda: asks["mlflow"], _url(ports.mlflow)),
            Part("ray", ray, inner, folder / "ray.log", lambda: asks["ray"], _url(ports.dashboard), grace_s=30.0),
            Part(
                "api", (python, "-m", "tuneyard.api"), outer, folder / "api.log", lambda: asks["api"], _url(ports.api)
            ),
            Part(
                "dispatcher",
                (python, "-m", "tuneyard.dispatcher"),
                outer,
                folder / "dispatcher.log",
                lambda: _leads(Store(self._database)),
                after=("mlflow", "ray"),
                grace_s=20.0,
            ),
        ]

    def _turn(self, state: str) -> None:
        self._state = replace(self._state, state=state, since_ms=_now_ms())
        self._write()

    def _write(self) -> None:
        """A disk that takes no more is no reason to end what runs."""
        with contextlib.suppress(OSError):
            self._save()

    def _save(self) -> None:
        standings = tuple(self._supervisor.standings()) if self._supervisor is not None else ()
        self._state = replace(self._state, parts=standings)
        settings.write_private(self._folder / "state.json", json.dumps(asdict(self._state), indent=1))


def environment_of_servers(home: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For MLflow and Ray. Drivers inherit Ray's, so it names no database and no server that may have a password."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in (*DATABASE, "TUNEYARD_SERVICE", "TUNEYARD_TOKEN", "RAY_ADDRESS", "RAY_AUTH_TOKEN")
        and not name.startswith("MLFLOW_TRACKING_")
    }
    return {
        **kept,
        "TUNEYARD_HOME": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / "platform" / "ray_token"),
        "RAY_JOB_STOP_WAIT_TIME_S": "30",  # for a driver that is told to end
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # all of Ray listens on loopback only, which no option of it gives
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


def environment_of_services(home: Path, ports: Ports, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For the dispatcher and the API."""
    database = {name: environment[name] for name in DATABASE if name in environment}
    roots = environment.get("TUNEYARD_DATA_ROOTS", _project(home))
    return {
        **environment_of_servers(home, environment),
        **database,
        "TUNEYARD_RAY": _url(ports.dashboard),
        "TUNEYARD_DRIVER": environment.get("TUNEYARD_DRIVER") or shlex.quote(_beside_python("tuneyard")),
        "TUNEYARD_LISTEN": f"{HOST}:{ports.api}",
        "TUNEYARD_DATA_ROOTS": os.pathsep.join(str(Path(root).resolve()) for root in roots.split(os.pathsep) if root),
        "MLFLOW_TRACKING_URI": _url(ports.mlflow),
    }


def _project(home: Path) -> str:
    """The folder that holds the home, whose files a spec may name; none where that is all that a person has."""
    folder = home.parent
    return "" if folder in (Path.home(), Path(folder.anchor)) else str(folder)


def addresses_text(state: State) -> str:
    return ", ".join(f"{name} {address}" for name, address in state.addresses().items())


def log_in(home: Path, url: str, database: Database) -> None:
    """Give this home's commands an administrator's token, for as long as the platform is up."""
    log_out(home, url, database)  # what a platform left that was killed
    _, secret = Accounts(database).create(_person(), "admin", created_by="tuneyard up", now_ms=_now_ms())
    logins.keep(home, logins.Login(url, secret))


def log_out(home: Path, url: str, database: Database) -> None:
    """Its address is of no use to commands any more, nor is its token; another service's stays."""
    kept = _kept_login(home)
    if kept is None or kept.url != url:
        return
    accounts = Accounts(database)
    with contextlib.suppress(TuneyardError):
        if (person := accounts.let_in(kept.token, _now_ms())) is not None:
            accounts.revoke(person.token_id, revoked_by="tuneyard up", now_ms=_now_ms())
    logins.drop(home)


def _kept_login(folder: Path) -> logins.Login | None:
    try:
        return logins.read(folder)
    except InputError:  # a damaged one is as good as none
        return None


def _person() -> str:
    """Who starts it, in the form that names of tokens have."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # this user has no name on this machine
        name = ""
    return name if NAME.fullmatch(name) else "admin"


def _asks(home: Path, ports: Ports) -> dict[str, Callable[[], bool]]:
    """What says whether a part answers; the dispatcher listens nowhere."""
    return {
        "mlflow": lambda: _good(f"{_url(ports.mlflow)}/health"),
        "ray": lambda: _ray_answers(home, ports),
        "api": lambda: _good(f"{_url(ports.api)}/healthz"),
    }


def _good(url: str) -> bool:
    try:
        return httpx2.get(url, timeout=ASK_TIMEOUT_S, trust_env=False).status_code == 200
    except httpx2.HTTPError:
        return False


def _ray_answers(home: Path, ports: Ports) -> bool:
    try:
        with contextlib.closing(ray_jobs(home, ports)) as jobs:
            jobs.all()
            return bool(jobs.nodes())
    except UnreachableError:
        return False


def _leads(store: Store) -> Callable[[], bool]:
    """Whether a dispatcher leads since now: this one, or another of the same queue for which it waits."""
    before = _leader(store)

    def leads() -> bool:
        now = _leader(store)
        return now is not None and now.token != "" and now != before

    return leads


def _leader(store: Store) -> Rival | None:
    """None while the database does not answer."""
    try:
        return store.leader()
    except TuneyardError:
        return None


def _apart(head: int) -> list[psutil.Process]:
    """What Ray has started in sessions of their own: drivers and what watches them."""
    apart = []
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(head).children(recursive=True):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(process.pid) != head:
                    apart.append(process)
    return apart


@contextlib.contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Held until the context, or this process, ends. Raises RefusedError while another holds it."""
    descriptor = os.open(home / "platform" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _locked(descriptor):
            raise RefusedError(_already(home))
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Not at the first try, since `is_up` holds it for a moment."""
    for _ in range(20):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.02)
    return False


def _already(home: Path) -> str:
    state = read(home)
    if state is None or not lives(state.pid, state.started):
        where = "" if state is None or state.host == socket.gethostname() else f" on {state.host}"
        return f"{home}: a platform runs or starts here already{where}; see: tuneyard status"
    does = "is up" if state.state == "ready" else f"is {state.state}"
    return (
        f"{home}: the platform {does} already (process {state.pid}): {addresses_text(state)}; "
        "end it with: tuneyard down"
    )


@contextlib.contextmanager
def _told_to_end() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events for the first signal that ends it, and for the second."""
    over, hurry = threading.Event(), threading.Event()

    def heard(number: int, frame: FrameType | None) -> None:
        (hurry if over.is_set() else over).set()

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if number != signal.SIGHUP or handler is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, heard)
    try:
        yield over, hurry
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _clear(home: Path, say: Say) -> bool:
    """End what a platform left whose supervisor was killed, and take back what it gave; whether anything ran."""
    state = read(home)
    if state is None or state.host != socket.gethostname():
        return False
    found = left(state)
    if found:
        say(f"ending what an earlier platform left: {', '.join(sorted({str(process.pid) for process in found}))}")
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(found, timeout=LEFT_S)
    for process in left(state):
        with contextlib.suppress(psutil.Error):
            process.kill()
    take_tracking_uri(home, state.tracking_uri)
    with contextlib.closing(Database(settings.database_url(home))) as database:
        log_out(home, _url(state.ports.api), database)
    if Path(state.ray_folder).name.startswith(RAY_FOLDER):
        shutil.rmtree(state.ray_folder, ignore_errors=True)
    if state.state != "ended":
        ended = tuple(replace(part, state="ended", pid=None, started=None) for part in state.parts)
        state = replace(state, state="ended", since_ms=_now_ms(), parts=ended)
        settings.write_private(home / "platform" / "state.json", json.dumps(asdict(state), indent=1))
    return bool(found)


def _make_folder(home: Path) -> None:
    settings.make_home(home)
    (home / "platform").mkdir(mode=0o700, exist_ok=True)


def _last_ports(home: Path) -> Ports | None:
    state = read(home)
    return None if state is None else state.ports


def _runs(part: Standing) -> bool:
    return part.pid is not None and part.started is not None and lives(part.pid, part.started)


def give_tracking_uri(home: Path, uri: str) -> None:
    """To commands and drivers of this home; one that it was given before is put aside."""
    with contextlib.suppress(FileNotFoundError):
        (home / settings.TRACKING).replace(home / "platform" / BEFORE)
    settings.keep_tracking_uri(home, uri)


def take_tracking_uri(home: Path, uri: str) -> None:
    """Back, unless somebody has changed it meanwhile."""
    path, before = home / settings.TRACKING, home / "platform" / BEFORE
    try:
        ours = path.read_text().strip() == uri
    except FileNotFoundError:
        ours = True
    if ours:
        path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            before.replace(path)
    before.unlink(missing_ok=True)


def _ray_token(home: Path) -> str:
    """Made once for a home."""
    path = home / "platform" / "ray_token"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        token = secrets.token_hex(32)
        settings.write_private(path, token)
        return token


def _short_folder() -> str:
    """For Ray's sockets, whose whole paths may have no more than 107 characters."""
    usual = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix=RAY_FOLDER, dir=usual if len(usual) <= LONGEST_TEMP else "/tmp")


def _beside_python(name: str) -> str:
    """A command of this installation."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(f"{name} is not installed; the platform needs: pip install 'tuneyard[train]'")
    return found


def _follow(process: subprocess.Popen[bytes], home: Path, log: Path, say: Say) -> None:
    """Say what the supervisor says until all is ready. Raises its error, the last that it says."""
    heard, told = "", 0
    with log.open(errors="replace") as out:
        while True:
            code, state = process.poll(), read(home)
            heard += out.read()
            said, _, message = heard.partition("error: ")
            lines = said.splitlines()[: said.count("\n")]
            for line in lines[told:]:
                say(line)
            told = len(lines)
            if code is not None:
                kinds = {kind.exit_code: kind for kind in (InputError, UnreachableError, RefusedError)}
                raise kinds.get(code, TuneyardError)(message.strip() or f"the supervisor ended with {code}; see {log}")
            if state is not None and state.pid == process.pid and state.state == "ready":
                return
            time.sleep(0.1)


def _rotate(log: Path) -> None:
    """Keeps the log of one time before."""
    with contextlib.suppress(FileNotFoundError):
        log.replace(log.with_name(f"{log.name}.1"))


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _now_ms() -> int:
    return int(time.time() * 1000)


def main() -> None:
    """The supervisor in the background, as `detach` starts it: one port after the other."""

    def say(text: str) -> None:
        print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}  {text}", flush=True)

    try:
        run(settings.find_home(), Ports(*(int(port) for port in sys.argv[1:])), say)
    except TuneyardError as error:
        print(f"error: {settings.without_passwords(str(error))}", flush=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
