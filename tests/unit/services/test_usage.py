"""What users and projects have used: which trials count, how much of each, and for whom."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from driven_sweep import SPEC
from service import Served, serving

from tuneyard import jobs, logins
from tuneyard.database import Database
from tuneyard.jobs import DriverEnd, Job
from tuneyard.store import Entry, Shape, Store, TrialRow
from tuneyard.usage import Used, usage

HOUR_MS = 3_600_000
NOW_MS = 500_000 * HOUR_MS
DAY_AGO_MS = NOW_MS - 24 * HOUR_MS


@pytest.fixture
def store(database: Database) -> Store:
    return Store(database)


def sweep(
    store: Store,
    sweep_id: str,
    *,
    owner: str = "ann",
    name: str = "dates",
    gpus: float = 0,
    workers: int = 1,
    project: str = "",
    ended_ms: int | None = None,
    begun: bool = True,
) -> None:
    """One that began a week ago."""
    text = SPEC.replace("tags: {team: nlp}", f"tags: {{project: '{project}'}}") if project else SPEC
    entry = store.submit(Entry(Job(sweep_id), name, owner, 50, 1, text, Shape(1, gpus, 1, workers)), owner, 1)
    job = entry.job
    if begun:
        job = jobs.started(jobs.claimed(job, NOW_MS - 7 * 24 * HOUR_MS), NOW_MS)
    if ended_ms is not None:
        job = jobs.driver_ended(job, DriverEnd("succeeded"), ended_ms, most_losses=1)
    store.change(entry, job, actor="d", now_ms=1, what="moved")


def trial(number: int, state: str, began_h: float, ended_h: float | None, trained_h: float, **more: Any) -> TrialRow:
    """Times are hours before now."""
    return TrialRow(
        f"t{number:03d}",
        number,
        "",
        state,
        created_ms=int(NOW_MS - began_h * HOUR_MS),
        ended_ms=None if ended_h is None else int(NOW_MS - ended_h * HOUR_MS),
        trained_ms=int(trained_h * HOUR_MS),
        **more,
    )


def used(store: Store, by: Any = "user") -> dict[str, Used]:
    found = usage(store, by, since_ms=DAY_AGO_MS, now_ms=NOW_MS)
    assert (found.by, found.since_ms, found.until_ms) == (by, DAY_AGO_MS, NOW_MS)
    return {row.name: row for row in found.rows}


def test_of_a_trial_counts_what_it_trained_in_this_time(store: Store) -> None:
    cases = [
        (trial(1, "completed", 20, 10, 4), 4.0),  # all of it in this time
        (trial(1, "completed", 48, 21, 2), 2.0),  # over its beginning, by no more than it can be
        (trial(1, "completed", 48, 21, 20), 3.0),
        (trial(1, "completed", 48, 24, 20), None),  # before it
        (trial(1, "waiting", 48, None, 5), 5.0),
        (trial(1, "waiting", 48, None, 30), 24.0),
        (trial(1, "running", 20, None, 1, since_ms=NOW_MS - 2 * HOUR_MS), 3.0),
        (trial(1, "running", 48, None, 0, since_ms=NOW_MS - 40 * HOUR_MS), 24.0),
        (trial(1, "running", 1, None, 0, since_ms=NOW_MS + HOUR_MS), 0.0),  # by a clock that is ahead
    ]
    for at, (row, _) in enumerate(cases):
        sweep(store, f"s{at}", owner=f"owner{at}", gpus=2, workers=3)
        store.put_trials(f"s{at}", [row])
    found = used(store)
    for at, (row, hours) in enumerate(cases):
        trials, counts = (0, 0.0) if hours is None else (1, hours)
        assert found[f"owner{at}"] == Used(f"owner{at}", 1, trials, counts, 6 * counts, 0.0, 0.0), row


def test_what_never_ended_by_itself_ends_with_its_sweep(store: Store) -> None:
    sweep(store, "a", ended_ms=NOW_MS - 22 * HOUR_MS)
    sweep(store, "before", ended_ms=DAY_AGO_MS, owner="bob")
    sweep(store, "waits", owner="bob", begun=False)
    for sweep_id in ("a", "before"):
        store.put_trials(sweep_id, [trial(1, "error", 48, None, 20), trial(2, "cancelled", 48, 30, 3)])
    assert used(store) == {"ann": Used("ann", 1, 1, 2.0, 0.0, 0.0, 2.0)}


def test_users_and_projects_are_told_apart_and_who_used_most_is_first(store: Store) -> None:
    sweep(store, "a", owner="ann", gpus=1, project="search")
    sweep(store, "b", owner="bob", name="b", gpus=2, project="search")
    sweep(store, "c", owner="ann", name="lines")
    for sweep_id in "abc":
        failed = [trial(4 + at, state, 2, 1, 0.5) for at, state in enumerate(("diverged", "stalled"))]
        store.put_trials(sweep_id, [trial(1, "completed", 2, 1, 1), trial(2, "cancelled", 2, 1, 1), *failed])
    ann, bob = Used("ann", 2, 8, 6.0, 3.0, 0.0, 2.0), Used("bob", 1, 4, 3.0, 6.0, 0.0, 1.0)
    assert list(used(store).values()) == [bob, ann]
    search, lines = Used("search", 2, 8, 6.0, 9.0, 0.0, 2.0), Used("lines", 1, 4, 3.0, 0.0, 0.0, 1.0)
    assert list(used(store, "project").values()) == [search, lines]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path / ".tuneyard") as found:
        yield found


def test_the_command_tells_what_the_service_knows(served: Served, tmp_path: Path, cli: Any) -> None:
    store = served.service.store
    logins.keep(tmp_path / ".tuneyard", logins.Login(served.url, served.token("eve", "viewer")))
    assert cli("usage").out.startswith("nothing ran since 20")
    sweep(store, "a", gpus=1)
    row = trial(1, "completed", 3, 1, 1.5, idle_gpu_ms=HOUR_MS // 2)
    shift_ms = int(time.time() * 1000) - NOW_MS
    assert row.ended_ms is not None
    store.put_trials("a", [replace(row, created_ms=row.created_ms + shift_ms, ended_ms=row.ended_ms + shift_ms)])
    head, line = cli("usage", "--by", "project", "--since", "1d12h").out.splitlines()
    assert head.split() == [
        "project",
        "sweeps",
        "trials",
        "trial-hours",
        "GPU-hours",
        "idle",
        "GPU-hours",
        *["failed", "trial-hours"],
    ]
    assert line.split() == ["dates", "1", "1", "1.50", "1.50", "0.50", "0.00"]
    told = json.loads(cli("usage", "--json").out)
    assert told["rows"] == [vars(Used("ann", 1, 1, 1.5, 1.5, 0.5, 0.0))]
    assert told["until_ms"] - told["since_ms"] == pytest.approx(7 * 24 * HOUR_MS, abs=60_000)
    for words, why in ((("--by", "node"), "allowed: user, project"), (("--since", "2y"), "allowed: 1s to 366d")):
        wrong = cli("usage", *words)
        assert (wrong.code, why in wrong.err) == (2, True)


def test_each_trial_counts_with_the_gpus_that_it_held_itself(store: Store) -> None:
    """Of a mixed sweep; a row of before says nothing of them and counts with those of the sweep."""
    sweep(store, "s1", gpus=0.5, workers=4)
    rows = [trial(1, "completed", 20, 10, 4, gpus=0.5), trial(2, "completed", 20, 10, 2, gpus=2.0)]
    store.put_trials("s1", [*rows, trial(3, "completed", 20, 10, 1)])
    assert (used(store)["ann"].trial_hours, used(store)["ann"].gpu_hours) == (7.0, 0.5 * 4 + 2.0 * 2 + 2.0 * 1)


def test_idle_gpus_are_some_of_the_gpus_that_were_used_in_this_time(store: Store) -> None:
    sweep(store, "s1", gpus=1)
    rows = [
        trial(1, "completed", 20, 10, 4, gpus=2.0, idle_gpu_ms=3 * HOUR_MS),
        trial(2, "completed", 48, 22, 20, gpus=0.5, idle_gpu_ms=7 * HOUR_MS),  # two hours of it in this time
        trial(3, "completed", 48, 30, 9, idle_gpu_ms=5 * HOUR_MS),  # before it
        trial(4, "completed", 20, 10, 1),
    ]
    store.put_trials("s1", rows)
    assert (used(store)["ann"].gpu_hours, used(store)["ann"].idle_gpu_hours) == (8.0 + 1.0 + 1.0, 3.0 + 1.0)
