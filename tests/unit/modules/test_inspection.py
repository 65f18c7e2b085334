"""Attention maps: their shapes, their sums, their masks, and that they are those of the forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from tuneyard_modules.inspection import attention_maps
from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig

CONFIG = TransformerConfig(19, d_model=16, num_heads=4, num_layers=3, max_length=12, positions="learned")
SOURCE, TARGET = torch.tensor([5, 6, 7, 8, 2]), torch.tensor([1, 9, 8, 7])


def _spread(network: nn.Module) -> None:
    """Large weights, so that no head looks everywhere alike."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    network.eval()


@pytest.fixture
def decoder_only() -> DecoderOnly:
    network = DecoderOnly(CONFIG)
    _spread(network)
    return network


@pytest.fixture
def encoder_decoder() -> EncoderDecoder:
    network = EncoderDecoder(CONFIG)
    _spread(network)
    return network


def test_a_text_is_looked_at_up_to_each_token(decoder_only: DecoderOnly) -> None:
    maps = attention_maps(decoder_only, TARGET)
    assert {kind: tuple(weights.shape) for kind, weights in maps.items()} == {"self": (3, 4, 4, 4)}
    assert_close(maps["self"].sum(-1), torch.ones(3, 4, 4))
    assert (maps["self"].triu(diagonal=1) == 0).all()
    assert (maps["self"].tril()[..., range(4), range(4)] > 0).all()


def test_source_target_and_both_are_looked_at(encoder_decoder: EncoderDecoder) -> None:
    maps = attention_maps(encoder_decoder, SOURCE, TARGET)
    assert {kind: tuple(weights.shape) for kind, weights in maps.items()} == {
        "encoder": (3, 4, 5, 5),
        "decoder": (3, 4, 4, 4),
        "cross": (3, 4, 4, 5),
    }
    for weights in maps.values():
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (maps["decoder"].triu(diagonal=1) == 0).all()
    assert (maps["encoder"] > 0).all()


def test_padding_is_not_looked_at(encoder_decoder: EncoderDecoder) -> None:
    plain = attention_maps(encoder_decoder, SOURCE, TARGET)
    padded = attention_maps(encoder_decoder, nn.functional.pad(SOURCE, (0, 3)), TARGET)
    assert (padded["cross"][..., 5:] == 0).all()
    assert (padded["encoder"][..., 5:] == 0).all()
    assert_close(padded["cross"][..., :5], plain["cross"])


@torch.inference_mode()
def test_the_weights_are_those_of_the_forward_pass(decoder_only: DecoderOnly) -> None:
    """The first layer's output, mixed by its weights, is what the fused way gives."""
    weights_HTT = attention_maps(decoder_only, TARGET)["self"][0]
    layer = decoder_only.layers[0]
    x = layer.attention_norm(decoder_only.embedding(TARGET[None]) + decoder_only.positions(0, 4))  # type: ignore[operator]
    cache = layer.attention.remember(x)  # type: ignore[operator, union-attr]
    mixed = layer.attention.output((weights_HTT @ cache.value_BHSK).transpose(1, 2).flatten(2))  # type: ignore[operator, union-attr]
    fused, _ = layer.attention(x, cache, torch.ones(4, 4, dtype=torch.bool).tril())  # type: ignore[operator]
    assert_close(mixed, fused)


def test_layers_come_in_their_order(encoder_decoder: EncoderDecoder) -> None:
    """A changed last layer changes the last map only."""
    before = attention_maps(encoder_decoder, SOURCE, TARGET)
    with torch.no_grad():
        encoder_decoder.decoder[-1].cross_attention.query.weight.mul_(2)  # type: ignore[operator, union-attr]
    after = attention_maps(encoder_decoder, SOURCE, TARGET)
    assert torch.equal(before["encoder"], after["encoder"])
    assert torch.equal(before["decoder"], after["decoder"])
    changed = [not torch.equal(old, new) for old, new in zip(before["cross"], after["cross"], strict=True)]
    assert changed == [False, False, True]


def test_weights_are_computed_only_when_asked_for(
    decoder_only: DecoderOnly, encoder_decoder: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused, calls = nn.functional.scaled_dot_product_attention, list[int]()

    def counted(*args: torch.Tensor, **kwargs: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return fused(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", counted)
    decoder_only(TARGET[None])
    assert len(calls) == 3
    encoder_decoder(SOURCE[None], TARGET[None])
    assert len(calls) == 3 + 9
    attention_maps(decoder_only, TARGET)
    attention_maps(encoder_decoder, SOURCE, TARGET)
    assert len(calls) == 12
