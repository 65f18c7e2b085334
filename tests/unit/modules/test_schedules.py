"""Schedules: their shape against each paper's own formula, peak, continuity and ends."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuneyard_modules.schedules import SCHEDULES, Schedule, factor

FALLING_BY_ROOT: tuple[Schedule, ...] = ("inverse_sqrt", "noam")
shares = st.floats(0.0, 1.5)
warmups = st.floats(0.01, 0.5)
floors = st.floats(0.0, 1.0)
every = st.sampled_from(SCHEDULES)


@pytest.mark.parametrize(
    ("schedule", "points"),
    [
        ("cosine", {0.0: 0.02, 0.05: 0.51, 0.1: 1.0, 0.55: 0.51, 1.0: 0.02, 1.7: 0.02}),
        ("linear", {0.0: 0.02, 0.05: 0.51, 0.1: 1.0, 0.55: 0.51, 0.775: 0.265, 1.0: 0.02, 1.7: 0.02}),
        ("inverse_sqrt", {0.0: 0.02, 0.05: 0.51, 0.1: 1.0, 0.4: 0.5, 0.9: 1 / 3, 1.0: math.sqrt(0.1)}),
        ("noam", {0.0: 0.0, 0.05: 0.5, 0.1: 1.0, 0.4: 0.5, 0.9: 1 / 3, 1.0: math.sqrt(0.1)}),
        ("constant", {0.0: 0.02, 0.05: 0.51, 0.1: 1.0, 0.5: 1.0, 1.0: 1.0}),
        ("warmup_stable_decay", {0.0: 0.02, 0.05: 0.51, 0.1: 1.0, 0.7: 1.0, 0.75: 1.0, 0.875: 0.51, 1.0: 0.02}),
    ],
)
def test_points_by_hand(schedule: Schedule, points: dict[float, float]) -> None:
    found = {share: factor(schedule, share, warmup=0.1, floor=0.02, decay=0.25) for share in points}
    assert found == pytest.approx(points)


def test_noam_is_the_formula_of_its_paper() -> None:
    """Equation 3 of Vaswani et al. 2017 over the rate that it has at the end of warm-up, where d_model falls out."""
    d_model, warmup_steps, steps = 512, 4_000, 100_000

    def paper(step: int) -> float:
        return float(d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5))

    for step in (1, 100, 3_999, 4_000, 4_001, 20_000, 100_000):
        ours = factor("noam", step / steps, warmup=warmup_steps / steps, floor=0.3)
        assert ours == pytest.approx(paper(step) / paper(warmup_steps))


@given(every, shares, warmups, floors)
def test_between_0_and_the_peak_which_ends_the_warmup(
    schedule: Schedule, share: float, warmup: float, floor: float
) -> None:
    assert 0.0 <= factor(schedule, share, warmup=warmup, floor=floor) <= 1.0 + 1e-12
    assert factor(schedule, warmup, warmup=warmup, floor=floor) == pytest.approx(1.0)


@given(every, warmups, floors, st.floats(0.1, 0.5))
def test_it_rises_then_never_rises_again_and_never_jumps(
    schedule: Schedule, warmup: float, floor: float, decay: float
) -> None:
    marks = [number / 4_000 for number in range(4_001)]
    found = [factor(schedule, mark, warmup=warmup, floor=floor, decay=decay) for mark in marks]
    rising = [rate for mark, rate in zip(marks, found, strict=True) if mark <= warmup]
    falling = [rate for mark, rate in zip(marks, found, strict=True) if mark >= warmup]
    assert all(before <= after + 1e-12 for before, after in itertools.pairwise(rising))
    assert all(after <= before + 1e-12 for before, after in itertools.pairwise(falling))
    steepest = max(1 / warmup, math.pi / 2 / (1 - warmup), 1 / decay)
    assert max(abs(a - b) for a, b in itertools.pairwise(found)) <= steepest / 4_000 + 1e-9


@given(every, warmups, floors)
def test_the_end_of_the_budget(schedule: Schedule, warmup: float, floor: float) -> None:
    ends = {"constant": 1.0} | dict.fromkeys(FALLING_BY_ROOT, math.sqrt(warmup))
    at_end = factor(schedule, 1.0, warmup=warmup, floor=floor)
    assert at_end == pytest.approx(ends.get(schedule, floor))
    assert factor(schedule, 1.4, warmup=warmup, floor=floor) == at_end


@pytest.mark.parametrize("schedule", [one for one in SCHEDULES if one not in FALLING_BY_ROOT])
@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_extreme_warmups_are_finite(schedule: Schedule, warmup: float) -> None:
    factors = [factor(schedule, share / 10, warmup=warmup, floor=0.1) for share in range(12)]
    assert all(math.isfinite(one) and 0.1 - 1e-9 <= one <= 1.0 for one in factors)


@pytest.mark.parametrize("schedule", FALLING_BY_ROOT)
def test_an_inverse_square_root_needs_a_warmup(schedule: Schedule) -> None:
    with pytest.raises(ValueError, match=f"warmup=0.0: {schedule} falls from the end of warm-up on"):
        factor(schedule, 0.5, warmup=0.0, floor=0.1)
