"""A point's network: where configuration becomes modules."""

from __future__ import annotations

from importlib import import_module

from torch import nn

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig
from tuneyard_pipelines import architectures
from tuneyard_pipelines.errors import InputError, first_line
from tuneyard_pipelines.spec import Model, TrialConfig


def build_network(config: TrialConfig, vocab_size: int) -> nn.Module:
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
    network: nn.Module = build(config.model, vocab_size)
    return network


def transformer(model: Model, vocab_size: int) -> EncoderDecoder:
    return EncoderDecoder(_config(model, vocab_size))


def gpt(model: Model, vocab_size: int) -> DecoderOnly:
    return DecoderOnly(_config(model, vocab_size))


def _config(model: Model, vocab_size: int) -> TransformerConfig:
    assert model.positions is not None, "a trial's point is complete"
    return TransformerConfig(
        vocab_size=vocab_size,
        d_model=model.d_model,
        num_heads=model.num_heads,
        num_layers=model.num_layers,
        max_length=model.sequence_length,
        d_ff=model.d_ff,
        dropout=model.dropout,
        positions=model.positions,
    )
