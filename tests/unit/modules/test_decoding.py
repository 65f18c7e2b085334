"""Greedy decoding against the plain, uncached way."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tuneyard_modules.decoding import greedy
from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig

BOS, EOS = 1, 2


def _network(seed: int) -> EncoderDecoder:
    torch.manual_seed(seed)
    network = EncoderDecoder(TransformerConfig(9, 16, 2, 2, max_length=12)).eval()
    # Large weights, unlike those training starts with, so that rows differ and some end early.
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.4)
    return network


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
