"""Whatever happens to a job, in whatever order and however often: it stays within its table and keeps its promises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tuneyard.jobs import (
    ACTIVE,
    ENDED,
    LOSSES,
    REASONS,
    TABLE,
    DriverEnd,
    Job,
    claimed,
    driver_ended,
    not_taken,
    refused,
    reopened,
    started,
    stopped,
)
from tuneyard_pipelines.errors import RefusedError

MOST_LOSSES = 2
FAULTS = ("invalid_spec", "trial_errors", "internal")
ENDS = st.one_of(
    st.builds(DriverEnd, st.just("lost"), st.sampled_from(sorted(LOSSES))),
    st.builds(DriverEnd, st.just("succeeded"), st.sampled_from(["", "budget", "user_stop"])),
    st.builds(DriverEnd, st.just("failed"), st.sampled_from(FAULTS)),
)


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.job = Job("s1", queued_ms=self.now_ms)
        self.given_up = False  # a cancel was accepted, and nobody has set it going again

    def move(self, happening: Callable[[Job, int], Job]) -> Job:
        """Let it happen; the job before."""
        self.now_ms += 1
        before, self.job = self.job, happening(self.job, self.now_ms)
        steps = {after for (state, _), after in TABLE.items() if state == before.state} | {before.state}
        if before.state != "queued":  # one that is not taken waits again, and may be given up there
            steps |= {"cancelled"} if "queued" in steps else set()
        assert self.job.state in steps
        assert self.job.attempt - before.attempt == (happening is claimed)
        assert (self.job.queued_ms == before.queued_ms) or happening is reopened, "it keeps its age"
        assert self.job.ran >= before.ran
        return before

    @rule()
    def goes_on(self) -> None:
        """What would come next if nothing came between: it is claimed, is seen to run, is set going again."""
        if self.job.state == "queued":
            self.move(claimed)
        elif self.job.state in ENDED:
            self.move(reopened)
            self.given_up = False
            assert (self.job.state, self.job.losses, self.job.queued_ms) == ("queued", 0, self.now_ms)
        elif self.job.state != "running":
            before = self.move(started)
            assert self.job.ran
            assert before.state == "submitting" or self.job.reason == before.reason

    @rule(wish=st.sampled_from(["preempted", "user_stop", "user_cancel"]))
    def ask(self, wish: str) -> None:
        before = self.job
        try:
            self.move(lambda job, now_ms: stopped(job, wish, now_ms))
        except RefusedError:
            assert before.state in ENDED
            assert not (before.state == "cancelled" and wish == "user_cancel"), "a second cancel is harmless"
            return
        assert stopped(self.job, wish, self.now_ms + 1) == self.job, "asked again, nothing changes"
        if wish == "user_cancel":
            self.given_up = True
            assert self.job.state in ENDED or (self.job.state, self.job.reason) == ("stopping", "user_cancel")

    @precondition(lambda self: self.job.state in ACTIVE)
    @rule(end=ENDS)
    def driver_ends(self, end: DriverEnd) -> None:
        before = self.move(lambda job, now_ms: driver_ended(job, end, now_ms, most_losses=MOST_LOSSES))
        assert self.job.state not in ACTIVE
        assert self.job.losses <= MOST_LOSSES + 1
        assert self.job.losses <= MOST_LOSSES or self.job.state == "failed", "it is given up after the limit"
        made_room = before.reason == "preempted" or end.reason == "interrupted"
        if before.state == "stopping" and end.how == "lost" and made_room and not self.given_up:
            assert (self.job.state, self.job.losses) == ("queued", before.losses)
        elif end.how == "lost" and not self.given_up:
            assert self.job.losses == before.losses + 1
        else:
            assert self.job.losses == before.losses
            assert self.job.state in ENDED

    @precondition(lambda self: self.job.state in ("submitting", "stopping"))
    @rule()
    def is_not_taken(self) -> None:
        before = self.move(lambda job, now_ms: not_taken(job, "no answer", now_ms))
        assert self.job.state in ("queued", "cancelled")
        assert self.job.losses == before.losses

    @precondition(lambda self: self.job.state in ("queued", "submitting", "stopping"))
    @rule(reason=st.sampled_from(["no_capacity", "invalid_spec"]))
    def is_refused(self, reason: str) -> None:
        self.move(lambda job, now_ms: refused(job, reason, "why", now_ms))
        assert self.job.state in ENDED

    @invariant()
    def what_does_not_belong_is_refused(self) -> None:
        others: list[Callable[[], Job]] = []
        if self.job.state != "queued":
            others.append(lambda: claimed(self.job, 0))
        if self.job.state not in ENDED:
            others.append(lambda: reopened(self.job, 0))
        else:
            others.append(lambda: refused(self.job, "internal", "", 0))
        if self.job.state not in ACTIVE:
            others.append(lambda: started(self.job, 0))
            others.append(lambda: not_taken(self.job, "", 0))
            others.append(lambda: driver_ended(self.job, DriverEnd("failed", "internal"), 0, most_losses=9))
            others.append(lambda: driver_ended(self.job, DriverEnd("lost", "driver_lost"), 0, most_losses=9))
        for happening in others:
            with pytest.raises(RefusedError):
                happening()

    @invariant()
    def a_cancel_holds(self) -> None:
        """It comes to an end, and neither waits again nor goes on as if it had only been stopped."""
        if self.given_up:
            assert self.job.state in ENDED or (self.job.state, self.job.reason) == ("stopping", "user_cancel")

    @invariant()
    def it_says_why_and_when(self) -> None:
        assert self.job.reason in {"", *REASONS}
        assert (self.job.state in ENDED) == (self.job.ended_ms is not None)
        assert (self.job.attempt > 0) == (self.job.started_ms is not None)
        assert self.job.state not in ("failed", "cancelled", "stopping") or self.job.reason


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, stateful_step_count=30)
