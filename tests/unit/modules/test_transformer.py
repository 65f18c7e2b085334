"""The encoder-decoder: its options, its start, its masks and its steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig

CONFIG = TransformerConfig(vocab_size=19, d_model=16, num_heads=4, num_layers=2, max_length=12)


def _network(**changes: Any) -> EncoderDecoder:
    torch.manual_seed(0)
    return EncoderDecoder(dataclasses.replace(CONFIG, **changes)).eval()


def _ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"num_heads": 3}, "d_model=16 is not divisible by num_heads=3"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"d_ff": 0}, "feed_forward_width=0"),
        ({"source_vocab_size": 0}, "source_vocab_size=0 must be at least 1"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"d_model": 15, "num_heads": 5, "positions": "sinusoidal"}, "d_model=15 is odd"),
        ({"d_model": 12, "positions": "rotary"}, "d_model=12 gives num_heads=4 an odd width each, 3"),
        ({"num_kv_heads": 3}, "num_heads=4 is not divisible by num_kv_heads=3"),
        ({"num_kv_heads": 0}, "num_kv_heads=0 must be at least 1"),
        ({"num_decoder_layers": 0}, "num_decoder_layers=0 must be at least 1"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(CONFIG, **changes)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize(("vocab_size", "d_model", "num_layers"), [(40, 64, 2), (100, 32, 1), (4000, 128, 3)])
def test_loss_at_the_start_is_that_of_a_uniform_guess(
    vocab_size: int, d_model: int, num_layers: int, positions: str
) -> None:
    network = _network(vocab_size=vocab_size, d_model=d_model, num_layers=num_layers, positions=positions)
    source, target = _ids(64, 11, vocab_size), _ids(64, 12, vocab_size)
    loss = F.cross_entropy(network(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.02)


def test_embeddings_are_tied_and_scaled() -> None:
    network = _network(dropout=0.0)
    shapes = [tuple(parameter.shape) for parameter in network.parameters()]
    assert shapes.count((19, 16)) == 1
    embedded, _ = network._embed(torch.tensor([[7]]), network.embedding, network.source_positions, start=3)
    expected = network.embedding.weight[7] * 4.0 + network.source_positions(3, 1)[0]
    assert_close(embedded[0, 0], expected)


def test_sources_may_have_a_vocabulary_of_their_own() -> None:
    network = _network(source_vocab_size=31)
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items() if "embedding" in name}
    assert shapes == {"embedding.weight": (19, 16), "source_embedding.weight": (31, 16)}
    source, target = torch.tensor([[30, 7, 5]]), torch.tensor([[6, 8, 4]])
    before = network(source, target)
    assert before.shape == (1, 3, 19)
    with torch.no_grad():
        network.embedding.weight[7, 0] += 1.0
        assert_close(network(source, target)[..., :7], before[..., :7], msg="a source's 7 is another than a target's")
        network.source_embedding.weight[7, 0] += 1.0
    assert not torch.allclose(network(source, target)[..., :7], before[..., :7])


def test_the_future_does_not_change_the_past() -> None:
    network, source, target = _network(), _ids(2, 7), _ids(2, 9)
    before = network(source, target)
    changed = target.clone()
    changed[:, 5] = (changed[:, 5] - 3) % 15 + 4
    after = network(source, changed)
    assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5:], before[:, 5:])


def test_padding_does_not_change_results() -> None:
    network, source, target = _network(), _ids(2, 7), _ids(2, 6)
    padded_source, padded_target = F.pad(source, (0, 4)), F.pad(target, (0, 3))
    assert_close(network(padded_source, padded_target)[:, :6], network(source, target))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_cached_steps_equal_one_pass(positions: str) -> None:
    network, source, target = _network(positions=positions), F.pad(_ids(3, 7), (0, 2)), _ids(3, 12)
    source[1, 4:] = 0
    whole = network(source, target)
    state = network.start(source)
    for position in range(12):
        assert state.position == position
        logits, state = network.step(target[:, position], state)
        assert_close(logits, whole[:, position])


def test_rows_of_a_state_can_be_chosen_anew() -> None:
    network, source, target = _network(), _ids(3, 7), _ids(3, 4)
    source[1, 5:] = 0
    index = torch.tensor([1, 1, 0])
    state = network.start(source)
    for position in range(3):
        _, state = network.step(target[:, position], state)
    got, _ = network.step(target[index, 3], state.select(index))
    expected, _ = network.step(target[:, 3], state)
    assert_close(got, expected[index])


def test_a_step_leaves_the_state_before_it_alone() -> None:
    network = _network()
    state = network.start(_ids(2, 5))
    _, state = network.step(torch.tensor([1, 1]), state)
    first, _ = network.step(torch.tensor([5, 6]), state)
    network.step(torch.tensor([9, 9]), state)
    again, _ = network.step(torch.tensor([5, 6]), state)
    assert torch.equal(first, again)


def test_too_long_a_sequence_is_refused() -> None:
    network = _network()
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 13), _ids(1, 3))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 3), _ids(1, 13))


def test_dropout_acts_in_training_only() -> None:
    network, source, target = _network(dropout=0.5), _ids(2, 7), _ids(2, 6)
    assert torch.equal(network(source, target), network(source, target))
    network.train()
    assert not torch.allclose(network(source, target), network(source, target))
