"""Recurrent cells as their equations are written, one token and one matrix product at a time.

B batch, T text length, I input width, D width; weights are the parameters of torch's nn.RNN, nn.LSTM and nn.GRU.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def run(
    layers: nn.RNNBase, x_BTI: Tensor, before: tuple[Tensor, ...], *, suffix: str = ""
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """All layers of one direction ("_reverse" is the other's suffix, for inputs turned round), without dropout.

    `before` is (h_LBD,) or (h_LBD, c_LBD); returns the last layer's hidden states (BTD), and what comes after them.
    """
    after = []
    for layer in range(layers.num_layers):
        weights = [
            getattr(layers, f"{name}_l{layer}{suffix}") for name in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
        ]
        state = tuple(part_LBD[layer] for part_LBD in before)
        states = []
        for x_BI in x_BTI.unbind(1):
            state = _cell(layers.mode, x_BI, state, *weights)
            states.append(state[0])
        x_BTI = torch.stack(states, dim=1)
        after.append(state)
    return x_BTI, tuple(torch.stack(parts) for parts in zip(*after, strict=True))


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
