"""The pre-norm transformer encoder-decoder with tied embeddings, trained in one pass and decoded step by step.

B batch, N rows chosen from a batch, T target length, S source length, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.attention import Cache, MultiHeadAttention, causal_mask, padding_mask
from tuneyard_modules.positions import LearnedPositions, SinusoidalPositions


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of an EncoderDecoder.

    `num_layers` counts encoder and decoder each; `max_length` is the most tokens of a source or of a decoder's input;
    `d_ff` is 4 * d_model when None. Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    num_heads: int
    num_layers: int
    max_length: int
    d_ff: int | None = None
    dropout: float = 0.1
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    pad_id: int = 0

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_heads", "num_layers", "max_length", "feed_forward_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}: change one of the two"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd: use an even width or positions='learned'")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")

    @property
    def feed_forward_width(self) -> int:
        """Units of a feed-forward layer."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


class State(NamedTuple):
    """Where decoding stands: what the encoder said and what the decoder has read so far; a value."""

    memory: tuple[Cache, ...]
    memory_mask_B11S: Tensor
    past: tuple[Cache, ...]

    @property
    def position(self) -> int:
        """How many tokens the decoder has read."""
        return self.past[0].length

    def select(self, index_N: Tensor) -> State:
        """The state of the rows `index_N`, in that order; rows may be repeated or left out."""
        memory = tuple(cache.select(index_N) for cache in self.memory)
        return State(memory, self.memory_mask_B11S[index_N], tuple(cache.select(index_N) for cache in self.past))


class EncoderDecoder(nn.Module):
    """Vaswani et al. 2017 with the norms moved in front of the sub-layers (Xiong et al. 2020) and final norms.

    One matrix embeds sources and targets and, transposed, gives the output. Padding stands at the right. Dropout acts
    on embeddings and on every sub-layer's output, as in section 5.4 of the first paper.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        positions = SinusoidalPositions if config.positions == "sinusoidal" else LearnedPositions
        self.source_positions = positions(config.max_length, config.d_model)
        self.target_positions = positions(config.max_length, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self._initialise()

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `target_BT`, which begins with the start token.

        Raises ValueError for sequences longer than `max_length`.
        """
        logits_BTV, _ = self._read(target_BT, self.start(source_BS))
        return logits_BTV

    def start(self, source_BS: Tensor) -> State:
        """Encode the sources; the decoder has read nothing yet."""
        mask_B11S = padding_mask(source_BS, self.config.pad_id)
        x_BSD = self._embed(source_BS, self.source_positions, start=0)
        for layer in self.encoder:
            x_BSD = layer(x_BSD, mask_B11S)
        x_BSD = self.encoder_norm(x_BSD)
        decoder = cast("Iterable[DecoderLayer]", self.decoder)
        memory = tuple(layer.cross_attention.remember(x_BSD) for layer in decoder)
        nothing = Cache(memory[0].key_BHSK[:, :, :0], memory[0].value_BHSK[:, :, :0])
        return State(memory, mask_B11S, (nothing,) * len(memory))

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row; returns the logits (BV) of the next one and the state after it."""
        logits_B1V, state = self._read(tokens_B[:, None], state)
        return logits_B1V[:, 0], state

    def _read(self, target_BT: Tensor, state: State) -> tuple[Tensor, State]:
        """Read T more tokens after those of `state`."""
        length, end = target_BT.shape[1], state.position + target_BT.shape[1]
        # A single new token is the latest of all, so it may look everywhere.
        mask_TT = None if length == 1 else causal_mask(length, end, target_BT.device)
        x_BTD = self._embed(target_BT, self.target_positions, start=state.position)
        past = []
        for layer, before, memory in zip(self.decoder, state.past, state.memory, strict=True):
            x_BTD, cache = layer(x_BTD, before, mask_TT, memory, state.memory_mask_B11S)
            past.append(cache)
        logits_BTV = F.linear(self.decoder_norm(x_BTD), self.embedding.weight)
        return logits_BTV, state._replace(past=tuple(past))

    def _embed(self, ids_BT: Tensor, positions: nn.Module, start: int) -> Tensor:
        length = ids_BT.shape[1]
        if start + length > self.config.max_length:
            raise ValueError(
                f"a sequence of {start + length} tokens is longer than max_length={self.config.max_length}: cut it off"
            )
        x_BTD = self.embedding(ids_BT) * self.config.d_model**0.5 + positions(start, length)
        dropped_BTD: Tensor = self.dropout(x_BTD)
        return dropped_BTD

    def _initialise(self) -> None:
        """Unit-sized embeddings on the way in, and small logits on the way out, so that the first guess is uniform."""
        nn.init.normal_(self.embedding.weight, std=self.config.d_model**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.constant_(self.decoder_norm.weight, self.config.d_model**-0.5)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each as x + dropout(f(norm(x)))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Tensor, mask_B11S: Tensor) -> Tensor:
        """The sources one layer on: (B, S, D)."""
        normed_BSD = self.attention_norm(x_BSD)
        mixed_BSD, _ = self.attention(normed_BSD, self.attention.remember(normed_BSD), mask_B11S)
        x_BSD = x_BSD + self.dropout(mixed_BSD)
        forwarded_BSD: Tensor = x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))
        return forwarded_BSD


class DecoderLayer(nn.Module):
    """Self-attention over what was read, cross-attention over the encoder's output, and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x_BTD: Tensor, past: Cache, mask: Tensor | None, memory: Cache, memory_mask_B11S: Tensor
    ) -> tuple[Tensor, Cache]:
        """The targets one layer on (B, T, D), and `past` with their keys and values after it."""
        normed_BTD = self.attention_norm(x_BTD)
        cache = past.append(self.attention.remember(normed_BTD))
        x_BTD = x_BTD + self.dropout(self.attention(normed_BTD, cache, mask)[0])
        normed_BTD = self.cross_attention_norm(x_BTD)
        x_BTD = x_BTD + self.dropout(self.cross_attention(normed_BTD, memory, memory_mask_B11S)[0])
        return x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD))), cache


class FeedForward(nn.Sequential):
    """Two linear maps with max(0, x) between, at every position alike: equation 2 of Vaswani et al. 2017."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.feed_forward_width),
            nn.ReLU(),
            nn.Linear(config.feed_forward_width, config.d_model),
        )
