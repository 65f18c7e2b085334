"""A sweep's job in the queue: its states, why it is in one, and the one table of how it may change; pure.

What its trials do stands in the sweep's folder; a job is what becomes of the folder's driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tuneyard_pipelines.errors import RefusedError

State = Literal["queued", "submitting", "running", "stopping", "succeeded", "failed", "cancelled"]
Happening = Literal[
    "claimed", "started", "asked_to_stop", "kept", "returned", "refused", "succeeded", "failed", "cancelled", "reopened"
]  # fmt: skip
STATES: tuple[State, ...] = ("queued", "submitting", "running", "stopping", "succeeded", "failed", "cancelled")
ACTIVE: frozenset[State] = frozenset({"submitting", "running", "stopping"})  # a driver may be there
ENDED: frozenset[State] = frozenset({"succeeded", "failed", "cancelled"})

TABLE: Mapping[tuple[State, Happening], State] = {
    ("queued", "claimed"): "submitting",
    ("queued", "refused"): "failed",
    ("queued", "cancelled"): "cancelled",
    ("submitting", "started"): "running",
    ("submitting", "asked_to_stop"): "stopping",
    ("submitting", "returned"): "queued",
    ("submitting", "refused"): "failed",
    ("submitting", "succeeded"): "succeeded",
    ("submitting", "failed"): "failed",
    ("running", "asked_to_stop"): "stopping",
    ("running", "returned"): "queued",
    ("running", "succeeded"): "succeeded",
    ("running", "failed"): "failed",
    ("stopping", "asked_to_stop"): "stopping",
    ("stopping", "kept"): "running",
    ("stopping", "returned"): "queued",
    ("stopping", "refused"): "failed",
    ("stopping", "succeeded"): "succeeded",
    ("stopping", "failed"): "failed",
    ("stopping", "cancelled"): "cancelled",
    ("succeeded", "reopened"): "queued",
    ("failed", "reopened"): "queued",
    ("cancelled", "reopened"): "queued",
}

REASONS: Mapping[str, str] = {
    "user_stop": "its user had it come to an end with what it has",
    "user_cancel": "its user gave it up",
    "preempted": "it made room for a sweep of higher priority",
    "budget": "its budget was used up",
    "invalid_spec": "its spec, its data or an option is wrong",
    "no_capacity": "no node of the cluster can hold one of its trials",
    "trial_errors": "no trial came to a result",
    "cluster_lost": "the cluster went away, and its driver with it",
    "driver_lost": "its driver ended without a word: killed, crashed, or out of memory",
    "interrupted": "its driver was told to end by someone else than the queue",
    "disk_full": "a disk takes no more, or lets nobody write",
    "unreachable": "a service that its driver needs did not answer",
    "internal": "a fault of ours",
}
"""Why a job is in its state, which is kept apart from the state."""

LOSSES: frozenset[str] = frozenset({"cluster_lost", "driver_lost", "interrupted", "unreachable"})
"""Reasons that are no fault of the sweep: it is submitted again and goes on from its folder, up to a limit."""

_STRENGTH = {"preempted": 0, "user_stop": 1, "user_cancel": 2}  # the stronger wish holds, whatever came first


@dataclass(frozen=True)
class Job:
    """One sweep as the queue knows it.

    `attempt` counts its drivers, the present one included. `losses` counts the drivers that were lost since one of them
    made progress or a person set it going, `ran` says that there is a folder to go on from. Times are milliseconds
    since the epoch.
    """

    sweep_id: str
    state: State = "queued"
    reason: str = ""
    message: str = ""
    attempt: int = 0
    losses: int = 0
    ran: bool = False
    queued_ms: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None

    @property
    def submission_id(self) -> str:
        """What the present attempt is called in Ray, which uses up a name for ever."""
        return f"{self.sweep_id}-a{self.attempt}"


@dataclass(frozen=True)
class DriverEnd:
    """How a driver ended, by what it left in the sweep's folder and by what the cluster says.

    `how`: succeeded, failed (for good), or lost (it may be tried again); `reason` is one of `REASONS`, or empty.
    """

    how: Literal["succeeded", "failed", "lost"]
    reason: str = ""
    message: str = ""


def claimed(job: Job, now_ms: int) -> Job:
    """A dispatcher takes it out of the queue: its next attempt begins."""
    return _move(replace(job, attempt=job.attempt + 1), "claimed", now_ms)


def started(job: Job, now_ms: int) -> Job:
    """The cluster runs its driver; of one that was asked to stop meanwhile, nothing changes."""
    if job.state == "stopping":
        return replace(job, ran=True)
    return _move(replace(job, ran=True), "started", now_ms)


def stopped(job: Job, reason: str, now_ms: int) -> Job:
    """Somebody wants it to end: `user_stop`, `user_cancel` or `preempted`. Asked again, nothing changes.

    Of one that waits, a cancelled one ends at once, and so does a stopped one that has nothing yet; one that has
    stays in the queue for its turn to score it, and so does a preempted one, which has made room. Raises RefusedError
    for one that has ended another way.
    """
    if (job.state in ENDED and job.reason == reason) or (job.state == "cancelled" and reason == "user_cancel"):
        return job
    if job.state == "queued":
        gone = reason == "user_cancel" or (reason == "user_stop" and not job.ran)
        return _move(job, "cancelled", now_ms, reason) if gone else job
    if job.state == "stopping" and _STRENGTH[reason] <= _STRENGTH[job.reason]:
        return job
    return _move(job, "asked_to_stop", now_ms, reason)


def driver_ended(job: Job, end: DriverEnd, now_ms: int, *, most_losses: int, progressed: bool = False) -> Job:
    """What becomes of it once its driver is gone.

    One that came to its own end keeps that, also where somebody had asked it to stop. A loss of a driver that had
    `progressed` is counted as the first: only what is lost again and again without getting anywhere is given up.
    """
    job = replace(job, ran=True, losses=0 if progressed else job.losses)
    if end.how == "succeeded":
        return _move(job, "succeeded", now_ms, end.reason, end.message)
    if _gave_up(job):
        return _move(job, "cancelled", now_ms, job.reason)
    if end.how == "failed":
        return _move(job, "failed", now_ms, end.reason, end.message)
    made_room = job.state == "stopping" and (job.reason == "preempted" or end.reason == "interrupted")
    if made_room:
        return _move(job, "returned", now_ms, job.reason)
    losses = job.losses + 1
    if losses > most_losses:
        said = f"{end.message}; given up after {losses} lost drivers; go on with: tuneyard sweep resume {job.sweep_id}"
        return _move(replace(job, losses=losses), "failed", now_ms, end.reason, said)
    return _move(replace(job, losses=losses), "returned", now_ms, end.reason, end.message)


def asked_more(job: Job, now_ms: int) -> Job:
    """Its driver did all that it knew of, and something was asked for meanwhile: the next one does that."""
    return _move(job, "returned", now_ms)


def kept(job: Job, now_ms: int) -> Job:
    """More was asked of one that was to finish: it goes on."""
    return _move(job, "kept", now_ms) if job.state == "stopping" and job.reason == "user_stop" else job


def not_taken(job: Job, message: str, now_ms: int) -> Job:
    """The cluster could not be asked to run it, and surely does not: it waits again, in its old place.

    Unless its user wanted it to end meanwhile: that then holds of one that waits.
    """
    waits = _move(job, "returned", now_ms, "unreachable", message)
    return stopped(waits, job.reason, now_ms) if job.state == "stopping" else waits


def refused(job: Job, reason: str, message: str, now_ms: int) -> Job:
    """It can never run; one that its user gave up meanwhile is cancelled all the same."""
    if _gave_up(job):
        return _move(job, "cancelled", now_ms, job.reason)
    return _move(job, "refused", now_ms, reason, message)


def reopened(job: Job, now_ms: int) -> Job:
    """A person sets it going again: a new attempt over the same folder, at the end of the queue."""
    return _move(replace(job, losses=0), "reopened", now_ms)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = [f"    {before} --> {after}: {happening}" for (before, happening), after in TABLE.items()]
    ends = [f"    {state} --> [*]" for state in STATES if state in ENDED]
    return "\n".join(["stateDiagram-v2", "    [*] --> queued: submitted", *lines, *ends])


def _gave_up(job: Job) -> bool:
    return job.state == "stopping" and job.reason == "user_cancel"


def _move(job: Job, happening: Happening, now_ms: int, reason: str = "", message: str = "") -> Job:
    """Raises RefusedError for what the table does not know."""
    state = TABLE.get((job.state, happening))
    if state is None:
        raise RefusedError(
            f"sweep {job.sweep_id} is {job.state} and cannot be {happening.replace('_', ' ')}; "
            f"see it with: tuneyard sweep show {job.sweep_id}"
        )
    moved = replace(job, state=state, reason=reason, message=message)
    if state in ENDED:
        return replace(moved, ended_ms=now_ms)
    if happening == "claimed":
        return replace(moved, started_ms=job.started_ms or now_ms)
    if happening == "reopened":
        return replace(moved, queued_ms=now_ms, ended_ms=None)
    return moved
