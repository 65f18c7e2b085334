"""What an objective makes of one batch, as a mean over its target tokens."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tuneyard_modules.objective import SequenceModule


def mean_loss(module: SequenceModule, batch: Any) -> Tensor:
    """0 where the batch has no target."""
    summed, tokens = module.summed_loss(batch)
    return summed / tokens.clamp(min=1)
