"""How much prepared data is kept: past a limit, what was not used for the longest time goes first.

Data that a driver holds stays, and so does what is being made. Data that is gone is prepared again when it is needed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuneyard_pipelines.data import folders

RECENT_S = 60.0
_NAME = re.compile(r"[0-9a-f]{20}")


@dataclass(frozen=True)
class Collected:
    """What a cache held, and what was taken out of it."""

    before_bytes: int
    removed_bytes: int
    removed: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def collect(cache: Path, limit_bytes: int, *, now_s: float, keep: Collection[Path] = ()) -> Collected:
    """Remove prepared data until at most `limit_bytes` are there, or only what is in `keep`, in use, or used just now.

    What a killed preparation left goes in any case.
    """
    whole = [path for path in cache.glob("*") if _NAME.fullmatch(path.name) and path.is_dir()]
    killed = [path for path in cache.glob(f"*{folders.PARTIAL}") if _NAME.fullmatch(path.stem)]
    sizes = {path: _size_bytes(path) for path in (*whole, *killed)}
    there_bytes = before_bytes = sum(sizes.values())
    kept = {path.resolve() for path in keep}
    removed = 0
    for path in (*killed, *sorted(whole, key=folders.used_s)):
        wanted = path in whole and (there_bytes <= limit_bytes or path.resolve() in kept or _recent(path, now_s))
        if not wanted and folders.remove(path):
            there_bytes -= sizes[path]
            removed += 1
    return Collected(before_bytes, before_bytes - there_bytes, removed)


def _recent(folder: Path, now_s: float) -> bool:
    """Whether somebody may be about to hold it."""
    return now_s - RECENT_S < folders.used_s(folder)


def _size_bytes(folder: Path) -> int:
    """Of all files, as far as they are there: another process may be at work in it."""
    size_bytes = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size_bytes += (Path(place) / name).stat().st_size
    return size_bytes
