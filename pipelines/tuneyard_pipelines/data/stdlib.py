"""builtin/stdlib: the sources of the running Python's own standard library, a document for each file, without tests.

Another Python is other data. Whatever has a name that `import` cannot say is left out (site-packages, dist-packages,
config-3.11-x86_64-linux-gnu), and so is what the build wrote about itself (_sysconfigdata).
"""

from __future__ import annotations

import hashlib
import os
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tuneyard_pipelines.data.documents import clean
from tuneyard_pipelines.data.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = f"1/{platform.python_implementation().lower()}-{platform.python_version()}"
"""Changes with the Python and with the rule of what is taken."""

_LEFT_OUT = {"test", "tests", "idle_test"}
_BUILT = "_sysconfigdata"


@dataclass(frozen=True)
class Sources:
    """Documents in the order of their paths, the top-level module of each, and how many were empty or not UTF-8."""

    texts: list[str]
    modules: list[str]
    left_out: int


def read(root: Path | None = None) -> Sources:
    """The sources below `root`, by default the standard library's folder. Raises DataError if there are none."""
    texts, modules, left_out = [], [], 0
    for path, raw in _files(_root(root)):
        try:
            text = clean(raw.decode("utf-8-sig"))
        except UnicodeDecodeError:
            text = ""
        if text:
            texts.append(text)
            modules.append(path.with_suffix("").parts[0])
        else:
            left_out += 1
    if not texts:
        raise DataError(
            f"builtin/stdlib: no Python source in {_root(root)}. This Python comes without the sources of its standard "
            "library: install them, or use another source of text."
        )
    return Sources(texts, modules, left_out)


def sha256(root: Path | None = None) -> str:
    """The digest of the names and bytes of all files that `read` takes."""
    digest = hashlib.sha256()
    for path, raw in _files(_root(root)):
        digest.update(f"{path.as_posix()}\0{len(raw)}\0".encode())
        digest.update(raw)
    return digest.hexdigest()


def _root(root: Path | None) -> Path:
    return root or Path(sysconfig.get_path("stdlib"))


def _files(root: Path) -> Iterator[tuple[Path, bytes]]:
    """Relative path and bytes of each module, sorted by path."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name.isidentifier() and name not in _LEFT_OUT]
        modules = [name for name in files if name.endswith(".py") and name.removesuffix(".py").isidentifier()]
        found += [Path(folder, name) for name in modules if not name.startswith(_BUILT)]
    for path in sorted(found):
        yield path.relative_to(root), path.read_bytes()
