"""The example of a package with an architecture of its own: the paper's equations, its steps, its costs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from tuneyard_linear_attention import ARCHITECTURE
from tuneyard_linear_attention.network import LinearAttentionModel, build, linear_attention
from tuneyard_modules.decoding import Restarting, greedy
from tuneyard_modules.inspection import Attentive
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.spec import Model


def network(vocab_size: int = 19, **changes: Any) -> LinearAttentionModel:
    torch.manual_seed(0)
    model = {"d_model": 16, "num_heads": 4, "num_layers": 2, "sequence_length": 12, "positions": "learned"} | changes
    return build(Model(architecture=None, **{"dropout": 0.0, **model}), VocabSizes(vocab_size)).eval()


def ids(rows: int, length: int) -> torch.Tensor:
    return torch.randint(4, 19, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


def spread(network: LinearAttentionModel) -> LinearAttentionModel:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network


@pytest.mark.parametrize("chunk", [1, 2, 5, 9, 64])
def test_chunks_of_any_length_give_the_sums_of_the_paper(chunk: int) -> None:
    query, key, value = torch.randn(3, 2, 3, 9, 4, generator=torch.Generator().manual_seed(1))
    context, last = linear_attention(query, key, value, None, chunk)
    phi_query, phi_key = F.elu(query) + 1, F.elu(key) + 1
    for i in range(9):
        weights = torch.einsum("bhk,bhjk->bhj", phi_query[:, :, i], phi_key[:, :, : i + 1])
        mean = torch.einsum("bhj,bhjm->bhm", weights, value[:, :, : i + 1]) / weights.sum(-1, keepdim=True)
        assert_close(context[:, :, i], mean)
    assert_close(last[..., :-1], torch.einsum("bhjk,bhjm->bhkm", phi_key, value))
    assert_close(last[..., -1], phi_key.sum(2))


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("read", [0, 1, 5])
def test_steps_after_any_beginning_agree_with_the_whole_text(positions: str, read: int) -> None:
    model, tokens = spread(network(positions=positions)), ids(3, 12)
    whole = model(tokens)
    past = model.start(tokens[:, :read])
    for place in range(read, 12):
        logits, past = model.step(tokens[:, place], past)
        assert_close(logits, whole[:, place], rtol=1e-4, atol=1e-4)
        assert {tuple(one.shape) for one in past.sums_BHKM} == {(3, 4, 4, 5)}, "of one size, however much was read"
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        model.step(tokens[:, 0], past)


def test_more_tokens_than_a_chunk_agree_with_their_steps() -> None:
    model, tokens = spread(network(sequence_length=200)), ids(1, 150)
    past = model.start(tokens[:, :0])
    for place in range(150):
        logits, past = model.step(tokens[:, place], past)
    assert_close(logits, model(tokens)[:, -1], rtol=1e-4, atol=1e-4)


def test_no_position_sees_a_later_one() -> None:
    model, tokens = spread(network(sequence_length=100)), ids(2, 100)
    for place in (3, 70):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] - 3) % 15 + 4
        same = (model(tokens) - model(changed)).abs().amax(dim=(0, 2)) < 1e-6
        assert same[:place].all()
        assert not same[place:].any()


def test_rows_of_what_was_read_can_be_chosen() -> None:
    model, tokens = spread(network()), ids(3, 6)
    chosen = torch.tensor([2, 0, 2])
    expected, _ = model.step(tokens[chosen, 5], model.start(tokens[chosen, :5]))
    given, _ = model.step(tokens[chosen, 5], model.start(tokens[:, :5]).select(chosen))
    assert_close(given, expected)


def test_the_first_guess_is_uniform_and_a_batch_can_be_learned() -> None:
    model, tokens = network(d_model=32), ids(4, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    assert loss().item() == pytest.approx(math.log(19), rel=0.02)
    for _ in range(150):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.1


def test_it_goes_on_with_a_text_past_its_window_and_has_no_attention_to_show() -> None:
    model = network()
    said = greedy(Restarting(model), torch.tensor([[1, 5]]), bos_id=6, eos_id=2, max_length=31, banned_ids=(2,))
    assert len(said[0]) == 30
    assert not isinstance(model, Attentive)


@given(
    heads=st.integers(1, 4),
    width=st.integers(1, 8),
    sizes=st.fixed_dictionaries(
        {"num_layers": st.integers(1, 3), "sequence_length": st.integers(2, 90), "d_ff": st.integers(1, 60)}
    ),
    positions=st.sampled_from(["sinusoidal", "learned"]),
    vocab=st.integers(1, 300),
)
def test_the_formula_has_the_parameters_of_the_network(
    heads: int, width: int, sizes: dict[str, int], positions: str, vocab: int
) -> None:
    shape = {"d_model": 2 * heads * width, "num_heads": heads, "positions": positions, **sizes}
    with torch.device("meta"):
        built = network(vocab, **shape)
    point = {f"model.{key}": value for key, value in shape.items()}
    assert ARCHITECTURE.cost.parameters(point, VocabSizes(vocab)) == sum(
        parameter.numel() for parameter in built.parameters()
    )


@pytest.mark.parametrize("length", [32, 128])
def test_operations_and_kept_numbers_are_those_of_the_formulas(length: int) -> None:
    shape = {"d_model": 64, "num_heads": 4, "num_layers": 2, "sequence_length": length, "d_ff": 256, "dropout": 0.0}
    point = {f"model.{key}": value for key, value in shape.items()}
    model, tokens = network(97, **shape), ids(3, length)
    with FlopCounterMode(display=False) as counted:
        model(tokens)
    assert counted.get_total_flops() == tokens.numel() * ARCHITECTURE.cost.forward_flops(point, VocabSizes(97))

    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    floats = sum(storage.nbytes() for storage in kept.values()) / 4 / tokens.numel() - 97
    assert floats == pytest.approx(ARCHITECTURE.cost.kept_floats(point), rel=0.05)
