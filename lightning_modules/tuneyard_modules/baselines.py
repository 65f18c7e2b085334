"""What a transformer is measured against: counted and neural n-grams, and words from the bag of their neighbours.

B batch, T text length, C context length (order - 1), O order, D width of an embedding, V vocabulary, M places of a
batch, N some of them or rows chosen from a batch; G n-grams that occur, U contexts looked up, E (context, word) pairs.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_FALLBACK_DISCOUNT = 0.5  # KenLM's (Heafield 2011), where no n-gram occurs once or none twice
_PENDING = 1_000_000  # n-grams that wait to be merged
_STD = 0.02


class CountingNetwork(nn.Module):
    """A network that learns by counting: it has no parameters and no gradient."""

    @abstractmethod
    def count(self, tokens_BT: Tensor, next_BT: Tensor) -> None:
        """Count the tokens of `next_BT` but padding, each after those of `tokens_BT` up to its place."""


class Recent(NamedTuple):
    """The last C tokens of each row, the latest last, padding where there were none; a value."""

    tokens_BC: Tensor

    def select(self, index_N: Tensor) -> Recent:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Recent(self.tokens_BC[index_N])

    def then(self, tokens_BT: Tensor) -> Recent:
        """After reading more."""
        context = self.tokens_BC.shape[1]
        both = torch.cat([self.tokens_BC, tokens_BT], dim=1)
        return Recent(both[:, both.shape[1] - context :])


@dataclass(frozen=True)
class NGramConfig:
    """`order` is the length of an n-gram, the word that it predicts included. Raises ValueError where it is below 1."""

    vocab_size: int
    order: int
    max_length: int
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "order", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


class NGram(CountingNetwork):
    """Interpolated Kneser-Ney (Kneser and Ney 1995; Chen and Goodman 1998, section 4.1.6), counted and not trained.

        p_k(w | h) = (max(c_k(h w) - D_k, 0) + D_k N(h) p_{k-1}(w | h')) / c_k(h),  p_0 = 1 / V

    for the k-grams h w: h' is h without its oldest word, N(h) the number of different words after h, D_k = n1 / (n1 + 2
    n2) from the numbers of k-grams that count one and two. The longest k-grams are counted as often as they occur,
    shorter ones by the number of different words before them (one, where only the start of a window is). Where h never
    occurred, p_k is p_{k-1}. The counts are buffers, so that weights files hold them.
    """

    grams_GO: Tensor
    counts_G: Tensor

    def __init__(self, config: NGramConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("grams_GO", torch.zeros(0, config.order, dtype=torch.int64))
        self.register_buffer("counts_G", torch.zeros(0, dtype=torch.int64))
        self._pending: list[Tensor] = []
        self._levels: list[_Level] | None = None
        self.register_state_dict_pre_hook(_merged)  # type: ignore[no-untyped-call]

    @property
    def max_length(self) -> int:
        """The most tokens that are read at once; only the last order - 1 matter."""
        return self.config.max_length

    def count(self, tokens_BT: Tensor, next_BT: Tensor) -> None:
        """Count the tokens of `next_BT` but padding, each after those of `tokens_BT` up to its place."""
        contexts_BTC = self._contexts(self.start(tokens_BT[:, :0]), tokens_BT)
        grams_BTO = torch.cat([contexts_BTC, next_BT[..., None]], dim=-1)
        self._pending.append(grams_BTO[next_BT != self.config.pad_id])
        self._levels = None
        if sum(map(len, self._pending)) > _PENDING:
            self._merge()

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Log-probabilities (BTV) of the token after each of `tokens_BT`."""
        contexts_BTC = self._contexts(self.start(tokens_BT[:, :0]), tokens_BT)
        rows, length, context = contexts_BTC.shape
        return self._log_probabilities(contexts_BTC.reshape(rows * length, context)).view(rows, length, -1)

    def start(self, prompt_BT: Tensor) -> Recent:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        nothing = prompt_BT.new_full((prompt_BT.shape[0], self.config.order - 1), self.config.pad_id)
        return Recent(nothing).then(prompt_BT)

    def step(self, tokens_B: Tensor, state: Recent) -> tuple[Tensor, Recent]:
        """Read one token per row; returns the log-probabilities (BV) of the next one and what was read last."""
        state = state.then(tokens_B[:, None])
        return self._log_probabilities(state.tokens_BC), state

    def _contexts(self, before: Recent, tokens_BT: Tensor) -> Tensor:
        """The last C tokens up to each place: BTC."""
        return _contexts(before.tokens_BC, tokens_BT)

    def _log_probabilities(self, contexts_MC: Tensor) -> Tensor:
        levels = self._counted()
        rows, context = contexts_MC.shape
        probability_MV = torch.full(
            (rows, self.config.vocab_size), 1.0 / self.config.vocab_size, device=contexts_MC.device
        )
        node_M = torch.zeros(rows, dtype=torch.int64, device=contexts_MC.device)
        for depth, level in enumerate(levels):
            if depth:  # one word further back
                node_M = level.find(node_M, contexts_MC[:, context - depth])
            known_M = (node_M >= 0).nonzero().squeeze(1)
            if not len(known_M):
                break
            node_U, row_N = node_M[known_M].unique(return_inverse=True)
            seen_UV = level.discounted(node_U, self.config.vocab_size)
            shorter_NV = probability_MV[known_M] * level.weight[node_M[known_M], None]
            probability_MV[known_M] = shorter_NV + seen_UV[row_N]
        return probability_MV.log()

    def _counted(self) -> list[_Level]:
        self._merge()
        if self._levels is None:
            self._levels = _levels(self.grams_GO, self.counts_G, self.config.vocab_size, self.config.pad_id)
        return self._levels

    def _merge(self) -> None:
        """Put what waits among the counts."""
        if not self._pending:
            return
        rows = torch.cat([self.grams_GO, *(grams.to(self.grams_GO.device) for grams in self._pending)])
        ones = self.counts_G.new_ones(len(rows) - len(self.counts_G))
        counts = torch.cat([self.counts_G, ones])
        self.grams_GO, row_G = rows.unique(dim=0, return_inverse=True)
        self.counts_G = torch.zeros(len(self.grams_GO), dtype=torch.int64, device=rows.device).index_add_(
            0, row_G, counts
        )
        self._pending = []
        self._levels = None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in ("grams_GO", "counts_G"):  # as many as there are
            if prefix + name in state_dict:
                setattr(self, name, torch.empty_like(state_dict[prefix + name], device=self.grams_GO.device))
        self._pending, self._levels = [], None
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _merged(network: NGram, prefix: str, keep_vars: bool) -> None:
    """Before weights are saved: what waits belongs to them."""
    network._merge()


@dataclass(frozen=True)
class _Level:
    """The k-grams of one length: contexts are the nodes of a tree whose edges lead to older words.

    `edges` are parent * V + older word, sorted, so that a node's number is the place of its edge. Of node i the words
    that occurred after it are `words[bounds[i] : bounds[i + 1]]`, `shares` their discounted share, and `weight[i]` what
    is left for shorter contexts.
    """

    edges: Tensor
    bounds: Tensor
    words: Tensor
    shares: Tensor
    weight: Tensor
    vocab_size: int

    def find(self, parent_M: Tensor, older_M: Tensor) -> Tensor:
        """The nodes of contexts that are one word longer; -1 where there is none."""
        wanted_M = parent_M * self.vocab_size + older_M
        place_M = torch.searchsorted(self.edges, wanted_M).clamp(max=max(len(self.edges) - 1, 0))
        there_M = (parent_M >= 0) & (self.edges[place_M] == wanted_M) if len(self.edges) else parent_M < -1
        return torch.where(there_M, place_M, -1)

    def discounted(self, node_U: Tensor, vocab_size: int) -> Tensor:
        """The discounted shares of all words after these contexts: UV."""
        lengths_U = self.bounds[node_U + 1] - self.bounds[node_U]
        row_E = torch.repeat_interleave(torch.arange(len(node_U), device=node_U.device), lengths_U)
        before_U = lengths_U.cumsum(0) - lengths_U
        place_E = torch.arange(len(row_E), device=node_U.device) + (self.bounds[node_U] - before_U)[row_E]
        shares_UV = torch.zeros(len(node_U), vocab_size, device=node_U.device)
        shares_UV[row_E, self.words[place_E]] = self.shares[place_E]
        return shares_UV


def _levels(grams_GO: Tensor, counts_G: Tensor, vocab_size: int, pad_id: int) -> list[_Level]:
    """One for each length of k-grams, from 1 on."""
    order = grams_GO.shape[1]
    node_G = torch.zeros(len(grams_GO), dtype=torch.int64, device=grams_GO.device)
    whole_G = torch.ones(len(grams_GO), dtype=torch.bool, device=grams_GO.device)
    found: list[tuple[Tensor, Tensor, Tensor]] = []  # edges, (node, word) pairs, and the pair of each whole n-gram
    for depth in range(order):
        edges = torch.zeros(1, dtype=torch.int64, device=grams_GO.device)
        if depth:
            older_G = grams_GO[:, order - 1 - depth]
            whole_G = whole_G & (older_G != pad_id)
            edges, numbered = (node_G * vocab_size + older_G)[whole_G].unique(return_inverse=True)
            node_G = node_G.masked_scatter(whole_G, numbered)
        pair_G = node_G * vocab_size + grams_GO[:, -1]
        found.append((edges, pair_G[whole_G].unique(), torch.where(whole_G, pair_G, -1)))
    levels = []
    for depth, (edges, pairs_E, pair_G) in enumerate(found):
        place_G = torch.searchsorted(pairs_E, pair_G)
        if depth == order - 1:
            kept_G = pair_G >= 0
            count_E = torch.zeros_like(pairs_E).index_add_(0, place_G[kept_G], counts_G[kept_G])
        else:
            _, longer_E, longer_G = found[depth + 1]
            first = torch.zeros_like(longer_E)
            kept_G = longer_G >= 0
            first[torch.searchsorted(longer_E, longer_G[kept_G])] = place_G[kept_G]
            count_E = torch.bincount(first, minlength=len(pairs_E)).clamp(min=1)
        levels.append(_level(edges, pairs_E, count_E, vocab_size))
    return levels


def _level(edges: Tensor, pairs_E: Tensor, count_E: Tensor, vocab_size: int) -> _Level:
    nodes = len(edges)
    node_E, word_E = pairs_E // vocab_size, pairs_E % vocab_size
    once, twice = (int((count_E == number).sum()) for number in (1, 2))
    discount = once / (once + 2 * twice) if once and twice else _FALLBACK_DISCOUNT
    different = torch.bincount(node_E, minlength=nodes)
    total = torch.zeros(nodes, dtype=torch.int64, device=edges.device).index_add_(0, node_E, count_E)
    bounds = torch.cat([different.new_zeros(1), different.cumsum(0)])
    shares = (count_E.double() - discount).clamp(min=0) / total[node_E]
    weight = torch.where(total > 0, discount * different.double() / total.clamp(min=1), 1.0)
    return _Level(edges, bounds, word_E, shares.float(), weight.float(), vocab_size)


@dataclass(frozen=True)
class NeuralNGramConfig:
    """`order` counts the word that is predicted, `d_model` is the width of an embedding, `d_ff` of the hidden layer.

    Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    order: int
    d_model: int
    d_ff: int
    max_length: int
    dropout: float = 0.1
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("order", 2), ("d_model", 1), ("d_ff", 1), ("max_length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")


class NeuralNGram(nn.Module):
    """b + U tanh(d + H x) over the embeddings x of the last order - 1 words side by side: Bengio et al. 2003.

    Equation 1 of that paper without its direct connections W, which it found to help little. Places before the
    beginning are zero. Dropout acts on x and on the hidden layer.
    """

    def __init__(self, config: NeuralNGramConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_id)
        self.hidden = nn.Linear((config.order - 1) * config.d_model, config.d_ff)
        self.output = nn.Linear(config.d_ff, config.vocab_size)
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.output.weight, std=_STD)
        nn.init.zeros_(self.output.bias)

    @property
    def max_length(self) -> int:
        """The most tokens that are read at once; only the last order - 1 matter."""
        return self.config.max_length

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `tokens_BT`."""
        return self._read(_contexts(self.start(tokens_BT[:, :0]).tokens_BC, tokens_BT))

    def start(self, prompt_BT: Tensor) -> Recent:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        nothing = prompt_BT.new_full((prompt_BT.shape[0], self.config.order - 1), self.config.pad_id)
        return Recent(nothing).then(prompt_BT)

    def step(self, tokens_B: Tensor, state: Recent) -> tuple[Tensor, Recent]:
        """Read one token per row; returns the logits (BV) of the next one and what was read last."""
        state = state.then(tokens_B[:, None])
        return self._read(state.tokens_BC), state

    def _read(self, contexts: Tensor) -> Tensor:
        """Contexts (.., C) -> logits (.., V)."""
        side_by_side = self.dropout(self.embedding(contexts).flatten(-2))
        logits: Tensor = self.output(self.dropout(torch.tanh(self.hidden(side_by_side))))
        return logits


@dataclass(frozen=True)
class BagConfig:
    """`window` counts the words on each side. The last id, vocab_size - 1, is the mask.

    Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    window: int
    max_length: int
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 2), ("d_model", 1), ("window", 1), ("max_length", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")


class ContinuousBagOfWords(nn.Module):
    """The word from the mean of the embeddings around it, whatever their order: CBOW, Mikolov et al. 2013.

    Neither the word's own place nor padding nor what is masked is in the mean; where nothing is left every word is as
    likely. The output is a matrix of its own and a full softmax, where the paper samples or builds a tree.
    """

    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.output = nn.Linear(config.d_model, config.vocab_size, bias=False)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        nn.init.normal_(self.output.weight, std=_STD)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the word at each place, given those around it."""
        seen_BT1 = ((tokens_BT != self.config.pad_id) & (tokens_BT != self.config.vocab_size - 1))[..., None]
        embedded_BTD = self.embedding(tokens_BT) * seen_BT1
        around_BTD = _around(embedded_BTD, self.config.window)
        words_BT1 = _around(seen_BT1.to(embedded_BTD.dtype), self.config.window)
        logits_BTV: Tensor = self.output(around_BTD / words_BT1.clamp(min=1.0))
        return logits_BTV


def _around(x_BTD: Tensor, window: int) -> Tensor:
    """At each place the sum over the `window` places before and after it, its own left out."""
    padded = F.pad(x_BTD, (0, 0, window, window))
    return padded.unfold(1, 2 * window + 1, 1).sum(dim=-1) - x_BTD


def _contexts(before_BC: Tensor, tokens_BT: Tensor) -> Tensor:
    """The last C tokens up to each place, the latest last: BTC."""
    context, length = before_BC.shape[1], tokens_BT.shape[1]
    if not context:
        return tokens_BT.new_zeros((*tokens_BT.shape, 0))
    both = torch.cat([before_BC, tokens_BT], dim=1)[:, 1:]
    return both.unfold(1, context, 1)[:, :length]
