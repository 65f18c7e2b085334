"""Turning a model that predicts one token at a time into texts; any model that can start and step will do.

    greedy    the likeliest token, again and again
    beam      the likeliest texts that a search of a few at a time finds
    sample    tokens drawn by chance, the unlikely ones left out or not
    score     how likely the model finds texts that are given

All of them begin with `network.start(source_BS)` and step from `bos_id`. Where a language model goes on with prompts of
one length, the source is all but their last tokens, and those, a tensor, are `bos_id`; `Restarting` lets it read on
past its window.

B batch, C candidates of a row, K likeliest tokens, N rows that go on, P paths of all rows, S source or prompt length,
T target length, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

_MOST_SEED = 2**63 - 1
_MOST_PENALTY = 10  # beyond, a length to this power is soon no float


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


class DecodingError(ValueError):
    """Settings of decoding that are out of range, or that contradict each other."""


@dataclass(frozen=True)
class Decoding:
    """How texts are made: greedily, unless `beam` is above 1 (a search) or `temperature` above 0 (draws).

    `n_best` candidates of each text, the best of the beam or so many draws. `length_penalty`: scores are divided by the
    length to this power (`beam`). `top_k`, `top_p` and `min_p` leave unlikely tokens out of the draws (`filtered`), and
    `seed` makes them the same again. `max_new_tokens` ends every text; None stands for what the model is used with.
    Raises DecodingError, a ValueError, for settings out of range and for those that have no effect together.
    """

    beam: int = 1
    n_best: int = 1
    length_penalty: float = 1.0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int = 0
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("beam", "n_best", "top_k", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise DecodingError(f"{name}={value!r} must be a whole number of at least 1")
        for name in ("length_penalty", "temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
                raise DecodingError(f"{name}={value!r} must be a finite number")
        if abs(self.length_penalty) > _MOST_PENALTY:
            raise DecodingError(
                f"length_penalty={self.length_penalty} must be from -{_MOST_PENALTY} to {_MOST_PENALTY}"
            )
        if self.temperature < 0:
            raise DecodingError(f"temperature={self.temperature} must be at least 0; 0 takes the likeliest token")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise DecodingError(f"{name}={value} must be above 0 and at most 1")
        if not isinstance(self.seed, int) or not 0 <= self.seed <= _MOST_SEED:
            raise DecodingError(f"seed={self.seed!r} must be a whole number from 0 to 2^63 - 1")
        self._check_together()

    def _check_together(self) -> None:
        drawn = self.temperature > 0
        if drawn and self.beam > 1:
            raise DecodingError(
                f"beam={self.beam} and temperature={self.temperature:g} exclude each other: a beam keeps the "
                "likeliest, a temperature draws by chance; leave one out"
            )
        if not drawn and self.n_best > self.beam:
            raise DecodingError(
                f"n_best={self.n_best} is more than beam={self.beam}: raise beam, or draw with a temperature above 0"
            )
        filters = [f"{name}={getattr(self, name)}" for name in ("top_k", "top_p", "min_p") if getattr(self, name)]
        if filters and not drawn:
            raise DecodingError(
                f"{', '.join(filters)} only matters to draws, and temperature=0 takes the likeliest token: "
                "give a temperature, such as 1, or leave it out"
            )

        if self.length_penalty != 1.0 and self.beam == 1:
            raise DecodingError(
                f"length_penalty={self.length_penalty:g} only matters to a beam: give beam, such as 5, or leave it out"
            )
        if self.seed and not drawn:
            raise DecodingError(
                f"seed={self.seed} only matters to draws: give a temperature, such as 1, or leave it out"
            )

    def generators(self) -> list[torch.Generator]:
        """A source of chance for each of the `n_best`; a larger n_best has those of a smaller one first."""
        seeds = torch.Generator().manual_seed(self.seed)
        return [
            torch.Generator().manual_seed(int(torch.randint(_MOST_SEED, (), generator=seeds)))
            for _ in range(self.n_best)
        ]


class Hypothesis(NamedTuple):
    """A text that was made: its ids without the start and the end token, and how good it is."""

    ids: list[int]
    score: float
    """Log-probability in nats / length ** length_penalty, where the end token, if it came, is a part of both."""


class Step(NamedTuple):
    """A token of a text in its place: how likely it was, and the likeliest there, best first, as (id, nats)."""

    id: int
    log_probability: float
    likeliest: tuple[tuple[int, float], ...]


@torch.inference_mode()
def greedy(
    network: Stepper[StateT],
    source_BS: Tensor,
    *,
    bos_id: int | Tensor,
    eos_id: int,
    max_length: int,
    banned_ids: Sequence[int] = (),
) -> list[list[int]]:
    """The most likely next token, again and again, but never one of `banned_ids`.

    `max_length` counts the end token: a row has at most max_length - 1 ids and needs no room to say that it has ended.
    Returns each row's ids without the start and the end token. The network must be in evaluation mode.
    """

    def likeliest(logits_NV: Tensor, row_N: Tensor) -> Tensor:
        return _without(logits_NV, banned_ids).argmax(dim=-1)

    return _walk(network, source_BS, likeliest, bos_id=bos_id, eos_id=eos_id, max_length=max_length)


@torch.inference_mode()
def sample(
    network: Stepper[StateT],
    source_BS: Tensor,
    options: Decoding,
    *,
    bos_id: int | Tensor,
    eos_id: int,
    max_length: int,
    generators: Sequence[torch.Generator],
    banned_ids: Sequence[int] = (),
) -> list[Hypothesis]:
    """Each token is drawn from the softmax of what `filtered` leaves; a temperature of 0 takes the likeliest.

    Row b draws with `generators[b]`, on the CPU: what it says depends on no other row. Its score is the log-probability
    that the network gives, before any filter. Otherwise as `greedy`.
    """
    nats_B = torch.zeros(len(source_BS), dtype=torch.float64, device=source_BS.device)

    def drawn(logits_NV: Tensor, row_N: Tensor) -> Tensor:
        allowed_NV = _without(logits_NV, banned_ids)
        if options.temperature == 0.0:
            tokens_N = allowed_NV.argmax(dim=-1)
        else:
            chances_NV = filtered(allowed_NV.cpu().double(), options).softmax(dim=-1)
            draws = [
                torch.multinomial(chances_V, 1, generator=generators[row])
                for chances_V, row in zip(chances_NV, row_N.tolist(), strict=True)
            ]
            tokens_N = torch.cat(draws).to(logits_NV.device)
        nats_B[row_N] += _log_probabilities(logits_NV).gather(1, tokens_N[:, None]).squeeze(1)
        return tokens_N

    texts = _walk(network, source_BS, drawn, bos_id=bos_id, eos_id=eos_id, max_length=max_length)
    return [
        Hypothesis(ids, _score(nats, min(len(ids) + 1, max_length - 1), options.length_penalty))
        for ids, nats in zip(texts, nats_B.tolist(), strict=True)
    ]


@torch.inference_mode()
def beam(
    network: Stepper[StateT],
    source_BS: Tensor,
    *,
    bos_id: int | Tensor,
    eos_id: int,
    max_length: int,
    beam_size: int,
    length_penalty: float = 1.0,
    n_best: int = 1,
    banned_ids: Sequence[int] = (),
) -> list[list[Hypothesis]]:
    """The `n_best` texts that a search finds which goes on with the `beam_size` likeliest beginnings, best first.

    As Hugging Face's `generate` with `early_stopping=False`, also where it ends: once a row has `beam_size` texts, and
    its best beginning, divided by its own length ** length_penalty, is no better than the worst of them. That loses
    nothing with a penalty of 0 or less; above, a longer text could still have come out better. A row has fewer texts
    where there are fewer. `max_length` and `banned_ids` as for `greedy`, which a beam of 1 equals.

    Raises DecodingError for a beam that is larger than the vocabulary, and for `n_best` above `beam_size`.
    """
    if not 1 <= n_best <= beam_size:
        raise DecodingError(f"n_best={n_best} must be from 1 to beam_size={beam_size}: raise the beam")
    ended: list[list[Hypothesis]] = [[] for _ in source_BS]
    rows, paths = list(range(len(source_BS))), [_Path([], 0.0, parent=row) for row in range(len(source_BS))]
    state, tokens_P = network.start(source_BS), _first(bos_id, source_BS)
    for length in range(1, max_length):
        logits_PV, state = network.step(tokens_P, state)
        vocabulary, last = logits_PV.shape[-1], length == max_length - 1
        if beam_size > vocabulary:
            raise DecodingError(
                f"beam={beam_size} is larger than the vocabulary: it has {vocabulary} tokens; give at most that many"
            )
        nats_PV = _without(_log_probabilities(logits_PV), banned_ids)
        nats_PV = nats_PV + nats_PV.new_tensor([path.nats for path in paths])[:, None]
        rows_before, paths_before, rows, paths = rows, paths, [], []
        for row, candidates in zip(rows_before, _likeliest(nats_PV, len(rows_before), 2 * beam_size), strict=True):
            found = [
                _Path([*paths_before[parent].ids, token], nats, parent)
                for nats, parent, token in candidates
                if nats > -math.inf
            ]
            done = [path for path in found[:beam_size] if last or path.ids[-1] == eos_id]
            texts = [*ended[row], *(path.hypothesis(eos_id, length_penalty) for path in done)]
            ended[row] = sorted(texts, key=lambda text: text.score, reverse=True)[:beam_size]
            going = [path for path in found if not last and path.ids[-1] != eos_id][:beam_size]
            full = len(ended[row]) == beam_size
            if going and not (full and _score(going[0].nats, length, length_penalty) <= ended[row][-1].score):
                rows.append(row)
                paths += going + [going[0]._replace(nats=-math.inf)] * (beam_size - len(going))
        if not rows:
            break
        state = state.select(torch.tensor([path.parent for path in paths], device=source_BS.device))
        tokens_P = source_BS.new_tensor([path.ids[-1] for path in paths])
    return [texts[:n_best] or [Hypothesis([], 0.0)] for texts in ended]


@torch.inference_mode()
def score(
    network: Stepper[StateT],
    source_BS: Tensor,
    references: Sequence[Sequence[int]],
    *,
    bos_id: int | Tensor,
    likeliest: int = 0,
) -> list[list[Step]]:
    """How likely the network finds each token of the given texts after those before it; a text's nats are their sum.

    A row's reference follows its source; it holds the end token where that is to count. With `likeliest`, so many of
    the tokens that the network likes best in each place come, too.
    """
    steps: list[list[Step]] = [[] for _ in references]
    rows = list(range(len(references)))
    state, tokens_N = network.start(source_BS), _first(bos_id, source_BS)
    for place in range(max(map(len, references), default=0)):
        index_N = [index for index, row in enumerate(rows) if len(references[row]) > place]
        if len(index_N) < len(rows):
            selected_N = torch.tensor(index_N, device=source_BS.device)
            tokens_N, state = tokens_N[selected_N], state.select(selected_N)
            rows = [rows[index] for index in index_N]
        logits_NV, state = network.step(tokens_N, state)
        nats_NV = _log_probabilities(logits_NV)
        tokens_N = torch.tensor([references[row][place] for row in rows], device=source_BS.device)
        nats_N = nats_NV.gather(1, tokens_N[:, None]).squeeze(1)
        best_NK, ids_NK = nats_NV.topk(min(likeliest, nats_NV.shape[1]))
        for row, nats, best_K, ids_K in zip(rows, nats_N.tolist(), best_NK.tolist(), ids_NK.tolist(), strict=True):
            steps[row].append(Step(references[row][place], nats, tuple(zip(ids_K, best_K, strict=True))))
    return steps


def filtered(logits_BV: Tensor, options: Decoding) -> Tensor:
    """Logits over the temperature, then -inf where a token is left out; each filter sees what the one before left.

    `top_k`: all but the k likeliest (Fan et al. 2018). `top_p`: all but the likeliest that together reach p (nucleus
    sampling, Holtzman et al. 2020). `min_p`: what is less likely than min_p times the likeliest (Nguyen et al. 2024).
    """
    # Less the largest, so that no temperature is too low for a float.
    logits_BV = (logits_BV - logits_BV.amax(-1, keepdim=True)) / options.temperature
    if options.top_k is not None:
        least_B1 = logits_BV.topk(min(options.top_k, logits_BV.shape[-1])).values[..., -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < least_B1, -torch.inf)
    if options.top_p is not None:
        sorted_BV, ids_BV = logits_BV.sort(dim=-1)
        out_BV = sorted_BV.softmax(dim=-1).cumsum(dim=-1) <= 1 - options.top_p
        out_BV[..., -1] = False
        logits_BV = logits_BV.masked_fill(out_BV.scatter(-1, ids_BV, out_BV), -torch.inf)
    if options.min_p is not None:
        chances_BV = logits_BV.softmax(dim=-1)
        least_B1 = options.min_p * chances_BV.amax(-1, keepdim=True)
        logits_BV = logits_BV.masked_fill(chances_BV < least_B1, -torch.inf)
    return logits_BV


class Read(NamedTuple, Generic[StateT]):
    """What a `Restarting` has read since it last started."""

    ids_BT: Tensor
    state: StateT

    def select(self, index_N: Tensor) -> Read[StateT]:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Read(self.ids_BT[index_N], self.state.select(index_N))


class Restarting(Generic[StateT]):
    """A language model that reads on where its window ends: it starts afresh from the last half of it, at every row.

    What the network has read never exceeds its `max_length`: of a longer prompt it reads the end.
    """

    def __init__(self, network: WindowedStepper[StateT]) -> None:
        self._network = network

    def start(self, prompt_BT: Tensor) -> Read[StateT]:
        """Read the end of the beginning of a text; one more token has room."""
        kept_BT = prompt_BT[:, max(0, prompt_BT.shape[1] - self._network.max_length + 1) :]
        return Read(kept_BT, self._network.start(kept_BT))

    def step(self, tokens_B: Tensor, read: Read[StateT]) -> tuple[Tensor, Read[StateT]]:
        """Read one token per row; returns the logits (BV) of the next one and what was read then."""
        ids_BT, state = torch.cat([read.ids_BT, tokens_B[:, None]], dim=1), read.state
        if ids_BT.shape[1] > self._network.max_length:
            ids_BT = ids_BT[:, -max(1, self._network.max_length // 2) :]
            state = self._network.start(ids_BT[:, :-1])
        logits_BV, state = self._network.step(tokens_B, state)
        return logits_BV, Read(ids_BT, state)


class _Path(NamedTuple):
    """The beginning of a text, its log-probability, and the place among the paths before of the one that it goes on."""

    ids: list[int]
    nats: float
    parent: int

    def hypothesis(self, eos_id: int, length_penalty: float) -> Hypothesis:
        ids = self.ids[:-1] if self.ids[-1] == eos_id else self.ids
        return Hypothesis(ids, _score(self.nats, len(self.ids), length_penalty))


def _likeliest(nats_PV: Tensor, rows: int, most: int) -> list[list[tuple[float, int, int]]]:
    """For each row, of all tokens after all its paths the likeliest: (nats, path, token), best first."""
    paths, vocabulary = nats_PV.shape
    nats_NC, place_NC = nats_PV.view(rows, -1).topk(min(most, paths // rows * vocabulary))
    first_N1 = torch.arange(0, paths, paths // rows, device=nats_PV.device)[:, None]
    parts = (nats_NC.tolist(), (first_N1 + place_NC // vocabulary).tolist(), (place_NC % vocabulary).tolist())
    return [list(zip(*row, strict=True)) for row in zip(*parts, strict=True)]


def _walk(
    network: Stepper[StateT],
    source_BS: Tensor,
    choose: Callable[[Tensor, Tensor], Tensor],
    *,
    bos_id: int | Tensor,
    eos_id: int,
    max_length: int,
) -> list[list[int]]:
    """Go on with every row by what `choose` makes of its logits (NV) and number (N), until it takes the end token.

    A batch ends with its last row, and ended rows cost nothing.
    """
    rows = source_BS.shape[0]
    ids_BT = source_BS.new_full((rows, max_length), eos_id)
    row_N = torch.arange(rows, device=source_BS.device)
    tokens_N = _first(bos_id, source_BS)
    state = network.start(source_BS)
    for position in range(max_length - 1):
        logits_NV, state = network.step(tokens_N, state)
        tokens_N = choose(logits_NV, row_N)
        going_N = (tokens_N != eos_id).nonzero().squeeze(1)
        if len(going_N) == 0:
            break
        if len(going_N) < len(tokens_N):
            tokens_N, row_N, state = tokens_N[going_N], row_N[going_N], state.select(going_N)
        ids_BT[row_N, position] = tokens_N
    return [ids[: ids.index(eos_id)] for ids in ids_BT.tolist()]


def _first(bos_id: int | Tensor, source_BS: Tensor) -> Tensor:
    return torch.as_tensor(bos_id, dtype=torch.int64, device=source_BS.device).expand(len(source_BS))


def _without(values_NV: Tensor, banned_ids: Sequence[int]) -> Tensor:
    if not banned_ids:
        return values_NV
    return values_NV.index_fill(1, torch.tensor(list(banned_ids), device=values_NV.device), -torch.inf)


def _log_probabilities(logits_NV: Tensor) -> Tensor:
    # In double precision, so that tokens whose logits differ keep their order.
    return logits_NV.double().log_softmax(dim=-1)


def _score(nats: float, length: int, length_penalty: float) -> float:
    power: float = max(1, length) ** length_penalty
    return nats / power
