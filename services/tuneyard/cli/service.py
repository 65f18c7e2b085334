"""Which sweeps are the service's and which are local, for the commands that know both."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tuneyard import settings
from tuneyard_pipelines.errors import InputError, TuneyardError, UnreachableError

if TYPE_CHECKING:
    from tuneyard.client import Client
    from tuneyard.sweeps import Listed, View
    from tuneyard_pipelines.journal import SweepFolder
    from tuneyard_pipelines.spec import SweepSpec

COMPLETION_S = 2.0  # that a shell waits for a service
MOST_COMPLETED = 100  # of the service's sweeps, the newest ones


def find_client() -> Client | None:
    """The service of this home or of the last login; None where there is none."""
    from tuneyard import logins

    if logins.find(settings.find_home()) is None:  # then its client need not be imported
        return None
    return the_client()


def the_client() -> Client:
    """Raises UnreachableError where there is none."""
    from tuneyard.client import Client

    return Client.find()


def queued(sweep_id: str, *, trials: int = 0) -> tuple[Client, View] | None:
    """The sweep whose id begins so, with so many of its trials, if it is one of the service's.

    None for a local one, also while the service does not answer or lets nobody in. Raises InputError when several
    begin so.
    """
    from tuneyard.client import UnknownError

    client = find_client()
    if client is None:
        return None
    here = [folder.sweep_id for folder in local_folders() if folder.sweep_id.startswith(sweep_id)]
    try:
        view = client.sweep(sweep_id, trials=trials)
    except UnknownError:
        return None
    except TuneyardError as error:
        if not here:
            raise
        print(f"warning: {error}", file=sys.stderr)
        return None
    if here:
        ids = ", ".join([*here[:5], view.sweep_id])
        raise InputError(f"sweep {sweep_id!r}: {ids} begin so; give more of the id")
    return client, view


def for_the_service(spec: SweepSpec, client: Client) -> SweepSpec:
    """The spec as the service can run it: what it names on this machine is uploaded, unless the two share a home.

    Raises InputError for a folder and for a pattern, which are many files.
    """
    from tuneyard import logins
    from tuneyard_pipelines.spec import at_paths, data_files

    if (own := logins.read(settings.find_home())) is not None and own.url == client.url:
        return spec
    sent: dict[tuple[str, ...], str] = {}
    for key, named in data_files(spec.data).items():
        if not Path(named).is_file():
            raise InputError(
                f"{'.'.join(key)}: {named} is not one file, and only single files are sent to {client.url}; join them, "
                "or put them where the service reads, and name them as they are there"
            )
        kept = client.upload(Path(named))
        assert kept.path is not None
        print(f"{Path(named).name}: kept by the service as {kept.digest[:12]}", file=sys.stderr)
        sent[key] = kept.path
    return spec.model_copy(update={"data": at_paths(spec.data, sent)})


def ids(incomplete: str) -> list[tuple[str, str]]:
    """For a shell that completes a sweep's id: those that begin so, each with its sweep's name. Never raises."""
    found: dict[str, str] = {}

    def ask() -> None:
        with contextlib.suppress(Exception):  # whatever is wrong, the command itself says
            if (client := find_client()) is not None:
                found.update({one.sweep_id: one.name for one in client.page(limit=MOST_COMPLETED).sweeps})

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    with contextlib.suppress(Exception):
        found.update({folder.sweep_id: folder.header().spec.name for folder in local_folders()})
    asking.join(COMPLETION_S)
    return [(sweep_id, name) for sweep_id, name in dict(found).items() if sweep_id.startswith(incomplete)]


def local(sweep_id: str) -> SweepFolder:
    """The local sweep whose id begins so, which may be driven here.

    Raises UnreachableError for one of the queue: that is its service's to drive.
    """
    from tuneyard import sweeps

    folder = sweeps.find(settings.find_home(), sweep_id)
    if folder.submitted.exists():
        raise UnreachableError(
            f"sweep {folder.sweep_id} is in the queue, and its service is not here; start that with: tuneyard up, or "
            "name it: tuneyard login URL"
        )
    return folder


def local_folders() -> list[SweepFolder]:
    """The folders of this home's sweeps that are in no queue, newest first."""
    from tuneyard import sweeps

    return [folder for folder in sweeps.all_folders(settings.find_home()) if not folder.submitted.exists()]


def state_text(sweep: Listed) -> str:
    """The state, and why it is in it."""
    return f"{sweep.state} ({sweep.reason})" if sweep.reason else sweep.state
