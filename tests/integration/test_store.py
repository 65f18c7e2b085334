"""What the queue remembers, the same over SQLite and over a real PostgreSQL."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from postgres import Postgres

from tuneyard import jobs, webhooks
from tuneyard.database import VERSION_TABLE, Database
from tuneyard.jobs import Job
from tuneyard.store import (
    LEAD_TTL_S,
    REGISTERED,
    Conflict,
    Entry,
    Event,
    Lead,
    LeadLost,
    Limits,
    Pause,
    Rival,
    Shape,
    Store,
    SweepUse,
    TrialRow,
)
from tuneyard.tables import METADATA
from tuneyard.webhooks import Answer, Try, Webhooks
from tuneyard_pipelines.errors import InputError, RefusedError, UnreachableError

pytestmark = pytest.mark.integration

SHAPE = Shape(cpus=1, gpus=1, memory_bytes=2**40, workers=2)
ODD = "naïve 数据 'quoted' \"twice\" %s :name {} \\ \n"


def entry(sweep_id: str, *, owner: str = "ada", priority: int = 50, state: jobs.State = "queued") -> Entry:
    return Entry(
        job=Job(sweep_id, state=state),
        name="dates",
        owner=owner,
        priority=priority,
        spec_version=1,
        spec_text="version: 1\n",
        shape=SHAPE,
    )


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'queue 100%.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = Store.open(url)
    store.migrate()
    yield store
    store.close()


def ids(entries: list[Entry] | tuple[Entry, ...]) -> list[str]:
    return [entry.job.sweep_id for entry in entries]


def told(events: list[Event]) -> list[tuple[str, str, str, str]]:
    return [(event.what, event.before, event.after, event.reason) for event in events]


def at_once(*calls: Callable[[], object]) -> list[object]:
    """What each of them gave or raised, called in as many threads at the same moment."""
    ready = threading.Barrier(len(calls))
    answers: list[object] = [None] * len(calls)

    def run(place: int, call: Callable[[], object]) -> None:
        ready.wait()
        try:
            answers[place] = call()
        except Exception as error:
            answers[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def processes(count: int, script: str, *words: str) -> list[str]:
    """What `count` interpreters print that run `script` side by side; fails when one of them does."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", script, *words]
    started = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    answers = [process.communicate() for process in started]
    assert [err for process, (_, err) in zip(started, answers, strict=True) if process.returncode] == []
    return [out for out, _ in answers]


def test_the_migrated_tables_are_those_that_the_store_uses(url: str, store: Store) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_postgresql_sorts_ids_as_sqlite_does_whatever_its_language(postgres: Postgres) -> None:
    database = Database(postgres.url())
    database.migrate()
    query = "SELECT DISTINCT collation_name FROM information_schema.columns WHERE column_name IN ('sweep_id', 'trial')"
    with database.reading() as connection:
        assert connection.execute(sa.text(query)).scalars().all() == ["C"]
    database.close()


def test_migrating_again_changes_nothing(store: Store) -> None:
    store.submit(entry("a"), "ada", 1)
    store.migrate()
    assert ids(store.waiting()) == ["a"]


def test_tables_of_a_newer_version_are_refused(url: str, store: Store) -> None:
    database = Database(url)
    with database.writing() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(RefusedError, match="of version 9999, this Tuneyard knows 0005 at most; install the newer"):
        store.migrate()
    database.close()


def test_a_database_that_mlflow_keeps_its_own_version_in_is_shared(url: str) -> None:
    database = Database(url)
    with database.writing() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(sa.text("INSERT INTO alembic_version VALUES ('1b49d398cd23')"))
    database.migrate()
    with database.reading() as connection:
        versions = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
    assert versions == ["1b49d398cd23"]
    database.close()


START = """
import sys
from tuneyard.jobs import Job
from tuneyard.store import Entry, Shape, Store
for url in sys.argv[1].split("\\n"):
    store = Store.open(url)
    store.migrate()
    job = Job(f"sweep{sys.argv[2]}")
    store.submit(Entry(job, "dates", "ada", 50, 1, "", Shape(1, 0, 1)), "ada", 1)
    store.close()
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_q9_services_that_start_at_once_on_an_empty_database_all_run(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        urls = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(3)]
    else:
        server: Postgres = request.getfixturevalue("postgres")
        urls = [server.url() for _ in range(3)]
    processes(3, START, "\n".join(urls))
    for url in urls:
        store = Store.open(url)
        assert ids(store.waiting()) == ["sweep0", "sweep1", "sweep2"]
        store.close()


SWITCH = """
import sys
from tuneyard.database import Database
for url in sys.stdin:
    database = Database(url.strip())
    database._write_ahead()
    database.close()
    print("done", flush=True)
"""


def test_processes_switch_a_new_file_to_write_ahead_at_once(tmp_path: Path) -> None:
    """In step, on many files: SQLite refuses one of two on some of them, where they do not take turns."""
    command = [sys.executable, "-c", SWITCH]
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(4)
        ]
        for number in range(60):
            for process in started:
                assert process.stdin is not None
                process.stdin.write(f"sqlite:///{tmp_path / f'{number}.db'}\n")
                process.stdin.flush()
            for process in started:
                assert process.stdout is not None
                assert process.stdout.readline() == "done\n"


def test_what_was_submitted_is_read_as_it_was(store: Store) -> None:
    job = Job("a", reason="cluster_lost", message=ODD, attempt=3, losses=2, ran=True, started_ms=2**42, ended_ms=None)
    given = Entry(job, ODD, ODD, 100, 1, ODD * 1000, SHAPE, most_trials=7, waits_for=ODD, gpu_ms=2**50)
    accepted = store.submit(given, "ada", 2**41)
    assert accepted == replace(given, job=replace(job, queued_ms=2**41), submitted_ms=2**41, revision=1)
    assert store.get("a") == accepted
    (event,) = store.events("a")
    assert (event.time_ms, event.actor) == (2**41, "ada")
    assert told([event]) == [("submitted", "", "queued", "")]


def test_text_that_no_database_holds_is_kept_but_for_that(store: Store) -> None:
    accepted = store.submit(entry("a"), "ada", 1)
    store.change(accepted, replace(accepted.job, message="died\0 of \udcff"), actor="ada", now_ms=2, what="noted")
    assert store.get("a").job.message == "died? of ?"
    with pytest.raises(InputError):
        store.find("\0")


def test_an_id_is_taken_once(store: Store) -> None:
    store.submit(entry("a"), "ada", 1)
    with pytest.raises(RefusedError, match="'a' is there already"):
        store.submit(entry("a", owner="bob"), "bob", 2)
    assert store.get("a").owner == "ada"
    assert len(store.events("a")) == 1


def test_of_an_id_submitted_twice_at_once_there_is_one(store: Store) -> None:
    answers = at_once(*(lambda: store.submit(entry("a"), "ada", 1) for _ in range(4)))
    assert sorted(type(answer).__name__ for answer in answers) == ["Entry", *["RefusedError"] * 3]


def test_q2_a_submit_under_the_same_key_is_the_same_sweep(store: Store) -> None:
    first = store.submit(replace(entry("a"), submit_key="k"), "ada", 1)
    assert store.submit(replace(entry("b"), submit_key="k"), "ada", 2) == first
    assert store.submit(replace(entry("c", owner="bob"), submit_key="k"), "bob", 3).job.sweep_id == "c", "another's key"
    with pytest.raises(RefusedError, match="key 'k': sweep a was submitted under it, with another spec"):
        store.submit(replace(entry("d"), submit_key="k", spec_text="other"), "ada", 4)
    assert ids(store.waiting()) == ["a", "c"]
    assert [event.what for event in store.events("a")] == ["submitted"]


def test_q2_of_submits_under_one_key_at_once_there_is_one_sweep(store: Store) -> None:
    answers = at_once(*(partial(store.submit, replace(entry(f"s{n}"), submit_key="k"), "ada", 1) for n in range(6)))
    assert len({answer.job.sweep_id for answer in answers if isinstance(answer, Entry)}) == 1
    assert len(store.waiting()) == 1


@pytest.mark.parametrize("priority", [-1, 101])
def test_a_priority_has_bounds(store: Store, priority: int) -> None:
    with pytest.raises(InputError, match=f"found {priority}; allowed: 0 to 100"):
        store.submit(entry("a", priority=priority), "ada", 1)
    store.submit(entry("a"), "ada", 1)
    with pytest.raises(InputError, match=f"found {priority}; allowed: 0 to 100"):
        store.prioritise("a", priority, "ada", 2)


def test_a_sweep_is_found_by_how_its_id_begins(store: Store) -> None:
    for sweep_id in ("ab12", "ab34", "c%_"):
        store.submit(entry(sweep_id), "ada", 1)
    assert store.find("ab1").job.sweep_id == "ab12"
    assert store.find("c%").job.sweep_id == "c%_"
    with pytest.raises(InputError, match="'ab': ab12, ab34 begin so; give more of the id"):
        store.find("ab")
    for unknown in ("", "AB1", "%", "ab_2"):
        with pytest.raises(InputError, match="not in the queue"):
            store.find(unknown)
    with pytest.raises(InputError, match="'ab1': not in the queue"):
        store.get("ab1")


def test_pages_go_on_where_they_ended_while_sweeps_are_added(store: Store) -> None:
    for number in range(7):
        store.submit(entry(f"s{number}"), "ada", 1000 + number // 2)  # two of a moment
    seen: list[str] = []
    after = None
    for late in range(4):
        page = store.entries(limit=2, after=after)
        seen += ids(page.entries)
        after = page.after
        store.submit(entry(f"late{late}"), "ada", 5000)
    assert seen == ["s6", "s5", "s4", "s3", "s2", "s1", "s0"]
    assert after is None


def test_pages_can_be_of_one_owner_and_of_some_states(store: Store) -> None:
    store.submit(entry("a"), "ada", 1)
    store.submit(entry("b", owner="bob"), "bob", 2)
    store.submit(entry("c", state="failed"), "ada", 3)
    assert ids(store.entries(owner="ada").entries) == ["c", "a"]
    assert ids(store.entries(states=jobs.ENDED).entries) == ["c"]
    assert ids(store.entries(states={"queued"}, owner="bob").entries) == ["b"]
    assert store.entries(states=[]).entries == ()
    assert store.entries(after="1:\0").entries == ()


@pytest.mark.parametrize("after", ["", "a", "12", ":a", "x:a", "²:a", "9" * 30 + ":a"])
def test_a_page_after_nothing_is_refused(store: Store, after: str) -> None:
    with pytest.raises(InputError, match="no page ends so"):
        store.entries(after=after)


def test_the_queue_is_in_order_of_priority_then_age_then_id(store: Store) -> None:
    for sweep_id, priority, now_ms in [("a", 50, 9), ("B", 50, 9), ("c", 50, 8), ("d", 80, 99), ("e", 0, 1)]:
        store.submit(entry(sweep_id, priority=priority), "ada", now_ms)
    assert ids(store.waiting()) == ["d", "c", "B", "a", "e"]
    assert store.active() == []
    store.change(store.get("d"), jobs.claimed(store.get("d").job, 100), actor="d1", now_ms=100, what="claimed")
    assert ids(store.waiting()) == ["c", "B", "a", "e"]
    assert ids(store.active()) == ["d"]


def test_a_change_is_written_with_its_event(store: Store) -> None:
    accepted = store.submit(entry("a"), "ada", 1)
    waits = store.change(accepted, accepted.job, actor="d1", now_ms=2, what="waits", waits_for="needs 4 GPUs")
    assert store.get("a").waits_for == "needs 4 GPUs"
    claimed = store.change(waits, jobs.claimed(waits.job, 3), actor="d1", now_ms=3, what="claimed")
    assert claimed == store.get("a")
    assert (claimed.job.attempt, claimed.waits_for, claimed.revision) == (1, "", 3)
    ended = jobs.driver_ended(claimed.job, jobs.DriverEnd("lost", "driver_lost", "out of memory"), 4, most_losses=3)
    back = store.change(claimed, ended, actor="d1", now_ms=4, what="lost", gpu_ms=77)
    assert store.get("a") == back
    assert (back.gpu_ms, back.job.losses) == (77, 1)
    assert told(store.events("a")) == [
        ("submitted", "", "queued", ""),
        ("claimed", "queued", "submitting", ""),
        ("lost", "submitting", "queued", "driver_lost"),
    ]
    last = store.events("a")[-1]
    assert (last.actor, last.time_ms, last.message) == ("d1", 4, "out of memory")


def test_a_new_reason_in_the_same_state_is_an_event(store: Store) -> None:
    running = store.submit(entry("a", state="running"), "ada", 1)
    stopping = store.change(running, jobs.stopped(running.job, "user_stop", 2), actor="ada", now_ms=2, what="stop")
    store.change(stopping, jobs.stopped(stopping.job, "user_cancel", 3), actor="bob", now_ms=3, what="cancel")
    assert told(store.events("a"))[1:] == [
        ("stop", "running", "stopping", "user_stop"),
        ("cancel", "stopping", "stopping", "user_cancel"),
    ]


def test_who_changes_what_somebody_changed_meanwhile_is_told(store: Store) -> None:
    seen = store.submit(entry("a"), "ada", 1)
    store.change(seen, jobs.stopped(seen.job, "user_cancel", 2), actor="ada", now_ms=2, what="cancelled")
    with pytest.raises(Conflict, match="sweep a was changed meanwhile and is cancelled now"):
        store.change(seen, jobs.claimed(seen.job, 3), actor="d1", now_ms=3, what="claimed")
    assert store.get("a").job.state == "cancelled"
    assert len(store.events("a")) == 2
    with pytest.raises(InputError, match="'b': not in the queue"):
        store.change(replace(seen, job=Job("b")), Job("b"), actor="d1", now_ms=3, what="claimed")


def test_of_claims_at_once_one_wins(store: Store) -> None:
    for number in range(5):
        seen = store.submit(entry(f"s{number}"), "ada", 1)
        claims = [
            lambda seen=seen, who=who: store.change(
                seen, jobs.claimed(seen.job, 2), actor=f"d{who}", now_ms=2, what="claimed"
            )
            for who in range(4)
        ]
        answers = at_once(*claims)
        assert sorted(type(answer).__name__ for answer in answers) == ["Conflict"] * 3 + ["Entry"]
        claimed = store.get(f"s{number}")
        assert (claimed.job.attempt, claimed.revision) == (1, 2)
        assert len(store.events(f"s{number}")) == 2


def test_a_priority_can_be_changed_until_the_end(store: Store) -> None:
    seen = store.submit(entry("a"), "ada", 1)
    assert store.prioritise("a", 80, "bob", 2) == store.get("a") == replace(seen, priority=80, revision=2)
    assert store.prioritise("a", 80, "bob", 3) == store.get("a")
    assert [(event.what, event.message) for event in store.events("a")] == [
        ("submitted", ""),
        ("prioritised", "priority 50 -> 80"),
    ]
    with pytest.raises(Conflict):
        store.change(seen, jobs.claimed(seen.job, 3), actor="d1", now_ms=3, what="claimed")
    store.submit(entry("b", state="succeeded"), "ada", 1)
    with pytest.raises(RefusedError, match="sweep b has succeeded"):
        store.prioritise("b", 1, "bob", 3)
    with pytest.raises(InputError, match="'c': not in the queue"):
        store.prioritise("c", 1, "bob", 3)


def test_gpu_time_is_counted_by_owner(store: Store) -> None:
    assert store.used_gpu_ms("ada") == 0
    for sweep_id, owner in [("a", "ada"), ("b", "ada"), ("c", "bob")]:
        seen = store.submit(entry(sweep_id, owner=owner), owner, 1)
        store.change(seen, seen.job, actor="d1", now_ms=2, what="used", gpu_ms=2**40)
    assert store.used_gpu_ms("ada") == 2**41
    assert store.events("a")[1:] == []


def trial(number: int, rung: int | None, score: float | None, state: str = "completed") -> TrialRow:
    return TrialRow(f"t{number}", number, f"t{number} heads=4", state, created_ms=number, rung=rung, score=score)


def test_a_trial_is_read_as_it_was_told_last(store: Store) -> None:
    first = trial(1, None, None, "running")
    full = TrialRow(
        trial="t2",
        number=2,
        name=ODD,
        state="diverged",
        created_ms=2**42,
        variant="gpt",
        rung=1,
        share=1 / 3,
        tokens=2**45,
        score=-0.25,
        ended_ms=2**42 + 1,
        message=ODD,
        trained_ms=2**33,
        since_ms=2**42,
        gpus=0.5,
        idle_gpu_ms=2**40,
        point={"model.d_model": 64, "training.learning_rate": 1e-3, "model.cell": ODD, "model.bias": True},
        metrics={"val/loss": math.inf, "a\0b": None},
    )
    store.put_trials("a", [first, full])
    store.put_trials("b", [replace(first, name="another sweep's")])
    assert store.trials("a", order="number", mode="max") == [first, full]
    store.put_trials("a", [replace(first, state="completed", score=0.0)])
    store.put_trials("a", [])
    assert store.trials("a", order="number", mode="max") == [replace(first, state="completed", score=0.0), full]
    assert [row.name for row in store.trials("b", order="number", mode="max")] == ["another sweep's"]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_none(store: Store, score: float) -> None:
    store.put_trials("a", [replace(trial(1, 0, score), metrics={"val/loss": score})])
    (row,) = store.trials("a", order="best", mode="max")
    assert row.score is None
    assert repr(row.metrics["val/loss"]) == repr(score)


def test_the_best_trial_stands_first(store: Store) -> None:
    rows = [
        trial(1, 0, 0.9),
        trial(2, 2, 0.5),
        trial(3, 2, 0.7),
        trial(4, None, None),
        trial(5, 2, None),
        trial(6, 1, 0.0),
        trial(7, 1, -0.1),
        trial(10, 2, 0.7),
    ]
    store.put_trials("a", reversed(rows))

    def order(mode: str, **options: int | str) -> list[int]:
        return [row.number for row in store.trials("a", order="best", mode=mode, **options)]  # type: ignore[arg-type]

    assert order("max") == [3, 10, 2, 5, 6, 7, 1, 4]
    assert order("min") == [2, 3, 10, 5, 7, 6, 1, 4]
    assert order("max", limit=3) + order("max", limit=3, offset=3) + order("max", offset=6) == order("max")
    assert [row.number for row in store.trials("a", order="number", mode="max", limit=2, offset=1)] == [2, 3]


def test_trials_can_be_of_one_state(store: Store) -> None:
    store.put_trials("a", [trial(1, 0, 0.1), trial(2, 0, 0.2, "running"), trial(3, 0, 0.3)])
    store.put_trials("b", [trial(1, 0, 0.1)])
    assert [row.number for row in store.trials("a", order="best", mode="max", state="completed")] == [3, 1]
    assert store.count_trials("a") == 3
    assert store.count_trials("a", "completed") == 2
    assert store.count_trials("c") == 0


def test_events_are_read_from_where_one_left_off(store: Store) -> None:
    store.submit(entry("a"), "ada", 1)
    store.submit(entry("b"), "ada", 2)
    store.note("a", "d1", "adopted", "found in Ray", 3)
    store.note(None, "d1", "cleaned", "2 runs closed", 4)
    store.note("a", "d1", "adopted", "again", 5)
    first, *rest = store.events("a")
    assert [event.message for event in store.events("a", after=first.id)] == ["found in Ray", "again"]
    assert store.events("a", after=first.id, limit=1) == rest[:1]
    assert store.events("a", after=rest[-1].id) == []
    (of_the_queue,) = store.events(None)
    assert of_the_queue == Event(of_the_queue.id, None, 4, "d1", "cleaned", "", "", "", "2 runs closed")


WRITE = """
import sys
from dataclasses import replace
from functools import partial
from tuneyard.jobs import Job
from tuneyard.store import Conflict, Entry, Shape, Store
store = Store.open(sys.argv[1])
who = sys.argv[2]
lost = 0
for number in range(100):
    store.submit(Entry(Job(f"{who}-{number}"), "dates", who, 50, 1, "", Shape(1, 0, 1)), who, number)
    shared = store.get("shared")
    try:
        store.change(shared, replace(shared.job, message=who), actor=who, now_ms=1, what="w", gpu_ms=shared.gpu_ms + 1)
    except Conflict:
        lost += 1
    store.note(None, who, "wrote", str(number), number)
print(lost)
"""


def test_two_processes_write_at_once_and_a_reader_misses_nothing(url: str, store: Store) -> None:
    store.submit(entry("shared"), "ada", 1)
    seen: list[Event] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            seen.extend(store.events(None, after=seen[-1].id if seen else 0))

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        lost = [int(out) for out in processes(2, WRITE, url)]
    finally:
        done.set()
        reader.join()
    while more := store.events(None, after=seen[-1].id):
        seen += more
    assert len(store.waiting()) == 201
    assert store.get("shared").gpu_ms == 200 - sum(lost)
    assert store.get("shared").revision == 201 - sum(lost)
    by_writer = {who: [int(event.message) for event in seen if event.actor == who] for who in ("0", "1")}
    assert by_writer == {"0": list(range(100)), "1": list(range(100))}


def lead_of(answer: object) -> Lead:
    assert isinstance(answer, Lead)
    return answer


def rival_of(answer: object) -> Rival:
    assert isinstance(answer, Rival)
    return answer


def test_what_is_owed_to_webhooks_and_what_became_of_it_is_kept(url: str, store: Store) -> None:
    database = Database(url)
    hooks = Webhooks(database)
    hook, _ = hooks.create("https://hooks.test/x", (), "json", created_by="root", now_ms=1)
    accepted = store.submit(entry("a", owner=ODD), "ada", 2)
    store.note_once("a", "driver", REGISTERED, "dates/1: candidate is now version 1", 3)
    store.note_once("a", "driver", REGISTERED, "dates/1: candidate is now version 1", 4)
    store.change(accepted, jobs.stopped(accepted.job, "user_cancel", 5), actor="ada", now_ms=5, what="cancelled")
    assert at_once(*[lambda: Webhooks(database).owe(6)] * 4) == [None] * 4
    assert [one.event for one in hooks.deliveries(hook.hook_id)] == ["sweep.cancelled", "candidate.registered"]
    first = hooks.next_due(hook.hook_id, 6)
    assert first is not None
    hooks.tried(first.delivery_id, Answer(500, ODD), now_ms=7, chance=0.5)
    hooks.tried(first.delivery_id, Answer(204), now_ms=15_007, chance=0.5)
    assert [one.state for one in hooks.deliveries(hook.hook_id)] == ["waiting", "delivered"]
    assert hooks.deliveries(hook.hook_id)[1].tries == (Try(1, 7, 500, ODD), Try(2, 15_007, 204, ""))
    assert [one.waiting for one in hooks.all()] == [1]
    second = hooks.next_due(hook.hook_id, 6)
    assert second is not None
    hooks.tried(second.delivery_id, Answer(410, "answers 410"), now_ms=20_000, chance=0.5)
    assert [(one.ended_ms, one.waiting) for one in hooks.all()] == [(20_000, 0)]
    assert hooks.due(2**50) == []
    assert hooks.delete(hook.hook_id, deleted_by="root", now_ms=8).hook_id == hook.hook_id
    assert hooks.all() == []
    database.close()


def test_what_was_used_is_summed_in_the_database(store: Store) -> None:
    accepted = store.submit(entry("a"), "ada", 1)
    claimed = store.change(accepted, jobs.claimed(accepted.job, 2), actor="d", now_ms=2, what="claimed")
    store.change(claimed, jobs.started(claimed.job, 3), actor="d", now_ms=3, what="started")
    rows = [
        replace(trial(1, 0, 0.5), ended_ms=2**42, trained_ms=500, idle_gpu_ms=300),
        trial(2, None, None, "diverged"),
    ]
    store.put_trials("a", [rows[0], replace(rows[1], trained_ms=2**40), replace(trial(3, 0, 0.5), ended_ms=50)])
    trained_ms = 500 + 2**40
    expected = SweepUse("dates", "ada", accepted.spec_text, 2, trained_ms, 2 * trained_ms, 300, 2**40)
    assert store.used(100, 2**42 + 100) == [expected]


def test_one_leads_and_the_next_watches_its_heart(store: Store) -> None:
    first = lead_of(store.take_lead("one", "t1", 1, clock_s=5.0))
    seen = rival_of(store.take_lead("two", "t2", 2, clock_s=1000.0))
    assert (seen.holder, seen.since_s) == ("one", 1000.0)
    store.beat(first)
    seen = rival_of(store.take_lead("two", "t2", 3, clock_s=1000.0 + LEAD_TTL_S, rival=seen))
    assert seen.since_s == 1000.0 + LEAD_TTL_S, "the heart has beaten: its silence begins anew"
    almost = 1000.0 + 2 * LEAD_TTL_S - 0.1
    assert store.take_lead("two", "t2", 4, clock_s=almost, rival=seen) == seen
    second = lead_of(store.take_lead("two", "t2", 5, clock_s=almost + 0.1, rival=seen))
    with pytest.raises(LeadLost, match="one no longer leads the queue, two does"):
        store.beat(first)
    store.beat(second)
    assert [(event.actor, event.what, event.message) for event in store.events(None)] == [
        ("one", "leads", ""),
        ("two", "leads", "one was silent for 10 s"),
    ]


def test_a_newcomer_takes_over_nobody_at_first_sight(store: Store) -> None:
    store.take_lead("one", "t1", 1, clock_s=0.0)
    assert isinstance(store.take_lead("two", "t2", 10**15, clock_s=10.0**9), Rival)


def test_a_lead_that_is_given_up_is_free_at_once(store: Store) -> None:
    first = lead_of(store.take_lead("one", "t1", 1, clock_s=0.0))
    store.release(first)
    second = lead_of(store.take_lead("two", "t2", 2, clock_s=0.0))
    store.release(first)
    store.beat(second)
    with pytest.raises(LeadLost):
        store.beat(first)


def test_who_leads_takes_it_again_without_waiting(store: Store) -> None:
    store.take_lead("one", "t1", 1, clock_s=0.0)
    assert store.take_lead("one", "t1", 2, clock_s=0.1) == Lead("one", "t1")


def test_a_restarted_dispatcher_of_the_same_name_waits_for_itself(store: Store) -> None:
    store.take_lead("one", "t1", 1, clock_s=0.0)
    assert isinstance(store.take_lead("one", "t2", 2, clock_s=0.0), Rival)


def test_who_lost_the_lead_writes_nothing(store: Store) -> None:
    first = lead_of(store.take_lead("one", "t1", 1, clock_s=0.0))
    seen = store.submit(entry("a"), "ada", 1)
    claimed = store.change(seen, jobs.claimed(seen.job, 2), actor="one", now_ms=2, what="claimed", lead=first)
    store.put_trials("a", [trial(1, 0, 0.5)], lead=first)
    rival = rival_of(store.take_lead("two", "t2", 3, clock_s=0.0))
    second = lead_of(store.take_lead("two", "t2", 4, clock_s=LEAD_TTL_S, rival=rival))
    with pytest.raises(LeadLost, match="one no longer leads the queue, two does"):
        store.change(claimed, jobs.started(claimed.job, 5), actor="one", now_ms=5, what="started", lead=first)
    with pytest.raises(LeadLost):
        store.put_trials("a", [trial(1, 0, 0.9)], lead=first)
    assert store.get("a") == claimed
    assert [row.score for row in store.trials("a", order="best", mode="max")] == [0.5]
    assert len(store.events("a")) == 2
    store.change(claimed, jobs.started(claimed.job, 6), actor="two", now_ms=6, what="started", lead=second)
    assert store.get("a").job.state == "running"


def test_of_two_that_want_the_lead_at_once_one_has_it(store: Store) -> None:
    lead = lead_of(store.take_lead("first", "t", 1, clock_s=0.0))
    store.release(lead)
    free = at_once(*(lambda who=who: store.take_lead(who, f"t{who}", 2, clock_s=0.0) for who in "abc"))
    assert sorted(type(answer).__name__ for answer in free) == ["Lead", "Rival", "Rival"]
    rival = rival_of(store.take_lead("d", "td", 3, clock_s=0.0))
    silent = at_once(
        *(lambda who=who: store.take_lead(who, f"t{who}", 4, clock_s=LEAD_TTL_S, rival=rival) for who in "def")
    )
    assert sorted(type(answer).__name__ for answer in silent) == ["Lead", "Rival", "Rival"]


def test_the_queue_pauses_and_goes_on(store: Store) -> None:
    assert store.paused() is None
    store.go_on("ada", 1)
    store.pause("new disks", "ada", 2)
    assert store.paused() == Pause("new disks", 2, "ada")
    store.pause("", "bob", 3)
    assert store.paused() == Pause("", 3, "bob")
    store.go_on("bob", 4)
    assert store.paused() is None
    assert [(event.actor, event.what, event.message) for event in store.events(None)] == [
        ("ada", "paused", "new disks"),
        ("bob", "paused", ""),
        ("bob", "resumed", ""),
    ]


def test_limits_are_kept_by_owner(store: Store) -> None:
    assert store.limits() == {"*": Limits()}
    store.set_limits("*", Limits(sweeps=2), "root", 1)
    store.set_limits("ada", Limits(gpus=3, gpu_hours=100), "root", 2)
    store.set_limits("ada", Limits(sweeps=0, gpu_hours=0.0), "root", 3)
    assert store.limits() == {"*": Limits(sweeps=2), "ada": Limits(sweeps=0, gpu_hours=0.0)}
    assert [event.message for event in store.events(None)] == [
        "*: sweeps 2, gpus any, gpu_hours any",
        "ada: sweeps any, gpus 3, gpu_hours 100",
        "ada: sweeps 0, gpus any, gpu_hours 0",
    ]


@pytest.mark.parametrize("limits", [Limits(sweeps=-1), Limits(gpu_hours=math.nan), Limits(gpu_hours=math.inf)])
def test_a_limit_is_an_amount(store: Store, limits: Limits) -> None:
    with pytest.raises(InputError, match=r"limit of ada on .*: found .*; allowed: 0 to 1,000,000,000, or none"):
        store.set_limits("ada", limits, "root", 1)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "queue.db",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://me:s3cret@host/db",
        "postgresql://me:s3cret@host:x/db",
        "sqlite:///queue.db",  # another file to each process with a folder of its own
    ],
)
def test_what_is_no_database_is_refused(url: str) -> None:
    with pytest.raises(InputError, match=r"use sqlite:////absolute/path\.db or postgresql://") as refused:
        Store.open(url)
    assert "s3cret" not in str(refused.value)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Ada, this is no database at all.\n" * 100)
    (tmp_path / "folder.db").mkdir()
    for name in ("letter.db", "folder.db", "nowhere/queue.db"):
        with pytest.raises(InputError, match=rf"{name}: cannot be used \(.*\); free space, change its owner, or name"):
            Store.open(f"sqlite:///{tmp_path / name}").migrate()


def test_a_folder_that_is_not_ours_to_write_is_named() -> None:
    with pytest.raises(InputError, match=r"cannot be used \(.*\); free space, change its owner"):
        Store.open("sqlite:////proc/queue.db").migrate()  # where not even root may make a file


def test_what_happens_while_it_is_looked_what_is_owed_is_owed_once(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = Webhooks(Database(url))
    hook, _ = hooks.create("https://hooks.test/x", (), "json", created_by="root", now_ms=1)
    newest, left = webhooks._newest, ["b"]

    def ends(sweep_id: str) -> None:
        accepted = store.submit(entry(sweep_id), "ada", 2)
        store.change(accepted, jobs.stopped(accepted.job, "user_cancel", 5), actor="ada", now_ms=5, what="cancelled")

    def another_ends_meanwhile(connection: sa.Connection) -> int:
        found = newest(connection)
        while left:
            ends(left.pop())
        return found

    ends("a")
    monkeypatch.setattr(webhooks, "_newest", another_ends_meanwhile)
    hooks.owe(6)
    hooks.owe(7)
    told = [json.loads(one.body)["data"]["sweep_id"] for one in hooks.deliveries(hook.hook_id)]
    assert sorted(told) == ["a", "b"]


def test_a_writer_that_does_not_end_is_told_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuneyard.database.WAIT_S", 0)
    database, of_another = (Database(f"sqlite:///{tmp_path / 'queue.db'}") for _ in range(2))
    for next_one, told in ((database, "others have been writing"), (of_another, "another process has been writing")):
        with database.writing(), pytest.raises(UnreachableError, match=told), next_one.writing():
            pass
    database.close()
    of_another.close()


def test_a_server_that_is_away_is_told_without_its_password() -> None:
    with pytest.raises(UnreachableError, match=r"//me:\*\*\*@127.0.0.1:9/db: does not answer .*; see that it") as told:
        Store.open("postgresql://me:s3cret@127.0.0.1:9/db").migrate()
    assert "s3cret" not in str(told.value)


def test_a_database_that_the_server_does_not_have_is_the_urls_fault(postgres: Postgres) -> None:
    url = postgres.url().replace("/test", "/nosuch")
    with pytest.raises(InputError, match=r"does not exist; correct user, password or database in the URL"):
        Store.open(url).migrate()


def test_a_server_that_was_killed_and_is_back_goes_on_with_all_it_took() -> None:
    server = Postgres()
    try:
        store = Store.open(server.url())
        store.migrate()
        store.submit(entry("a"), "ada", 1)
        server.kill()
        with pytest.raises(UnreachableError, match="does not answer"):
            store.submit(entry("b"), "ada", 2)
        server.start()
        store.submit(entry("b"), "ada", 3)
        assert ids(store.waiting()) == ["a", "b"]
        server.kill()
        server.start()
        assert ids(store.waiting()) == ["a", "b"], "a dead connection is noticed before it is used"
        store.close()
    finally:
        server.stop()
