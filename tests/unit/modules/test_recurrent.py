"""Recurrent language models: the equations as plain loops, their start, their steps, what they can learn."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import plain_cells
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.decoding import Restarting, greedy
from tuneyard_modules.inspection import Attentive
from tuneyard_modules.recurrent import Cell, Recurrence, RecurrentConfig, RecurrentLanguageModel

CONFIG = RecurrentConfig(19, d_model=16, num_layers=2, max_length=12, cell="lstm")
FAMILY: list[dict[str, Any]] = [
    {"cell": "rnn"},
    {"cell": "rnn", "activation": "relu"},
    {"cell": "lstm"},
    {"cell": "gru"},
]
each_cell = pytest.mark.parametrize("changes", FAMILY, ids=lambda changes: "-".join(changes.values()))


def _network(**changes: Any) -> RecurrentLanguageModel:
    torch.manual_seed(0)
    return RecurrentLanguageModel(dataclasses.replace(CONFIG, **changes)).eval()


def _spread(network: RecurrentLanguageModel) -> RecurrentLanguageModel:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    return network


def _ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


@each_cell
@pytest.mark.parametrize("tied", [True, False])
def test_it_is_the_equations_as_a_plain_loop_in_outputs_and_gradients(changes: dict[str, Any], tied: bool) -> None:
    network, tokens = _spread(_network(tied_embeddings=tied, **changes)), _ids(3, 7)
    got = network(tokens)
    vocabulary, layers = network.vocabulary, network.recurrence.layers
    zeros = torch.zeros(2, 3, 16)
    states, _ = plain_cells.run(
        layers,
        vocabulary.embedding.weight[tokens] * 4.0,
        (zeros, zeros) if network.config.cell == "lstm" else (zeros,),
    )
    output = vocabulary.embedding.weight if vocabulary.output is None else vocabulary.output.weight
    expected = states @ output.T
    assert_close(got, expected)
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(1))
    parameters = dict(network.named_parameters())
    assert len(parameters) == (9 if tied else 10)
    ours = torch.autograd.grad((got * weight).sum(), list(parameters.values()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4, msg=name)


def test_one_elman_cell_by_hand() -> None:
    """h_t = tanh(W_x x_t + W_h h_{t-1} + b), its two numbers written out."""
    recurrence = Recurrence("rnn", "tanh", 2, 2, 1, dropout=0.0)
    with torch.no_grad():
        recurrence.layers.weight_ih_l0.copy_(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))  # type: ignore[operator]
        recurrence.layers.weight_hh_l0.copy_(torch.tensor([[0.1, 0.2], [-0.3, 0.4]]))  # type: ignore[operator]
        recurrence.layers.bias_ih_l0.copy_(torch.tensor([0.05, 0.0]))  # type: ignore[operator]
        recurrence.layers.bias_hh_l0.copy_(torch.tensor([0.05, -0.2]))  # type: ignore[operator]
    x = torch.tensor([[[1.0, 0.5], [-1.0, 2.0]]])
    states, after = recurrence(x, recurrence.zeros(x))
    first = (math.tanh(0.5 - 0.5 + 0.1), math.tanh(2.0 + 0.125 - 0.2))
    second = (
        math.tanh(-0.5 - 2.0 + 0.1 * first[0] + 0.2 * first[1] + 0.1),
        math.tanh(-2.0 + 0.5 - 0.3 * first[0] + 0.4 * first[1] - 0.2),
    )
    assert_close(states, torch.tensor([[first, second]]))
    assert_close(after.hidden_LBD, torch.tensor([[second]]))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"d_model": 0}, "d_model=0 must be at least 1"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"max_length": 0}, "max_length=0 must be at least 1"),
        ({"vocab_size": 0}, "vocab_size=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0 must be at least 0 and less than 1"),
        ({"activation": "relu"}, "activation='relu' is for cell='rnn'"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(CONFIG, **changes)


@each_cell
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("vocab_size", "d_model", "num_layers"), [(40, 64, 2), (100, 32, 1), (4000, 128, 3)])
def test_loss_at_the_start_is_that_of_a_uniform_guess(
    changes: dict[str, Any], tied: bool, vocab_size: int, d_model: int, num_layers: int
) -> None:
    sizes = {"vocab_size": vocab_size, "d_model": d_model, "num_layers": num_layers}
    network, text = _network(tied_embeddings=tied, **sizes, **changes), _ids(128, 13, vocab_size)
    loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.02)


def test_an_lstm_remembers_at_the_start_and_other_biases_are_0() -> None:
    for changes in FAMILY:
        network = _network(**changes)
        for name, bias in network.recurrence.layers.named_parameters():
            if "bias" in name:
                expected = torch.zeros_like(bias)
                if changes["cell"] == "lstm" and name.startswith("bias_ih"):
                    expected[16:32] = 1.0  # torch's order is input, forget, cell, output
                assert torch.equal(bias, expected), name


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_every_gates_recurrent_matrix_starts_orthogonal(cell: Cell) -> None:
    for layer in range(2):
        weight = getattr(_network(cell=cell).recurrence.layers, f"weight_hh_l{layer}")
        for gate in weight.split(16):
            assert_close(gate @ gate.T, torch.eye(16), atol=1e-5, rtol=0.0)


@each_cell
@pytest.mark.parametrize("prompt", [0, 1, 5])
def test_steps_equal_one_pass_with_a_state_of_one_size(changes: dict[str, Any], prompt: int) -> None:
    network, tokens = _spread(_network(**changes)), _ids(3, 12)
    whole = network(tokens)
    state = network.start(tokens[:, :prompt])
    for position in range(prompt, 12):
        assert state.position == position
        assert state.hidden.hidden_LBD.shape == (2, 3, 16)
        assert (state.hidden.cell_LBD is None) == (changes["cell"] != "lstm")
        logits, state = network.step(tokens[:, position], state)
        assert_close(logits, whole[:, position])


@each_cell
def test_rows_of_a_state_can_be_chosen_anew(changes: dict[str, Any]) -> None:
    network, tokens, index = _spread(_network(**changes)), _ids(3, 4), torch.tensor([1, 1, 0])
    state = network.start(tokens[:, :3])
    chosen = state.select(index)
    assert chosen.hidden.hidden_LBD.is_contiguous(), "which cuDNN asks for"
    got, _ = network.step(tokens[index, 3], chosen)
    expected, _ = network.step(tokens[:, 3], state)
    assert_close(got, expected[index])


def test_a_step_leaves_the_state_before_it_alone() -> None:
    network = _spread(_network())
    state = network.start(_ids(2, 5))
    first, _ = network.step(torch.tensor([5, 6]), state)
    network.step(torch.tensor([9, 9]), state)
    again, _ = network.step(torch.tensor([5, 6]), state)
    assert torch.equal(first, again)


def test_too_long_a_text_is_refused() -> None:
    network = _network()
    network(_ids(1, 12))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 13))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network.step(torch.tensor([4]), network.start(_ids(1, 12)))


@pytest.mark.parametrize("num_layers", [1, 3])
def test_dropout_acts_in_training_only(num_layers: int) -> None:
    network, tokens = _network(dropout=0.5, num_layers=num_layers), _ids(2, 7)
    assert torch.equal(network(tokens), network(tokens))
    network.train()
    assert not torch.allclose(network(tokens), network(tokens))
    zeros = [0]
    network.dropout.register_forward_hook(lambda _module, _inputs, out: zeros.append(int((out == 0).sum())))
    network(tokens)
    assert len(zeros) == 3, "on embeddings and on the output"
    assert min(zeros[1:]) > 0


@each_cell
def test_it_learns_one_batch_by_heart(changes: dict[str, Any]) -> None:
    network, text = _network(dropout=0.0, d_model=32, **changes).train(), _ids(4, 11)
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
    said = greedy(Restarting(network), torch.tensor([[1, 5]]), bos_id=6, eos_id=2, max_length=31, banned_ids=(2,))
    assert len(said[0]) == 30
    assert not isinstance(network, Attentive)


@each_cell
def test_it_trains_in_mixed_precision(changes: dict[str, Any]) -> None:
    network, text = _network(**changes).train(), _ids(2, 9)
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(network(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
