"""Independent implementations with the weights of our networks: torch's layers, and models of Hugging Face.

Each function returns the other model and which of its parameters are which of ours, so that gradients can be compared,
too. The models are built here, from configurations, with random weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.testing import assert_close

from tuneyard_modules.attention import MultiHeadAttention
from tuneyard_modules.transformer import DecoderLayer, DecoderOnly, EncoderDecoder, EncoderLayer, EncoderOnly

Rows = slice | list[int]
ALL = slice(None)


class Pair(NamedTuple):
    """A parameter of theirs and one of ours: the same numbers at these rows, theirs perhaps transposed."""

    theirs: nn.Parameter
    ours: nn.Parameter
    their_rows: Rows = ALL
    our_rows: Rows = ALL
    transposed: bool = False

    def of_theirs(self, values: Tensor) -> Tensor:
        return (values.T if self.transposed else values)[self.their_rows]


def spread(network: Any, std: float = 0.4) -> Any:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=std)
    return network


def copy(pairs: Iterable[Pair]) -> list[Pair]:
    """Give them our weights."""
    pairs = list(pairs)
    with torch.no_grad():
        for pair in pairs:
            part = (pair.theirs.T if pair.transposed else pair.theirs)[pair.their_rows]
            assert part.shape == pair.ours[pair.our_rows].shape
            (pair.theirs.data.T if pair.transposed else pair.theirs.data)[pair.their_rows] = pair.ours[pair.our_rows]
    return pairs


def assert_same_gradients(pairs: Iterable[Pair], *, of: nn.Module, atol: float = 1e-5) -> None:
    """Every parameter of our network `of` has the gradient of its like."""
    pairs = list(pairs)
    assert {id(pair.ours) for pair in pairs} == {id(parameter) for parameter in of.parameters()}, "all are compared"
    for pair in pairs:
        assert pair.theirs.grad is not None
        assert pair.ours.grad is not None
        assert pair.ours.grad.any(), "or nothing is compared"
        assert_close(pair.ours.grad[pair.our_rows], pair.of_theirs(pair.theirs.grad), rtol=1e-4, atol=atol)


def torch_attention(ours: MultiHeadAttention) -> tuple[nn.MultiheadAttention, list[Pair]]:
    """Torch keeps query, key and value in one matrix, in this order."""
    width, bias = ours.query.in_features, ours.query.bias is not None
    theirs = nn.MultiheadAttention(width, width // ours.head_width, bias=bias, batch_first=True)
    return theirs, copy(_torch_attention(theirs, ours))


def torch_encoder_layer(ours: EncoderLayer, activation: str) -> tuple[nn.TransformerEncoderLayer, list[Pair]]:
    """Without dropout, in training mode: torch's fast path has no gradients."""
    theirs = nn.TransformerEncoderLayer(**_torch_shape(ours, activation))
    pairs = _torch_attention(theirs.self_attn, ours.attention) + _torch_rest(theirs, ours)
    return theirs, copy(pairs + _same(theirs.norm1, ours.attention_norm) + _same(theirs.norm2, ours.feed_forward_norm))


def torch_decoder_layer(ours: DecoderLayer, activation: str) -> tuple[nn.TransformerDecoderLayer, list[Pair]]:
    """As the encoder's."""
    theirs = nn.TransformerDecoderLayer(**_torch_shape(ours, activation))
    pairs = _torch_attention(theirs.self_attn, ours.attention) + _torch_rest(theirs, ours)
    pairs += _torch_attention(theirs.multihead_attn, ours.cross_attention)
    norms = [(theirs.norm1, ours.attention_norm), (theirs.norm2, ours.cross_attention_norm)]
    norms += [(theirs.norm3, ours.feed_forward_norm)]
    return theirs, copy(pairs + [pair for norm in norms for pair in _same(*norm)])


def gpt2(ours: DecoderOnly) -> tuple[transformers.GPT2LMHeadModel, list[Pair]]:
    """GPT-2, with the exact GELU, where the released one approximates it."""
    config = ours.config
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.max_length,
            n_embd=config.d_model,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_inner=config.feed_forward_width,
            activation_function=config.activation,
            bos_token_id=1,
            eos_token_id=2,
        )
    ).eval()
    body = theirs.transformer
    pairs = [Pair(body.wte.weight, ours.embedding.weight), Pair(body.wpe.weight, ours.positions.table_TD)]
    pairs += _same(body.ln_f, ours.norm)
    return theirs, copy(pairs + _gpt_blocks(body.h, ours))


def gpt1(ours: DecoderOnly) -> tuple[transformers.OpenAIGPTLMHeadModel, list[Pair]]:
    """The first GPT: norms after the sub-layers, and none at the end. Its GELU is approximate."""
    config = ours.config
    theirs = transformers.OpenAIGPTLMHeadModel(
        transformers.OpenAIGPTConfig(
            vocab_size=config.vocab_size,
            n_positions=config.max_length,
            n_embd=config.d_model,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            afn=config.activation,
        )
    ).eval()
    body = theirs.transformer
    pairs = [
        Pair(body.tokens_embed.weight, ours.embedding.weight),
        Pair(body.positions_embed.weight, ours.positions.table_TD),
    ]
    return theirs, copy(pairs + _gpt_blocks(body.h, ours))


def bert(ours: EncoderOnly) -> tuple[transformers.BertForMaskedLM, list[Pair]]:
    """BERT, with segments that say nothing."""
    config = ours.config
    theirs = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            intermediate_size=config.feed_forward_width,
            hidden_act=config.activation,
            max_position_embeddings=config.max_length,
            layer_norm_eps=1e-5,
            pad_token_id=None,
        )
    ).eval()
    inputs, head = theirs.bert.embeddings, theirs.cls.predictions
    nn.init.zeros_(inputs.token_type_embeddings.weight)
    pairs = [
        Pair(inputs.word_embeddings.weight, ours.embedding.weight),
        Pair(inputs.position_embeddings.weight, ours.positions.table_TD),
        Pair(head.bias, ours.head.bias),
    ]
    pairs += _same(inputs.LayerNorm, ours.embedding_norm)
    pairs += _same(head.transform.dense, ours.head.dense) + _same(head.transform.LayerNorm, ours.head.norm)
    for block, layer in zip(theirs.bert.encoder.layer, ours.layers, strict=True):
        looking, said = block.attention.self, block.attention.output
        pairs += _separate_attention(looking.query, looking.key, looking.value, said.dense, layer.attention)
        pairs += _same(said.LayerNorm, layer.attention_norm)
        pairs += _same(block.intermediate.dense, layer.feed_forward[0])
        pairs += _same(block.output.dense, layer.feed_forward[2])
        pairs += _same(block.output.LayerNorm, layer.feed_forward_norm)
    return theirs, copy(pairs)


def marian(ours: EncoderDecoder) -> tuple[transformers.MarianMTModel, list[Pair]]:
    """Marian's transformer: that of Vaswani et al. 2017; our sinusoids, for it keeps all sines before all cosines."""
    config = ours.config
    theirs = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=config.vocab_size,
            d_model=config.d_model,
            encoder_layers=config.num_layers,
            decoder_layers=config.num_decoder_layers or config.num_layers,
            encoder_attention_heads=config.num_heads,
            decoder_attention_heads=config.num_heads,
            encoder_ffn_dim=config.feed_forward_width,
            decoder_ffn_dim=config.feed_forward_width,
            max_position_embeddings=config.max_length,
            activation_function=config.activation,
            scale_embedding=True,
            pad_token_id=config.pad_id,
            bos_token_id=1,
            decoder_start_token_id=1,
            eos_token_id=2,
            forced_eos_token_id=None,
        )
    ).eval()
    body = theirs.model
    with torch.no_grad():
        for side, positions in ((body.encoder, ours.source_positions), (body.decoder, ours.target_positions)):
            side.embed_positions.weight.copy_(positions.table_TD)
    pairs = [Pair(body.shared.weight, ours.embedding.weight)]
    for side, layers in ((body.encoder.layers, ours.encoder), (body.decoder.layers, ours.decoder)):
        for block, layer in zip(side, layers, strict=True):
            pairs += _marian_attention(block.self_attn, layer.attention)
            pairs += _same(block.self_attn_layer_norm, layer.attention_norm)
            if hasattr(layer, "cross_attention"):
                pairs += _marian_attention(block.encoder_attn, layer.cross_attention)
                pairs += _same(block.encoder_attn_layer_norm, layer.cross_attention_norm)
            pairs += _same(block.fc1, layer.feed_forward[0]) + _same(block.fc2, layer.feed_forward[2])
            pairs += _same(block.final_layer_norm, layer.feed_forward_norm)
    return theirs, copy(pairs)


def llama(ours: DecoderOnly) -> tuple[transformers.LlamaForCausalLM, list[Pair]]:
    """LLaMA with our norms instead of its own. It turns places i and i + K / 2 where ours turns 2i and 2i + 1."""
    config = ours.config
    groups = config.num_kv_heads or config.num_heads
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.d_model,
            intermediate_size=config.feed_forward_width,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=groups,
            max_position_embeddings=config.max_length,
            tie_word_embeddings=True,
        )
    ).eval()
    body = theirs.model
    body.norm = nn.LayerNorm(config.d_model)
    pairs = [Pair(body.embed_tokens.weight, ours.embedding.weight), *_same(body.norm, ours.norm)]
    hidden, kept = config.feed_forward_width, groups * config.head_width
    for block, layer in zip(body.layers, ours.layers, strict=True):
        block.input_layernorm = nn.LayerNorm(config.d_model)
        block.post_attention_layernorm = nn.LayerNorm(config.d_model)
        pairs += _same(block.input_layernorm, layer.attention_norm)
        pairs += _same(block.post_attention_layernorm, layer.feed_forward_norm)
        attend, key_value = block.self_attn, layer.attention.key_value
        pairs += _same(attend.q_proj, layer.attention.query, our_rows=_halves(config.num_heads, config.head_width))
        pairs += _same(attend.k_proj, key_value, our_rows=_halves(groups, config.head_width))
        pairs += _same(attend.v_proj, key_value, our_rows=slice(kept, None))
        pairs += _same(attend.o_proj, layer.attention.output)
        pairs += _same(block.mlp.gate_proj, layer.feed_forward[0], our_rows=slice(0, hidden))
        pairs += _same(block.mlp.up_proj, layer.feed_forward[0], our_rows=slice(hidden, None))
        pairs += _same(block.mlp.down_proj, layer.feed_forward[2])
    return theirs, copy(pairs)


def _same(
    theirs: Any, ours: Any, *, their_rows: Rows = ALL, our_rows: Rows = ALL, transposed: bool = False
) -> list[Pair]:
    """Weight and bias of linear maps and norms."""
    pairs = [Pair(theirs.weight, ours.weight, their_rows, our_rows, transposed)]
    return pairs if ours.bias is None else [*pairs, Pair(theirs.bias, ours.bias, their_rows, our_rows)]


def _torch_attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> list[Pair]:
    width, pairs = theirs.embed_dim, _same(theirs.out_proj, ours.output)
    for map_, rows in ((ours.query, slice(0, width)), (ours.key_value, slice(width, None))):
        pairs.append(Pair(theirs.in_proj_weight, map_.weight, rows))
        if map_.bias is not None:
            pairs.append(Pair(theirs.in_proj_bias, map_.bias, rows))
    return pairs


def _torch_shape(ours: Any, activation: str) -> dict[str, Any]:
    return {
        "d_model": ours.attention.query.in_features,
        "nhead": ours.attention.query.in_features // ours.attention.head_width,
        "dim_feedforward": ours.feed_forward[2].in_features,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": not ours.post,
    }


def _torch_rest(theirs: Any, ours: Any) -> list[Pair]:
    return _same(theirs.linear1, ours.feed_forward[0]) + _same(theirs.linear2, ours.feed_forward[2])


def _gpt_blocks(theirs: Any, ours: DecoderOnly) -> list[Pair]:
    """Their linear maps are kept transposed, query, key and value in one."""
    pairs, query, key_value = [], slice(0, ours.config.d_model), slice(ours.config.d_model, None)
    for block, layer in zip(theirs, ours.layers, strict=True):
        pairs += _same(block.attn.c_attn, layer.attention.query, their_rows=query, transposed=True)
        pairs += _same(block.attn.c_attn, layer.attention.key_value, their_rows=key_value, transposed=True)
        pairs += _same(block.attn.c_proj, layer.attention.output, transposed=True)
        pairs += _same(block.mlp.c_fc, layer.feed_forward[0], transposed=True)
        pairs += _same(block.mlp.c_proj, layer.feed_forward[2], transposed=True)
        pairs += _same(block.ln_1, layer.attention_norm) + _same(block.ln_2, layer.feed_forward_norm)
    return pairs


def _separate_attention(query: Any, key: Any, value: Any, output: Any, ours: MultiHeadAttention) -> list[Pair]:
    half = ours.key_value.out_features // 2
    pairs = _same(query, ours.query) + _same(key, ours.key_value, our_rows=slice(0, half))
    return pairs + _same(value, ours.key_value, our_rows=slice(half, None)) + _same(output, ours.output)


def _marian_attention(theirs: Any, ours: MultiHeadAttention) -> list[Pair]:
    return _separate_attention(theirs.q_proj, theirs.k_proj, theirs.v_proj, theirs.out_proj, ours)


def _halves(heads: int, width: int) -> list[int]:
    """Of every head the even places and then the odd ones."""
    return [head * width + 2 * i + odd for head in range(heads) for odd in (0, 1) for i in range(width // 2)]
