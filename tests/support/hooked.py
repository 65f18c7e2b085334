"""Webhooks in tests: a hook, sweeps that end, and a courier that brings what is owed of them."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
from collections.abc import Callable, Iterator

from driven_sweep import SPEC

from tuneyard import jobs, webhooks
from tuneyard.courier import Courier
from tuneyard.jobs import DriverEnd, Job
from tuneyard.store import Entry, Shape, Store
from tuneyard.webhooks import Due, Hook, Webhooks

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
NOW_MS = 1_800_000_000_000


def make(hooks: Webhooks, *events: str, url: str = "https://hooks.test/x", form: webhooks.Format = "json") -> Hook:
    return hooks.create(url, events, form, created_by="root", now_ms=NOW_MS)[0]


def submit(store: Store, sweep_id: str) -> Entry:
    entry = Entry(Job(sweep_id), "dates", "ann", 50, 1, SPEC, Shape(1, 0, 1))
    return store.submit(entry, "ann", NOW_MS)


def end(store: Store, sweep_id: str, how: str = "succeeded", reason: str = "", message: str = "") -> None:
    """Submitted, run, and ended so."""
    entry = submit(store, sweep_id)
    moves: list[Callable[[Job], Job]] = [
        lambda job: jobs.claimed(job, 1),
        lambda job: jobs.started(job, 2),
        lambda job: jobs.driver_ended(job, DriverEnd(how, reason, message), 3, most_losses=1),  # type: ignore[arg-type]
    ]
    for move in moves:
        entry = store.change(entry, move(entry.job), actor="dispatcher", now_ms=NOW_MS + 5, what="moved")


def only_due(hooks: Webhooks, hook: Hook, now_ms: int = NOW_MS) -> Due:
    due = hooks.next_due(hook.hook_id, now_ms)
    assert due is not None
    return due


@contextlib.contextmanager
def bringing(hooks: Webhooks, leads: Callable[[], bool] = lambda: True) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=Courier(hooks, LOOPBACK, leads).work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
