"""Where a token stands, as vectors to add to its embedding: sinusoidal or learned.

T length, D model width, I frequencies: pairs of places, D / 2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def sinusoidal(max_length: int, d_model: int) -> Tensor:
    """sin and cos of t / 10000^(2i/D) at the even and odd places 2i and 2i + 1, section 3.5 of Vaswani et al. 2017.

    Returns (max_length, d_model); raises ValueError where `d_model` is odd.
    """
    if d_model % 2:
        raise ValueError(f"d_model={d_model} is odd: sinusoidal positions pair sines with cosines, use an even width")
    position_T1 = torch.arange(max_length, dtype=torch.float64)[:, None]
    frequency_I = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10_000.0) / d_model))
    angle_TI = position_T1 * frequency_I
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
