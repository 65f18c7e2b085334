"""Of any shape, the formula has as many parameters as the network that is built."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, TransformerConfig
from tuneyard_pipelines.formulas import BERT, GPT, TRANSFORMER, VocabSizes


def configs(**more):
    return st.builds(
        lambda groups, shared, width, **sizes: TransformerConfig(
            d_model=2 * groups * shared * width, num_heads=groups * shared, **sizes
        ),
        groups=st.shared(st.integers(1, 3), key="groups"),
        shared=st.integers(1, 3),
        width=st.integers(1, 24),
        vocab_size=st.integers(2, 70_000),
        num_layers=st.integers(1, 4),
        max_length=st.integers(1, 3_000),
        d_ff=st.none() | st.integers(1, 600),
        positions=st.sampled_from(["sinusoidal", "learned", "rotary"]),
        norm=st.sampled_from(["pre", "post"]),
        activation=st.sampled_from(["relu", "gelu", "swiglu"]),
        bias=st.booleans(),
        without=st.sampled_from(["nothing", "positions", "residual", "norm", "feed_forward", "scaling"]),
        **more,
    )


def values(config):
    names = ("d_model", "num_heads", "num_layers", "positions", "norm", "activation", "bias", "without")
    sizes = {"d_ff": config.feed_forward_width, "sequence_length": config.max_length}
    own = {"num_kv_heads": config.num_kv_heads, "num_decoder_layers": config.num_decoder_layers}
    return {f"model.{key}": value for key, value in {name: getattr(config, name) for name in names}.items()} | {
        f"model.{key}": value for key, value in (sizes | own).items()
    }


def count(kind, config):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in kind(config).parameters())


@settings(max_examples=200)
@given(configs(source_vocab_size=st.none() | st.integers(1, 70_000), num_decoder_layers=st.none() | st.integers(1, 4)))
def test_transformer_parameters_are_those_of_the_built_model(config):
    sizes = VocabSizes(config.vocab_size, config.source_vocab_size)
    assert TRANSFORMER.parameters(values(config), sizes) == count(EncoderDecoder, config)


@settings(max_examples=200)
@given(configs(num_kv_heads=st.none() | st.shared(st.integers(1, 3), key="groups")))
def test_gpt_parameters_are_those_of_the_built_model(config):
    assert GPT.parameters(values(config), VocabSizes(config.vocab_size)) == count(DecoderOnly, config)


@settings(max_examples=200)
@given(configs())
def test_bert_parameters_are_those_of_the_built_model(config):
    """The mask is one more than the words."""
    assert BERT.parameters(values(config), VocabSizes(config.vocab_size - 1)) == count(EncoderOnly, config)


@pytest.mark.parametrize(("formula", "kind"), [(TRANSFORMER, EncoderDecoder), (GPT, DecoderOnly), (BERT, EncoderOnly)])
def test_what_a_point_leaves_open_is_the_familys_own(formula, kind):
    config = TransformerConfig(19, d_model=12, num_heads=2, num_layers=2, max_length=9)
    if kind is DecoderOnly:
        config = dataclasses.replace(config, positions="learned")
    point = {"model.d_model": 12, "model.d_ff": 48, "model.num_layers": 2, "model.sequence_length": 9}
    assert formula.parameters(point, VocabSizes(19 - (kind is EncoderOnly))) == count(kind, config)
