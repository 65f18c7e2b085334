"""A queued sweep's driver, as Ray Jobs runs it: one attempt, and word of how it ended for the dispatcher.

    tuneyard sweep run --sweep-id ID        with the folder ID, which holds submitted.yaml, under TUNEYARD_HOME

What it prints goes to `driver.log` in the folder, since Ray's own logs go with the cluster. `driver_end.json` there
says how it ended, and of which attempt that is the end; without one the driver was lost.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from tuneyard import settings
from tuneyard.jobs import DriverEnd
from tuneyard_pipelines import control
from tuneyard_pipelines.errors import (
    UNWRITABLE,
    CapacityError,
    InputError,
    RefusedError,
    TuneyardError,
    UnreachableError,
)
from tuneyard_pipelines.journal import SweepFolder, SweepState, write_atomic

Watching = Callable[[str], AbstractContextManager[Callable[[SweepFolder], None]]]
END = "driver_end.json"
SUBMISSION_ID, MOST_TRIALS = "TUNEYARD_SUBMISSION_ID", "TUNEYARD_MOST_TRIALS"  # in the environment of the job
EXIT_CODES = {"succeeded": 0, "failed": 1, "lost": 3}


def run(home: Path, sweep_id: str, watching: Watching, environment: Mapping[str, str] = os.environ) -> int:
    """Drive the sweep once; the exit code is for people, the dispatcher reads the file.

    `watching` says what is done meanwhile, which goes into the log.
    """
    submission_id, most_trials = environment.get(SUBMISSION_ID, ""), settings.whole(MOST_TRIALS, environment)
    folder = SweepFolder(home / "sweeps" / sweep_id)
    if not folder.submitted.exists():
        raise InputError(f"--sweep-id {sweep_id}: there is no such sweep in {home / 'sweeps'}")
    _print_to(folder.path / "driver.log")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with watching("preparing data, starting Ray ...") as announce:
        end = _drive(folder, home, most_trials or None, announce)
    write_atomic(folder.path / END, json.dumps({"submission_id": submission_id, **asdict(end)}))
    print(f"{submission_id}: {': '.join(filter(None, (end.how, end.reason, end.message)))}", flush=True)
    return EXIT_CODES[end.how]


def ended(folder: SweepFolder, submission_id: str) -> DriverEnd | None:
    """How the driver of this attempt ended; None while it runs, and for one that left no word."""
    try:
        found = json.loads((folder.path / END).read_text())
        of, end = found.pop("submission_id"), DriverEnd(**found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    told = end.how in EXIT_CODES and isinstance(end.reason, str) and isinstance(end.message, str)
    return end if told and of == submission_id else None


def _drive(
    folder: SweepFolder, home: Path, most_trials: int | None, announce: Callable[[SweepFolder], None]
) -> DriverEnd:
    try:
        from tuneyard.local import drive_queued

        return _end_of(folder, drive_queued(folder, home, most_trials, announce))
    except KeyboardInterrupt:
        return DriverEnd("lost", "interrupted", "the driver was told to end before anything trained")
    except CapacityError as error:
        return DriverEnd("failed", "no_capacity", str(error))
    except InputError as error:
        return DriverEnd("failed", "invalid_spec", str(error))
    except (UnreachableError, RefusedError) as error:  # of another driver that is still seen at this sweep
        return DriverEnd("lost", "unreachable", str(error))
    except TuneyardError as error:
        if type(error.__cause__).__module__.startswith("ray."):
            return DriverEnd("lost", "cluster_lost", str(error))
        return DriverEnd("failed", "internal", str(error))
    except OSError as error:
        reason = "disk_full" if error.errno in UNWRITABLE or isinstance(error, PermissionError) else "internal"
        return DriverEnd("failed", reason, f"{error}; go on with: tuneyard sweep resume {folder.sweep_id}")
    except Exception as error:
        traceback.print_exc()
        return DriverEnd("failed", "internal", f"{type(error).__name__}: {error}; more in {folder.path / 'driver.log'}")


def _end_of(folder: SweepFolder, state: SweepState) -> DriverEnd:
    ended = state.ended
    if ended is None:
        return DriverEnd("lost", "driver_lost", "the end of the attempt could not be written")
    if ended.state == "finished":
        reason = "" if not ended.early else "user_stop" if control.wishes(folder).stopped else "budget"
        return DriverEnd("succeeded", reason, ended.message)
    if ended.state == "interrupted":
        return DriverEnd("lost", "interrupted", ended.message)
    return DriverEnd("failed", "trial_errors", ended.message)


def _print_to(path: Path) -> None:
    """Whatever this process and what it starts print from now on is kept."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
