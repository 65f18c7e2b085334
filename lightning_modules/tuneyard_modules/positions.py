"""Where a token stands: vectors to add to its embedding, sinusoidal or learned, or rotations of queries and keys.

T length, D model width, B batch, H heads, K head width, I frequencies: pairs of places, D / 2 or K / 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn


def sinusoidal(max_length: int, d_model: int) -> Tensor:
    """sin and cos of t / 10000^(2i/D) at the even and odd places 2i and 2i + 1, section 3.5 of Vaswani et al. 2017.

    Returns (max_length, d_model); raises ValueError where `d_model` is odd.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sinusoidal positions pair sines with cosines, use an even width")
    angle_TI = _angles(max_length, d_model)
    return torch.stack([angle_TI.sin(), angle_TI.cos()], dim=-1).flatten(1).float()


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids, computed once and not part of the weights."""

    table_TD: Tensor

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.register_buffer("table_TD", sinusoidal(max_length, d_model), persistent=False)

    def forward(self, start: int, length: int) -> Tensor:
        """The vectors of positions start .. start + length - 1: (length, d_model)."""
        return self.table_TD[start : start + length]


class LearnedPositions(nn.Module):
    """One trained vector per position."""

    def __init__(self, max_length: int, d_model: int) -> None:
        super().__init__()
        self.table_TD = nn.Parameter(torch.empty(max_length, d_model).normal_(std=0.1))

    def forward(self, start: int, length: int) -> Tensor:
        """The vectors of positions start .. start + length - 1: (length, d_model)."""
        return self.table_TD[start : start + length]


class Rotation(NamedTuple):
    """By how much each pair of places is turned at each position."""

    cos_TI: Tensor
    sin_TI: Tensor


def rotate(x_BTHK: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys with places 2i and 2i + 1 turned by their angle, equations 15 and 34 of Su et al. 2021.

    The product of a rotated query and a rotated key depends on how far apart the two stand, not on where.
    """
    cos_T1I, sin_T1I = (table_TI[:, None] for table_TI in rotation)
    even_BTHI, odd_BTHI = x_BTHK[..., 0::2], x_BTHK[..., 1::2]
    turned = (even_BTHI * cos_T1I - odd_BTHI * sin_T1I, odd_BTHI * cos_T1I + even_BTHI * sin_T1I)
    return torch.stack(turned, dim=-1).flatten(-2)


class RotaryPositions(nn.Module):
    """The rotations of Su et al. 2021: t / 10000^(2i/K), the angles of the sinusoids; not part of the weights."""

    cos_TI: Tensor
    sin_TI: Tensor

    def __init__(self, max_length: int, head_width: int) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"head_width={head_width} is odd: rotary positions turn pairs, use an even width per head")
        angle_TI = _angles(max_length, head_width)
        self.register_buffer("cos_TI", angle_TI.cos().float(), persistent=False)
        self.register_buffer("sin_TI", angle_TI.sin().float(), persistent=False)

    def forward(self, start: int, length: int) -> Rotation:
        """The rotations of positions start .. start + length - 1."""
        return Rotation(self.cos_TI[start : start + length], self.sin_TI[start : start + length])


def _angles(max_length: int, width: int) -> Tensor:
    """t / 10000^(2i/width): (max_length, width / 2), in double precision."""
    position_T1 = torch.arange(max_length, dtype=torch.float64)[:, None]
    frequency_I = torch.exp(torch.arange(0, width, 2, dtype=torch.float64) * (-math.log(10_000.0) / width))
    return position_T1 * frequency_I
