"""A language model whose attention is a running sum: "Transformers are RNNs", Katharopoulos et al. 2020.

B batch, N rows chosen from a batch, T text length, C chunk length, D model width, H heads, K head width, M = K + 1: a
value and a one beside it, which sums up to the denominator. V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_linear_attention import CHUNK
from tuneyard_modules.positions import LearnedPositions, SinusoidalPositions
from tuneyard_modules.transformer import FeedForward, TransformerConfig
from tuneyard_pipelines.build import transformer_config
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.spec import Model

_STD = 0.02  # GPT-2's


class Past(NamedTuple):
    """What the model has read: how many tokens, and each layer's sum of phi(k) v^T; of one size, however many."""

    position: int
    sums_BHKM: tuple[Tensor, ...]

    def select(self, index_N: Tensor) -> Past:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Past(self.position, tuple(sum_BHKM[index_N] for sum_BHKM in self.sums_BHKM))


class LinearAttentionModel(nn.Module):
    """GPT's pre-norm blocks and tied embeddings around linear attention.

    Padding stands at the right, where no one looks. There are no attention weights to show: few are ever computed.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config = config.completed(norm="pre", positions="learned", activation="gelu")
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        positions = SinusoidalPositions if config.positions == "sinusoidal" else LearnedPositions
        self.positions = positions(config.max_length, config.d_model)
        self.position_scale = _STD if config.positions == "sinusoidal" else 1.0
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self._initialise()

    @property
    def max_length(self) -> int:
        """The most tokens that can be read: so many positions are told apart."""
        return self.config.max_length

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `tokens_BT`; raises ValueError for more than `max_length` tokens."""
        x_BTD, _ = self._read(tokens_BT, None)
        return F.linear(x_BTD, self.embedding.weight)

    def start(self, prompt_BT: Tensor) -> Past:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        _, past = self._read(prompt_BT, None)
        return past

    def step(self, tokens_B: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Read one token per row; returns the logits (BV) of the next one and what was read then."""
        x_B1D, past = self._read(tokens_B[:, None], past)
        return F.linear(x_B1D[:, 0], self.embedding.weight), past

    def _read(self, tokens_BT: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        start, length = past.position if past else 0, tokens_BT.shape[1]
        if start + length > self.max_length:
            raise ValueError(f"a sequence of {start + length} tokens is longer than max_length={self.max_length}")
        x_BTD = self.dropout(self.embedding(tokens_BT) + self.positions(start, length) * self.position_scale)
        sums = []
        for layer, before_BHKM in zip(self.layers, past.sums_BHKM if past else [None] * len(self.layers), strict=True):
            x_BTD, sum_BHKM = layer(x_BTD, before_BHKM)
            sums.append(sum_BHKM)
        return self.norm(x_BTD), Past(start + length, tuple(sums))

    def _initialise(self) -> None:
        """GPT-2's: what is added to the residual stream is smaller the more is added."""
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                added = name.endswith(("output.weight", "feed_forward.2.weight"))
                nn.init.normal_(parameter, std=_STD / math.sqrt(2 * len(self.layers)) if added else _STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class Layer(nn.Module):
    """Linear attention and feed-forward, each as x + dropout(f(norm(x)))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.query_key_value = nn.Linear(config.d_model, 3 * config.d_model)
        self.output = nn.Linear(config.d_model, config.d_model)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BTD: Tensor, sum_BHKM: Tensor | None) -> tuple[Tensor, Tensor]:
        """The tokens one layer on, and the sum over all that was read."""
        parts = self.query_key_value(self.attention_norm(x_BTD)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in parts)
        context_BHTK, sum_BHKM = linear_attention(query, key, value, sum_BHKM)
        x_BTD = x_BTD + self.dropout(self.output(context_BHTK.transpose(1, 2).flatten(2)))
        return x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD))), sum_BHKM


def linear_attention(
    query_BHTK: Tensor, key_BHTK: Tensor, value_BHTK: Tensor, sum_BHKM: Tensor | None, chunk: int = CHUNK
) -> tuple[Tensor, Tensor]:
    """phi(q_i) S_i / phi(q_i) z_i with S_i the sum of phi(k_j) v_j^T, z_i that of phi(k_j), j <= i: section 3.3 there.

    phi(x) = elu(x) + 1, section 3.2. `sum_BHKM` holds S and, as the last of M, z over what was read before; None for a
    beginning. Returns the context (BHTK) and the sum after the last token. Within a `chunk` of tokens the weights are
    computed one by one; chunk = 1 is the recurrence of the paper, and all others give the same.
    """
    query_BHTK, key_BHTK = F.elu(query_BHTK) + 1, F.elu(key_BHTK) + 1
    value_BHTM = F.pad(value_BHTK, (0, 1), value=1.0)
    if sum_BHKM is None:
        sum_BHKM = key_BHTK.new_zeros(*key_BHTK.shape[:2], key_BHTK.shape[-1], value_BHTM.shape[-1])
    contexts = []
    parts = (part.split(chunk, dim=2) for part in (query_BHTK, key_BHTK, value_BHTM))
    for query_BHCK, key_BHCK, value_BHCM in zip(*parts, strict=True):
        weights_BHCC = (query_BHCK @ key_BHCK.transpose(-2, -1)).tril()
        context_BHCM = weights_BHCC @ value_BHCM + query_BHCK @ sum_BHKM
        sum_BHKM = sum_BHKM + key_BHCK.transpose(-2, -1) @ value_BHCM
        contexts.append(context_BHCM[..., :-1] / context_BHCM[..., -1:])
    return torch.cat(contexts, dim=2), sum_BHKM


def build(model: Model, vocabularies: VocabSizes) -> LinearAttentionModel:
    """The untrained network of a trial."""
    return LinearAttentionModel(transformer_config(model, vocabularies))
