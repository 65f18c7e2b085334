"""Recurrent encoder-decoders: a bidirectional encoder, and a decoder that has one vector of it or looks at all of it.

q is a hidden state of the decoder, k one of the encoder; their score is

| attention    | score                                  | paper                                                       |
|--------------|----------------------------------------|-------------------------------------------------------------|
| `none`       | no choice: one vector for all steps    | Sutskever et al. 2014, Cho et al. 2014                      |
| `dot`        | q . k                                  | Luong et al. 2015, section 3.1                              |
| `scaled_dot` | q . k / sqrt(D)                        | Vaswani et al. 2017, equation 1                             |
| `additive`   | v . tanh(W q + U k)                    | Bahdanau et al. 2015, section 3.1, q the state of this step |
| `multi_head` | (W_h q) . (U_h k) / sqrt(K) a head     | Vaswani et al. 2017, section 3.2.2                          |

B batch, N rows chosen from a batch, T target length, S source length, D model width, H heads (1 but for multi_head), K
head width, L layers, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.attention import Cache, MultiHeadAttention, attention
from tuneyard_modules.recurrent import (
    START_STD,
    Activation,
    Cell,
    Hidden,
    Recurrence,
    Vocabulary,
    check_activation,
    check_length,
    check_sizes,
)

AttentionKind = Literal["none", "dot", "scaled_dot", "additive", "multi_head"]


@dataclass(frozen=True)
class Seq2SeqConfig:
    """The shape of a Seq2Seq.

    `d_model` is the width of embeddings, of the decoder's hidden states and of the encoder's two directions together;
    `num_layers` counts encoder and decoder each; `max_length` is the most tokens of a source and of a decoder's input;
    `num_heads` counts for multi_head only; `source_vocab_size` is None where sources and targets share one vocabulary
    and its embedding; `teacher_forcing` is the share of the steps of training that read the right token. Raises
    ValueError for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    num_layers: int
    max_length: int
    cell: Cell
    attention: AttentionKind
    num_heads: int = 1
    activation: Activation = "tanh"
    dropout: float = 0.1
    tied_embeddings: bool = True
    pad_id: int = 0
    source_vocab_size: int | None = None
    teacher_forcing: float = 1.0

    def __post_init__(self) -> None:
        source = () if self.source_vocab_size is None else ("source_vocab_size",)
        check_sizes(self, "vocab_size", "d_model", "num_layers", "num_heads", "max_length", *source)
        check_activation(self.cell, self.activation)
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd: the encoder's two directions share it, use an even width")
        if not 0.0 <= self.teacher_forcing <= 1.0:
            raise ValueError(f"teacher_forcing={self.teacher_forcing} must be a share, at least 0 and at most 1")
        if self.attention == "multi_head" and self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}: change one of the two"
            )


class Seq2SeqState(NamedTuple):
    """Where decoding stands: what the encoder said, and how many tokens the decoder has read and is left with; a value.

    Without attention the memory is one vector.
    """

    memory: Cache
    memory_mask_B11S: Tensor
    position: int
    hidden: Hidden

    def select(self, index_N: Tensor) -> Seq2SeqState:
        """The state of the rows `index_N`, in that order; rows may be repeated or left out."""
        mask_N11S = self.memory_mask_B11S[index_N]
        return Seq2SeqState(self.memory.select(index_N), mask_N11S, self.position, self.hidden.select(index_N))


class Seq2Seq(nn.Module):
    """Luong et al. 2015 without input feeding, over a bidirectional encoder: a target is read in one pass.

    The decoder's layers start where those of the encoder ended, in both directions (Sutskever et al. 2014). A hidden
    state q and its context c give the logits of tanh(W [c; q]), equation 5. Without attention c is the last layer's
    final state, which every step of the decoder reads beside its token, too (Cho et al. 2014, equation 8 on). Dropout
    acts on embeddings, between layers and before the logits. Padding stands at the right.
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        width, cells = config.d_model, (config.cell, config.activation)
        start_std = START_STD[config.cell]
        self.vocabulary = Vocabulary(config.vocab_size, width, tied=config.tied_embeddings, start_std=start_std)
        self.source_vocabulary: Vocabulary | None = None
        if config.source_vocab_size is not None:
            self.source_vocabulary = Vocabulary(config.source_vocab_size, width, tied=True, start_std=start_std)
        self.encoder = Recurrence(
            *cells, width, width // 2, config.num_layers, dropout=config.dropout, bidirectional=True
        )
        decoder_input = 2 * width if config.attention == "none" else width
        self.decoder = Recurrence(*cells, decoder_input, width, config.num_layers, dropout=config.dropout)
        self.attention = _attention(config)
        self.combine = nn.Linear(2 * width, width, bias=False)
        self.dropout = nn.Dropout(config.dropout)
        for linear in [self.combine, *(self.attention.modules() if self.attention else [])]:
            if isinstance(linear, nn.Linear):
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `target_BT`, which begins with the start token.

        In training each token but the first is, with a probability of 1 - `teacher_forcing`, not the given one but what
        the model finds likeliest there (Bengio et al. 2015, scheduled sampling); drawn from torch's global generator. A
        first pass without gradients, which has a dropout of its own, finds these tokens out; none flow through them.
        Raises ValueError for sequences longer than `max_length`.
        """
        state = self.start(source_BS)
        if self.training and self.config.teacher_forcing < 1.0:
            target_BT = self._with_own(target_BT, state)
        logits_BTV, _, _ = self._read(target_BT, state)
        return logits_BTV

    def attention_weights(self, source_BS: Tensor, target_BT: Tensor) -> dict[str, list[Tensor]]:
        """Where `forward` looks: "cross" (one BHTS, for attention is once above all layers), nothing without attention.

        Raises ValueError for sequences longer than `max_length`.
        """
        _, _, weights_BHTS = self._read(target_BT, self.start(source_BS), need_weights=True)
        return {} if weights_BHTS is None else {"cross": [weights_BHTS]}

    def start(self, source_BS: Tensor) -> Seq2SeqState:
        """Encode the sources; the decoder has read nothing yet. Of a row of padding only, its first token is read."""
        rows, length = source_BS.shape
        check_length(length, self.config.max_length)
        lengths_B = (source_BS != self.config.pad_id).sum(1).clamp(min=1)
        x_BSD = self.dropout((self.source_vocabulary or self.vocabulary)(source_BS))
        states_BSD, final = self.encoder(x_BSD, self.encoder.zeros(x_BSD), lengths_B)
        hidden = Hidden(*(None if part is None else _side_by_side(part) for part in final))  # type: ignore[arg-type]
        if self.attention is None:
            context_B11D = hidden.hidden_LBD[-1][:, None, None]
            everywhere_B111 = torch.ones(rows, 1, 1, 1, dtype=torch.bool, device=source_BS.device)
            return Seq2SeqState(Cache(context_B11D, context_B11D), everywhere_B111, 0, hidden)
        mask_BS = torch.arange(length, device=source_BS.device) < lengths_B[:, None]
        return Seq2SeqState(self.attention.remember(states_BSD), mask_BS[:, None, None], 0, hidden)

    def step(self, tokens_B: Tensor, state: Seq2SeqState) -> tuple[Tensor, Seq2SeqState]:
        """Read one token per row; returns the logits (BV) of the next one and the state after it."""
        logits_B1V, state, _ = self._read(tokens_B[:, None], state)
        return logits_B1V[:, 0], state

    def _read(
        self, target_BT: Tensor, state: Seq2SeqState, *, need_weights: bool = False
    ) -> tuple[Tensor, Seq2SeqState, Tensor | None]:
        """Read T more tokens after those of `state`."""
        length = target_BT.shape[1]
        check_length(state.position + length, self.config.max_length)
        x_BTD, weights_BHTS = self.dropout(self.vocabulary(target_BT)), None
        if self.attention is None:
            context_BTD = state.memory.value_BHSK[:, 0].expand(-1, length, -1)
            states_BTD, hidden = self.decoder(torch.cat([x_BTD, context_BTD], dim=-1), state.hidden)
        else:
            states_BTD, hidden = self.decoder(x_BTD, state.hidden)
            context_BTD, weights_BHTS = self.attention(
                states_BTD, state.memory, state.memory_mask_B11S, need_weights=need_weights
            )
        said_BTD = self.combine(torch.cat([context_BTD, states_BTD], dim=-1)).tanh()
        logits_BTV = self.vocabulary.logits(self.dropout(said_BTD))
        return logits_BTV, state._replace(position=state.position + length, hidden=hidden), weights_BHTS

    @torch.no_grad()
    def _with_own(self, target_BT: Tensor, state: Seq2SeqState) -> Tensor:
        own_BT = torch.rand(target_BT.shape, device=target_BT.device) >= self.config.teacher_forcing
        fed = [target_BT[:, 0]]
        for place in range(1, target_BT.shape[1]):
            logits_BV, state = self.step(fed[-1], state)
            fed.append(torch.where(own_BT[:, place], logits_BV.argmax(dim=-1), target_BT[:, place]))
        return torch.stack(fed, dim=1)


class DotAttention(nn.Module):
    """Queries and memory compared as they are; `scaled` or not."""

    def __init__(self, *, scaled: bool) -> None:
        super().__init__()
        self.scaled = scaled

    def remember(self, source_BSD: Tensor) -> Cache:
        """The source as keys and as values, in one head."""
        return Cache(source_BSD[:, None], source_BSD[:, None])

    def forward(
        self, query_BTD: Tensor, cache: Cache, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The context (BTD) and, only when `need_weights`, the weights (BHTS)."""
        query_BHTD = query_BTD[:, None]
        if self.scaled:
            context_BHTD, weights_BHTS = attention(query_BHTD, *cache, mask, need_weights=need_weights)
        else:
            context_BHTD, weights_BHTS = dot_attention(query_BHTD, *cache, mask)
        return context_BHTD[:, 0], weights_BHTS if need_weights else None


class AdditiveAttention(nn.Module):
    """The attention of Bahdanau et al. 2015, its three matrices without biases."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)
        self.score = nn.Linear(d_model, 1, bias=False)

    def remember(self, source_BSD: Tensor) -> Cache:
        """U k as keys and the source as values, in one head."""
        return Cache(self.key(source_BSD)[:, None], source_BSD[:, None])

    def forward(
        self, query_BTD: Tensor, cache: Cache, mask: Tensor | None = None, *, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The context (BTD) and, only when `need_weights`, the weights (BHTS)."""
        context_BHTD, weights_BHTS = additive_attention(
            self.query(query_BTD)[:, None], *cache, self.score.weight[0], mask
        )
        return context_BHTD[:, 0], weights_BHTS if need_weights else None


def dot_attention(
    query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(q . k) v, `dot` of Luong et al. 2015: the context (BHTK) and the weights (BHTS).

    `mask` is true where a query may look, and broadcasts to BHTS; every query must be allowed at least one key.
    """
    return _attend(query_BHTK @ key_BHSK.transpose(-2, -1), value_BHSK, mask)


def additive_attention(
    query_BHTK: Tensor, key_BHSK: Tensor, value_BHSK: Tensor, score_K: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """softmax(score_K . tanh(q + k)) v, Bahdanau et al. 2015: the context (BHTK) and the weights (BHTS).

    Takes B * H * T * S * K numbers. `mask` is as in `dot_attention`.
    """
    scores_BHTS1 = F.linear((query_BHTK[:, :, :, None] + key_BHSK[:, :, None]).tanh(), score_K[None])
    return _attend(scores_BHTS1.squeeze(-1), value_BHSK, mask)


def _attend(scores_BHTS: Tensor, value_BHSK: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    if mask is not None:
        scores_BHTS = scores_BHTS.masked_fill(~mask, -torch.inf)
    weights_BHTS = scores_BHTS.softmax(dim=-1)
    return weights_BHTS @ value_BHSK, weights_BHTS


def _attention(config: Seq2SeqConfig) -> DotAttention | AdditiveAttention | MultiHeadAttention | None:
    if config.attention == "none":
        return None
    if config.attention == "additive":
        return AdditiveAttention(config.d_model)
    if config.attention == "multi_head":
        return MultiHeadAttention(config.d_model, config.num_heads)
    return DotAttention(scaled=config.attention == "scaled_dot")


def _side_by_side(final: Tensor) -> Tensor:
    """Layers by directions, each of half the width, as layers of the whole (LBD)."""
    layers, rows, half = final.shape
    return final.view(layers // 2, 2, rows, half).transpose(1, 2).flatten(2)
