"""Transformers against independent implementations with the same weights: outputs, logits and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import reference_models as reference
import torch
from reference_models import assert_same_gradients, spread
from torch.testing import assert_close

from tuneyard_modules.attention import MultiHeadAttention
from tuneyard_modules.transformer import (
    DecoderLayer,
    DecoderOnly,
    EncoderDecoder,
    EncoderLayer,
    EncoderOnly,
    TransformerConfig,
)

REAL = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] + [False] * 5])


def config(**changes: Any) -> TransformerConfig:
    shape = {"vocab_size": 19, "d_model": 16, "num_heads": 4, "num_layers": 2, "max_length": 12, "dropout": 0.0}
    return TransformerConfig(**(shape | changes))


def network(kind: type[Any], **changes: Any) -> Any:
    torch.manual_seed(0)
    return spread(kind(config(**changes)))


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 19, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


def compare(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Values now, and gradients of the same scalar of both for what follows."""
    assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(5))
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_attention_is_torchs(need_weights: bool, bias: bool) -> None:
    torch.manual_seed(0)
    ours = spread(MultiHeadAttention(12, 3, bias=bias))
    theirs, pairs = reference.torch_attention(ours)
    query, source = torch.randn(3, 5, 12), torch.randn(3, 6, 12)
    got, weights = ours(query, ours.remember(source), REAL[:, None, None], need_weights=need_weights)
    expected, expected_weights = theirs(
        query, source, source, key_padding_mask=~REAL, average_attn_weights=False, need_weights=need_weights
    )
    compare(got, expected)
    assert_same_gradients(pairs, of=ours)
    if need_weights:
        assert_close(weights, expected_weights)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_layer_is_torchs(norm: str, activation: str) -> None:
    torch.manual_seed(0)
    ours = spread(EncoderLayer(config(norm=norm, activation=activation)))
    theirs, pairs = reference.torch_encoder_layer(ours, activation)
    x = torch.randn(3, 6, 16)
    got, cache, no_weights = ours(x, None, REAL[:, None, None])
    assert (cache.length, no_weights) == (6, None)
    compare(got[REAL], theirs(x, src_key_padding_mask=~REAL)[REAL])
    assert_same_gradients(pairs, of=ours)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_decoder_layer_is_torchs(norm: str, activation: str) -> None:
    torch.manual_seed(0)
    ours = spread(DecoderLayer(config(norm=norm, activation=activation)))
    theirs, pairs = reference.torch_decoder_layer(ours, activation)
    x, source = torch.randn(3, 5, 16), torch.randn(3, 6, 16)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    nothing, memory = ours.attention.remember(x[:, :0]), ours.cross_attention.remember(source)
    got, cache, no_weights = ours(x, nothing, causal, memory, REAL[:, None, None])
    compare(got, theirs(x, source, tgt_mask=~causal, memory_key_padding_mask=~REAL))
    assert (cache.length, no_weights) == (5, (None, None))
    assert_same_gradients(pairs, of=ours)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_gpt2_is_hugging_faces(activation: str) -> None:
    ours = network(DecoderOnly, positions="learned", activation=activation)
    theirs, pairs = reference.gpt2(ours)
    tokens = ids(3, 12)
    compare(ours(tokens), theirs(tokens).logits)
    assert_same_gradients(pairs, of=ours, atol=1e-4)


def test_gpt_with_norms_behind_is_the_first_one_of_hugging_face() -> None:
    ours = network(DecoderOnly, positions="learned", norm="post", activation="relu")
    theirs, pairs = reference.gpt1(ours)
    tokens = ids(3, 12)
    compare(ours(tokens), theirs(tokens).logits)
    assert_same_gradients(pairs, of=ours, atol=1e-4)


@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_bert_is_hugging_faces(activation: str) -> None:
    ours = network(EncoderOnly, activation=activation)
    theirs, pairs = reference.bert(ours)
    tokens = ids(3, 6) * REAL
    compare(ours(tokens)[REAL], theirs(tokens, attention_mask=REAL.long()).logits[REAL])
    assert_same_gradients(pairs, of=ours, atol=1e-4)


def test_post_norm_transformer_is_hugging_faces_marian() -> None:
    ours = network(EncoderDecoder, norm="post", num_decoder_layers=1)
    theirs, pairs = reference.marian(ours)
    source, target = ids(3, 6) * REAL, ids(3, 7)
    logits = theirs(source, attention_mask=REAL.long(), decoder_input_ids=target).logits
    compare(ours(source, target), logits)
    assert_same_gradients(pairs, of=ours, atol=1e-4)


@pytest.mark.parametrize("groups", [None, 2, 1])
def test_rotary_positions_groups_and_swiglu_are_those_of_hugging_faces_llama(groups: int | None) -> None:
    ours = network(DecoderOnly, positions="rotary", activation="swiglu", bias=False, num_kv_heads=groups, d_ff=24)
    theirs, pairs = reference.llama(ours)
    tokens = ids(3, 12)
    compare(ours(tokens), theirs(tokens).logits)
    assert_same_gradients(pairs, of=ours, atol=1e-4)
