"""A point's network: where configuration becomes modules."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal, cast

from torch import nn

from tuneyard_modules.baselines import (
    BagConfig,
    ContinuousBagOfWords,
    NeuralNGram,
    NeuralNGramConfig,
    NGram,
    NGramConfig,
)
from tuneyard_modules.convolution import ConvolutionalLanguageModel, ConvolutionConfig
from tuneyard_modules.recurrent import Cell, RecurrentConfig, RecurrentLanguageModel
from tuneyard_modules.seq2seq import Seq2Seq, Seq2SeqConfig
from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, TransformerConfig
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


def bert(model: Model, sizes: VocabSizes) -> EncoderOnly:
    return EncoderOnly(transformer_config(model, VocabSizes(with_mask(sizes))))


def seq2seq(model: Model, sizes: VocabSizes) -> Seq2Seq:
    return Seq2Seq(
        Seq2SeqConfig(
            vocab_size=sizes.target,
            source_vocab_size=sizes.source,
            cell=model.cell,
            attention=model.attention,
            activation=_elmans(model),
            num_heads=_filled(model.num_heads),
            teacher_forcing=model.teacher_forcing,
            **_layers(model),
        )
    )


def recurrent(model: Model, sizes: VocabSizes) -> RecurrentLanguageModel:
    cell = cast("Cell", model.architecture)
    return RecurrentLanguageModel(
        RecurrentConfig(vocab_size=sizes.target, cell=cell, activation=_elmans(model), **_layers(model))
    )


def conv(model: Model, sizes: VocabSizes) -> ConvolutionalLanguageModel:
    return ConvolutionalLanguageModel(
        ConvolutionConfig(vocab_size=sizes.target, kernel_size=model.kernel_size, **_layers(model))
    )


def ngram(model: Model, sizes: VocabSizes) -> NGram:
    return NGram(NGramConfig(sizes.target, model.order, max_length=model.sequence_length))


def nplm(model: Model, sizes: VocabSizes) -> NeuralNGram:
    return NeuralNGram(
        NeuralNGramConfig(
            sizes.target,
            model.order,
            d_model=model.d_model,
            d_ff=_filled(model.d_ff),
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
    assert model.activation != "tanh", "a word of recurrent networks"
    return TransformerConfig(
        vocab_size=sizes.target,
        source_vocab_size=sizes.source,
        d_model=model.d_model,
        num_heads=_filled(model.num_heads),
        num_kv_heads=model.num_kv_heads,
        num_layers=model.num_layers,
        num_decoder_layers=model.num_decoder_layers,
        max_length=model.sequence_length,
        d_ff=model.d_ff,
        dropout=model.dropout,
        norm=model.norm,
        positions=model.positions,
        activation=model.activation,
        bias=model.bias,
        without=model.without,
        gradient_checkpointing=model.gradient_checkpointing,
    )


def _layers(model: Model) -> dict[str, Any]:
    """What networks without attention layers have in common."""
    return {
        "d_model": model.d_model,
        "num_layers": model.num_layers,
        "max_length": model.sequence_length,
        "dropout": model.dropout,
        "tied_embeddings": model.tied_embeddings,
    }


def _elmans(model: Model) -> Literal["tanh", "relu"]:
    return "relu" if model.activation == "relu" else "tanh"


def _filled(value: int | None) -> int:
    assert value is not None, "a trial's point is complete"
    return value
