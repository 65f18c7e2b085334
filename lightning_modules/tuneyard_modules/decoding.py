"""Turning a model that predicts one token at a time into texts; any model that can start and step will do.

B batch, N rows chosen from a batch, S source length, T target length, V vocabulary.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor


class Selectable(Protocol):
    """A decoding state whose batch rows can be chosen, repeated or dropped."""

    def select(self, index_N: Tensor, /) -> Self:
        """The state of the rows `index_N`, in that order."""
        ...


StateT = TypeVar("StateT", bound=Selectable)


class Stepper(Protocol[StateT]):
    """A model that reads a source once and then target tokens one by one; all it knows goes through the state."""

    def start(self, source_BS: Tensor, /) -> StateT:
        """The state before the first target token."""
        ...

    def step(self, tokens_B: Tensor, state: StateT, /) -> tuple[Tensor, StateT]:
        """Logits (BV) of the token after `tokens_B`, and the state after reading them."""
        ...


@torch.inference_mode()
def greedy(
    network: Stepper[StateT], source_BS: Tensor, *, bos_id: int, eos_id: int, max_length: int
) -> list[list[int]]:
    """The most likely next token, again and again; a batch ends with its last row, and ended rows cost nothing.

    `max_length` counts the end token: a row has at most max_length - 1 ids and needs no room to say that it has ended.
    Returns each row's ids without the start and the end token. The network must be in evaluation mode.
    """
    rows = source_BS.shape[0]
    ids_BT = source_BS.new_full((rows, max_length), eos_id)
    row_N = torch.arange(rows, device=source_BS.device)
    tokens_N = source_BS.new_full((rows,), bos_id)
    state = network.start(source_BS)
    for position in range(max_length - 1):
        logits_NV, state = network.step(tokens_N, state)
        tokens_N = logits_NV.argmax(dim=-1)
        going_N = (tokens_N != eos_id).nonzero().squeeze(1)
        if len(going_N) == 0:
            break
        if len(going_N) < len(tokens_N):
            tokens_N, row_N, state = tokens_N[going_N], row_N[going_N], state.select(going_N)
        ids_BT[row_N, position] = tokens_N
    return [ids[: ids.index(eos_id)] for ids in ids_BT.tolist()]
