"""What the environment may say, where state lives and which MLflow is meant: given, or found nearby."""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tuneyard_pipelines import units
from tuneyard_pipelines.errors import InputError

HOME = ".tuneyard"
QUEUE = "queue.db"
TRACKING = "tracking_uri"  # a file that only its owner reads: a URI may hold a password
_PASSWORD = re.compile(r"(?<=://)([^\s:/@]*):\S*@")
_OURS = "TUNEYARD_"
# What Kubernetes tells every container of a Service that is called tuneyard or tuneyard-api.
_OF_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)$")


@dataclass(frozen=True)
class Variable:
    """One of our variables; where the environment does not say it, `default` counts, or what `otherwise` tells.

    `inner`: no setting of a person's; Tuneyard gives it to what it starts.
    """

    meaning: str
    default: str = ""
    otherwise: str = "none"
    inner: bool = False

    @property
    def shown(self) -> str:
        return f"`{self.default}`" if self.default else self.otherwise


VARIABLES: Mapping[str, Variable] = {
    "TUNEYARD_HOME": Variable("the folder of all state", otherwise="the nearest `.tuneyard`, here or above"),
    "TUNEYARD_DATABASE": Variable(
        "where the queue is kept: `sqlite:////PATH` or `postgresql://USER@HOST/NAME`",
        otherwise="`queue.db` in the home",
    ),
    "TUNEYARD_CACHE_LIMIT": Variable("how much prepared data the home keeps", "50GiB"),
    "TUNEYARD_RAY": Variable("address of Ray's dashboard", "http://127.0.0.1:8265"),
    "TUNEYARD_DRIVER": Variable("the command on the cluster that a sweep's `run` is appended to", "tuneyard"),
    "TUNEYARD_MAX_DRIVERS": Variable("how many sweeps run at once", "8"),
    "TUNEYARD_MAX_LOSSES": Variable("how many drivers in a row may be lost without progress", "5"),
    "TUNEYARD_PREEMPT": Variable("1: a sweep of higher priority may make lower ones give way", "0"),
    "TUNEYARD_WEBHOOK_NETWORKS": Variable(
        "addresses or networks that [webhooks](webhooks.md) may be sent to besides public ones, parted by commas"
    ),
    "TUNEYARD_LISTEN": Variable("where it serves", "127.0.0.1:8700"),
    "TUNEYARD_BASE_URL": Variable(
        "the address at which people reach it, as behind a proxy: `https://HOST` or `https://HOST/PREFIX`",
        otherwise="that of each request",
    ),
    "TUNEYARD_DATA_ROOTS": Variable(
        "the folders in which files may lie that a spec names, parted by colons; of the home itself only uploads"
    ),
    "TUNEYARD_UPLOAD_LIMIT": Variable("the largest file that is taken", "2GiB"),
    "TUNEYARD_HUB": Variable("1: a spec may name a data set of the Hugging Face hub", "0"),
    "TUNEYARD_TRUSTED_HEADER": Variable("the header in which a proxy names who has logged in"),
    "TUNEYARD_TRUSTED_PROXIES": Variable("addresses or networks of such proxies, parted by commas"),
    "TUNEYARD_SERVICE": Variable("address of the service that commands speak to", otherwise="that of the last login"),
    "TUNEYARD_TOKEN": Variable("with whose token they do", otherwise="that of the last login"),
    "TUNEYARD_SUBMISSION_ID": Variable("which attempt of its sweep a driver is", inner=True),
    "TUNEYARD_MOST_TRIALS": Variable("how many trials it may run at once; 0: all that fit", "0", inner=True),
    "TUNEYARD_PLATFORM": Variable("which platform a process is of", inner=True),
}
"""All that Tuneyard reads, but those of others such as MLFLOW_TRACKING_URI. The tables of the docs are held to it."""


def value(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """What the environment says, or the default."""
    return environment.get(name) or VARIABLES[name].default


def check_names(environment: Mapping[str, str]) -> None:
    """Raises InputError for a variable of ours that there is not: unheard, a slip in one that closes leaves open."""
    for name in sorted(environment):
        if name.startswith(_OURS) and name not in VARIABLES and _OF_KUBERNETES.search(name) is None:
            known = [one.removeprefix(_OURS) for one, variable in VARIABLES.items() if not variable.inner]
            near = difflib.get_close_matches(name.removeprefix(_OURS), known, n=1)
            meant = f"did you mean {_OURS}{near[0]}? Correct" if near else "correct"
            raise InputError(f"{name}: there is no such setting; {meant} it, or take it out of the environment")


def find_home(environment: Mapping[str, str] = os.environ, start: Path | None = None) -> Path:
    """TUNEYARD_HOME, else the nearest `.tuneyard` in this folder or above it, else `.tuneyard` in this folder.

    The folder need not exist yet.
    """
    if named := environment.get("TUNEYARD_HOME"):
        return Path(named).expanduser().resolve()
    here = (start or Path.cwd()).resolve()
    return next((folder / HOME for folder in (here, *here.parents) if (folder / HOME).is_dir()), here / HOME)


def make_home(home: Path) -> None:
    """Create the folder of state; it keeps itself out of git. Raises InputError where it cannot be written."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        ignore = home / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
        probe = home / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as cause:
        raise InputError(
            f"{home}: state cannot be written here ({cause.strerror}); free space, change its owner, or name another "
            "folder with TUNEYARD_HOME"
        ) from cause


def tracking_uri(home: Path, option: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """`--mlflow URI`, else MLFLOW_TRACKING_URI, else that of the home's queue, else SQLite in the home.

    A bare path or file: URI is refused.
    """
    here = f"sqlite:///{home / 'mlflow.db'}"
    uri = option or environment.get("MLFLOW_TRACKING_URI") or _kept(home / TRACKING) or here
    scheme = uri.partition(":")[0].partition("+")[0]
    if scheme not in {"http", "https", "sqlite", "postgresql", "mysql", "databricks"}:
        named = "MLFLOW_TRACKING_URI" if environment.get("MLFLOW_TRACKING_URI") else str(home / TRACKING)
        place = "--mlflow" if option else named
        raise InputError(
            f"{place}: {uri!r} is not a tracking server; use http://HOST:PORT or sqlite:////absolute/path.db"
        )
    return uri


def keep_tracking_uri(home: Path, uri: str) -> None:
    """For all that run in this home and are given no other; it stands in no environment that others can see."""
    write_private(home / TRACKING, uri)


def write_private(path: Path, text: str) -> None:
    """At once, into a file that only its owner reads."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    new.replace(path)


def database_url(home: Path, environment: Mapping[str, str] = os.environ) -> str:
    """TUNEYARD_DATABASE, else SQLite in the home: where the queue is kept."""
    return value("TUNEYARD_DATABASE", environment) or f"sqlite:///{home / QUEUE}"


def whole(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """The whole number that a variable holds. Raises InputError for anything else."""
    text = value(name, environment)
    if not text.isdecimal():
        raise InputError(f"{name}: found {text!r}; allowed: a whole number, 0 or more")
    return int(text)


def base_url(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """The address that a variable holds, without a slash at its end. Raises InputError for what is none."""
    text = value(name, environment)
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if text and (not good or parts.username is not None or parts.query or parts.fragment):
        raise InputError(f"{name}: found {without_passwords(text)!r}; allowed: https://HOST or https://HOST/PREFIX")
    return text.rstrip("/")


def networks(
    name: str, environment: Mapping[str, str] = os.environ
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    """Those that a variable names, parted by commas. Raises InputError for what is none."""
    try:
        return tuple(ipaddress.ip_network(one.strip()) for one in value(name, environment).split(",") if one.strip())
    except ValueError as wrong:
        raise InputError(f"{name}: {wrong}; allowed: addresses or networks, as in 10.0.0.7,10.1.0.0/16") from None


def size_bytes(name: str, environment: Mapping[str, str] = os.environ) -> int:
    """The amount that a variable holds. Raises InputError for what is none."""
    text = value(name, environment)
    try:
        return units.size_bytes(text)
    except ValueError:
        raise InputError(f"{name}: found {text!r}; allowed: {units.SIZE_FORMS}") from None


def is_default(home: Path, uri: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a command that is given no `--mlflow` asks `uri`."""
    try:
        return tracking_uri(home, None, environment) == uri
    except InputError:
        return False


def _kept(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # there is none, or it is another user's
        return ""


def without_passwords(text: str) -> str:
    """`postgresql://user:secret@host/db` -> `postgresql://user:***@host/db`, wherever it stands in `text`."""
    return _PASSWORD.sub(r"\1:***@", text)
