"""Averages of a network's weights over its training: validated and kept in place of those that the optimiser moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

Weights = list[Tensor]


class Average(Protocol):
    """Told of every update and every validation, in that order; weights are always those of one network."""

    def updated(self, weights: Sequence[Tensor]) -> None:
        """The optimiser has moved the weights."""

    def validated(self, weights: Sequence[Tensor]) -> None:
        """The weights are about to be validated."""

    def weights(self) -> Weights | None:
        """The average, None before there is one."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds beside the average itself; plain types and tensors only."""

    def load_state_dict(self, state: dict[str, Any], average: Weights) -> None:
        """Go on where `state_dict` and the average were kept, on the device of `average`."""


class MovingAverage:
    """The exponential one, m <- d m + (1 - d) w after every update, beginning with the weights after the first.

    d is min(`decay`, (1 + t) / (10 + t)) at update t, as in TensorFlow's ExponentialMovingAverage: with `decay` alone
    a short training would be averaged with its beginning. Averages of the way of an optimiser go back to Polyak and
    Juditsky 1992.
    """

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._updates = 0
        self._mean: Weights | None = None

    @torch.no_grad()
    def updated(self, weights: Sequence[Tensor]) -> None:
        self._updates += 1
        if self._mean is None:
            self._mean = [weight.detach().clone() for weight in weights]
            return
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        torch._foreach_lerp_(self._mean, list(weights), 1.0 - decay)

    def validated(self, weights: Sequence[Tensor]) -> None:
        """Nothing: it follows the updates."""

    def weights(self) -> Weights | None:
        return self._mean

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self._updates}

    def load_state_dict(self, state: dict[str, Any], average: Weights) -> None:
        self._updates, self._mean = state["updates"], average


class LastCheckpoints:
    """The mean of the weights at the last `count` validations, at each of which there is a checkpoint.

    Section 6.1 of Vaswani et al. 2017 averages the last checkpoints at the end, Kaddour 2022 all along, as here.
    """

    def __init__(self, count: int) -> None:
        self._kept: deque[Weights] = deque(maxlen=count)

    def updated(self, weights: Sequence[Tensor]) -> None:
        """Nothing: it follows the validations."""

    def validated(self, weights: Sequence[Tensor]) -> None:
        self._kept.append([weight.detach().clone() for weight in weights])

    def weights(self) -> Weights | None:
        if not self._kept:
            return None
        return [torch.stack(same).mean(0) for same in zip(*self._kept, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self._kept)}

    def load_state_dict(self, state: dict[str, Any], average: Weights) -> None:
        self._kept.clear()
        for weights in state["kept"]:
            self._kept.append([weight.to(like.device) for weight, like in zip(weights, average, strict=True)])
