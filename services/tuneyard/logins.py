"""Which service the command line speaks to, and with whose token.

TUNEYARD_SERVICE with TUNEYARD_TOKEN, else the platform of this home, else the last `tuneyard login`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tuneyard.settings import write_private
from tuneyard_pipelines.errors import InputError

FILE = "service.json"


@dataclass(frozen=True)
class Login:
    """A service's address, and the token with which it lets one in; `kept` says where both come from."""

    url: str
    token: str
    kept: str = ""


def find(home: Path, environment: Mapping[str, str] = os.environ) -> Login | None:
    """None where there is no service. Raises InputError for one without a token, and for a file that is none."""
    if url := environment.get("TUNEYARD_SERVICE"):
        token = environment.get("TUNEYARD_TOKEN")
        if not token:
            raise InputError(f"TUNEYARD_SERVICE: {url} takes a token; give it in TUNEYARD_TOKEN")
        return Login(url, token, "TUNEYARD_SERVICE")
    return read(home) or read(user_folder(environment))


def user_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `tuneyard login` keeps what it was told."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "tuneyard"


def read(folder: Path) -> Login | None:
    """What is kept in this folder; None for nothing. Raises InputError for what is no login."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text())
        return Login(str(found["url"]), str(found["token"]), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:  # another user's platform runs in this home
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as cause:
        raise InputError(f"{path}: cannot be read ({cause!r}); remove it, then log in again") from cause


def keep(folder: Path, login: Login) -> None:
    """For the commands that follow; only its owner reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / FILE, json.dumps({"url": login.url, "token": login.token}))


def drop(folder: Path) -> bool:
    """Whether there was one."""
    try:
        (folder / FILE).unlink()
    except FileNotFoundError:
        return False
    return True
