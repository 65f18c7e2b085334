"""Turning a model that predicts one token at a time into texts; any model that can start and step will do.

B batch, N rows chosen from a batch, K likeliest tokens, S source or prompt length, T target length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """A model that reads a source or a prompt once and then tokens one by one; all it knows goes through the state."""

    def start(self, source_BS: Tensor, /) -> StateT:
        """The state before the first token."""
        ...

    def step(self, tokens_B: Tensor, state: StateT, /) -> tuple[Tensor, StateT]:
        """Logits (BV) of the token after `tokens_B`, and the state after reading them."""
        ...


class WindowedStepper(Stepper[StateT], Protocol[StateT]):
    """A model that reads a bounded part of a text: prompt and steps together."""

    @property
    def max_length(self) -> int:
        """The most tokens that a state may have read."""
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


@torch.inference_mode()
def sample(
    network: WindowedStepper[StateT],
    prompt_ids: Sequence[int],
    *,
    eos_id: int,
    max_new: int,
    temperature: float,
    generator: torch.Generator,
    top_k: int | None = None,
    banned_ids: Sequence[int] = (),
    device: torch.device | None = None,
) -> list[int]:
    """Continue a text by up to `max_new` ids, the end token neither returned nor counted.

    Each id is drawn from softmax(logits / temperature) over the `top_k` likeliest (Fan et al. 2018; all when None),
    never one of `banned_ids`; temperature 0 takes the likeliest. Draws are made on the CPU with `generator`. What the
    network has read never exceeds its `max_length`: of a longer prompt it reads the end, and whenever the window is
    full it starts afresh from the last half of it. The network must be in evaluation mode, on `device`. Raises
    ValueError for an empty prompt and for settings out of range.
    """
    if not prompt_ids:
        raise ValueError("prompt_ids is empty: give at least one id, such as the start token's")
    if not 0.0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be finite and at least 0; 0 always takes the likeliest token")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k={top_k} must be at least 1, or None to choose among all tokens")
    banned = torch.tensor(list(banned_ids), dtype=torch.int64)
    ids, new = list(prompt_ids)[-network.max_length :], list[int]()
    state = network.start(torch.tensor([ids[:-1]], dtype=torch.int64, device=device))
    length = len(ids)
    while len(new) < max_new:
        logits_1V, state = network.step(torch.tensor([ids[-1]], device=device), state)
        logits_V = logits_1V[0].float().cpu().index_fill(0, banned, -torch.inf)
        token = _draw(logits_V, temperature, top_k, generator)
        if token == eos_id:
            break
        ids.append(token)
        new.append(token)
        length += 1
        if length > network.max_length:
            length = max(1, network.max_length // 2)
            state = network.start(torch.tensor([ids[-length:-1]], dtype=torch.int64, device=device))
    return new


def _draw(logits_V: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    if temperature == 0.0:
        return int(logits_V.argmax())
    logits_K, ids_K = logits_V.topk(min(top_k or len(logits_V), len(logits_V)))
    # Less the largest, so that no temperature is too low for a float.
    probabilities_K = ((logits_K - logits_K[0]) / temperature).softmax(dim=0)
    return int(ids_K[torch.multinomial(probabilities_K, 1, generator=generator)])
