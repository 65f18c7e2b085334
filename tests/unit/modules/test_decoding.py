"""Greedy decoding and sampling against the plain, uncached way."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from tuneyard_modules.decoding import greedy, sample
from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig

BOS, EOS = 1, 2


def _network(seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    network = EncoderDecoder(TransformerConfig(9, 16, 2, 2, max_length=12)).eval()
    _spread(network)
    return network


def _spread(network: nn.Module) -> None:
    """Large weights, unlike those training starts with, so that rows differ and some end early."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)


def _uncached(network: EncoderDecoder, source: torch.Tensor, max_length: int) -> list[int]:
    ids = [BOS]
    while len(ids) < max_length:
        ids.append(int(network(source[None], torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] == EOS:
            return ids[1:-1]
    return ids[1:]


def test_equals_the_most_likely_tokens_of_the_uncached_model() -> None:
    lengths = set()
    for seed in range(4):
        network = _network(seed)
        source = torch.randint(3, 9, (6, 5), generator=torch.Generator().manual_seed(seed))
        source[2, 3:] = 0
        rows = greedy(network, source, bos_id=BOS, eos_id=EOS, max_length=10)
        assert rows == [_uncached(network, row, 10) for row in source]
        lengths |= {len(row) for row in rows}
    assert 9 in lengths
    assert len(lengths) > 2, "the rows should end at different places for this test to mean anything"


class _Countdown(NamedTuple):
    """Says how many steps each row has left; the rows that still take part are recorded."""

    left_B: torch.Tensor

    def select(self, index_N: torch.Tensor) -> _Countdown:
        return _Countdown(self.left_B[index_N])


class _Counter:
    def __init__(self) -> None:
        self.batch_sizes: list[int] = []

    def start(self, source_BS: torch.Tensor) -> _Countdown:
        return _Countdown(source_BS[:, 0])

    def step(self, tokens_B: torch.Tensor, state: _Countdown) -> tuple[torch.Tensor, _Countdown]:
        self.batch_sizes.append(len(tokens_B))
        token_B = torch.where(state.left_B > 0, state.left_B + 2, EOS)
        return torch.nn.functional.one_hot(token_B, 40).float(), _Countdown(state.left_B - 1)


def test_stops_with_the_last_row_and_drops_rows_that_ended() -> None:
    counter = _Counter()
    rows = greedy(counter, torch.tensor([[2], [0], [3], [2]]), bos_id=BOS, eos_id=EOS, max_length=30)
    assert rows == [[4, 3], [], [5, 4, 3], [4, 3]]
    assert counter.batch_sizes == [4, 3, 3, 1]


def test_the_last_place_is_the_end_tokens() -> None:
    assert greedy(_Counter(), torch.tensor([[9], [1]]), bos_id=BOS, eos_id=EOS, max_length=4) == [[11, 10, 9], [3]]
    assert greedy(_Counter(), torch.tensor([[9]]), bos_id=BOS, eos_id=EOS, max_length=1) == [[]]


def _sample(network: Any, prompt: Sequence[int], seed: int = 0, **options: Any) -> list[int]:
    settings: dict[str, Any] = {"eos_id": EOS, "max_new": 40, "temperature": 0.0}
    return sample(network, prompt, generator=torch.Generator().manual_seed(seed), **(settings | options))


@pytest.mark.parametrize("max_length", [1, 2, 7, 8, 60])
@pytest.mark.parametrize("prompt", [[5], [4, 9, 3, 7, 11, 6, 28], list(range(3, 23))])
def test_a_text_goes_on_past_the_window_from_its_last_half(max_length: int, prompt: list[int]) -> None:
    new, read = list[int](), prompt[-max_length:]
    while len(new) < 40:
        if len(read) > max_length:
            read = read[-max(1, max_length // 2) :]
        new.append(_Hash.next(read))
        read = [*read, new[-1]]
    assert _sample(_Hash(max_length), prompt) == new
    assert max_length < 7 or len(set(new)) > 10, "a text of few letters says little about what was read"


def test_a_real_network_goes_on_past_its_window() -> None:
    torch.manual_seed(0)
    network = DecoderOnly(TransformerConfig(30, 16, 2, 2, max_length=8, positions="learned")).eval()
    _spread(network)
    text, read = [3], [3]
    while len(text) < 30:
        logits = network(torch.tensor([read]))[0, -1]
        logits[[0, 1, EOS, *text[-3:]]] = -torch.inf
        text += _sample(network, read, max_new=1, banned_ids=(0, 1, EOS, *text[-3:]))
        assert text[-1] == int(logits.argmax())
        read = text[-8:]
    assert len(set(text)) > 5
    whole = _sample(network, [3], temperature=1.0, banned_ids=(EOS,))
    assert len(whole) == 40
    assert whole == _sample(network, [3], temperature=1.0, banned_ids=(EOS,))
    assert whole != _sample(network, [3], seed=1, temperature=1.0, banned_ids=(EOS,))


def test_a_text_ends_with_its_end_token() -> None:
    network = _Dice({5: 0.0, EOS: 1.0})
    assert _sample(network, [4]) == []
    assert _sample(network, [4], banned_ids=(EOS,), max_new=3) == [5, 5, 5]
    assert _sample(network, [4], max_new=0) == []


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_tempered_probabilities(temperature: float) -> None:
    logits = {5: 1.0, 6: 0.0, 7: -1.0, 8: 3.0}
    drawn = Counter(_sample(_Dice(logits), [4], temperature=temperature, max_new=4000, banned_ids=(8,)))
    weights = {token: math.exp(logits[token] / temperature) for token in (5, 6, 7)}
    assert set(drawn) == {5, 6, 7}
    for token, weight in weights.items():
        assert drawn[token] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_only_the_likeliest_are_drawn() -> None:
    network = _Dice({5: 1.0, 6: 0.9, 7: 0.8, 8: 0.7})
    assert set(_sample(network, [4], temperature=1.0, top_k=2, max_new=200)) == {5, 6}
    assert set(_sample(network, [4], temperature=1.0, top_k=2, max_new=200, banned_ids=(5,))) == {6, 7}
    assert set(_sample(network, [4], temperature=1.0, top_k=99, max_new=200)) == {5, 6, 7, 8}
    assert set(_sample(network, [4], temperature=1e-40, max_new=20)) == {5}


@pytest.mark.parametrize(
    ("prompt", "options", "rule"),
    [
        ([], {}, "prompt_ids is empty"),
        ([4], {"temperature": -0.1}, r"temperature=-0\.1 must be finite and at least 0"),
        ([4], {"temperature": math.nan}, "temperature=nan"),
        ([4], {"top_k": 0}, "top_k=0 must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(prompt: list[int], options: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        _sample(_Dice({5: 0.0}), prompt, **options)


class _Read(NamedTuple):
    """The ids that were read."""

    ids: tuple[int, ...]

    def select(self, index_N: torch.Tensor) -> _Read:
        return self


class _Hash:
    """Says what depends on every id it has read and on its place; refuses to read too much."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    @staticmethod
    def next(ids: Sequence[int]) -> int:
        return 3 + hash(tuple(ids)) % 27

    def start(self, prompt_BT: torch.Tensor) -> _Read:
        return _Read(tuple(prompt_BT[0].tolist()))

    def step(self, tokens_B: torch.Tensor, state: _Read) -> tuple[torch.Tensor, _Read]:
        ids = (*state.ids, int(tokens_B))
        assert len(ids) <= self.max_length
        return nn.functional.one_hot(torch.tensor([self.next(ids)]), 30).float(), _Read(ids)


class _Dice:
    """Finds the same tokens likely whatever was said before."""

    max_length = 10**9

    def __init__(self, logits: dict[int, float]) -> None:
        self.logits_V = torch.full((10,), -torch.inf)
        for token, logit in logits.items():
            self.logits_V[token] = logit

    def start(self, prompt_BT: torch.Tensor) -> _Countdown:
        return _Countdown(prompt_BT.sum(1))

    def step(self, tokens_B: torch.Tensor, state: _Countdown) -> tuple[torch.Tensor, _Countdown]:
        return self.logits_V[None], state
