"""Dot-product attention, its masks, and multi-head attention over keys and values that are passed in.

B batch, N rows chosen from a batch, T query length, S key length, D model width, H heads (of keys and values fewer,
where queries share them), K head width. A mask is true where a query may look; CAUSAL stands for the square one that
lets it look at its own key and those before it, which fused kernels need not read.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.positions import Rotation, rotate

CAUSAL: Literal["causal"] = "causal"
Mask = Tensor | Literal["causal"] | None


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
    mask: Mask = None,
    *,
    scaled: bool = True,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(q k^T / sqrt(K)) v, equation 1 of Vaswani et al. 2017; without the root where not `scaled`.

    Where there are fewer heads of keys and values, each serves equally many query heads in a row (grouped-query
    attention, Ainslie et al. 2023). `mask` is CAUSAL, of as many queries as keys, or boolean and broadcasts to BHTS;
    every query must be allowed at least one key. The kernel of FlashAttention (Dao et al. 2022) takes no tensor for it.
    Returns the context (BHTK) and, only when `need_weights`, the weights (BHTS), which rules out torch's fused kernels.
    """
    shared = query_BHTK.shape[1] // key_BHSK.shape[1]
    if not need_weights:
        context_BHTK = F.scaled_dot_product_attention(
            query_BHTK,
            key_BHSK,
            value_BHSK,
            attn_mask=None if isinstance(mask, str) else mask,
            is_causal=isinstance(mask, str),
            scale=None if scaled else 1.0,
            enable_gqa=shared > 1,
        )
        return context_BHTK, None
    if isinstance(mask, str):
        mask = causal_mask(query_BHTK.shape[2], key_BHSK.shape[2], query_BHTK.device)
    if shared > 1:
        key_BHSK, value_BHSK = (x.repeat_interleave(shared, dim=1) for x in (key_BHSK, value_BHSK))
    scores_BHTS = query_BHTK @ key_BHSK.transpose(-2, -1) * (query_BHTK.shape[-1] ** -0.5 if scaled else 1.0)
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
    to it at every step; cached decoding attends to `past.append(attend.remember(x))`. Where positions are a rotation,
    it is given for queries and keys alike, and keys are remembered rotated. `num_kv_heads` are as many as `num_heads`
    when None; without `bias` none of the four maps has one. Raises ValueError where heads do not divide.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        *,
        bias: bool = True,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if d_model % num_heads:
            raise ValueError(f"d_model={d_model} is not divisible by num_heads={num_heads}: change one of the two")
        if num_heads % num_kv_heads:
            raise ValueError(
                f"num_heads={num_heads} is not divisible by num_kv_heads={num_kv_heads}: change one of the two"
            )
        self.head_width = d_model // num_heads
        self.scaled = scaled
        self.query = nn.Linear(d_model, d_model, bias)
        self.key_value = nn.Linear(d_model, 2 * num_kv_heads * self.head_width, bias)
        self.output = nn.Linear(d_model, d_model, bias)

    def remember(self, source_BSD: Tensor, rotation: Rotation | None = None) -> Cache:
        """The keys and values of a source."""
        key_BSD, value_BSD = self.key_value(source_BSD).chunk(2, dim=-1)
        return Cache(self._split(key_BSD, rotation), self._split(value_BSD))

    def forward(
        self,
        query_BTD: Tensor,
        cache: Cache,
        mask: Mask = None,
        rotation: Rotation | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The mixed heads (BTD) and, only when `need_weights`, each head's weights (BHTS)."""
        query_BHTK = self._split(self.query(query_BTD), rotation)
        context_BHTK, weights_BHTS = attention(query_BHTK, *cache, mask, scaled=self.scaled, need_weights=need_weights)
        mixed_BTD: Tensor = self.output(context_BHTK.transpose(1, 2).flatten(2))
        return mixed_BTD, weights_BHTS

    def _split(self, x_BTD: Tensor, rotation: Rotation | None = None) -> Tensor:
        rows, length, width = x_BTD.shape
        x_BTHK = x_BTD.view(rows, length, width // self.head_width, self.head_width)
        # Before the heads come first: fused kernels answer in the layout of the query, and this one is BTD again.
        return (x_BTHK if rotation is None else rotate(x_BTHK, rotation)).transpose(1, 2)
