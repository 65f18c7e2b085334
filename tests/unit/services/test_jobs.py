"""A job's life, one happening at a time: what the queue knows of a sweep after each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuneyard.jobs import (
    ENDED,
    LOSSES,
    REASONS,
    STATES,
    TABLE,
    DriverEnd,
    Job,
    claimed,
    diagram,
    driver_ended,
    not_taken,
    refused,
    reopened,
    started,
    stopped,
)
from tuneyard_pipelines.errors import RefusedError

QUEUED = Job("s1", queued_ms=100)
SUBMITTING = claimed(QUEUED, 200)
RUNNING = started(SUBMITTING, 300)
LOST = DriverEnd("lost", "driver_lost", "killed by signal 9")
DONE = DriverEnd("succeeded")


def ended(job: Job, end: DriverEnd, *, most_losses: int = 3) -> Job:
    return driver_ended(job, end, 400, most_losses=most_losses)


def test_a_whole_life() -> None:
    assert (SUBMITTING.state, SUBMITTING.attempt, SUBMITTING.submission_id) == ("submitting", 1, "s1-a1")
    assert (RUNNING.state, RUNNING.ran) == ("running", True)
    assert ended(RUNNING, DONE) == replace(RUNNING, state="succeeded", started_ms=200, ended_ms=400)


@pytest.mark.parametrize("before", [SUBMITTING, RUNNING, stopped(RUNNING, "user_stop", 300)])
def test_a_lost_driver_puts_it_back_in_its_old_place_until_too_many_are_lost(before: Job) -> None:
    job = ended(before, LOST, most_losses=1)
    assert (job.state, job.reason, job.message) == ("queued", "driver_lost", "killed by signal 9")
    assert (job.queued_ms, job.losses, job.ended_ms) == (100, 1, None)
    job = ended(claimed(job, 500), LOST, most_losses=1)
    assert (job.state, job.reason, job.ended_ms) == ("failed", "driver_lost", 400)
    assert "given up after 2 lost drivers; go on with: tuneyard sweep resume s1" in job.message


def test_a_fault_of_the_user_is_not_tried_again() -> None:
    job = ended(RUNNING, DriverEnd("failed", "invalid_spec", "no such file"))
    assert (job.state, job.reason, job.message, job.losses) == ("failed", "invalid_spec", "no such file", 0)


@pytest.mark.parametrize("reason", sorted(LOSSES))
def test_q7_a_preempted_one_waits_again_in_its_old_place_and_has_lost_nothing(reason: str) -> None:
    """Also where it was killed before it came to its end by itself."""
    job = ended(stopped(RUNNING, "preempted", 350), DriverEnd("lost", reason), most_losses=0)
    assert (job.state, job.reason, job.losses, job.queued_ms) == ("queued", "preempted", 0, 100)


def test_a_waiting_one_that_is_to_make_room_has_made_it() -> None:
    assert stopped(QUEUED, "preempted", 300) == QUEUED


def test_q7_a_waiting_one_is_cancelled_at_once_and_a_second_cancel_is_harmless() -> None:
    job = stopped(QUEUED, "user_cancel", 300)
    assert (job.state, job.reason, job.ended_ms) == ("cancelled", "user_cancel", 300)
    assert stopped(job, "user_cancel", 900) == job


@pytest.mark.parametrize("before", [SUBMITTING, RUNNING])
@pytest.mark.parametrize("end", [LOST, DriverEnd("failed", "trial_errors"), DriverEnd("lost", "cluster_lost")])
def test_q7_a_cancelled_one_ends_once_its_driver_is_gone(before: Job, end: DriverEnd) -> None:
    asked = stopped(before, "user_cancel", 350)
    assert asked.state == "stopping"
    assert stopped(asked, "user_cancel", 360) == asked
    job = ended(asked, end)
    assert (job.state, job.reason, job.ended_ms) == ("cancelled", "user_cancel", 400)


def test_q7_one_that_came_to_its_own_end_before_the_cancel_keeps_it() -> None:
    assert ended(stopped(RUNNING, "user_cancel", 350), DONE).state == "succeeded"


def test_q7_a_cancel_is_not_lost_where_the_cluster_did_not_take_it_or_refused_it() -> None:
    asked = stopped(SUBMITTING, "user_cancel", 350)
    assert not_taken(asked, "no answer", 400) == replace(asked, state="cancelled", reason="user_cancel", ended_ms=400)
    assert refused(asked, "invalid_spec", "too long", 400).state == "cancelled"


def test_one_that_the_cluster_did_not_take_waits_again_without_a_loss() -> None:
    job = not_taken(SUBMITTING, "no answer", 400)
    assert (job.state, job.reason, job.message, job.losses) == ("queued", "unreachable", "no answer", 0)
    assert claimed(job, 500).submission_id == "s1-a2"


def test_a_stop_that_came_between_holds_where_the_cluster_did_not_take_it() -> None:
    assert not_taken(stopped(SUBMITTING, "user_stop", 350), "no answer", 400).state == "cancelled"
    again = claimed(ended(RUNNING, LOST), 500)
    assert not_taken(stopped(again, "user_stop", 550), "no answer", 600).state == "queued", "its turn is to score it"


def test_q11_a_stopped_one_that_has_something_waits_for_its_turn_and_one_that_has_nothing_ends() -> None:
    assert stopped(QUEUED, "user_stop", 300).state == "cancelled"
    waits = ended(RUNNING, LOST)
    assert stopped(waits, "user_stop", 500) == waits
    unseen = ended(SUBMITTING, LOST)
    assert stopped(unseen, "user_stop", 500) == unseen, "its driver was there, though never seen to run"


def test_q11_a_stopped_one_that_scored_its_best_has_succeeded() -> None:
    job = ended(stopped(RUNNING, "user_stop", 350), DriverEnd("succeeded", "user_stop"))
    assert (job.state, job.reason) == ("succeeded", "user_stop")
    assert stopped(job, "user_stop", 900) == job


@pytest.mark.parametrize(
    ("first", "then", "holds"),
    [
        ("preempted", "user_stop", "user_stop"),
        ("user_stop", "user_cancel", "user_cancel"),
        ("user_cancel", "user_stop", "user_cancel"),
        ("user_stop", "preempted", "user_stop"),
    ],
)
def test_the_stronger_wish_holds(first: str, then: str, holds: str) -> None:
    assert stopped(stopped(RUNNING, first, 310), then, 320).reason == holds


def test_a_start_that_is_seen_late_does_not_take_a_stop_back() -> None:
    job = started(stopped(SUBMITTING, "user_cancel", 250), 300)
    assert (job.state, job.reason, job.ran) == ("stopping", "user_cancel", True)


@pytest.mark.parametrize("state", sorted(ENDED))
def test_one_that_has_ended_is_set_going_again_at_the_end_of_the_queue(state: str) -> None:
    job = reopened(replace(RUNNING, state=state, reason="internal", losses=3, ended_ms=400), 500)
    assert (job.state, job.reason, job.queued_ms, job.losses, job.ended_ms) == ("queued", "", 500, 0, None)
    assert (job.attempt, job.ran) == (1, True)


def test_what_the_table_does_not_know_is_refused_with_what_to_do() -> None:
    with pytest.raises(RefusedError, match="sweep s1 is running and cannot be reopened; see it with: tuneyard sweep"):
        reopened(RUNNING, 500)
    with pytest.raises(RefusedError, match="is succeeded and cannot be asked to stop"):
        stopped(ended(RUNNING, DONE), "user_cancel", 500)


def test_every_state_is_reached_and_can_be_left_or_reopened() -> None:
    assert set(TABLE.values()) == set(STATES)
    assert {before for before, _ in TABLE} == set(STATES)
    assert {before for before, happening in TABLE if happening == "reopened"} == ENDED
    assert REASONS.keys() > LOSSES


def test_the_diagram_shows_every_row_and_every_end() -> None:
    lines = diagram().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> queued: submitted"]
    assert "    stopping --> cancelled: cancelled" in lines
    assert len(lines) == 2 + len(TABLE) + len(ENDED)
