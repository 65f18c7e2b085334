"""A folder that is whole or not there: built beside its place, flushed to disk, then renamed, by one process at a time.

NAME/               whole; manifest.json, written last, lists its files with their sizes
NAME.partial/       being built, or left by a process that was killed: never read, removed by the next builder
NAME.lock           held (flock) while building; the kernel lets go of it when its process ends
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PARTIAL = ".partial"
_MANIFEST = "manifest.json"


def build(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The facts of `folder`, which `fill(empty folder) -> facts` makes first unless it is whole already.

    Raises DataError if the place cannot be written; what `fill` raises otherwise leaves nothing behind.
    """
    if (facts := read(folder)) is not None:
        _mark_used(folder)
        return facts
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_lock(folder), fcntl.LOCK_EX):
            facts = read(folder)
            return _build(folder, fill) if facts is None else facts
    except OSError as error:
        raise DataError(
            f"{folder}: prepared data cannot be written here ({error.strerror or error}). "
            "Free space or give this user the right to write there, or choose another place with TUNEYARD_HOME."
        ) from error


def read(folder: Path) -> dict[str, Any] | None:
    """The facts of a whole folder; None if it is missing, torn or short of a file."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        return dict(manifest["facts"]) if whole else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps `remove` away from a folder; several processes may hold it. It must not be built inside."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # whoever cannot write there cannot lock either, and still may read
            stack.enter_context(_locked(_lock(folder), fcntl.LOCK_SH))
        yield


def remove(path: Path) -> bool:
    """Remove a whole folder or what is left of its building; False if a process holds or builds it, or it may not."""
    folder = path.with_name(path.name.removesuffix(PARTIAL))
    try:
        with _locked(_lock(folder), fcntl.LOCK_EX | fcntl.LOCK_NB):
            doomed = path.with_name(f"{folder.name}{PARTIAL}")
            if path != doomed:
                _remove(doomed)
                path.rename(doomed)  # at once no longer whole, even if this process dies now
            _remove(doomed)
    except OSError:
        return False
    return True


def used_s(folder: Path) -> float:
    """When a folder was used last, in seconds since 1970; 0 for one that is not whole."""
    try:
        return (folder / _MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _mark_used(folder: Path) -> None:
    with contextlib.suppress(OSError):  # of another user, perhaps
        os.utime(folder / _MANIFEST)


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _build(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    _remove(partial)
    partial.mkdir()
    try:
        facts = fill(partial)
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {path.relative_to(partial).as_posix(): path.stat().st_size for path in files}
        manifest = partial / _MANIFEST
        manifest.write_text(json.dumps({"facts": facts, "files": sizes}, indent=1), encoding="utf-8")
        for path in (*partial.rglob("*"), partial):
            _flush(path)
        _remove(folder)
        partial.rename(folder)
        _flush(folder.parent)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return facts


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, how)
        yield


def _remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
