"""Where state lives and which MLflow is meant: from the command line, the environment, or what is found nearby."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tuneyard_pipelines import units
from tuneyard_pipelines.errors import InputError

HOME = ".tuneyard"
QUEUE = "queue.db"
TRACKING = "tracking_uri"  # a file that only its owner reads: a URI may hold a password
CACHE_LIMIT = "50GiB"
_PASSWORD = re.compile(r"(?<=://)([^\s:/@]*):\S*@")


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
    return environment.get("TUNEYARD_DATABASE") or f"sqlite:///{home / QUEUE}"


def whole(name: str, default: int, environment: Mapping[str, str] = os.environ) -> int:
    """The whole number that a variable holds. Raises InputError for anything else."""
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise InputError(f"{name}: found {text!r}; allowed: a whole number, 0 or more")
    return int(text)


def cache_limit_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """TUNEYARD_CACHE_LIMIT: how much prepared data the home keeps. Raises InputError for what is no amount."""
    text = environment.get("TUNEYARD_CACHE_LIMIT", CACHE_LIMIT)
    try:
        return units.size_bytes(text)
    except ValueError:
        raise InputError(f"TUNEYARD_CACHE_LIMIT: found {text!r}; allowed: {units.SIZE_FORMS}") from None


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
