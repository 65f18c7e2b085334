"""Positions against the formula of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from tuneyard_modules.positions import LearnedPositions, RotaryPositions, SinusoidalPositions, rotate, sinusoidal


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
    assert not RotaryPositions(10, 6).state_dict()
    assert [tuple(p.shape) for p in LearnedPositions(10, 6).parameters()] == [(10, 6)]


def test_rotary_turns_every_pair_by_its_angle() -> None:
    x = torch.randn(2, 9, 3, 6, generator=torch.Generator().manual_seed(2))
    turned = rotate(x, RotaryPositions(20, 6)(start=4, length=9))
    for t in range(9):
        for i in range(3):
            angle = (4 + t) / 10_000 ** (2 * i / 6)
            turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            pair = slice(2 * i, 2 * i + 2)
            assert_close(turned[:, t, :, pair], x[:, t, :, pair] @ turn.T)


def test_products_of_rotated_vectors_know_only_how_far_apart_they_are() -> None:
    query, key = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(3))
    positions = RotaryPositions(40, 8)

    def product(at: int, other: int) -> float:
        return float((rotate(query, positions(at, 1)) * rotate(key, positions(other, 1))).sum())

    assert product(9, 4) == pytest.approx(product(39, 34), abs=1e-5)
    assert product(9, 4) != pytest.approx(product(4, 9), abs=1e-2)
    assert product(7, 7) == pytest.approx(float((query * key).sum()), abs=1e-5)


def test_rotary_needs_an_even_width_a_head() -> None:
    with pytest.raises(ValueError, match="head_width=3 is odd"):
        RotaryPositions(10, 3)
