"""What `tuneyard doctor` looks at: this machine, this home and what runs in it; each finding says what to do."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import ipaddress
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from tuneyard import platform, settings, sweeps
from tuneyard.database import Database
from tuneyard.platform import State
from tuneyard.ports import OPTIONS, Ports, is_free, who_listens
from tuneyard.ray_jobs import RayJobs, find_token
from tuneyard.supervisor import members
from tuneyard_pipelines.capacity import describe
from tuneyard_pipelines.errors import InputError, TuneyardError, UnreachableError, first_line

Verdict = Literal["ok", "warning", "problem"]

OLDEST_PYTHON = (3, 11)
TRAINING = ("torch", "pytorch_lightning", "ray", "datasets", "tokenizers", "safetensors", "sacrebleu", "optuna")
FULL_BYTES, SCARCE_BYTES = 1 << 30, 10 << 30
CLOCK_WARNING_S, CLOCK_PROBLEM_S = 2.0, 30.0  # a driver of another host is taken for dead after a minute of silence
GPU_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Finding:
    """`do` is what a person does about it; empty where nothing is to be done."""

    about: str
    verdict: Verdict
    found: str
    do: str = ""


def examine(home: Path, environment: Mapping[str, str] = os.environ, *, try_gpus: bool = False) -> list[Finding]:
    """Every finding, in the order of what depends on what. What cannot be looked at is a problem of its own.

    `try_gpus` has the GPUs train as well.
    """
    state = platform.read(home) if platform.is_up(home) else None
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("Python", python),
        ("packages", packages),
        ("GPUs", gpus),
        ("disk", lambda: disk(home)),
        ("clock", lambda: clock(home)),
        ("home", lambda: moved(home)),
        ("platform", lambda: parts(home, state)),
        ("ports", lambda: ports(state)),
        ("database", lambda: database(home, environment)),
        ("MLflow", lambda: mlflow(home, environment)),
        ("Ray", lambda: ray(home, state, environment)),
        ("listening", lambda: listening(state)),
        *([("GPU test", lambda: gpu_test(home))] if try_gpus else []),
    ]
    return [finding for about, at in looks for finding in _looked(about, at)]


def python() -> Iterator[Finding]:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info >= OLDEST_PYTHON:
        yield Finding("Python", "ok", f"{version} ({sys.executable})")
    else:
        yield Finding("Python", "problem", version, "install Python 3.11 or newer, and Tuneyard in it")


def packages() -> Iterator[Finding]:
    missing = [name for name in TRAINING if importlib.util.find_spec(name) is None]
    if not missing:
        versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "ray", "mlflow"))
        yield Finding("packages", "ok", f"all that training needs; {versions}")
    elif len(missing) == len(TRAINING):
        found = "nothing that training needs: this machine can submit and look, not train, and not run `tuneyard up`"
        yield Finding("packages", "warning", found, "to train here: pip install 'tuneyard[train]'")
    else:
        found = f"of what training needs, {', '.join(missing)} is missing"
        yield Finding("packages", "problem", found, "pip install 'tuneyard[train]'")


def gpus() -> Iterator[Finding]:
    program = shutil.which("nvidia-smi")
    if program is None:
        yield Finding("GPUs", "ok", "none that nvidia-smi would show; trials train on the CPU")
        return
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=GPU_TIMEOUT_S)
    found = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not found:
        said = (answer.stderr or answer.stdout).strip().splitlines() or [f"exit code {answer.returncode}"]
        yield Finding("GPUs", "problem", f"nvidia-smi: {said[0]}", "see to the driver; trials would train on the CPU")
        return
    yield Finding("GPUs", "ok", "; ".join(found))
    if _version("torch").endswith("+cpu"):
        told = f"torch {_version('torch')} is a build without CUDA: it sees none of them"
        yield Finding("GPUs", "warning", told, "install a CUDA build of torch")


def gpu_test(home: Path) -> Iterator[Finding]:
    """Has every GPU of the cluster train a small model: a minute or two; what it leaves is kept where one fails."""
    from tuneyard.local import try_gpus

    folder = home / f"gpu-test-{int(time.time())}"
    settings.make_home(folder)
    test = try_gpus(folder)
    if not test.trials:
        found = f"the cluster has no GPU (nodes: {describe(test.nodes)})"
        do = "see to the driver where nvidia-smi should show some, or name the cluster that has them with RAY_ADDRESS"
        yield Finding("GPU test", "problem", found, do)
    for trial in test.trials:
        do = "" if trial.trained else f"its log says more: {folder}/sweeps/*/trials/{trial.trial}"
        yield Finding("GPU test", "ok" if trial.trained else "problem", trial.summary, do)
    if all(trial.trained for trial in test.trials):
        shutil.rmtree(folder, ignore_errors=True)


def disk(home: Path) -> Iterator[Finding]:
    for about, folder in (("home", home), ("Ray's files", Path(tempfile.gettempdir()))):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        found = f"{free / 2**30:,.1f} GiB free for {about} ({there})"
        if free >= SCARCE_BYTES:
            yield Finding("disk", "ok", found)
        else:
            verdict: Verdict = "problem" if free < FULL_BYTES else "warning"
            yield Finding("disk", verdict, found, "free space; prepared data goes with: tuneyard gc --limit 5GiB")


def clock(home: Path) -> Iterator[Finding]:
    """A shared home has the clock of the machine that serves it: what is written there is dated by that."""
    if not home.is_dir():
        yield Finding("home", "ok", f"{home} is not there yet; it is made by the first command that keeps something")
        return
    before_s = time.time()
    try:
        with tempfile.NamedTemporaryFile(dir=home, prefix=".clock-") as probe:
            dated_s = os.fstat(probe.fileno()).st_mtime
    except OSError as cause:
        found = f"{home} cannot be written ({cause.strerror})"
        yield Finding("home", "problem", found, "free space, change its owner, or name another with TUNEYARD_HOME")
        return
    yield clock_finding(home, dated_s - before_s)


def clock_finding(home: Path, ahead_s: float) -> Finding:
    """What the difference of the two clocks means; file systems date some milliseconds coarsely."""
    if abs(ahead_s) < CLOCK_WARNING_S:
        return Finding("clock", "ok", f"files in {home} are dated by this machine's time")
    which = "ahead of" if ahead_s > 0 else "behind"
    found = f"files in {home} are dated {abs(ahead_s):.0f} s {which} this machine's clock"
    verdict: Verdict = "problem" if abs(ahead_s) >= CLOCK_PROBLEM_S else "warning"
    do = "set both clocks by one time server; a driver of another machine is judged by what it wrote when"
    return Finding("clock", verdict, found, do)


def moved(home: Path) -> Iterator[Finding]:
    """Sweeps name their data, and MLflow its files, by whole paths."""
    elsewhere: dict[Path, list[str]] = {}
    folders, sound = sweeps.all_folders(home), 0
    for folder in folders:
        try:
            header = folder.header()
        except InputError as error:
            yield Finding("home", "problem", first_line(error), f"put its folder {folder.path} right or away")
            continue
        if _same_folder(header.home, home):
            sound += 1
        else:
            elsewhere.setdefault(header.home, []).append(header.sweep_id)
    for old, ids in elsewhere.items():
        shown = ", ".join(ids[:5]) + (", ..." if len(ids) > 5 else "")
        found = f"{len(ids)} of {len(folders)} sweeps were begun in {old}, and look for their data there ({shown})"
        yield Finding("home", "problem", found, f"move it back, or make {old} a link to {home}")
    if sound:
        yield Finding("home", "ok", f"{sound} sweeps are where they were begun, in {home}")


def parts(home: Path, state: State | None) -> Iterator[Finding]:
    if state is None:
        before = platform.read(home)
        if before is not None and (left := platform.left(before)):
            pids = ", ".join(sorted({str(process.pid) for process in left}))
            yield Finding(
                "platform", "problem", f"its supervisor was killed and left processes {pids}", "tuneyard down"
            )
        elif platform.is_up(home):
            yield Finding("platform", "warning", "one is starting", "look again")
        else:
            yield Finding("platform", "ok", f"none is up in {home}")
        return
    if state.host != socket.gethostname():
        yield Finding("platform", "ok", f"it runs on {state.host}; what follows is what this machine sees")
        return
    for look in platform.look(home, state):
        part, log = look.standing, home / "platform" / f"{look.standing.name}.log"
        again = f", restarted {part.restarts} times" if part.restarts else ""
        if look.answers:
            yield Finding("platform", "warning" if again else "ok", f"{part.name} is up{again}", again and f"see {log}")
        else:
            yield Finding(
                "platform", "problem", f"{part.name} is {part.state} and does not answer{again}", f"see {log}"
            )


def ports(state: State | None) -> Iterator[Finding]:
    """Those that `up` takes by itself; with a platform up they are its own business."""
    if state is not None:
        return
    taken = {part: port for part, port in vars(Ports()).items() if not is_free(port)}
    for part, port in taken.items():
        found = f"{port} is taken by {who_listens(port)}"
        yield Finding("ports", "warning", found, f"end that, or start with: tuneyard up {OPTIONS[part]} 0")
    if not taken:
        yield Finding("ports", "ok", f"{', '.join(str(port) for port in vars(Ports()).values())} are free")


def database(home: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    url = settings.database_url(home, environment)
    shown = settings.without_passwords(url)
    if not environment.get("TUNEYARD_DATABASE") and not (home / settings.QUEUE).exists():
        yield Finding("database", "ok", f"{shown} is not there yet; it is made by the first `tuneyard up` or submit")
        return
    try:
        with contextlib.closing(Database(url)) as opened:
            present, newest = opened.versions()
    except TuneyardError as error:
        yield Finding("database", "problem", str(error), "see that it runs and that TUNEYARD_DATABASE names it")
        return
    if present == newest:
        yield Finding("database", "ok", f"{shown}, version {present}")
    elif present is None or present < newest:
        found = f"{shown} has version {present or 'none'}; this Tuneyard's is {newest}"
        yield Finding("database", "warning", found, "nothing: what next opens it brings it to its version")
    else:
        found = f"{shown} has version {present}, this Tuneyard knows {newest} at most"
        yield Finding("database", "problem", found, "install the newer Tuneyard that wrote it")


def mlflow(home: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        uri = settings.tracking_uri(home, None, environment)
    except InputError as error:
        yield Finding("MLflow", "problem", str(error), "correct it")
        return
    shown = settings.without_passwords(uri)
    if uri.startswith("sqlite:///"):
        yield _sqlite_file(Path(uri.removeprefix("sqlite:///")), shown)
        return
    from tuneyard_pipelines import tracking

    try:
        tracking.connect(uri)
    except UnreachableError as error:
        do = "start it, or end a platform that was killed: tuneyard down"
        yield Finding("MLflow", "problem", settings.without_passwords(str(error)), do)
        return
    yield Finding("MLflow", "ok", f"{shown} answers")


def ray(home: Path, state: State | None, environment: Mapping[str, str]) -> Iterator[Finding]:
    if state is not None:
        jobs = platform.ray_jobs(home, state.ports)
    elif environment.get("TUNEYARD_RAY"):
        jobs = RayJobs(environment["TUNEYARD_RAY"], find_token(environment))
    else:
        yield Finding("Ray", "ok", "no platform is up here; `sweep run` starts a Ray of its own")
        return
    with contextlib.closing(jobs):
        try:
            nodes = jobs.nodes()
        except UnreachableError as error:
            yield Finding("Ray", "problem", str(error), "start it; with a platform: tuneyard down, then tuneyard up")
            return
    cpus, gpus = sum(node.cpus for node in nodes), sum(node.gpus for node in nodes)
    yield Finding("Ray", "ok", f"{jobs.address} answers: nodes {len(nodes)}, CPUs {cpus:g}, GPUs {gpus:g}")


def listening(state: State | None) -> Iterator[Finding]:
    """Who of the platform can be reached from other machines. Ray has a token; it is no reason to be seen."""
    if state is None or state.host != socket.gethostname():
        return
    outside: list[str] = []
    looked = hidden = 0
    for part in state.parts:
        for process in members(part.pid) if part.pid is not None else []:
            try:
                outside += [f"{part.name} ({process.name()}) at {at}" for at in beyond_loopback(process)]
                looked += 1
            except psutil.NoSuchProcess:
                continue
            except psutil.Error:
                hidden += 1
    if outside:
        do = "close them to other machines by a firewall; Ray asks for its token, which lies in the home"
        yield Finding("listening", "warning", f"beyond this machine: {', '.join(sorted(outside))}", do)
    elif hidden or not looked:
        found = f"{hidden} processes of the platform cannot be looked at" if hidden else "no part of it runs"
        yield Finding("listening", "warning", found, "ask again as whoever runs the platform, while it is up")
    else:
        yield Finding("listening", "ok", f"all {looked} processes of the platform listen on loopback only, Ray's too")


def beyond_loopback(process: psutil.Process) -> list[str]:
    """The addresses at which other machines could reach it."""
    listening = [one.laddr for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr]
    return sorted(f"{at.ip}:{at.port}" for at in listening if not is_loopback(at.ip))


def is_loopback(address: str) -> bool:
    """`::ffff:127.0.0.1`, as some write it, is loopback as well."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _looked(about: str, at: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from at()
    except (OSError, psutil.Error, subprocess.SubprocessError, TuneyardError) as cause:
        yield Finding(about, "problem", f"could not be looked at ({first_line(cause)})", "see to that, then look again")


def _sqlite_file(file: Path, shown: str) -> Finding:
    if not file.exists():
        return Finding("MLflow", "ok", f"{shown} is not there yet; it is made by the first sweep")
    try:
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM alembic_version").fetchone()
    except sqlite3.Error as cause:
        do = "free space, change its owner, or name another with MLFLOW_TRACKING_URI"
        return Finding("MLflow", "problem", f"{shown} cannot be read ({first_line(cause)})", do)
    return Finding("MLflow", "ok", shown)


def _same_folder(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return one == other


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
