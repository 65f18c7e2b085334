"""A point's network: where configuration becomes modules."""

from __future__ import annotations

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig
from tuneyard_pipelines.spec import TrialConfig

Network = EncoderDecoder | DecoderOnly
_FAMILIES: dict[str, type[EncoderDecoder] | type[DecoderOnly]] = {"transformer": EncoderDecoder, "gpt": DecoderOnly}


def build_network(config: TrialConfig, vocab_size: int) -> Network:
    """The untrained network of a point; its parameters come from torch's global generator."""
    model = config.model
    assert model.architecture is not None, "a trial's point is complete"
    assert model.positions is not None
    return _FAMILIES[model.architecture](
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
