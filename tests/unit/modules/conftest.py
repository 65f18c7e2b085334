"""What the tests of several modules share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tuneyard_modules.attention import MultiHeadAttention

# Tiny models on several threads spend their time waiting for each other, all the more beside other processes.
torch.set_num_threads(1)


@pytest.fixture
def copy_attention() -> Callable[[nn.MultiheadAttention, MultiHeadAttention], None]:
    """Gives torch's attention random weights and ours the same ones."""
    return _copy_attention


def _copy_attention(source: nn.MultiheadAttention, target: MultiHeadAttention) -> None:
    """Torch keeps query, key and value in one matrix, in this order."""
    assert source.in_proj_weight is not None
    width = source.embed_dim
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_(std=0.3)
        target.query.weight.copy_(source.in_proj_weight[:width])
        target.query.bias.copy_(source.in_proj_bias[:width])
        target.key_value.weight.copy_(source.in_proj_weight[width:])
        target.key_value.bias.copy_(source.in_proj_bias[width:])
        target.output.load_state_dict(source.out_proj.state_dict())
