"""The convolutional language model: its equation as a plain loop, what it sees, its start and its steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.convolution import Block, ConvolutionalLanguageModel, ConvolutionConfig
from tuneyard_modules.decoding import Restarting, greedy
from tuneyard_modules.inspection import Attentive

CONFIG = ConvolutionConfig(19, d_model=16, num_layers=3, kernel_size=2, max_length=24)


def _network(**changes: Any) -> ConvolutionalLanguageModel:
    torch.manual_seed(0)
    return ConvolutionalLanguageModel(dataclasses.replace(CONFIG, **changes)).eval()


def _spread(network: ConvolutionalLanguageModel) -> ConvolutionalLanguageModel:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    return network


def _ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


@pytest.mark.parametrize(("kernel_size", "dilation"), [(1, 1), (2, 1), (3, 4)])
def test_a_block_is_its_equation_as_a_plain_loop(kernel_size: int, dilation: int) -> None:
    torch.manual_seed(0)
    block, x = Block(4, kernel_size, dilation, 0.0), torch.randn(2, 4, 9)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    got, _ = block(x, None)
    for t in range(9):
        both = block.filter_gate.bias.clone().expand(2, 8)
        for tap in range(kernel_size):
            seen = t - (kernel_size - 1 - tap) * dilation
            if seen >= 0:
                both = both + x[:, :, seen] @ block.filter_gate.weight[:, :, tap].T
        gated = torch.tanh(both[:, :4]) * torch.sigmoid(both[:, 4:])
        assert_close(got[:, :, t], x[:, :, t] + gated @ block.output.weight[:, :, 0].T + block.output.bias)


@pytest.mark.parametrize(
    ("kernel_size", "num_layers", "expected"), [(1, 5, 1), (2, 1, 2), (2, 3, 8), (3, 3, 15), (3, 1, 3)]
)
def test_it_sees_its_receptive_field_and_nothing_else(kernel_size: int, num_layers: int, expected: int) -> None:
    network = _spread(_network(kernel_size=kernel_size, num_layers=num_layers)).double()
    assert network.receptive_field == expected
    embedded: list[torch.Tensor] = []

    def keep(_module: object, _inputs: object, out: torch.Tensor) -> torch.Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[0]

    network.vocabulary.register_forward_hook(keep)
    network(_ids(1, 24))[0, 20].sum().backward()
    assert embedded[0].grad is not None
    seen = embedded[0].grad[0].abs().sum(-1).nonzero().flatten().tolist()
    assert seen == list(range(20 - expected + 1, 21)), "no hole, for dilations double"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"kernel_size": 0}, "kernel_size=0 must be at least 1"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"d_model": 0}, "d_model=0 must be at least 1"),
        ({"dropout": -0.1}, "dropout=-0.1 must be at least 0"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("vocab_size", "d_model", "num_layers"), [(40, 64, 2), (100, 32, 1), (4000, 128, 6)])
def test_loss_at_the_start_is_that_of_a_uniform_guess(
    tied: bool, vocab_size: int, d_model: int, num_layers: int
) -> None:
    network = _network(tied_embeddings=tied, vocab_size=vocab_size, d_model=d_model, num_layers=num_layers)
    text = _ids(128, 13, vocab_size)
    loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.02)


@pytest.mark.parametrize("kernel_size", [1, 2, 5])
@pytest.mark.parametrize("prompt", [0, 1, 5, 23])
def test_steps_equal_one_pass_with_a_state_of_one_size(kernel_size: int, prompt: int) -> None:
    network, tokens = _spread(_network(kernel_size=kernel_size)), _ids(3, 24)
    whole = network(tokens)
    state = network.start(tokens[:, :prompt])
    for position in range(prompt, 24):
        assert state.position == position
        expected = [(3, 16, (kernel_size - 1) * 2**layer) for layer in range(3)]
        assert [tuple(inputs.shape) for inputs in state.inputs_BDP] == expected
        logits, state = network.step(tokens[:, position], state)
        assert_close(logits, whole[:, position])


def test_rows_of_a_state_can_be_chosen_anew_and_a_step_leaves_it_alone() -> None:
    network, tokens, index = _spread(_network()), _ids(3, 4), torch.tensor([1, 1, 0])
    state = network.start(tokens[:, :3])
    got, _ = network.step(tokens[index, 3], state.select(index))
    expected, _ = network.step(tokens[:, 3], state)
    again, _ = network.step(tokens[:, 3], state)
    assert_close(got, expected[index])
    assert torch.equal(expected, again)


def test_too_long_a_text_is_refused() -> None:
    network = _network()
    network(_ids(1, 24))
    with pytest.raises(ValueError, match="25 tokens is longer than max_length=24"):
        network(_ids(1, 25))
    with pytest.raises(ValueError, match="25 tokens is longer than max_length=24"):
        network.step(torch.tensor([4]), network.start(_ids(1, 24)))


def test_dropout_acts_in_training_only() -> None:
    network, tokens = _network(dropout=0.5), _ids(2, 7)
    assert torch.equal(network(tokens), network(tokens))
    network.train()
    assert not torch.allclose(network(tokens), network(tokens))


@pytest.mark.parametrize("tied", [True, False])
def test_it_learns_one_batch_by_heart(tied: bool) -> None:
    network, text = _network(dropout=0.0, tied_embeddings=tied).train(), _ids(4, 11)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-2, weight_decay=0.0)
    for _ in range(120):
        loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.008:
            break
    assert loss.item() < 0.01


def test_it_goes_on_with_a_text_past_its_window_and_has_nothing_to_look_at() -> None:
    network = _spread(_network())
    said = greedy(Restarting(network), torch.tensor([[1, 5]]), bos_id=6, eos_id=2, max_length=61, banned_ids=(2,))
    assert len(said[0]) == 60
    assert not isinstance(network, Attentive)


def test_it_trains_in_mixed_precision() -> None:
    network, text = _network().train(), _ids(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
