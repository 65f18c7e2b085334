"""Recurrent cells as their equations are written, one token and one matrix product at a time.

B batch, T text length, I input width, D width; weights are the parameters of torch's nn.RNN, nn.LSTM and nn.GRU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def run(layers: nn.RNNBase, x_BTI: Tensor, before: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of a network of one direction, without dropout.

    `before` is (h_LBD,) or (h_LBD, c_LBD); returns the last layer's hidden states (BTD), and what comes after them.
    """
    after = []
    for layer in range(layers.num_layers):
        x_BTI, state = _layer(layers, f"_l{layer}", x_BTI, tuple(part_LBD[layer] for part_LBD in before))
        after.append(state)
    return x_BTI, _stacked(after)


def run_both_ways(layers: nn.RNNBase, x_BTI: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of a bidirectional network from zeros: each reads both directions of the one before, side by side.

    Returns the last layer's hidden states and, of every layer, the final ones, both with the directions side by side.
    """
    zeros = (x_BTI.new_zeros(x_BTI.shape[0], layers.hidden_size),) * (2 if layers.mode == "LSTM" else 1)
    after = []
    for layer in range(layers.num_layers):
        forward_BTD, there = _layer(layers, f"_l{layer}", x_BTI, zeros)
        backward_BTD, back = _layer(layers, f"_l{layer}_reverse", x_BTI.flip(1), zeros)
        x_BTI = torch.cat([forward_BTD, backward_BTD.flip(1)], dim=-1)
        after.append(tuple(torch.cat(parts, dim=-1) for parts in zip(there, back, strict=True)))
    return x_BTI, _stacked(after)


def _layer(
    layers: nn.RNNBase, suffix: str, x_BTI: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    weights = [getattr(layers, name + suffix) for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")]
    states = []
    for x_BI in x_BTI.unbind(1):
        state = _cell(layers.mode, x_BI, state, *weights)
        states.append(state[0])
    return torch.stack(states, dim=1), state


def _stacked(after: list[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(parts) for parts in zip(*after, strict=True))


def _cell(
    mode: str, x_BI: Tensor, state: tuple[Tensor, ...], w_x: Tensor, b_x: Tensor, w_h: Tensor, b_h: Tensor
) -> tuple[Tensor, ...]:
    h_BD = state[0]
    from_x, from_h = x_BI @ w_x.T + b_x, h_BD @ w_h.T + b_h
    if mode == "RNN_TANH":
        return (torch.tanh(from_x + from_h),)
    if mode == "RNN_RELU":
        return ((from_x + from_h).clamp(min=0),)
    if mode == "LSTM":
        i, f, g, o = (from_x + from_h).chunk(4, dim=-1)
        c_BD = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c_BD), c_BD
    (r_x, z_x, n_x), (r_h, z_h, n_h) = from_x.chunk(3, dim=-1), from_h.chunk(3, dim=-1)
    r, z = torch.sigmoid(r_x + r_h), torch.sigmoid(z_x + z_h)
    n = torch.tanh(n_x + r * n_h)
    return ((1 - z) * n + z * h_BD,)
