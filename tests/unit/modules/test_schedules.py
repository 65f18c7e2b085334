"""The learning-rate schedule at its ends and in between."""

from __future__ import annotations

import math

import pytest

from tuneyard_modules.schedules import warmup_cosine


def test_end_points() -> None:
    def factor(share: float) -> float:
        return warmup_cosine(share, warmup=0.1, floor=0.02)

    assert factor(0.0) == pytest.approx(0.02)
    assert factor(0.05) == pytest.approx(0.51)
    assert factor(0.1) == pytest.approx(1.0)
    assert factor(0.55) == pytest.approx(0.51)
    assert factor(1.0) == pytest.approx(0.02)
    assert factor(1.7) == pytest.approx(0.02)


def test_rises_then_falls() -> None:
    factors = [warmup_cosine(share / 1000, warmup=0.2, floor=0.0) for share in range(1001)]
    assert factors[:201] == sorted(factors[:201])
    assert factors[200:] == sorted(factors[200:], reverse=True)


@pytest.mark.parametrize("warmup", [0.0, 1.0])
def test_extreme_warmups_are_finite(warmup: float) -> None:
    factors = [warmup_cosine(share / 10, warmup=warmup, floor=0.1) for share in range(12)]
    assert all(math.isfinite(factor) and 0.1 - 1e-9 <= factor <= 1.0 for factor in factors)
    assert max(factors) == pytest.approx(1.0) or warmup == 1.0
