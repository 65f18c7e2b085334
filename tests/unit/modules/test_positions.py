"""Positions against the formula of the paper."""

from __future__ import annotations

import math

import pytest
import torch

from tuneyard_modules.positions import LearnedPositions, SinusoidalPositions, sinusoidal


def test_sinusoidal_is_the_formula() -> None:
    table = sinusoidal(50, 8)
    assert table.shape == (50, 8)
    for t in (0, 1, 7, 49):
        for i in range(4):
            angle = t / 10_000 ** (2 * i / 8)
            assert table[t, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[t, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_sinusoidal_needs_an_even_width() -> None:
    with pytest.raises(ValueError, match="d_model=7 is odd"):
        sinusoidal(4, 7)


@pytest.mark.parametrize("kind", [SinusoidalPositions, LearnedPositions])
def test_a_later_start_continues_the_table(kind: type[SinusoidalPositions] | type[LearnedPositions]) -> None:
    positions = kind(10, 6)
    whole = positions(0, 10)
    assert torch.equal(torch.cat([positions(0, 4), positions(4, 6)]), whole)


def test_only_learned_positions_are_weights() -> None:
    assert not SinusoidalPositions(10, 6).state_dict()
    assert [tuple(p.shape) for p in LearnedPositions(10, 6).parameters()] == [(10, 6)]
