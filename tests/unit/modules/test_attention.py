"""Attention against torch's own, its masks and its caches."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.attention import MultiHeadAttention, attention, causal_mask, padding_mask


def _query_key_value() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4)


@pytest.mark.parametrize("masked", [False, True])
def test_both_ways_agree_with_torch(masked: bool) -> None:
    query, key, value = _query_key_value()
    mask = causal_mask(5, 7) if masked else None
    fast, no_weights = attention(query, key, value, mask)
    slow, weights = attention(query, key, value, mask, need_weights=True)
    assert no_weights is None
    assert weights is not None
    assert_close(fast, slow)
    assert_close(slow, F.scaled_dot_product_attention(query, key, value, attn_mask=mask))
    assert_close(weights @ value, slow)
    assert_close(weights.sum(-1), torch.ones(2, 3, 5))


def test_causal_mask_allows_what_is_not_later() -> None:
    assert causal_mask(3, 3).tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    assert causal_mask(2, 3).tolist() == [[True, True, False], [True, True, True]]


def test_padding_mask_is_true_at_real_keys() -> None:
    mask = padding_mask(torch.tensor([[5, 6, 0], [5, 0, 0]]), pad_id=0)
    assert mask.shape == (2, 1, 1, 3)
    assert mask[:, 0, 0].tolist() == [[True, True, False], [True, False, False]]


def test_masked_keys_get_no_weight() -> None:
    query, key, value = _query_key_value()
    mask = causal_mask(5, 7)
    _, weights = attention(query, key, value, mask, need_weights=True)
    assert weights is not None
    assert (weights[..., ~mask] == 0).all()
    assert (weights[..., mask] > 0).all()


def test_width_must_be_divisible_by_heads() -> None:
    with pytest.raises(ValueError, match="d_model=10 is not divisible by num_heads=4"):
        MultiHeadAttention(10, 4)


def test_cache_is_a_value() -> None:
    attend = MultiHeadAttention(8, 2)
    x = torch.randn(3, 4, 8)
    whole, first = attend.remember(x), attend.remember(x[:, :1])
    both = first.append(attend.remember(x[:, 1:]))
    assert (first.length, both.length) == (1, 4)
    assert_close(both.key_BHSK, whole.key_BHSK)
    assert_close(both.value_BHSK, whole.value_BHSK)
    chosen = whole.select(torch.tensor([2, 0, 0]))
    assert_close(chosen.key_BHSK, whole.key_BHSK[[2, 0, 0]])
    assert_close(chosen.value_BHSK, whole.value_BHSK[[2, 0, 0]])
