"""What the queue remembers: its sweeps, their trials, every change as an event, who leads it, what users may use.

Each write is one short transaction, and no other write overlaps it (`database`). A sweep's row counts its changes in
`revision`: who changes it names the one they saw, so that of two who decide at once one is told.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy.dialects import postgresql, sqlite

from tuneyard.database import Database
from tuneyard.jobs import ACTIVE, ENDED, Job, State
from tuneyard.tables import EVENTS, LIMITS, QUEUE, SWEEPS, TRIALS
from tuneyard_pipelines.capacity import Shape
from tuneyard_pipelines.errors import InputError, RefusedError
from tuneyard_pipelines.journal import FAILURES

Mode = Literal["min", "max"]
LEAD_TTL_S = 10.0
MOST_OF_ALL = 1_000_000_000  # of anything that is limited
EVERYBODY = "*"
"""The owner whose limits are those of all who have none of their own."""
REGISTERED = "model registered"
"""The event of a sweep whose best model is in the registry, and which one: `NAME/VERSION: what the candidate is`."""


@dataclass(frozen=True)
class Entry:
    """A sweep in the queue.

    `priority`: 0 to 100, the higher the sooner. `most_trials`: at once; None for as many as fit. `waits_for`: while it
    is queued, what it waits for. `gpu_ms`: GPU time used so far. `revision`: how often it was written. `submit_key`:
    what its submitter called the submit, so that the same one, sent again, is known again.
    """

    job: Job
    name: str
    owner: str
    priority: int
    spec_version: int
    spec_text: str
    shape: Shape
    most_trials: int | None = None
    submitted_ms: int = 0
    waits_for: str = ""
    gpu_ms: int = 0
    revision: int = 0
    submit_key: str | None = None


@dataclass(frozen=True)
class Page:
    """Some of the entries, and where the next page goes on; None for the last one."""

    entries: tuple[Entry, ...]
    after: str | None


@dataclass(frozen=True)
class TrialRow:
    """A trial as its sweep's journal told it last.

    `trained_ms`: in legs that are over; `since_ms`: when the present one began, if there is one. `gpus`: how many it
    holds while it trains; None, of rows of before, for those of its sweep's shape. `idle_gpu_ms`: of GPUs that it held
    while they were idle.
    """

    trial: str
    number: int
    name: str
    state: str
    created_ms: int
    variant: str = ""
    rung: int | None = None
    share: float = 0.0
    tokens: int = 0
    score: float | None = None
    ended_ms: int | None = None
    message: str = ""
    trained_ms: int = 0
    since_ms: int | None = None
    gpus: float | None = None
    idle_gpu_ms: int = 0
    point: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepUse:
    """What a sweep used in some time: for how long its trials trained and failed, held GPUs, and held idle ones."""

    name: str
    owner: str
    spec_text: str
    trials: int
    trained_ms: int
    gpu_ms: int
    idle_gpu_ms: int
    failed_ms: int


@dataclass(frozen=True)
class Event:
    """Who did what to a sweep, or, without one, to the queue itself.

    `before` and `after` are the job's states, where they or its reason changed.
    """

    id: int
    sweep_id: str | None
    time_ms: int
    actor: str
    what: str
    before: str
    after: str
    reason: str
    message: str


@dataclass(frozen=True)
class Lead:
    """The right to dispatch, which one process has at a time; its writes carry it."""

    holder: str
    token: str


@dataclass(frozen=True)
class Rival:
    """Another's lead as a newcomer watches it: since when, by the newcomer's own clock, its heart has not beaten."""

    holder: str
    token: str
    beat: int
    since_s: float


@dataclass(frozen=True)
class Pause:
    """Why nothing is started at present."""

    reason: str
    since_ms: int
    by: str


@dataclass(frozen=True)
class Limits:
    """What one owner may use: sweeps that run at once, GPUs at once, GPU-hours in all; None for any amount."""

    sweeps: int | None = None
    gpus: int | None = None
    gpu_hours: float | None = None


class UnknownSweepError(InputError):
    """There is no such sweep in the queue."""


class Conflict(RefusedError):
    """Somebody else changed the sweep since it was read."""


class LeadLost(RefusedError):
    """Another dispatcher leads."""


class Store:
    """Safe to use from many threads and processes. Every method may raise what `Database.writing` does."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str) -> Store:
        """Raises InputError for a URL that is neither SQLite's nor PostgreSQL's. `migrate` comes before all else."""
        return cls(Database(url))

    def close(self) -> None:
        self._database.close()

    def migrate(self) -> None:
        """Make the tables, or bring them to this version. Raises RefusedError for those of a newer one."""
        self._database.migrate()

    def submit(self, entry: Entry, actor: str, now_ms: int) -> Entry:
        """Put it at the end of the queue; what its owner submitted under the same key before is given as it is now.

        Raises InputError for its priority, RefusedError where its id is taken, or its key for another spec.
        """
        _check_priority(entry.priority)
        sweep_id = entry.job.sweep_id
        entry = replace(entry, job=replace(entry.job, queued_ms=now_ms), submitted_ms=now_ms, revision=1)
        with self._database.writing() as connection:
            if (before := _submitted(connection, entry)) is not None:
                if before.spec_text != entry.spec_text:
                    raise RefusedError(
                        f"key {entry.submit_key!r}: sweep {before.job.sweep_id} was submitted under it, with another "
                        "spec; submit this one under a new key"
                    )
                return before
            if _row_of(connection, sweep_id) is not None:
                raise RefusedError(f"sweep {sweep_id!r} is there already; submit it under a new id")
            connection.execute(sa.insert(SWEEPS), _columns(entry))
            happened(connection, sweep_id, actor, "submitted", now_ms, after=entry.job.state)
        return entry

    def submitted_as(self, owner: str, key: str) -> Entry | None:
        """What this owner submitted under a key."""
        with self._database.reading() as connection:
            row = connection.execute(_BY_KEY, {"of": owner, "key": key}).mappings().one_or_none()
        return None if row is None else _entry(row)

    def get(self, sweep_id: str) -> Entry:
        """Raises InputError for one that is not there."""
        with self._database.reading() as connection:
            return _entry_of(connection, sweep_id)

    def find(self, prefix: str) -> Entry:
        """The sweep whose id begins so. Raises InputError when none or several do."""
        begins = sa.and_(SWEEPS.c.sweep_id >= prefix, SWEEPS.c.sweep_id < f"{prefix}\U0010ffff")
        query = sa.select(SWEEPS).where(begins if prefix else sa.false()).order_by(SWEEPS.c.sweep_id).limit(6)
        with self._database.reading() as connection:
            found = [_entry(row) for row in connection.execute(query).mappings()]
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(entry.job.sweep_id for entry in found[:5]) + (", ..." if len(found) > 5 else "")
            raise InputError(f"sweep {prefix!r}: {ids} begin so; give more of the id")
        raise _unknown(prefix)

    def entries(
        self,
        states: Iterable[State] | None = None,
        owner: str | None = None,
        name: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Newest first, from where the page before ended (`Page.after`), whatever was submitted meanwhile.

        Raises InputError for a place that no page has told.
        """
        age = sa.tuple_(SWEEPS.c.submitted_ms, SWEEPS.c.sweep_id)
        query = sa.select(SWEEPS).order_by(SWEEPS.c.submitted_ms.desc(), SWEEPS.c.sweep_id.desc()).limit(limit + 1)
        if states is not None:
            query = query.where(SWEEPS.c.state.in_(list(states)))
        if owner is not None:
            query = query.where(SWEEPS.c.owner == owner)
        if name is not None:
            query = query.where(SWEEPS.c.name == name)
        if after is not None:
            query = query.where(age < _place(after))
        with self._database.reading() as connection:
            found = [_entry(row) for row in connection.execute(query).mappings()]
        last = found[limit - 1] if len(found) > limit else None
        return Page(tuple(found[:limit]), f"{last.submitted_ms}:{last.job.sweep_id}" if last else None)

    def active(self) -> list[Entry]:
        """All that may have a driver, in the queue's order."""
        return self._in_order(ACTIVE)

    def waiting(self) -> list[Entry]:
        """All that are queued, in the queue's order: priority, then age, then id."""
        return self._in_order({"queued"})

    def change(
        self,
        entry: Entry,
        job: Job,
        *,
        actor: str,
        now_ms: int,
        what: str,
        lead: Lead | None = None,
        waits_for: str | None = None,
        gpu_ms: int | None = None,
        most_trials: int | None = None,
    ) -> Entry:
        """What became of `entry` is `job`; a new state or reason is an event. What it waits for goes with the queue.

        `most_trials`: 0 for as many as fit; left out, as before.

        Raises Conflict when the entry is no longer as given, LeadLost when `lead` is no longer the present one.
        """
        kept = entry.waits_for if job.state == "queued" else ""
        changed = replace(
            entry,
            job=job,
            waits_for=kept if waits_for is None else waits_for,
            gpu_ms=entry.gpu_ms if gpu_ms is None else gpu_ms,
            most_trials=entry.most_trials if most_trials is None else most_trials or None,
            revision=entry.revision + 1,
        )
        with self._database.writing() as connection:
            _check_lead(connection, lead)
            _write(connection, changed)
            if (job.state, job.reason) != (entry.job.state, entry.job.reason):
                happened(
                    connection, job.sweep_id, actor, what, now_ms, entry.job.state, job.state, job.reason, job.message
                )
        return changed

    def put_waits(self, waits: Mapping[str, str], lead: Lead | None = None) -> None:
        """Say what each of these sweeps waits for, of those that are queued. It is no change that others must know."""
        with self._database.writing() as connection:
            _check_lead(connection, lead)
            known = sa.select(SWEEPS.c.sweep_id, SWEEPS.c.waits_for).where(SWEEPS.c.state == "queued")
            new = [
                {"of": sweep_id, "text": waits[sweep_id]}
                for sweep_id, text in connection.execute(known)
                if waits.get(sweep_id, text) != text
            ]
            if new:
                mine = sa.and_(SWEEPS.c.sweep_id == sa.bindparam("of"), SWEEPS.c.state == "queued")
                connection.execute(sa.update(SWEEPS).where(mine).values(waits_for=sa.bindparam("text")), new)

    def prioritise(self, sweep_id: str, priority: int, actor: str, now_ms: int) -> Entry:
        """Raises InputError outside 0 to 100 and for an unknown sweep, RefusedError once it has ended."""
        _check_priority(priority)
        with self._database.writing() as connection:
            entry = _entry_of(connection, sweep_id)
            if entry.job.state in ENDED:
                ended = "is cancelled" if entry.job.state == "cancelled" else f"has {entry.job.state}"
                raise RefusedError(f"sweep {sweep_id} {ended}: its priority does nothing any more")
            if entry.priority == priority:
                return entry
            changed = replace(entry, priority=priority, revision=entry.revision + 1)
            _write(connection, changed)
            said = f"priority {entry.priority} -> {priority}"
            happened(connection, sweep_id, actor, "prioritised", now_ms, message=said)
        return changed

    def used_gpu_ms(self, owner: str) -> int:
        """GPU time of all sweeps that this owner ever submitted."""
        query = sa.select(sa.func.coalesce(sa.func.sum(SWEEPS.c.gpu_ms), 0)).where(SWEEPS.c.owner == owner)
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def used(self, since_ms: int, now_ms: int) -> list[SweepUse]:
        """What each sweep used that had begun and had not ended before `since_ms`.

        Of a trial counts how long it trained, at most as long as it was there in this time.
        """
        end_ms = sa.func.coalesce(TRIALS.c.ended_ms, SWEEPS.c.ended_ms, now_ms)
        there_ms = end_ms - _larger(TRIALS.c.created_ms, sa.literal(since_ms, sa.BigInteger))
        running_ms = sa.func.coalesce(now_ms - TRIALS.c.since_ms, 0)
        used_ms = -_larger(-(TRIALS.c.trained_ms + _larger(running_ms, sa.literal(0))), -there_ms)
        of_all = sa.case((TRIALS.c.trial.is_not(None), used_ms), else_=0)  # a sweep may have no trial of this time
        gpus = sa.func.coalesce(TRIALS.c.gpus, SWEEPS.c.gpus * SWEEPS.c.workers)
        of_gpus = sa.case((TRIALS.c.trial.is_not(None), gpus * used_ms), else_=0)
        of_idle = sa.case((TRIALS.c.trial.is_not(None), -_larger(-TRIALS.c.idle_gpu_ms, -gpus * used_ms)), else_=0)
        of_failed = sa.case((TRIALS.c.state.in_(sorted(FAILURES)), used_ms), else_=0)
        mine = sa.and_(TRIALS.c.sweep_id == SWEEPS.c.sweep_id, end_ms > since_ms, TRIALS.c.created_ms < now_ms)
        query = (
            sa.select(
                SWEEPS.c.name,
                SWEEPS.c.owner,
                SWEEPS.c.spec_text,
                sa.func.count(TRIALS.c.trial),
                sa.func.sum(of_all),
                sa.func.sum(of_gpus),
                sa.func.sum(of_idle),
                sa.func.sum(of_failed),
            )
            .select_from(SWEEPS.join(TRIALS, mine, isouter=True))
            .where(SWEEPS.c.started_ms.is_not(None), sa.func.coalesce(SWEEPS.c.ended_ms, now_ms) > since_ms)
            .group_by(SWEEPS.c.sweep_id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return [SweepUse(*row[:3], *(round(number) for number in row[3:])) for row in rows]

    def put_trials(self, sweep_id: str, rows: Iterable[TrialRow], lead: Lead | None = None) -> None:
        """Write these trials, over what was known of them. Raises LeadLost when `lead` is no longer the present one."""
        values = [_trial_columns(sweep_id, row) for row in rows]
        if not values:
            return
        with self._database.writing() as connection:
            _check_lead(connection, lead)
            insert: sqlite.Insert | postgresql.Insert = (
                sqlite.insert(TRIALS) if connection.dialect.name == "sqlite" else postgresql.insert(TRIALS)
            )
            keys = [column.name for column in TRIALS.primary_key]
            new = {column.name: column for column in insert.excluded if column.name not in keys}
            connection.execute(insert.on_conflict_do_update(index_elements=keys, set_=new), values)

    def trials(
        self,
        sweep_id: str,
        *,
        order: Literal["best", "number"],
        mode: Mode,
        limit: int | None = None,
        offset: int = 0,
        state: str | None = None,
    ) -> list[TrialRow]:
        """A page of a sweep's trials. Best first: the highest rung, there by score, those without one last."""
        best = _best(mode) if order == "best" else ()
        columns = [TRIALS.c[part.name] for part in fields(TrialRow)]
        query = sa.select(*columns).where(_of(sweep_id, state)).order_by(*best, TRIALS.c.number)
        with self._database.reading() as connection:
            return [_trial(row) for row in connection.execute(query.limit(limit).offset(offset))]

    def count_trials(self, sweep_id: str, state: str | None = None) -> int:
        query = sa.select(sa.func.count()).select_from(TRIALS).where(_of(sweep_id, state))
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one()

    def trial_states(self, sweep_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """How many of each sweep's trials are in each state."""
        found: dict[str, dict[str, int]] = {sweep_id: {} for sweep_id in sweep_ids}
        of = (TRIALS.c.sweep_id, TRIALS.c.state)
        query = sa.select(*of, sa.func.count()).where(TRIALS.c.sweep_id.in_(list(found))).group_by(*of)
        with self._database.reading() as connection:
            for sweep_id, state, count in connection.execute(query):
                found[sweep_id][state] = count
        return found

    def best_trials(self, sweep_ids: Iterable[str], mode: Mode) -> dict[str, TrialRow]:
        """The best trial of each of these sweeps that has one with a score."""
        rank = sa.func.row_number().over(partition_by=TRIALS.c.sweep_id, order_by=(*_best(mode), TRIALS.c.number))
        scored = sa.and_(TRIALS.c.sweep_id.in_(list(sweep_ids)), TRIALS.c.score.is_not(None))
        ranked = sa.select(TRIALS, rank.label("rank")).where(scored).subquery()
        columns = [ranked.c[part.name] for part in fields(TrialRow)]
        query = sa.select(ranked.c.sweep_id, *columns).where(ranked.c.rank == 1)
        with self._database.reading() as connection:
            return {row[0]: _trial(row[1:]) for row in connection.execute(query)}

    def counts(self) -> dict[tuple[State, str], int]:
        """How many sweeps are in each state for each reason."""
        of = (SWEEPS.c.state, SWEEPS.c.reason)
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(*of, sa.func.count()).group_by(*of)).all()
        return {(state, reason): count for state, reason, count in rows}

    def running_trials(self) -> int:
        """Of all sweeps that may have a driver."""
        active = sa.select(SWEEPS.c.sweep_id).where(SWEEPS.c.state.in_(sorted(ACTIVE)))
        query = sa.select(sa.func.count()).where(TRIALS.c.state == "running", TRIALS.c.sweep_id.in_(active))
        with self._database.reading() as connection:
            return connection.execute(query).scalar_one()

    def events(self, sweep_id: str | None, after: int = 0, limit: int = 100) -> list[Event]:
        """Of a sweep, or of the queue itself (None), oldest first: those whose id is higher than `after`.

        One that is written later has a higher id than all that can be read now.
        """
        of = EVENTS.c.sweep_id.is_(None) if sweep_id is None else EVENTS.c.sweep_id == sweep_id
        query = sa.select(EVENTS).where(of, EVENTS.c.id > after).order_by(EVENTS.c.id).limit(limit)
        with self._database.reading() as connection:
            return [Event(**row) for row in connection.execute(query).mappings()]

    def last_events(self, sweep_id: str, count: int) -> list[Event]:
        """The newest of a sweep, oldest first."""
        query = sa.select(EVENTS).where(EVENTS.c.sweep_id == sweep_id).order_by(EVENTS.c.id.desc()).limit(count)
        with self._database.reading() as connection:
            return [Event(**row) for row in connection.execute(query).mappings()][::-1]

    def note(self, sweep_id: str | None, actor: str, what: str, message: str, now_ms: int) -> None:
        """An event that changes nothing."""
        with self._database.writing() as connection:
            happened(connection, sweep_id, actor, what, now_ms, message=message)

    def note_once(self, sweep_id: str, actor: str, what: str, message: str, now_ms: int) -> None:
        """The same, unless it was noted of this sweep before."""
        same = (EVENTS.c.sweep_id == sweep_id, EVENTS.c.what == what, EVENTS.c.message == message)
        with self._database.writing() as connection:
            if not connection.execute(sa.select(sa.exists().where(*same))).scalar_one():
                happened(connection, sweep_id, actor, what, now_ms, message=message)

    def take_lead(
        self, holder: str, token: str, now_ms: int, *, clock_s: float, rival: Rival | None = None
    ) -> Lead | Rival:
        """The lead, if it is free or its holder's heart has stood still for `LEAD_TTL_S`; else whom to watch.

        Call it again with the `Rival` it gave. `clock_s` is the caller's monotonic clock, by which alone it is judged
        how long the other's heart stands still: two hosts' clocks are never compared.
        """
        with self._database.writing() as connection:
            row = connection.execute(sa.select(QUEUE)).mappings().one()
            seen = Rival(row["lead_holder"], row["lead_token"], row["lead_beat"], clock_s)
            if seen.token not in ("", token):
                if rival is None or replace(rival, since_s=clock_s) != seen:
                    return seen
                if clock_s - rival.since_s < LEAD_TTL_S:
                    return rival
            connection.execute(
                sa.update(QUEUE).values(lead_holder=holder, lead_token=token, lead_beat=QUEUE.c.lead_beat + 1)
            )
            said = f"{seen.holder} was silent for {LEAD_TTL_S:.0f} s" if seen.token not in ("", token) else ""
            happened(connection, None, holder, "leads", now_ms, message=said)
        return Lead(holder, token)

    def leader(self) -> Rival:
        """Who leads now, as a bystander sees it; its token is empty while nobody does."""
        with self._database.reading() as connection:
            row = connection.execute(sa.select(QUEUE)).mappings().one()
        return Rival(row["lead_holder"], row["lead_token"], row["lead_beat"], 0.0)

    def beat(self, lead: Lead) -> None:
        """Say that its holder lives. Raises LeadLost when another leads."""
        with self._database.writing() as connection:
            _check_lead(connection, lead)
            connection.execute(sa.update(QUEUE).values(lead_beat=QUEUE.c.lead_beat + 1))

    def release(self, lead: Lead) -> None:
        """Free at once for the next; lost already, nothing changes."""
        with self._database.writing() as connection:
            mine = QUEUE.c.lead_token == lead.token
            connection.execute(sa.update(QUEUE).where(mine).values(lead_holder="", lead_token=""))

    def pause(self, reason: str, actor: str, now_ms: int) -> None:
        """Nothing is started from now on; paused already, the reason is the new one."""
        with self._database.writing() as connection:
            connection.execute(sa.update(QUEUE).values(pause_reason=reason, pause_ms=now_ms, pause_by=actor))
            happened(connection, None, actor, "paused", now_ms, message=reason)

    def go_on(self, actor: str, now_ms: int) -> None:
        """Not paused, nothing changes."""
        with self._database.writing() as connection:
            paused = QUEUE.c.pause_reason.is_not(None)
            ended = sa.update(QUEUE).where(paused).values(pause_reason=None, pause_ms=None, pause_by=None)
            if connection.execute(ended).rowcount:
                happened(connection, None, actor, "resumed", now_ms)

    def paused(self) -> Pause | None:
        query = sa.select(QUEUE.c.pause_reason, QUEUE.c.pause_ms, QUEUE.c.pause_by)
        with self._database.reading() as connection:
            reason, since_ms, by = connection.execute(query).one()
        return None if reason is None else Pause(reason, since_ms, by)

    def set_limits(self, owner: str, limits: Limits | None, actor: str, now_ms: int) -> None:
        """In place of the owner's present ones; None: as everybody. Raises InputError for an amount below 0."""
        if limits is None:
            with self._database.writing() as connection:
                connection.execute(sa.delete(LIMITS).where(LIMITS.c.owner == owner))
                happened(connection, None, actor, "limited", now_ms, message=f"{owner}: as everybody")
            return
        for name, value in asdict(limits).items():
            if value is not None and not 0 <= value <= MOST_OF_ALL:
                raise InputError(f"limit of {owner} on {name}: found {value}; allowed: 0 to {MOST_OF_ALL:,}, or none")
        with self._database.writing() as connection:
            connection.execute(sa.delete(LIMITS).where(LIMITS.c.owner == owner))
            connection.execute(sa.insert(LIMITS).values(owner=owner, **asdict(limits)))
            told = (f"{name} {'any' if value is None else f'{value:g}'}" for name, value in asdict(limits).items())
            happened(connection, None, actor, "limited", now_ms, message=f"{owner}: {', '.join(told)}")

    def limits(self) -> Mapping[str, Limits]:
        """Of each owner that has some of their own, and of `EVERYBODY` for the others."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(LIMITS)).mappings().all()
        own = {row["owner"]: Limits(row["sweeps"], row["gpus"], row["gpu_hours"]) for row in rows}
        return {EVERYBODY: Limits(), **own}

    def _in_order(self, states: Iterable[State]) -> list[Entry]:
        order = (SWEEPS.c.priority.desc(), SWEEPS.c.queued_ms, SWEEPS.c.sweep_id)
        query = sa.select(SWEEPS).where(SWEEPS.c.state.in_(sorted(states))).order_by(*order)
        with self._database.reading() as connection:
            return [_entry(row) for row in connection.execute(query).mappings()]


_JOB = [part.name for part in fields(Job)]
_SHAPE = [part.name for part in fields(Shape)]
# To put a query together takes longer than to ask it; these are asked at each submit.
_BY_ID = sa.select(SWEEPS).where(SWEEPS.c.sweep_id == sa.bindparam("of"))
_BY_KEY = sa.select(SWEEPS).where(SWEEPS.c.owner == sa.bindparam("of"), SWEEPS.c.submit_key == sa.bindparam("key"))


def _check_priority(priority: int) -> None:
    if not 0 <= priority <= 100:
        raise InputError(f"priority: found {priority}; allowed: 0 to 100, the higher the sooner")


def _row_of(connection: sa.Connection, sweep_id: str) -> sa.RowMapping | None:
    return connection.execute(_BY_ID, {"of": sweep_id}).mappings().one_or_none()


def _submitted(connection: sa.Connection, entry: Entry) -> Entry | None:
    """What the entry's owner submitted under its key before."""
    if entry.submit_key is None:
        return None
    row = connection.execute(_BY_KEY, {"of": entry.owner, "key": entry.submit_key}).mappings().one_or_none()
    return None if row is None else _entry(row)


def _entry_of(connection: sa.Connection, sweep_id: str) -> Entry:
    row = _row_of(connection, sweep_id)
    if row is None:
        raise _unknown(sweep_id)
    return _entry(row)


def _unknown(sweep_id: str) -> InputError:
    return UnknownSweepError(f"sweep {sweep_id!r}: not in the queue; see those that are: tuneyard sweep list")


def _entry(row: sa.RowMapping) -> Entry:
    rest = dict(row)
    job = Job(**{name: rest.pop(name) for name in _JOB})
    shape = Shape(**{name: rest.pop(name) for name in _SHAPE})
    return Entry(job=job, shape=shape, **rest)


def _columns(entry: Entry) -> dict[str, Any]:
    flat = asdict(entry)
    return {**flat.pop("job"), **flat.pop("shape"), **flat}


def _place(after: str) -> sa.Tuple:
    found = re.fullmatch(r"([0-9]{1,15}):(.+)", after)
    if found is None:
        raise InputError(f"page after {after!r}: no page ends so; begin again without it")
    columns = (SWEEPS.c.submitted_ms, SWEEPS.c.sweep_id)
    values = (int(found[1]), found[2])
    return sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(values, columns, strict=True)))


def _check_lead(connection: sa.Connection, lead: Lead | None) -> None:
    if lead is None:
        return
    holder, token = connection.execute(sa.select(QUEUE.c.lead_holder, QUEUE.c.lead_token)).one()
    if token != lead.token:
        raise LeadLost(
            f"{lead.holder} no longer leads the queue, {holder or 'nobody'} does; it has to take the lead anew"
        )


def _write(connection: sa.Connection, entry: Entry) -> None:
    """Over the revision before. Raises Conflict when the row is of another."""
    mine = sa.and_(SWEEPS.c.sweep_id == entry.job.sweep_id, SWEEPS.c.revision == entry.revision - 1)
    if not connection.execute(sa.update(SWEEPS).where(mine).values(_columns(entry))).rowcount:
        present = _entry_of(connection, entry.job.sweep_id)
        raise Conflict(
            f"sweep {entry.job.sweep_id} was changed meanwhile and is {present.job.state} now; look at it again"
        )


def happened(
    connection: sa.Connection,
    sweep_id: str | None,
    actor: str,
    what: str,
    now_ms: int,
    before: str = "",
    after: str = "",
    reason: str = "",
    message: str = "",
) -> None:
    told = {
        "sweep_id": sweep_id,
        "time_ms": now_ms,
        "actor": actor,
        "what": what,
        "before": before,
        "after": after,
        "reason": reason,
        "message": message,
    }
    connection.execute(sa.insert(EVENTS), told)


def _larger(one: sa.ColumnElement[int], other: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """As each database has it."""
    return sa.case((one > other, one), else_=other)


def _best(mode: Mode) -> tuple[sa.ColumnElement[Any], ...]:
    """The best trial first: the highest rung, there by score, those without one last."""
    score = TRIALS.c.score.desc() if mode == "max" else TRIALS.c.score.asc()
    return sa.func.coalesce(TRIALS.c.rung, -1).desc(), TRIALS.c.score.is_(None), score


def _of(sweep_id: str, state: str | None) -> sa.ColumnElement[bool]:
    mine = TRIALS.c.sweep_id == sweep_id
    return mine if state is None else sa.and_(mine, TRIALS.c.state == state)


def _trial_columns(sweep_id: str, row: TrialRow) -> dict[str, Any]:
    # Not asdict, which copies the mappings; a score that is no number ranks as none, and a point keeps it as a word.
    columns = {part.name: getattr(row, part.name) for part in fields(row)}
    point = {key: value if _holds(value) else str(value) for key, value in row.point.items()}
    told = {
        "score": row.score if row.score is not None and _holds(row.score) else None,
        "share": row.share if _holds(row.share) else 0.0,
        "point": json.dumps(point),
        "metrics": json.dumps(dict(row.metrics)),
    }
    return {**columns, **told, "sweep_id": sweep_id}


def _holds(value: Any) -> bool:
    """Whether JSON has it: it knows no NaN."""
    return not isinstance(value, float) or math.isfinite(value)


def _trial(row: Sequence[Any]) -> TrialRow:
    """Of the columns in the order of `TrialRow`: a page may have thousands."""
    *plain, point, metrics = row
    return TrialRow(*[*plain, from_json(point), from_json(metrics)])
