"""Attention by hand, its masks and its caches; against torch's own in test_transformer_reference.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from tuneyard_modules.attention import CAUSAL, MultiHeadAttention, attention, causal_mask, padding_mask

SENTENCE = ["我", "买了", "一个", "黄色", "的", "苹果", "手机"]


def _query_key_value(kv_heads: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 5, 8), torch.randn(2, kv_heads, 7, 8), torch.randn(2, kv_heads, 7, 8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_both_ways_agree(masked: bool, scaled: bool, kv_heads: int) -> None:
    query, key, value = _query_key_value(kv_heads)
    mask = causal_mask(5, 7) if masked else None
    fast, no_weights = attention(query, key, value, mask, scaled=scaled)
    slow, weights = attention(query, key, value, mask, scaled=scaled, need_weights=True)
    assert no_weights is None
    assert weights is not None
    assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    assert_close(weights.sum(-1), torch.ones(2, 4, 5))


@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_is_the_square_mask_that_it_stands_for(need_weights: bool) -> None:
    query, key, value = (torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    context, _ = attention(query, key, value, CAUSAL, need_weights=need_weights)
    assert_close(context, attention(query, key, value, causal_mask(6, 6))[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_two_tokens_by_hand(scaled: bool, need_weights: bool) -> None:
    query = torch.tensor([[1.0, 2.0, 0.0, -1.0], [0.0, 1.0, 3.0, 1.0]])
    key = torch.tensor([[2.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 1.0]])
    value = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 5.0, -2.0, 1.0]])
    scores = [[4.0, -3.0], [4.0, 3.0]]  # 1*2 + 2*1 + 0*1 - 1*0, 1*0 - 2*1 + 0*1 - 1*1; 1*1 + 3*1, -1*1 + 3*1 + 1*1
    context, weights = attention(
        query[None, None], key[None, None], value[None, None], scaled=scaled, need_weights=need_weights
    )
    for row, (first, second) in enumerate(scores):
        root = 2.0 if scaled else 1.0
        share = math.exp(first / root) / (math.exp(first / root) + math.exp(second / root))
        expected = [share * one + (1 - share) * other for one, other in zip(*value.tolist(), strict=True)]
        assert context[0, 0, row].tolist() == pytest.approx(expected, rel=1e-5)
        if need_weights:
            assert weights is not None
            assert weights[0, 0, row].tolist() == pytest.approx([share, 1 - share], rel=1e-5)


@pytest.mark.parametrize("need_weights", [True, False])
def test_an_apple_looks_at_the_phone_and_its_colour(need_weights: bool) -> None:
    """Scores are the logarithms of the shares; what is masked has none. Each key has a place of its own."""
    apple, share = SENTENCE.index("苹果"), {"手机": 0.58, "黄色": 0.29, "苹果": 0.13}
    key_SK, value_SK = torch.eye(7), torch.randn(7, 7, generator=torch.Generator().manual_seed(1))
    query_K = torch.tensor([7**0.5 * math.log(share[word]) if word in share else 0.0 for word in SENTENCE])
    query_TK = torch.zeros(7, 7).index_put((torch.tensor(apple),), query_K)
    mask_TS = torch.ones(7, 7, dtype=torch.bool)
    mask_TS[apple] = torch.tensor([word in share for word in SENTENCE])
    context, weights = attention(
        query_TK[None, None], key_SK[None, None], value_SK[None, None], mask_TS, need_weights=need_weights
    )
    _, _, _, v4, _, v6, v7 = value_SK
    assert_close(context[0, 0, apple], 0.58 * v7 + 0.29 * v4 + 0.13 * v6)
    if need_weights:
        assert weights is not None
        assert weights[0, 0, apple].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.29, 0.0, 0.13, 0.58])


def test_query_heads_in_a_row_share_a_key_and_value_head() -> None:
    query, key, value = _query_key_value(kv_heads=2)
    shared, _ = attention(query, key, value)
    for head in range(4):
        alone, _ = attention(query[:, head : head + 1], *(x[:, head // 2 : head // 2 + 1] for x in (key, value)))
        assert_close(shared[:, head : head + 1], alone)


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


def test_heads_must_be_divisible_by_those_of_keys() -> None:
    with pytest.raises(ValueError, match="num_heads=4 is not divisible by num_kv_heads=3"):
        MultiHeadAttention(8, 4, 3)


def test_shared_keys_are_remembered_once() -> None:
    attend = MultiHeadAttention(8, 4, 2)
    cache = attend.remember(torch.randn(3, 5, 8))
    assert cache.key_BHSK.shape == cache.value_BHSK.shape == (3, 2, 5, 2)
    assert attend(torch.randn(3, 6, 8), cache)[0].shape == (3, 6, 8)


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
