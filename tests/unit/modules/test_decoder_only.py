"""The decoder-only transformer: GPT-2's size, its start, its mask and its steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.transformer import DecoderOnly, TransformerConfig

CONFIG = TransformerConfig(19, d_model=16, num_heads=4, num_layers=2, max_length=12, positions="learned")


def _network(**changes: Any) -> DecoderOnly:
    torch.manual_seed(0)
    return DecoderOnly(dataclasses.replace(CONFIG, **changes)).eval()


def _spread(network: DecoderOnly) -> DecoderOnly:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network


def _ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


@pytest.mark.parametrize(
    ("layers", "heads", "width", "window", "expected"),
    [(12, 12, 768, 1024, 124_439_808), (96, 96, 12288, 2048, 174_604_259_328)],
)
def test_it_has_exactly_the_parameters_of_gpt(layers: int, heads: int, width: int, window: int, expected: int) -> None:
    config = TransformerConfig(50257, width, heads, layers, max_length=window, positions="learned")
    with torch.device("meta"):
        network = DecoderOnly(config)
    assert sum(parameter.numel() for parameter in network.parameters()) == expected


def test_sinusoidal_positions_are_no_parameters() -> None:
    sizes = {
        positions: sum(parameter.numel() for parameter in _network(positions=positions).parameters())
        for positions in ("learned", "sinusoidal")
    }
    assert sizes["learned"] - sizes["sinusoidal"] == 12 * 16


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("vocab_size", "d_model", "num_layers"), [(40, 64, 2), (260, 32, 1), (4000, 128, 3)])
def test_loss_at_the_start_is_that_of_a_uniform_guess(
    vocab_size: int, d_model: int, num_layers: int, positions: str
) -> None:
    network = _network(vocab_size=vocab_size, d_model=d_model, num_layers=num_layers, positions=positions)
    text = _ids(128, 13, vocab_size)
    loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.02)


def test_it_starts_with_the_weights_of_gpt2() -> None:
    weights = _network(vocab_size=500, d_model=128, num_layers=8, max_length=100).state_dict()
    for name, weight in weights.items():
        if name.endswith("bias"):
            assert not weight.any()
        elif "norm" in name:
            assert (weight == 1).all()
        else:
            added = name.endswith(("attention.output.weight", "feed_forward.2.weight"))
            assert weight.std().item() == pytest.approx(0.02 / 4 if added else 0.02, rel=0.03), name


def test_sinusoids_do_not_drown_the_tokens() -> None:
    network, tokens = _network(positions="sinusoidal", d_model=64), _ids(64, 12)
    x = network.layers[0].attention_norm(network.embedding(tokens) + network.position_scale * network.positions(0, 12))  # type: ignore[operator, union-attr]
    between_tokens = x[:, 5].var(0).mean().item()
    assert between_tokens > 0.3


def test_the_future_does_not_change_the_past() -> None:
    network, tokens = _spread(_network()), _ids(2, 9)
    before = network(tokens)
    changed = tokens.clone()
    changed[:, 5] = (changed[:, 5] - 3) % 15 + 4
    after = network(changed)
    assert_close(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).all(-1).any()


def test_padding_at_the_right_does_not_change_results() -> None:
    network, tokens = _spread(_network()), _ids(2, 7)
    assert_close(network(F.pad(tokens, (0, 5)))[:, :7], network(tokens))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("prompt", [0, 1, 5])
def test_cached_steps_equal_one_pass(positions: str, prompt: int) -> None:
    network, tokens = _spread(_network(positions=positions)), _ids(3, 12)
    whole = network(tokens)
    past = network.start(tokens[:, :prompt])
    for position in range(prompt, 12):
        assert past.position == position
        logits, past = network.step(tokens[:, position], past)
        assert_close(logits, whole[:, position])


def test_rows_of_the_past_can_be_chosen_anew() -> None:
    network, tokens, index = _spread(_network()), _ids(3, 4), torch.tensor([1, 1, 0])
    past = network.start(tokens[:, :3])
    got, _ = network.step(tokens[index, 3], past.select(index))
    expected, _ = network.step(tokens[:, 3], past)
    assert_close(got, expected[index])


def test_a_step_leaves_the_past_alone() -> None:
    network = _spread(_network())
    past = network.start(_ids(2, 5))
    first, _ = network.step(torch.tensor([5, 6]), past)
    network.step(torch.tensor([9, 9]), past)
    again, _ = network.step(torch.tensor([5, 6]), past)
    assert torch.equal(first, again)


def test_too_long_a_text_is_refused() -> None:
    network = _network()
    network(_ids(1, 12))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 13))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network.step(torch.tensor([4]), network.start(_ids(1, 12)))


def test_dropout_acts_in_training_only() -> None:
    network, tokens = _network(dropout=0.5), _ids(2, 7)
    assert torch.equal(network(tokens), network(tokens))
    network.train()
    assert not torch.allclose(network(tokens), network(tokens))
