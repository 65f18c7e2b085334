"""Scaled dot-product attention, its masks, and multi-head attention over keys and values that are passed in.

B batch, N rows chosen from a batch, T query length, S key length, D model width, H heads, K head width. A mask is true
where a query may look.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Cache(NamedTuple):
    """The keys and values that queries attend to; a value, never changed in place."""

    key_BHSK: Tensor
    value_BHSK: Tensor

    @property
    def length(self) -> int:
        """S, the number of remembered positions."""
        return self.key_BHSK.shape[2]

    def append(self, later: Cache) -> Cache:
        """These positions followed by the `later` ones."""
        if self.length == 0:
            return later
        key_BHSK = torch.cat([self.key_BHSK, later.key_BHSK], dim=2)
        return Cache(key_BHSK, torch.cat([self.value_BHSK, later.value_BHSK], dim=2))

    def select(self, index_N: Tensor) -> Cache:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Cache(self.key_BHSK[index_N], self.value_BHSK[index_N])


def attention(
    query_BHTK: Tensor,
    key_BHSK: Tensor,
    value_BHSK: Tensor,
    mask: Tensor | None = None,
    *,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k^T / sqrt(K)) v, equation 1 of Vaswani et al. 2017.

    `mask` is boolean and broadcasts to BHTS; every query must be allowed at least one key. Returns the context
    (BHTK) and, only when `need_weights`, the weights (BHTS), which rules out torch's fused kernels.
    """
    if not need_weights:
        return F.scaled_dot_product_attention(query_BHTK, key_BHSK, value_BHSK, attn_mask=mask), None
    scores_BHTS = query_BHTK @ key_BHSK.transpose(-2, -1) * query_BHTK.shape[-1] ** -0.5
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf)
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    return weights_BHTS @ value_BHSK, weights_BHTS


def padding_mask(ids_BS: Tensor, pad_id: int) -> Tensor:
    """True at the keys that are not padding: shape (B, 1, 1, S)."""
    return (ids_BS != pad_id)[:, None, None, :]


def causal_mask(query_length: int, key_length: int, device: torch.device | None = None) -> Tensor:
    """True at the keys not later than the query: shape (T, S), where the queries are the last T of S positions."""
    allowed_TS = torch.ones(query_length, key_length, dtype=torch.bool, device=device)
    return allowed_TS.tril(diagonal=key_length - query_length)


class MultiHeadAttention(nn.Module):
    """Attention in `num_heads` subspaces of D / H each, section 3.2.2 of Vaswani et al. 2017.

    Self-attention is `attend(x, attend.remember(x))`; cross-attention remembers the encoder's output once and attends
    to it at every step; cached decoding attends to `past.append(attend.remember(x))`.
    """

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}: change one of the two")
        self.num_heads = num_heads
        self.query = nn.Linear(d_model, d_model)
        self.key_value = nn.Linear(d_model, 2 * d_model)
        self.output = nn.Linear(d_model, d_model)

    def remember(self, source_BSD: Tensor) -> Cache:
        """The keys and values of a source."""
        key_BSD, value_BSD = self.key_value(source_BSD).chunk(2, dim=-1)
        return Cache(self._split(key_BSD), self._split(value_BSD))

    def forward(
        self, query_BTD: Tensor, cache: Cache, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The mixed heads (BTD) and, only when `need_weights`, each head's weights (BHTS)."""
        query_BHTK = self._split(self.query(query_BTD))
        context_BHTK, weights_BHTS = attention(query_BHTK, *cache, mask, need_weights=need_weights)
        mixed_BTD: Tensor = self.output(context_BHTK.transpose(1, 2).flatten(2))
        return mixed_BTD, weights_BHTS

    def _split(self, x_BTD: Tensor) -> Tensor:
        rows, length, width = x_BTD.shape
        return x_BTD.view(rows, length, self.num_heads, width // self.num_heads).transpose(1, 2)
