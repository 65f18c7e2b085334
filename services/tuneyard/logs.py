"""What a sweep's driver or one of its trials said: files in its folder, read as one text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.journal import SweepFolder

MOST_BYTES = 1 << 20  # at once
TRIAL = r"t?\d{1,9}"


class UnknownTrialError(InputError):
    """The sweep has no trial of that name."""


def files(folder: SweepFolder, trial: str | None = None) -> list[Path]:
    """The driver's log, or those of a trial, `t007` or 7, by attempt; they may not be there yet.

    Raises UnknownTrialError.
    """
    if trial is None:
        return [folder.path / "driver.log"]
    if re.fullmatch(TRIAL, trial):
        place = folder.trial(f"t{int(trial.removeprefix('t')):03d}")
        if place.is_dir():
            attempts = (path for path in place.iterdir() if re.fullmatch(r"a\d+", path.name))
            return [path / "trial.log" for path in sorted(attempts, key=lambda path: int(path.name[1:]))]
    raise UnknownTrialError(
        f"trial {trial!r}: sweep {folder.sweep_id} has trained none of that name; see those it has with: "
        f"tuneyard sweep trials {folder.sweep_id}"
    )


def read(paths: Sequence[Path], offset: int) -> bytes:
    """What comes after so many bytes of the files, one behind the other; at most MOST_BYTES, empty at their end."""
    for path in paths:
        try:
            size = path.stat().st_size
            if offset < size:
                with path.open("rb") as source:
                    source.seek(offset)
                    return source.read(MOST_BYTES)
        except FileNotFoundError:
            continue
        offset -= size
    return b""
