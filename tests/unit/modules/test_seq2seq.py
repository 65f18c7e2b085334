"""Recurrent encoder-decoders: their equations as plain loops, attention by hand, teacher forcing, start and steps."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, get_args

import plain_cells
import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from tuneyard_modules.attention import MultiHeadAttention
from tuneyard_modules.decoding import greedy
from tuneyard_modules.inspection import attention_maps
from tuneyard_modules.seq2seq import (
    AdditiveAttention,
    AttentionKind,
    DotAttention,
    Seq2Seq,
    Seq2SeqConfig,
)

CONFIG = Seq2SeqConfig(19, d_model=16, num_layers=2, max_length=12, cell="gru", attention="dot", num_heads=4)
KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)
each_kind = pytest.mark.parametrize("attention", KINDS)
each_cell = pytest.mark.parametrize(
    "changes",
    [{"cell": "rnn"}, {"cell": "rnn", "activation": "relu"}, {"cell": "lstm"}, {"cell": "gru"}],
    ids=lambda changes: "-".join(changes.values()),
)


def _network(**changes: Any) -> Seq2Seq:
    torch.manual_seed(0)
    return Seq2Seq(dataclasses.replace(CONFIG, **changes)).eval()


def _spread(network: Seq2Seq) -> Seq2Seq:
    """Large weights, unlike those training starts with, so that what should not matter would show if it did."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.3)
    return network


def _ids(rows: int, length: int, vocab_size: int = 19) -> torch.Tensor:
    return torch.randint(4, vocab_size, (rows, length), generator=torch.Generator().manual_seed(rows * 31 + length))


def _ragged() -> torch.Tensor:
    """Sources of 7, 4 and 1 tokens."""
    source = F.pad(_ids(3, 7), (0, 2))
    source[1, 4:] = 0
    source[2, 1:] = 0
    return source


def _plain_logits(network: Seq2Seq, source_1S: torch.Tensor, target_1T: torch.Tensor) -> torch.Tensor:
    """The logits of one pair, its attention written out a score at a time."""
    config, embedding = network.config, network.vocabulary.embedding.weight
    memory, final = plain_cells.run_both_ways(network.encoder.layers, embedding[source_1S] * 4.0)
    x = embedding[target_1T] * 4.0
    fixed = final[0][-1]
    if config.attention == "none":
        x = torch.stack([torch.cat([token, fixed], dim=-1) for token in x.unbind(1)], dim=1)
    states, _ = plain_cells.run(network.decoder.layers, x, final)
    logits = []
    for q in states[0]:
        context = fixed[0] if config.attention == "none" else _plain_context(network, q, memory[0])
        said = torch.tanh(network.combine.weight @ torch.cat([context, q]))
        logits.append(embedding @ said)
    return torch.stack(logits)[None]


def _plain_context(network: Seq2Seq, q: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    attention = network.attention
    if isinstance(attention, MultiHeadAttention):
        heads = []
        key_value = memory @ attention.key_value.weight.T + attention.key_value.bias
        keys, values, query = key_value[:, :16], key_value[:, 16:], attention.query(q)
        for head in range(4):
            part = slice(4 * head, 4 * head + 4)
            weights = torch.stack([query[part] @ k[part] / 2.0 for k in keys]).softmax(0)
            heads.append(weights @ values[:, part])
        mixed: torch.Tensor = attention.output(torch.cat(heads))
        return mixed
    if isinstance(attention, AdditiveAttention):
        v, w, u = attention.score.weight[0], attention.query.weight, attention.key.weight
        scores = [v @ torch.tanh(w @ q + u @ k) for k in memory]
    else:
        scale = 0.25 if network.config.attention == "scaled_dot" else 1.0
        scores = [scale * (q @ k) for k in memory]
    return torch.stack(scores).softmax(0) @ memory


@each_kind
@each_cell
def test_it_is_its_equations_as_plain_loops_in_outputs_and_gradients(
    changes: dict[str, Any], attention: AttentionKind
) -> None:
    # In double precision: a relu close to its kink goes either way in single, from one processor to another.
    network, source, target = _spread(_network(attention=attention, **changes)).double(), _ragged(), _ids(3, 5)
    got = network(source, target)
    pairs = [(row[row != 0][None], own[None]) for row, own in zip(source, target, strict=True)]
    expected = torch.cat([_plain_logits(network, *pair) for pair in pairs])
    assert_close(got, expected)
    weight = torch.randn(got.shape, generator=torch.Generator().manual_seed(1), dtype=got.dtype)
    parameters = dict(network.named_parameters())
    ours = torch.autograd.grad((got * weight).sum(), list(parameters.values()))
    theirs = torch.autograd.grad((expected * weight).sum(), list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        assert_close(one, other, msg=name)


# Two keys, which are their own values, and a query: the first key scores e^a, the second e^b.
QUERY, KEYS = torch.tensor([[[1.0, 2.0, 0.0, -1.0]]]), torch.tensor([[[1.0, 0.0, 2.0, 1.0], [0.5, 1.0, 0.0, 0.0]]])


@pytest.mark.parametrize(("scaled", "scores"), [(False, (0.0, 2.5)), (True, (0.0, 1.25))])
def test_dot_attention_to_two_tokens_by_hand(scaled: bool, scores: tuple[float, float]) -> None:
    attention = DotAttention(scaled=scaled)
    context, weights = attention(QUERY, attention.remember(KEYS), need_weights=True)
    first = math.exp(scores[0]) / (math.exp(scores[0]) + math.exp(scores[1]))
    assert weights is not None
    assert_close(weights, torch.tensor([[[[first, 1 - first]]]]))
    assert_close(context, first * KEYS[:, :1] + (1 - first) * KEYS[:, 1:])
    unasked, nothing = attention(QUERY, attention.remember(KEYS))
    assert_close(unasked, context, atol=1e-5, rtol=0.0)
    assert nothing is None


def test_additive_attention_to_two_tokens_by_hand() -> None:
    attention = AdditiveAttention(4)
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(4) * 0.5)
        attention.key.weight.copy_(torch.eye(4).flip(0))
        attention.score.weight.copy_(torch.tensor([[1.0, -1.0, 2.0, 0.5]]))
    context, weights = attention(QUERY, attention.remember(KEYS), need_weights=True)
    tanh = math.tanh
    first = 1.0 * tanh(0.5 + 1) - 1.0 * tanh(1.0 + 2) + 2.0 * tanh(0.0 + 0) + 0.5 * tanh(-0.5 + 1)
    second = 1.0 * tanh(0.5 + 0) - 1.0 * tanh(1.0 + 0) + 2.0 * tanh(0.0 + 1) + 0.5 * tanh(-0.5 + 0.5)
    share = math.exp(first) / (math.exp(first) + math.exp(second))
    assert weights is not None
    assert_close(weights, torch.tensor([[[[share, 1 - share]]]]))
    assert_close(context, share * KEYS[:, :1] + (1 - share) * KEYS[:, 1:])


def test_multi_head_attention_to_two_tokens_by_hand() -> None:
    attention = MultiHeadAttention(4, 2)
    with torch.no_grad():
        for linear in (attention.query, attention.output):
            linear.weight.copy_(torch.eye(4))
            linear.bias.zero_()
        attention.key_value.weight.copy_(torch.cat([torch.eye(4), torch.eye(4)]))
        attention.key_value.bias.zero_()
    context, weights = attention(QUERY, attention.remember(KEYS), need_weights=True)
    scores = [(1.0, 0.5 + 2.0), (-1.0, 0.0)]  # of the first and of the second head, with either key
    shares = [1 / (1 + math.exp((second - first) / math.sqrt(2))) for first, second in scores]
    assert weights is not None
    assert_close(weights[0, :, 0, 0], torch.tensor(shares))
    means = [share * KEYS[0, 0] + (1 - share) * KEYS[0, 1] for share in shares]
    assert_close(context[0, 0], torch.cat([means[0][:2], means[1][2:]]))


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"d_model": 15}, "d_model=15 is odd"),
        ({"attention": "multi_head", "num_heads": 3}, "d_model=16 is not divisible by num_heads=3"),
        ({"num_layers": 0}, "num_layers=0 must be at least 1"),
        ({"source_vocab_size": 0}, "source_vocab_size=0 must be at least 1"),
        ({"activation": "relu"}, "activation='relu' is for cell='rnn'"),
        ({"dropout": 1.5}, "dropout=1.5 must be at least 0 and less than 1"),
    ],
)
def test_impossible_shapes_are_refused(changes: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        dataclasses.replace(CONFIG, **changes)


def test_heads_are_of_no_concern_to_one_headed_attention() -> None:
    assert dataclasses.replace(CONFIG, num_heads=3).attention == "dot"


@each_kind
@each_cell
@pytest.mark.parametrize(("vocab_size", "d_model", "num_layers"), [(40, 64, 2), (100, 32, 1), (4000, 64, 2)])
def test_loss_at_the_start_is_that_of_a_uniform_guess(
    changes: dict[str, Any], attention: AttentionKind, vocab_size: int, d_model: int, num_layers: int
) -> None:
    sizes = {"vocab_size": vocab_size, "d_model": d_model, "num_layers": num_layers}
    for tied in (True, False):
        network = _network(attention=attention, tied_embeddings=tied, **sizes, **changes)
        source, target = _ids(64, 11, vocab_size), _ids(64, 12, vocab_size)
        loss = F.cross_entropy(network(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        assert loss.item() == pytest.approx(math.log(vocab_size), rel=0.02)


@each_kind
def test_steps_equal_one_pass_with_a_state_of_one_size(attention: AttentionKind) -> None:
    for cell in ("rnn", "lstm", "gru"):
        network, source, target = _spread(_network(attention=attention, cell=cell)), _ragged(), _ids(3, 12)
        whole = network(source, target)
        state = network.start(source)
        for position in range(12):
            assert state.position == position
            assert state.hidden.hidden_LBD.shape == (2, 3, 16)
            assert state.memory.length == (1 if attention == "none" else 9)
            logits, state = network.step(target[:, position], state)
            assert_close(logits, whole[:, position])


@each_kind
def test_padding_does_not_change_results_and_what_stands_there_is_not_seen(attention: AttentionKind) -> None:
    network, source, target = _spread(_network(attention=attention)), _ragged(), _ids(3, 6)
    whole = network(source, F.pad(target, (0, 3)))[:, :6]
    for row in range(3):
        alone = source[row][source[row] != 0][None]
        assert_close(network(alone, target[row : row + 1]), whole[row : row + 1])
    embedded = whole.detach()
    with torch.no_grad():
        network.vocabulary.embedding.weight[0] = 50.0
    assert_close(network(source, target)[..., 1:], embedded[..., 1:])


@each_kind
def test_a_row_of_padding_only_is_no_trouble_to_itself_or_others(attention: AttentionKind) -> None:
    network, source, target = _spread(_network(attention=attention)), _ragged(), _ids(3, 6)
    before = network(source, target)
    source[2] = 0
    after = network(source, target)
    assert_close(after[:2], before[:2])
    assert after.isfinite().all()


@each_kind
def test_rows_of_a_state_can_be_chosen_anew_and_a_step_leaves_it_alone(attention: AttentionKind) -> None:
    network, source, target = _spread(_network(attention=attention, cell="lstm")), _ragged(), _ids(3, 4)
    index, state = torch.tensor([1, 1, 0]), network.start(source)
    for position in range(3):
        _, state = network.step(target[:, position], state)
    got, _ = network.step(target[index, 3], state.select(index))
    expected, _ = network.step(target[:, 3], state)
    again, _ = network.step(target[:, 3], state)
    assert_close(got, expected[index])
    assert torch.equal(again, expected)


@each_kind
def test_weights_are_those_of_the_forward_pass(attention: AttentionKind) -> None:
    network, source, target = _spread(_network(attention=attention)), _ragged(), _ids(3, 5)
    looked = network.attention_weights(source, target)
    if attention == "none":
        assert looked == {}
        assert attention_maps(network, source[0], target[0]) == {}
        return
    (weights,) = looked["cross"]
    assert weights.shape == (3, 4 if attention == "multi_head" else 1, 5, 9)
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    assert (weights.movedim(-1, 1)[source == 0] == 0).all()
    assert (weights.movedim(-1, 1)[source != 0] > 0).all()
    if attention != "multi_head":
        state = network.start(source)
        states, _ = network.decoder(network.vocabulary(target), state.hidden)
        context = weights[:, 0] @ state.memory.value_BHSK[:, 0]
        expected = network.vocabulary.logits(network.combine(torch.cat([context, states], -1)).tanh())
        assert_close(network(source, target), expected)


def test_the_fixed_context_is_in_every_step_and_at_the_start() -> None:
    network, source, target = _spread(_network(attention="none")), _ids(2, 5), _ids(2, 6)
    state = network.start(source)
    assert_close(state.memory.value_BHSK[:, 0, 0], state.hidden.hidden_LBD[-1])
    other = network.start(_ids(2, 7))
    for mixed in (state._replace(hidden=other.hidden), state._replace(memory=other.memory)):
        for token in target.T:
            expected, state = network.step(token, state)
            got, mixed = network.step(token, mixed)
            assert not torch.isclose(got, expected).all(-1).any()
        state = network.start(source)


def test_sources_may_have_a_vocabulary_of_their_own() -> None:
    network = _spread(_network(source_vocab_size=31))
    source, target = torch.tensor([[30, 7, 5]]), torch.tensor([[6, 8, 4]])
    before = network(source, target)
    assert before.shape == (1, 3, 19)
    with torch.no_grad():
        network.vocabulary.embedding.weight[7, 0] += 1.0
        assert_close(network(source, target)[..., :7], before[..., :7], msg="a source's 7 is another than a target's")
        assert network.source_vocabulary is not None
        network.source_vocabulary.embedding.weight[7, 0] += 1.0
    assert not torch.allclose(network(source, target)[..., :7], before[..., :7])


def test_too_long_a_sequence_is_refused() -> None:
    network = _network()
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 13), _ids(1, 3))
    with pytest.raises(ValueError, match="13 tokens is longer than max_length=12"):
        network(_ids(1, 3), _ids(1, 13))


def _taught(network: Seq2Seq, source: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
    config = network.config
    network.config = dataclasses.replace(config, teacher_forcing=share)
    logits = network(source, target)
    network.config = config
    return logits


def _fed(network: Seq2Seq, source: torch.Tensor, target: torch.Tensor, share: float) -> torch.Tensor:
    """The tokens that the pass with gradients read."""
    read: list[torch.Tensor] = []
    hook = network.vocabulary.register_forward_hook(lambda _module, inputs, _out: read.append(inputs[0]))
    _taught(network, source, target, share=share)
    hook.remove()
    return read[-1]


@each_kind
def test_without_a_teacher_it_reads_its_own_tokens(attention: AttentionKind) -> None:
    network, source = _spread(_network(attention=attention, dropout=0.0)), _ragged()
    target = F.pad(_ids(3, 7), (1, 0), value=1)
    own = greedy(network, source, bos_id=1, eos_id=99, max_length=9)
    expected = F.pad(torch.tensor(own)[:, :7], (1, 0), value=1)
    given = network(source, target)
    assert torch.equal(_fed(network, source, target, 0.0), target), "in evaluation the given ones are read"
    network.train()
    assert torch.equal(_fed(network, source, target, 0.0), expected)
    assert_close(_taught(network, source, target, share=0.0), network(source, expected))
    assert not torch.allclose(_taught(network, source, target, share=0.0), given)
    assert torch.equal(network(source, target), given)


def test_a_share_is_drawn_for_each_row_and_step_from_the_global_generator() -> None:
    network = _spread(_network(dropout=0.0, d_model=4, num_layers=1, vocab_size=2000, max_length=50)).train()
    source, target = _ids(200, 3, 2000), _ids(200, 50, 2000)
    torch.manual_seed(3)
    fed = _fed(network, source, target, 0.8)
    given = (fed == target)[:, 1:].double()
    assert given.mean().item() == pytest.approx(0.8, abs=0.01)
    assert given.mean(0).std().item() == pytest.approx(0.4 / 200**0.5, rel=0.3)
    assert given.mean(1).std().item() == pytest.approx(0.4 / 49**0.5, rel=0.3)
    torch.manual_seed(3)
    assert torch.equal(_fed(network, source, target, 0.8), fed)
    assert torch.equal(fed[:, 0], target[:, 0])


def test_each_own_token_follows_from_what_was_read_before_it() -> None:
    network, source, target = _spread(_network(dropout=0.0)).train(), _ragged(), _ids(3, 9)
    fed = _fed(network, source, target, 0.5)
    likeliest = network(source, fed).argmax(-1)[:, :-1]
    own = fed[:, 1:] != target[:, 1:]
    assert own.any()
    assert torch.equal(fed[:, 1:][own], likeliest[own])


def test_gradients_reach_everything_whatever_the_share() -> None:
    for attention in KINDS:
        network, source, target = _network(attention=attention).train(), _ragged(), _ids(3, 9)
        _taught(network, source, target, share=0.3).square().sum().backward()
        for name, parameter in network.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all()


def test_what_is_no_share_is_refused() -> None:
    for share in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="must be a share"):
            _network(teacher_forcing=share)


def test_dropout_acts_in_training_only() -> None:
    network, source, target = _network(dropout=0.5), _ids(2, 7), _ids(2, 6)
    assert torch.equal(network(source, target), network(source, target))
    network.train()
    assert not torch.allclose(network(source, target), network(source, target))


@each_kind
def test_it_learns_one_batch_by_heart(attention: AttentionKind) -> None:
    network, source, target = _network(attention=attention, dropout=0.0).train(), _ragged(), _ids(3, 8)
    optimizer = torch.optim.AdamW(network.parameters(), lr=4e-2, weight_decay=0.0)
    for _ in range(120):
        loss = F.cross_entropy(network(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < 0.008:
            break
    assert loss.item() < 0.01


@each_kind
def test_it_trains_in_mixed_precision(attention: AttentionKind) -> None:
    for cell in ("rnn", "lstm", "gru"):
        network, target = _network(attention=attention, cell=cell).train(), _ids(3, 9)
        with torch.autocast("cpu", torch.bfloat16):
            logits = _taught(network, _ragged(), target[:, :-1], share=0.5)
            F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten()).backward()
        assert all(parameter.grad is not None for parameter in network.parameters())
