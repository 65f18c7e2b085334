"""A point's network: where configuration becomes modules."""

from __future__ import annotations

from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig
from tuneyard_pipelines.spec import TrialConfig


def build_network(config: TrialConfig, vocab_size: int) -> EncoderDecoder:
    """The untrained network of a point; its parameters come from torch's global generator."""
    model = config.model
    return EncoderDecoder(
        TransformerConfig(
            vocab_size=vocab_size,
            d_model=model.d_model,
            num_heads=model.num_heads,
            num_layers=model.num_layers,
            max_length=model.sequence_length,
            d_ff=model.d_ff,
            dropout=model.dropout,
            positions=model.positions,
        )
    )
