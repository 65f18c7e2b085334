"""Which files a spec of the queue may name: its writer is trusted only so far, and links are followed."""

from __future__ import annotations

import glob
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tuneyard import settings
from tuneyard_pipelines.catalog import is_pattern
from tuneyard_pipelines.errors import InputError, first_line
from tuneyard_pipelines.spec import DataSpec, SpecError, data_files

UPLOADS = "uploads"  # in the home
MOST_FILES = 10_000  # that one pattern or folder may mean
VARIABLE = "TUNEYARD_DATA_ROOTS"


class OutsideError(InputError):
    """A file that may not be read for a spec of the queue."""


@dataclass(frozen=True)
class Roots:
    """The folders in which such files may lie, `named` by whoever runs the service; of the home only what was sent."""

    home: Path
    named: tuple[Path, ...] = ()

    @classmethod
    def configured(cls, home: Path, environment: Mapping[str, str] = os.environ) -> Roots:
        named = settings.value(VARIABLE, environment).split(os.pathsep)
        return cls(home, tuple(Path(root).resolve() for root in named if root))

    def check(self, data: DataSpec) -> None:
        """Raises OutsideError for files elsewhere, wherever links lead, and SpecError for what cannot be looked at."""
        for key, named in data_files(data).items():
            try:
                outside = not all(self._hold(path.resolve()) for path in _meant(named))
            except (OSError, RuntimeError, ValueError) as cause:
                raise SpecError.of("spec.yaml", f"{'.'.join(key)}: {first_line(cause)}; name another file") from cause
            if outside:
                roots = ", ".join(map(str, self.named)) or "uploaded files only"
                raise OutsideError(
                    f"{'.'.join(key)}: {named} is outside what this service reads ({roots}); upload it with: tuneyard "
                    f"data add FILE, or have whoever runs the service name its folder in {VARIABLE}"
                )

    def _hold(self, path: Path) -> bool:
        home = self.home.resolve()
        uploads = (home / UPLOADS).resolve()
        if path == home or path.is_relative_to(home):
            return path != uploads and path.is_relative_to(uploads)
        return any(path == root or path.is_relative_to(root) for root in self.named)


def _meant(named: str) -> Iterator[Path]:
    """What a path or a pattern names: the folder that it begins in, each file that fits it, all inside of a folder.

    Raises ValueError for a pattern that may mean others tomorrow, or too many to look at.
    """
    parts = Path(named).parts
    yield Path(*itertools.takewhile(lambda part: not is_pattern(part), parts))
    if is_pattern(named) and (".." in parts or parts.count("**") > 1):
        raise ValueError(f"the pattern {named} has .. in it, or ** twice")
    found = map(Path, glob.iglob(named, recursive=True)) if is_pattern(named) else Path(named).rglob("*")
    for number, path in enumerate(found):
        if number == MOST_FILES:
            raise ValueError(f"{named} means more than {MOST_FILES:,} files")
        yield path
