"""Of any shape, the formula has as many parameters as the network that is built."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig
from tuneyard_pipelines import cost
from tuneyard_pipelines.formulas import VocabSizes

CONFIGS = st.builds(
    lambda heads, width, **sizes: TransformerConfig(d_model=2 * heads * width, num_heads=heads, **sizes),
    heads=st.integers(1, 8),
    width=st.integers(1, 24),
    vocab_size=st.integers(1, 70_000),
    source_vocab_size=st.none() | st.integers(1, 70_000),
    num_layers=st.integers(1, 4),
    max_length=st.integers(1, 3_000),
    d_ff=st.none() | st.integers(1, 600),
    positions=st.sampled_from(["sinusoidal", "learned"]),
)


def values(architecture, config):
    return {
        "model.architecture": architecture,
        "model.d_model": config.d_model,
        "model.d_ff": config.feed_forward_width,
        "model.num_heads": config.num_heads,
        "model.num_layers": config.num_layers,
        "model.sequence_length": config.max_length,
        "model.positions": config.positions,
    }


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


@settings(max_examples=200)
@given(CONFIGS)
def test_transformer_parameters_are_those_of_the_built_model(config):
    with torch.device("meta"):
        network = EncoderDecoder(config)
    sizes = VocabSizes(config.vocab_size, config.source_vocab_size)
    assert cost.parameters(values("transformer", config), sizes) == count(network)


@settings(max_examples=200)
@given(CONFIGS)
def test_gpt_parameters_are_those_of_the_built_model(config):
    with torch.device("meta"):
        network = DecoderOnly(config)
    assert cost.parameters(values("gpt", config), VocabSizes(config.vocab_size)) == count(network)
