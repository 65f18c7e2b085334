"""Pre-norm transformers with tied embeddings, trained in one pass and decoded step by step.

EncoderDecoder maps a source to a target, DecoderOnly continues a text. B batch, N rows chosen from a batch, T target
or text length, S source length, D model width, H heads, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional as F

from tuneyard_modules.attention import Cache, MultiHeadAttention, causal_mask, padding_mask
from tuneyard_modules.positions import LearnedPositions, SinusoidalPositions

_GPT2_STD = 0.02


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of an EncoderDecoder or a DecoderOnly.

    `source_vocab_size` is None where sources and targets share one vocabulary and its embedding, as in a DecoderOnly;
    `num_layers` counts encoder and decoder each; `max_length` is the most tokens of a source, of a decoder's input or
    of a text; `d_ff` is 4 * d_model when None. Raises ValueError for a shape that cannot be built.
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
    source_vocab_size: int | None = None

    def __post_init__(self) -> None:
        names = ("vocab_size", "d_model", "num_heads", "num_layers", "max_length", "feed_forward_width")
        for name in (*names, *(["source_vocab_size"] if self.source_vocab_size is not None else [])):
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

    One matrix embeds sources and targets and, transposed, gives the output; sources with a vocabulary of their own have
    their own matrix. Padding stands at the right. Dropout acts
    on embeddings and on every sub-layer's output, as in section 5.4 of the first paper.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_embedding: nn.Embedding | None = None
        if config.source_vocab_size is not None:
            self.source_embedding = nn.Embedding(config.source_vocab_size, config.d_model)
        positions = SinusoidalPositions if config.positions == "sinusoidal" else LearnedPositions
        self.source_positions = positions(config.max_length, config.d_model)
        self.target_positions = positions(config.max_length, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config, nn.ReLU()) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.encoder_norm = nn.LayerNorm(config.d_model)
        self.decoder_norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self._initialise()

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `target_BT`, which begins with the start token.

        Raises ValueError for sequences longer than `max_length`.
        """
        logits_BTV, _, _ = self._read(target_BT, self.start(source_BS))
        return logits_BTV

    def attention_weights(self, source_BS: Tensor, target_BT: Tensor) -> dict[str, list[Tensor]]:
        """Where every layer looks in `forward`: "encoder" (BHSS), "decoder" (BHTT) and "cross" (BHTS), first to last.

        Raises ValueError for sequences longer than `max_length`.
        """
        state, encoder = self._encode(source_BS, need_weights=True)
        _, _, decoder_and_cross = self._read(target_BT, state, need_weights=True)
        decoder, cross = zip(*decoder_and_cross, strict=True)
        return {"encoder": _asked_for(encoder), "decoder": _asked_for(decoder), "cross": _asked_for(cross)}

    def start(self, source_BS: Tensor) -> State:
        """Encode the sources; the decoder has read nothing yet."""
        state, _ = self._encode(source_BS)
        return state

    def step(self, tokens_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row; returns the logits (BV) of the next one and the state after it."""
        logits_B1V, state, _ = self._read(tokens_B[:, None], state)
        return logits_B1V[:, 0], state

    def _encode(self, source_BS: Tensor, *, need_weights: bool = False) -> tuple[State, list[Tensor | None]]:
        mask_B11S = padding_mask(source_BS, self.config.pad_id)
        x_BSD = self._embed(source_BS, self.source_embedding or self.embedding, self.source_positions, start=0)
        looked = []
        for layer in self.encoder:
            x_BSD, _, weights_BHSS = layer(x_BSD, None, mask_B11S, need_weights=need_weights)
            looked.append(weights_BHSS)
        x_BSD = self.encoder_norm(x_BSD)
        decoder = cast("Iterable[DecoderLayer]", self.decoder)
        memory = tuple(layer.cross_attention.remember(x_BSD) for layer in decoder)
        nothing = Cache(memory[0].key_BHSK[:, :, :0], memory[0].value_BHSK[:, :, :0])
        return State(memory, mask_B11S, (nothing,) * len(memory)), looked

    def _read(
        self, target_BT: Tensor, state: State, *, need_weights: bool = False
    ) -> tuple[Tensor, State, list[tuple[Tensor | None, Tensor | None]]]:
        """Read T more tokens after those of `state`."""
        mask_TT = _causal(state.position, target_BT)
        x_BTD = self._embed(target_BT, self.embedding, self.target_positions, start=state.position)
        past, looked = [], []
        for layer, before, memory in zip(self.decoder, state.past, state.memory, strict=True):
            x_BTD, cache, weights = layer(
                x_BTD, before, mask_TT, memory, state.memory_mask_B11S, need_weights=need_weights
            )
            past.append(cache)
            looked.append(weights)
        logits_BTV = F.linear(self.decoder_norm(x_BTD), self.embedding.weight)
        return logits_BTV, state._replace(past=tuple(past)), looked

    def _embed(self, ids_BT: Tensor, embedding: nn.Embedding, positions: nn.Module, start: int) -> Tensor:
        length = ids_BT.shape[1]
        _check_length(start + length, self.config.max_length)
        x_BTD = embedding(ids_BT) * self.config.d_model**0.5 + positions(start, length)
        dropped_BTD: Tensor = self.dropout(x_BTD)
        return dropped_BTD

    def _initialise(self) -> None:
        """Unit-sized embeddings on the way in, and small logits on the way out, so that the first guess is uniform."""
        for embedding in (self.embedding, self.source_embedding):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.constant_(self.decoder_norm.weight, self.config.d_model**-0.5)


class Past(NamedTuple):
    """What a DecoderOnly has read so far, layer by layer; a value."""

    caches: tuple[Cache, ...]

    @property
    def position(self) -> int:
        """How many tokens were read."""
        return self.caches[0].length

    def select(self, index_N: Tensor) -> Past:
        """The rows `index_N` of the batch, in that order; rows may be repeated or left out."""
        return Past(tuple(cache.select(index_N) for cache in self.caches))


class DecoderOnly(nn.Module):
    """GPT-2 (Radford et al. 2019): pre-norm blocks under a causal mask, GELU, a final norm, embeddings tied.

    The paper's positions are learned; sinusoids are scaled down to its embeddings. Padding stands at the right, where
    the mask already keeps it from being seen. Dropout acts on embeddings and on every sub-layer's output.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        positions = SinusoidalPositions if config.positions == "sinusoidal" else LearnedPositions
        self.positions = positions(config.max_length, config.d_model)
        # Embeddings start small: sinusoids of size 1 would drown them, and little would be learned from the tokens.
        self.position_scale = _GPT2_STD if config.positions == "sinusoidal" else 1.0
        self.layers = nn.ModuleList(EncoderLayer(config, nn.GELU()) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self._initialise()

    @property
    def max_length(self) -> int:
        """The most tokens that can be read."""
        return self.config.max_length

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token after each of `tokens_BT`; raises ValueError for more than `max_length` tokens."""
        x_BTD, _, _ = self._read(tokens_BT, None)
        return F.linear(x_BTD, self.embedding.weight)

    def attention_weights(self, tokens_BT: Tensor) -> dict[str, list[Tensor]]:
        """Where every layer looks in `forward`: "self" (BHTT), first to last; raises ValueError as that does."""
        _, _, looked = self._read(tokens_BT, None, need_weights=True)
        return {"self": _asked_for(looked)}

    def start(self, prompt_BT: Tensor) -> Past:
        """Read the beginning of a text, which may be empty; the next token is known after a step."""
        _, past, _ = self._read(prompt_BT, None)
        return past

    def step(self, tokens_B: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Read one token per row; returns the logits (BV) of the next one and what was read then.

        Raises ValueError where that would be more than `max_length` tokens.
        """
        x_B1D, past, _ = self._read(tokens_B[:, None], past)
        return F.linear(x_B1D[:, 0], self.embedding.weight), past

    def _read(
        self, tokens_BT: Tensor, past: Past | None, *, need_weights: bool = False
    ) -> tuple[Tensor, Past, list[Tensor | None]]:
        """Read T more tokens after those of `past`: final states (BTD), what was read then, and weights (BHTS)."""
        start, length = 0 if past is None else past.position, tokens_BT.shape[1]
        _check_length(start + length, self.config.max_length)
        mask_TT = _causal(start, tokens_BT)
        x_BTD = self.dropout(self.embedding(tokens_BT) + self.positions(start, length) * self.position_scale)
        caches, looked = [], []
        for layer, before in zip(self.layers, [None] * len(self.layers) if past is None else past.caches, strict=True):
            x_BTD, cache, weights_BHTS = layer(x_BTD, before, mask_TT, need_weights=need_weights)
            caches.append(cache)
            looked.append(weights_BHTS)
        return self.norm(x_BTD), Past(tuple(caches)), looked

    def _initialise(self) -> None:
        """GPT-2's: one normal everywhere, and what is added to the residual stream smaller the more is added."""
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                added = name.endswith(("attention.output.weight", "feed_forward.2.weight"))
                nn.init.normal_(parameter, std=_GPT2_STD / math.sqrt(2 * len(self.layers)) if added else _GPT2_STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each as x + dropout(f(norm(x))); under a causal mask GPT-2's block."""

    def __init__(self, config: TransformerConfig, activation: nn.Module) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config, activation)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x_BTD: Tensor, past: Cache | None, mask: Tensor | None, *, need_weights: bool = False
    ) -> tuple[Tensor, Cache, Tensor | None]:
        """The tokens one layer on (BTD), `past` with their keys and values after it, and asked for weights (BHTS)."""
        normed_BTD = self.attention_norm(x_BTD)
        cache = self.attention.remember(normed_BTD)
        if past is not None:
            cache = past.append(cache)
        mixed_BTD, weights_BHTS = self.attention(normed_BTD, cache, mask, need_weights=need_weights)
        x_BTD = x_BTD + self.dropout(mixed_BTD)
        return x_BTD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BTD))), cache, weights_BHTS


class DecoderLayer(nn.Module):
    """Self-attention over what was read, cross-attention over the encoder's output, and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.d_model)
        self.attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.cross_attention_norm = nn.LayerNorm(config.d_model)
        self.cross_attention = MultiHeadAttention(config.d_model, config.num_heads)
        self.feed_forward_norm = nn.LayerNorm(config.d_model)
        self.feed_forward = FeedForward(config, nn.ReLU())
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x_BTD: Tensor,
        past: Cache,
        mask: Tensor | None,
        memory: Cache,
        memory_mask_B11S: Tensor,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Cache, tuple[Tensor | None, Tensor | None]]:
        """The targets one layer on (BTD), `past` with their keys and values after it, and asked for weights.

        The weights are those of the self-attention (BHTT) and of the cross-attention (BHTS).
        """
        normed_BTD = self.attention_norm(x_BTD)
        cache = past.append(self.attention.remember(normed_BTD))
        mixed_BTD, weights_BHTT = self.attention(normed_BTD, cache, mask, need_weights=need_weights)
        x_BTD = x_BTD + self.dropout(mixed_BTD)
        normed_BTD = self.cross_attention_norm(x_BTD)
        mixed_BTD, weights_BHTS = self.cross_attention(normed_BTD, memory, memory_mask_B11S, need_weights=need_weights)
        x_BTD = x_BTD + self.dropout(mixed_BTD)
        forwarded_BTD = self.feed_forward(self.feed_forward_norm(x_BTD))
        return x_BTD + self.dropout(forwarded_BTD), cache, (weights_BHTT, weights_BHTS)


class FeedForward(nn.Sequential):
    """Two linear maps with an activation between, at every position alike.

    max(0, x) makes it equation 2 of Vaswani et al. 2017, GELU (Hendrycks and Gimpel 2016) GPT-2's.
    """

    def __init__(self, config: TransformerConfig, activation: nn.Module) -> None:
        super().__init__(
            nn.Linear(config.d_model, config.feed_forward_width),
            activation,
            nn.Linear(config.feed_forward_width, config.d_model),
        )


def _causal(start: int, ids_BT: Tensor) -> Tensor | None:
    """The mask for T tokens after `start` others."""
    length = ids_BT.shape[1]
    # A single new token is the latest of all, so it may look everywhere.
    return None if length == 1 else causal_mask(length, start + length, ids_BT.device)


def _check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise ValueError(f"a sequence of {length} tokens is longer than max_length={max_length}: cut it off")


def _asked_for(weights: Iterable[Tensor | None]) -> list[Tensor]:
    return [layer for layer in weights if layer is not None]
