"""Who is submitted when, and what becomes of a sweep whose driver ends: a real database, a cluster on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from cluster_stand_in import Cluster
from service import Served, serving
from tiny_sweep import tiny

from tuneyard.client import Client
from tuneyard.dispatcher import (
    CLUSTER_GONE_S,
    FIRST_WAIT_S,
    HANGS_S,
    LONGEST_WAIT_S,
    NODE_AWAY_S,
    NODE_JOINS_S,
    Dispatcher,
    Settings,
)
from tuneyard.jobs import ENDED, DriverEnd
from tuneyard.queue import Queue
from tuneyard.store import LEAD_TTL_S, Entry, LeadLost, Limits, Store
from tuneyard_pipelines import control
from tuneyard_pipelines.capacity import Node, Shape
from tuneyard_pipelines.errors import RefusedError, UnreachableError

DONE = DriverEnd("succeeded")
ONE = {"search__max_concurrent_trials": 1}


@dataclass
class Team:
    """A queue, a cluster, and a dispatcher whose clock the test moves."""

    queue: Queue
    cluster: Cluster
    settings: Settings
    clock_s: float = 1000.0
    dispatcher: Dispatcher = field(init=False)

    def __post_init__(self) -> None:
        self.dispatcher = self.another()

    def another(self) -> Dispatcher:
        return Dispatcher(
            self.queue.store,
            self.cluster,  # type: ignore[arg-type]
            self.settings,
            now_ms=lambda: int(self.clock_s * 1000),
            clock_s=lambda: self.clock_s,
        )

    def submit(self, name: str = "tiny", priority: int = 50, **changes: Any) -> str:
        return self.queue.submit(tiny(name=name, **changes), priority=priority).job.sweep_id

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock_s += 1
            self.dispatcher.step()

    def pause_s(self, long_s: float) -> None:
        """So much time goes by, and then a pass is made."""
        self.clock_s += long_s
        self.step()

    def state(self, sweep_id: str) -> tuple[str, str]:
        job = self.entry(sweep_id).job
        return job.state, job.reason

    def entry(self, sweep_id: str) -> Entry:
        return self.queue.store.get(sweep_id)

    def end(self, sweep_id: str, end: DriverEnd | None = DONE) -> None:
        self.cluster.end(self.entry(sweep_id).job.submission_id, end)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Team]]:
    store = Store.open(f"sqlite:///{tmp_path / 'queue.db'}")
    store.migrate()

    def team(**settings: Any) -> Team:
        return Team(Queue(store, tmp_path, "ann"), Cluster(tmp_path), Settings(tmp_path, **settings))

    yield team
    store.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, TUNEYARD_RAY="http://127.0.0.1:9") as found:
        yield found


def behind(served: Served, **settings: Any) -> Team:
    """The dispatcher and the cluster of a queue that its users reach over HTTP."""
    home = served.service.home
    return Team(Queue(served.service.store, home, "ann"), Cluster(home), Settings(home, **settings))


def test_q1_five_hundred_submits_at_once_start_in_order_and_under_the_cap(served: Served) -> None:
    team, spec = behind(served, most_drivers=40), tiny(**ONE).text()
    people = [served.client(f"person{number}") for number in range(20)]

    def submit(person: Client) -> list[tuple[str, int]]:
        priorities = [number % 5 * 20 for number in range(25)]
        return [(person.submit(spec, priority=priority).sweep_id, priority) for priority in priorities]

    with ThreadPoolExecutor(len(people)) as at_once:
        submits = [one for submitted in at_once.map(submit, people) for one in submitted]
    asked = dict(submits)
    listed = {sweep.sweep_id: sweep for sweep in people[0].sweeps()}
    assert len(submits) == 500
    assert sorted(listed) == sorted(sweep_id for sweep_id, _ in submits), "each is there, once"
    while len(team.cluster.submitted) < 500 or team.cluster.running:
        team.step()
        for name in team.cluster.running:
            team.cluster.end(name, DONE)
    assert team.cluster.most_at_once == 40
    in_order = sorted(asked, key=lambda one: (-asked[one], listed[one].created_ms, one))
    assert team.cluster.submitted == [f"{sweep_id}-a1" for sweep_id in in_order]
    team.step()
    assert [(sweep.state, sweep.reason) for sweep in people[0].sweeps()] == [("succeeded", "")] * 500


def test_q8_small_sweeps_do_not_pass_a_large_one_of_higher_priority(served: Served) -> None:
    team, ann, bob = behind(served), served.client("ann"), served.client("bob")

    def submit(person: Client, gpus: int, priority: int) -> str:
        spec = tiny(resources__workers=gpus, resources__gpus_per_worker=1, **ONE)
        return person.submit(spec.text(), priority=priority).sweep_id

    first = submit(ann, 6, 50)
    team.step()
    small = [submit(bob, 1, 20)]
    large = submit(ann, 4, 80)
    for _ in range(3):
        small.append(submit(bob, 1, 20))
        team.step()
        assert ann.sweep(large).queue["waits_for"] == "needs 4 GPUs a trial, 2 free; the next"
        for sweep in map(bob.sweep, small):
            assert sweep.state == "queued"
            assert large in sweep.queue["waits_for"]
    team.end(first)
    team.step(2)
    assert team.cluster.submitted == [f"{sweep_id}-a1" for sweep_id in (first, large, *small)]
    assert {bob.sweep(sweep_id).state for sweep_id in (large, *small)} == {"running"}


def test_s8_what_can_never_fit_is_refused_with_what_there_is(make: Callable[..., Team]) -> None:
    team = make()
    team.cluster.there = [Node(8, 1, 1 << 40), Node(8, 2, 1 << 40)]
    asks = team.submit(resources__workers=4, resources__gpus_per_worker=1)
    fits = team.submit(resources__workers=3, resources__gpus_per_worker=1)
    team.step()
    assert "hold 3 of them" in team.entry(asks).waits_for, "a node may be about to join"
    team.pause_s(NODE_JOINS_S)
    assert team.state(asks) == ("failed", "no_capacity")
    assert "4 workers with 1 CPU, 1 GPU" in team.entry(asks).job.message
    assert team.state(fits)[0] == "running"
    assert team.cluster.submitted == [f"{fits}-a1"]


def test_a_mixed_sweep_counts_as_its_largest_trials(make: Callable[..., Team]) -> None:
    team = make()
    mixed = team.submit(
        resources__workers=[1, 3], resources__gpus_per_worker=1, search__trials=6, search__max_concurrent_trials=2
    )
    assert team.entry(mixed).shape == Shape(1, 1, 2 << 30, workers=3)
    team.step()
    after = team.submit(resources__workers=3, resources__gpus_per_worker=1, **ONE)
    team.step()
    assert team.entry(after).waits_for == "needs 3 GPUs a trial, 2 free; the next"


def test_what_needs_one_kind_of_gpu_waits_for_that_kind(make: Callable[..., Team]) -> None:
    team = make()
    kind = frozenset({"A100"})
    team.cluster.there = [Node(8, 4, 1 << 40), Node(8, 1, 1 << 40, kind)]
    fast = {"resources__gpus_per_worker": 1, "resources__accelerator_type": "A100", **ONE}
    first, second, other = (
        team.submit(**fast),
        team.submit(**fast),
        team.submit(resources__gpus_per_worker=1, resources__accelerator_type="T4"),
    )
    team.step()
    assert team.state(first)[0] == "running"
    assert team.entry(second).waits_for == "needs 1 A100 GPU a trial, 0 free; the next"
    assert "name another accelerator_type, or none for any" in team.entry(other).waits_for


def test_a_node_that_is_away_for_a_while_costs_no_waiting_sweep(make: Callable[..., Team]) -> None:
    team = make()
    team.queue.store.pause("maintenance", "ann", 0)
    waits = team.submit(resources__workers=8, resources__gpus_per_worker=1)
    team.step()
    team.clock_s = team.entry(waits).job.queued_ms / 1000 + 2 * NODE_AWAY_S
    team.cluster.there = [Node(8, 0, 1 << 40)]
    team.step()
    assert team.state(waits) == ("queued", "")
    assert "8 workers with 1 CPU, 1 GPU" in team.entry(waits).waits_for
    team.clock_s += NODE_AWAY_S
    team.step()
    assert team.state(waits) == ("failed", "no_capacity")


def test_what_a_driver_says_is_what_becomes_of_it(make: Callable[..., Team]) -> None:
    team = make()
    ends = {
        DriverEnd("succeeded", "budget", "used up"): ("succeeded", "budget"),
        DriverEnd("failed", "invalid_spec", "no such file"): ("failed", "invalid_spec"),
        DriverEnd("failed", "trial_errors", "no trial completed"): ("failed", "trial_errors"),
        DriverEnd("lost", "unreachable", "MLflow is away"): ("queued", "unreachable"),
    }
    sweeps = {team.submit(**ONE): end for end in ends}
    team.step()
    team.queue.store.pause("so that what is queued again stays so", "ann", 0)
    for sweep_id, end in sweeps.items():
        team.end(sweep_id, end)
    team.step()
    for sweep_id, end in sweeps.items():
        assert team.state(sweep_id) == ends[end]
        assert team.entry(sweep_id).job.message == end.message


def test_a_driver_that_is_lost_again_and_again_is_given_up(make: Callable[..., Team]) -> None:
    team = make(most_losses=2)
    sweep_id = team.submit(**ONE)
    for attempt, wait_s in ((1, 0), (2, FIRST_WAIT_S), (3, 2 * FIRST_WAIT_S)):
        if wait_s:
            assert team.entry(sweep_id).waits_for.startswith("starts again at")
        team.pause_s(wait_s)
        assert team.entry(sweep_id).job.attempt == attempt
        team.end(sweep_id, None)
        team.step()
    assert team.state(sweep_id) == ("failed", "driver_lost")
    assert team.cluster.submitted == [f"{sweep_id}-a{attempt}" for attempt in (1, 2, 3)]
    team.queue.resume(sweep_id)
    team.step()
    assert team.state(sweep_id)[0] == "running", "a person need not wait"
    assert team.entry(sweep_id).job.losses == 0


def test_an_older_drivers_word_is_not_taken_for_the_present_ones(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step(2)
    team.end(sweep_id, DriverEnd("lost", "unreachable"))
    team.step()
    team.pause_s(LONGEST_WAIT_S)
    assert team.entry(sweep_id).job.attempt == 2
    team.step(2)
    assert team.state(sweep_id)[0] == "running"


def test_a_silent_cluster_is_waited_for_and_a_lost_one_is_replaced(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.cluster.away = True
    team.step(3)
    assert team.state(sweep_id) == ("running", ""), "silent is not gone"
    team.clock_s += CLUSTER_GONE_S
    team.step()
    assert team.state(sweep_id) == ("queued", "cluster_lost")
    team.pause_s(LONGEST_WAIT_S)
    assert team.entry(sweep_id).waits_for == "the cluster does not answer"
    team.cluster.away, team.cluster.jobs = False, {}
    team.step()
    assert team.entry(sweep_id).job.attempt == 2
    assert team.state(sweep_id)[0] == "running"


def test_a_cancel_ends_also_where_the_cluster_never_comes_back(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.cluster.away = True
    team.queue.cancel(sweep_id)
    team.step()
    assert team.state(sweep_id) == ("stopping", "user_cancel")
    team.clock_s += CLUSTER_GONE_S
    team.step()
    assert team.state(sweep_id) == ("cancelled", "user_cancel")


def test_a_driver_is_told_to_end_once(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.queue.cancel(sweep_id)
    team.step(3)
    assert team.cluster.stopped == [f"{sweep_id}-a1"]


def test_higher_priority_makes_lower_give_way_where_that_is_on(make: Callable[..., Team]) -> None:
    team = make(preempt=True)
    low = team.submit(priority=10, resources__workers=8, resources__gpus_per_worker=1, **ONE)
    team.step()
    high = team.submit(priority=90, resources__workers=8, resources__gpus_per_worker=1, **ONE)
    team.step(2)
    assert team.state(low) == ("stopping", "preempted")
    assert team.cluster.stopped == [f"{low}-a1"]
    team.end(low, DriverEnd("lost", "interrupted"))
    team.step(2)
    assert team.state(low) == ("queued", "preempted")
    assert team.state(high)[0] == "running"
    team.end(high)
    team.step(2)
    assert (team.state(low)[0], team.entry(low).job.attempt, team.entry(low).job.losses) == ("running", 2, 0)


def test_a_driver_is_told_how_many_trials_its_owner_may_have(make: Callable[..., Team]) -> None:
    team = make()
    team.queue.store.set_limits("ann", Limits(gpus=3), "root", 0)
    sweep_id = team.submit(resources__gpus_per_worker=1)
    team.step()
    assert team.cluster.environments[f"{sweep_id}-a1"]["TUNEYARD_MOST_TRIALS"] == "3"


def test_what_is_asked_for_at_the_last_moment_is_done_by_the_next_driver(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    folder = team.queue.folder(sweep_id)
    folder.journal.write_text(
        '{"event": "AttemptStarted", "attempt": 1, "time_ms": 1, "host": "a", "versions": {}, "sealed": {}}\n'
        '{"event": "AttemptEnded", "attempt": 1, "state": "finished", "message": "", "time_ms": 2}\n'
    )
    control.ask(folder, [control.Extend(2, 3)])
    team.end(sweep_id)
    team.step(2)
    assert (team.state(sweep_id)[0], team.entry(sweep_id).job.attempt) == ("running", 2)


def test_a_job_that_is_no_present_attempt_is_stopped(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.cluster.submit(f"{sweep_id}-a7", "", {}, home=str(team.queue.home))
    team.cluster.submit("other-a1", "", {}, home="/another/home")
    team.clock_s += 10
    team.step()
    assert team.cluster.stopped == [f"{sweep_id}-a7"]
    assert [event.what for event in team.queue.store.events(sweep_id)][-1] == "stray stopped"


def test_one_dispatcher_leads_and_the_next_takes_over_from_a_silent_one(make: Callable[..., Team]) -> None:
    team = make()
    first, second = team.dispatcher, team.another()
    team.step()
    sweep_id = team.submit(**ONE)
    second.step()
    assert team.cluster.submitted == []
    team.clock_s += LEAD_TTL_S
    second.step()
    assert team.cluster.submitted == [f"{sweep_id}-a1"]
    with pytest.raises(LeadLost):
        first.step()


def test_a_paused_queue_starts_nothing_and_says_why(make: Callable[..., Team]) -> None:
    team = make()
    team.queue.store.pause("new disks", "root", 0)
    sweep_id = team.submit(**ONE)
    team.step()
    assert team.entry(sweep_id).waits_for == "paused: new disks"
    team.queue.store.go_on("root", 0)
    team.step()
    assert team.state(sweep_id)[0] == "running"


@pytest.mark.parametrize(
    ("moment", "before", "answered", "end"),
    [
        ("queued", "queued", "cancelled", "cancelled"),
        ("starting", "submitting", "stopping", "cancelled"),
        ("running", "running", "stopping", "cancelled"),
        ("finishing", "stopping", "stopping", "cancelled"),
        ("just over", "running", "stopping", "succeeded"),
    ],
)
def test_q7_a_cancel_at_any_moment_and_again_ends_in_one_state(
    served: Served, monkeypatch: pytest.MonkeyPatch, moment: str, before: str, answered: str, end: str
) -> None:
    team, ann = behind(served), served.client("ann")
    sweep_id = ann.submit(tiny(**ONE).text()).sweep_id
    with monkeypatch.context() as patch:
        if moment == "starting":
            patch.setattr(team.cluster, "submit", lambda *arguments, **options: 1 / 0)
        if moment != "queued":
            team.step()
    if moment == "finishing":
        ann.stop(sweep_id)
        team.step()
    if moment == "just over":
        team.end(sweep_id)
    assert ann.sweep(sweep_id).state == before

    for _ in range(2):
        assert (now := ann.cancel(sweep_id)).state == answered
        assert now.reason == "user_cancel"
    team.step()
    for name in team.cluster.stopped:
        team.cluster.end(name, DriverEnd("lost", "interrupted"))
    team.step(2)
    assert ann.sweep(sweep_id).state == end
    assert team.cluster.running == [], "nothing holds GPUs any more"
    assert len(team.cluster.stopped) == (moment in ("running", "finishing")), "its driver was told once"
    assert len(team.cluster.submitted) == (moment in ("running", "finishing", "just over"))

    told = ann.events(sweep_id)
    assert [event.after for event in told if event.after in ENDED] == [end]
    if end == "cancelled":
        assert ann.cancel(sweep_id).state == "cancelled"
    else:
        with pytest.raises(RefusedError, match=r"is succeeded and cannot be asked to stop"):
            ann.cancel(sweep_id)
    assert ann.events(sweep_id) == told


def test_trouble_with_one_sweep_keeps_no_other_from_its_turn(
    make: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make()
    bad, damaged = team.submit(**ONE), team.submit(**ONE)
    team.step()
    team.queue.cancel(bad)
    (team.queue.folder(damaged).path / "driver_end.json").write_text("5")
    monkeypatch.setattr(team.cluster, "stop", lambda submission_id: 1 / 0)
    later = team.submit(**ONE)
    team.step(2)
    assert team.state(later)[0] == team.state(damaged)[0] == "running"


def test_losses_that_follow_no_progress_of_their_own_are_counted(make: Callable[..., Team]) -> None:
    """The legs of an older attempt are no progress of one that never got so far."""
    team = make(most_losses=2)
    sweep_id = team.submit(**ONE)
    team.step()
    folder = team.queue.folder(sweep_id)
    folder.journal.write_text(
        '{"event": "AttemptStarted", "attempt": 1, "time_ms": 1, "host": "a", "versions": {}, "sealed": {}}\n'
        '{"event": "TrialCreated", "trial": "t001", "number": 1, "name": "", "point": {}, "time_ms": 2}\n'
        '{"event": "LegEnded", "trial": "t001", "attempt": 1, "rung": 0, "share": 1, "tokens": 1, "step": 1,'
        ' "score": 1, "metrics": {}, "time_ms": 3}\n'
    )
    team.end(sweep_id, None)
    for losses in (1, 2):
        team.step()
        assert team.entry(sweep_id).job.losses == losses
        team.pause_s(LONGEST_WAIT_S)
        team.end(sweep_id, None)
    team.step()
    assert team.state(sweep_id) == ("failed", "driver_lost")


def test_a_cluster_that_answers_and_does_not_take_it_is_a_loss(
    make: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make(most_losses=1)

    def refuse(*arguments: object, **options: object) -> None:
        raise UnreachableError("500: the runtime environment is wrong")

    monkeypatch.setattr(team.cluster, "submit", refuse)
    sweep_id = team.submit(**ONE)
    team.step()
    assert team.state(sweep_id)[0] == "submitting"
    team.pause_s(CLUSTER_GONE_S)
    assert team.state(sweep_id) == ("queued", "unreachable")
    team.pause_s(LONGEST_WAIT_S)
    team.pause_s(CLUSTER_GONE_S)
    assert team.state(sweep_id) == ("failed", "unreachable")
    assert "the runtime environment is wrong" in team.entry(sweep_id).job.message


def test_a_driver_that_said_its_last_word_and_hangs_is_ended(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    running = dict(team.cluster.jobs)
    team.end(sweep_id)
    team.cluster.jobs = running
    team.step(2)
    assert team.cluster.stopped == []
    team.pause_s(HANGS_S)
    assert team.cluster.stopped == [f"{sweep_id}-a1"]


def test_one_that_was_to_finish_goes_on_where_more_is_asked_for(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.queue.stop(sweep_id)
    assert team.state(sweep_id) == ("stopping", "user_stop")
    team.queue.resume(sweep_id)
    assert team.state(sweep_id) == ("running", "")


def test_of_one_that_is_given_up_nothing_more_is_asked(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    team.queue.cancel(sweep_id)
    with pytest.raises(RefusedError, match="is being given up; ask again once it has ended"):
        team.queue.resume(sweep_id)


def test_a_stop_that_comes_too_late_asks_for_no_other_driver(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    folder = team.queue.folder(sweep_id)
    folder.journal.write_text(
        '{"event": "AttemptStarted", "attempt": 1, "time_ms": 1, "host": "a", "versions": {}, "sealed": {}}\n'
        '{"event": "AttemptEnded", "attempt": 1, "state": "finished", "message": "", "time_ms": 2}\n'
    )
    team.queue.stop(sweep_id)
    team.end(sweep_id)
    team.step()
    assert team.state(sweep_id) == ("succeeded", "")


def test_one_that_is_stopped_before_it_was_submitted_ends_without_a_driver(
    make: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = make()
    with monkeypatch.context() as patch:
        patch.setattr(team.cluster, "submit", lambda *arguments, **options: 1 / 0)
        sweep_id = team.submit(**ONE)
        team.step()
    team.queue.stop(sweep_id)
    team.step()
    assert team.state(sweep_id) == ("cancelled", "user_stop")
    assert team.cluster.submitted == []


def test_what_a_limit_left_it_once_is_not_all_it_gets_later(make: Callable[..., Team]) -> None:
    team = make()
    team.queue.store.set_limits("ann", Limits(gpus=1), "root", 0)
    sweep_id = team.submit(resources__gpus_per_worker=1)
    team.step()
    team.queue.store.set_limits("ann", Limits(), "root", 0)
    team.end(sweep_id, None)
    team.step()
    team.pause_s(LONGEST_WAIT_S)
    environments = team.cluster.environments
    assert [environments[f"{sweep_id}-a{attempt}"]["TUNEYARD_MOST_TRIALS"] for attempt in (1, 2)] == ["1", ""]


@pytest.mark.parametrize("left", [None, "", "version: 1\nname: da"], ids=["nothing", "empty", "torn"])
def test_a_spec_that_went_missing_is_written_again(make: Callable[..., Team], left: str | None) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    spec = team.queue.folder(sweep_id).submitted
    text = spec.read_text()
    spec.unlink()
    if left is not None:
        spec.write_text(left)
    team.step()
    assert spec.read_text() == text


def test_a_journal_that_cannot_be_read_keeps_no_other_from_its_turn(make: Callable[..., Team]) -> None:
    team = make()
    unreadable = team.submit(**ONE)
    team.step()
    team.queue.folder(unreadable).journal.mkdir()
    later = team.submit(**ONE)
    team.step(2)
    assert team.state(later)[0] == "running"


def test_one_whose_submission_nobody_wrote_down_is_known_to_have_a_driver(make: Callable[..., Team]) -> None:
    team = make()
    sweep_id = team.submit(**ONE)
    team.step()
    entry = team.entry(sweep_id)
    unwritten = replace(entry.job, state="submitting", ran=False)
    team.queue.store.change(entry, unwritten, actor="test", now_ms=0, what="as before the submission")
    team.queue.stop(sweep_id)
    team.step()
    assert team.entry(sweep_id).job.ran
    team.cluster.jobs = {}
    team.step()
    assert team.state(sweep_id) == ("queued", "cluster_lost")
