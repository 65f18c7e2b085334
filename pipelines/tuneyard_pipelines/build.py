"""A point's network: where configuration becomes modules."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from tuneyard_modules.baselines import (
    BagConfig,
    ContinuousBagOfWords,
    NeuralNGram,
    NeuralNGramConfig,
    NGram,
    NGramConfig,
)
from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig
from tuneyard_pipelines import architectures
from tuneyard_pipelines.errors import InputError, first_line
from tuneyard_pipelines.formulas import VocabSizes, with_mask
from tuneyard_pipelines.spec import Model, TrialConfig


def build_network(config: TrialConfig, sizes: VocabSizes) -> nn.Module:
    """The untrained network of a point, which keeps its task's protocol; parameters come from torch's global generator.

    Raises InputError where the package that it comes from has no such function.
    """
    name = str(config.model.architecture)
    module, _, function = architectures.find(name).network.partition(":")
    try:
        build = getattr(import_module(module), function)
    except (ImportError, AttributeError) as cause:
        owner = "".join(f" of the package {package}" for package in architectures.packages([name]))
        raise InputError(
            f"architecture {name!r}{owner}: {module}:{function} cannot be imported ({first_line(cause)}); mend it"
        ) from cause
    network: nn.Module = build(config.model, sizes)
    return network


def transformer(model: Model, sizes: VocabSizes) -> EncoderDecoder:
    return EncoderDecoder(transformer_config(model, sizes))


def gpt(model: Model, sizes: VocabSizes) -> DecoderOnly:
    return DecoderOnly(transformer_config(model, sizes))


def ngram(model: Model, sizes: VocabSizes) -> NGram:
    return NGram(NGramConfig(sizes.target, model.order, max_length=model.sequence_length))


def nplm(model: Model, sizes: VocabSizes) -> NeuralNGram:
    assert model.d_ff is not None, "a trial's point is complete"
    return NeuralNGram(
        NeuralNGramConfig(
            sizes.target,
            model.order,
            d_model=model.d_model,
            d_ff=model.d_ff,
            max_length=model.sequence_length,
            dropout=model.dropout,
        )
    )


def cbow(model: Model, sizes: VocabSizes) -> ContinuousBagOfWords:
    return ContinuousBagOfWords(
        BagConfig(with_mask(sizes), d_model=model.d_model, window=model.window, max_length=model.sequence_length)
    )


def transformer_config(model: Model, sizes: VocabSizes) -> TransformerConfig:
    """What a network built of a transformer's parts takes; for architectures of packages, too."""
    assert model.positions is not None, "a trial's point is complete"
    assert model.num_heads is not None
    return TransformerConfig(
        vocab_size=sizes.target,
        source_vocab_size=sizes.source,
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_layers=model.num_layers,
        max_length=model.sequence_length,
        d_ff=model.d_ff,
        dropout=model.dropout,
        positions=model.positions,
    )
