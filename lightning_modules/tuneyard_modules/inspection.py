"""What a model looks at: the attention weights of one example.

H heads, L layers, S source length, T target or text length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Attentive(Protocol):
    """A network that has attention to look at."""

    @property
    def attention_weights(self) -> Callable[..., dict[str, list[Tensor]]]:
        """What `forward` takes -> every layer's weights (BHTS) by kind: "self", or "encoder", "decoder" and "cross"."""
        ...


@torch.inference_mode()
def attention_maps(network: Attentive, *ids: Tensor) -> dict[str, Tensor]:
    """How much each query position looks at each key position, in every layer and head, for one example.

    `ids` are what the network's `forward` takes, without a batch: `tokens_T` for a language model, which gives
    {"self": LHTT}; `source_S, target_T` for a translator, which gives {"encoder": LHSS, "decoder": LHTT, "cross":
    LHTS}. Rows sum to 1, and what a query may not see is 0. The network must be in evaluation mode.
    """
    weights = network.attention_weights(*(row[None] for row in ids))
    return {kind: torch.cat(layers) for kind, layers in weights.items()}
