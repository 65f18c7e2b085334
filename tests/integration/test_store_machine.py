"""Two dispatchers and a user at one queue, in any order, each with what they saw last: the store against a model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from postgres import Postgres

from tuneyard import jobs
from tuneyard.jobs import Job
from tuneyard.store import LEAD_TTL_S, Conflict, Entry, Lead, LeadLost, Rival, Shape, Store
from tuneyard_pipelines.errors import RefusedError

pytestmark = pytest.mark.integration

MOVES: dict[str, Callable[[Job, int], Job]] = {
    "claimed": jobs.claimed,
    "started": jobs.started,
    "cancel": lambda job, now_ms: jobs.stopped(job, "user_cancel", now_ms),
    "stop": lambda job, now_ms: jobs.stopped(job, "user_stop", now_ms),
    "lost": lambda job, now_ms: jobs.driver_ended(job, jobs.DriverEnd("lost", "driver_lost"), now_ms, most_losses=2),
    "succeeded": lambda job, now_ms: jobs.driver_ended(job, jobs.DriverEnd("succeeded"), now_ms, most_losses=2),
    "reopened": jobs.reopened,
}
DISPATCHERS = ("one", "two")
_numbers = itertools.count()


@dataclass(frozen=True)
class Told:
    """What an event must say."""

    what: str
    before: str
    after: str
    reason: str


class Queue(RuleBasedStateMachine):
    """The sweeps and tokens of each run are its own: the store is the same for all."""

    seen = Bundle("seen")

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store, self.run = store, next(_numbers)
        self.now_ms = 0
        self.entries: dict[str, Entry] = {}
        self.told: dict[str, list[Told]] = {}
        self.claims: list[tuple[str, int]] = []
        self.leads: dict[str, Lead] = {}
        self.leader: str | None = None
        store.release(Lead("", self._present_token()))

    @rule(target=seen, priority=st.integers(0, 100))
    def submit(self, priority: int) -> Entry:
        sweep_id = f"{self.run}-{len(self.entries)}"
        entry = Entry(Job(sweep_id), "dates", "ada", priority, 1, "", Shape(1, 0, 1))
        accepted = self.store.submit(entry, "ada", self._tick())
        self.entries[sweep_id], self.told[sweep_id] = accepted, [Told("submitted", "", "queued", "")]
        return accepted

    @rule(target=seen, entry=seen)
    def look(self, entry: Entry) -> Entry:
        return self.store.get(entry.job.sweep_id)

    @rule(target=seen, entry=seen, move=st.sampled_from(sorted(MOVES)), who=st.sampled_from([*DISPATCHERS, "user"]))
    def change(self, entry: Entry, move: str, who: str) -> Entry:
        try:
            job = MOVES[move](entry.job, self._tick())
        except RefusedError:
            return entry
        lead = self.leads.get(who)
        if who != "user" and lead is None:
            return entry
        present = self.entries[job.sweep_id]

        def change() -> Entry:
            return self.store.change(entry, job, actor=who, now_ms=self.now_ms, what=move, lead=lead)

        if who not in ("user", self.leader):
            with pytest.raises(LeadLost):
                change()
            return entry
        if entry != present:
            with pytest.raises(Conflict):
                change()
            return entry
        changed = change()
        assert changed == replace(entry, job=job, revision=entry.revision + 1)
        self.entries[job.sweep_id] = changed
        if (job.state, job.reason) != (present.job.state, present.job.reason):
            self.told[job.sweep_id].append(Told(move, present.job.state, job.state, job.reason))
        if move == "claimed":
            self.claims.append((job.sweep_id, entry.revision))
        return changed

    @rule(entry=seen, priority=st.integers(0, 100))
    def prioritise(self, entry: Entry, priority: int) -> None:
        present = self.entries[entry.job.sweep_id]
        if present.job.state in jobs.ENDED:
            with pytest.raises(RefusedError):
                self.store.prioritise(present.job.sweep_id, priority, "ada", self._tick())
            return
        changed = self.store.prioritise(present.job.sweep_id, priority, "ada", self._tick())
        if priority != present.priority:
            self.told[present.job.sweep_id].append(Told("prioritised", "", "", ""))
            assert changed == replace(present, priority=priority, revision=present.revision + 1)
        self.entries[present.job.sweep_id] = changed

    @rule(who=st.sampled_from(DISPATCHERS), silent_s=st.sampled_from([0.0, LEAD_TTL_S / 2, LEAD_TTL_S]))
    def take_lead(self, who: str, silent_s: float) -> None:
        """By a process that is new: it finds the lead free, or watches whoever has it."""
        token = f"{self.run}-{next(_numbers)}"
        answer = self.store.take_lead(who, token, self._tick(), clock_s=0.0)
        assert isinstance(answer, Lead) == (self.leader is None)
        if isinstance(answer, Rival):
            answer = self.store.take_lead(who, token, self._tick(), clock_s=silent_s, rival=answer)
            assert isinstance(answer, Lead) == (silent_s >= LEAD_TTL_S)
        if isinstance(answer, Lead):
            self.leads[who], self.leader = answer, who

    @rule(who=st.sampled_from(DISPATCHERS))
    def release(self, who: str) -> None:
        if lead := self.leads.get(who):
            self.store.release(lead)
            self.leader = None if self.leader == who else self.leader

    @invariant()
    def what_is_there_is_what_was_accepted(self) -> None:
        for sweep_id, entry in self.entries.items():
            assert self.store.get(sweep_id) == entry
            events = self.store.events(sweep_id)
            assert [Told(e.what, e.before, e.after, e.reason) for e in events] == self.told[sweep_id]
        assert len(set(self.claims)) == len(self.claims)
        mine = [entry.job.sweep_id for entry in self.store.waiting() if entry.job.sweep_id in self.entries]
        queued = [entry for entry in self.entries.values() if entry.job.state == "queued"]
        order = sorted(queued, key=lambda entry: (-entry.priority, entry.job.queued_ms, entry.job.sweep_id))
        assert mine == [entry.job.sweep_id for entry in order]

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    def _present_token(self) -> str:
        answer = self.store.take_lead("", f"{self.run}-probe", 0, clock_s=0.0)
        return answer.token


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_whatever_the_order_the_store_tells_what_was_accepted(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server: Postgres | None = request.getfixturevalue("postgres") if kind == "postgresql" else None
    store = Store.open(server.url() if server else f"sqlite:///{tmp_path / 'queue.db'}")
    store.migrate()
    run_state_machine_as_test(
        lambda: Queue(store), settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )
    store.close()
