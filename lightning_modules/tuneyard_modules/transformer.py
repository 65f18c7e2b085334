"""Transformers with tied embeddings, trained in one pass, and all of their options.

EncoderDecoder maps a source to a target and DecoderOnly continues a text, step by step; EncoderOnly guesses masked
tokens. B batch, N rows chosen from a batch, T target or text length, S source length, D model width, H heads, K head
width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tuneyard_modules.attention import CAUSAL, Cache, Mask, MultiHeadAttention, causal_mask, padding_mask
from tuneyard_modules.positions import LearnedPositions, RotaryPositions, Rotation, SinusoidalPositions

Norm = Literal["pre", "post"]
Positions = Literal["sinusoidal", "learned", "rotary"]
Activation = Literal["relu", "gelu", "swiglu"]
Part = Literal["nothing", "positions", "residual", "norm", "feed_forward", "scaling"]

_SMALL_STD = 0.02  # GPT-2's and BERT's
_ADDED = ("attention.output.weight", "feed_forward.2.weight")  # what sub-layers end with


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a transformer. What is None is the family's own.

    `source_vocab_size` is None where sources and targets share one vocabulary and its embedding, as in a DecoderOnly;
    `num_layers` counts encoder and decoder each, unless `num_decoder_layers` says otherwise; `max_length` is the most
    tokens of a source, of a decoder's input or of a text; `d_ff` is 4 * d_model when None.

    `norm` stands before each sub-layer, x + f(norm(x)) (Xiong et al. 2020), or after it, norm(x + f(x)) (Vaswani et al.
    2017). `positions` are added to embeddings, or turn queries and keys of self-attention (rotary, Su et al. 2021).
    `bias` is that of the linear maps of attention and feed-forward. `num_kv_heads` is how many heads of keys and values
    a DecoderOnly's `num_heads` queries share (Ainslie et al. 2023). `without` takes out one part everywhere: positions,
    the x + of residuals, every norm, feed-forwards with their norms, or attention's division by sqrt(K).
    `gradient_checkpointing` keeps of each layer only its inputs in training and computes the rest again (Chen et al.
    2016). Raises ValueError for a shape that cannot be built.
    """

    vocab_size: int
    d_model: int
    num_heads: int
    num_layers: int
    max_length: int
    d_ff: int | None = None
    dropout: float = 0.1
    positions: Positions | None = None
    pad_id: int = 0
    source_vocab_size: int | None = None
    norm: Norm | None = None
    activation: Activation | None = None
    bias: bool = True
    num_kv_heads: int | None = None
    num_decoder_layers: int | None = None
    without: Part = "nothing"
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        names = ("vocab_size", "d_model", "num_heads", "num_layers", "max_length", "feed_forward_width")
        optional = ("source_vocab_size", "num_kv_heads", "num_decoder_layers")
        for name in (*names, *(name for name in optional if getattr(self, name) is not None)):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.d_model % self.num_heads:
            raise ValueError(
                f"d_model={self.d_model} is not divisible by num_heads={self.num_heads}: change one of the two"
            )
        if self.num_heads % (self.num_kv_heads or 1):
            raise ValueError(
                f"num_heads={self.num_heads} is not divisible by num_kv_heads={self.num_kv_heads}: change one of them"
            )
        positions = None if self.without == "positions" else self.positions
        if positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model={self.d_model} is odd: use an even width or positions='learned'")
        if positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"d_model={self.d_model} gives num_heads={self.num_heads} an odd width each, {self.head_width}: rotary "
                "positions turn pairs, use an even width a head or positions='learned'"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and less than 1")

    @property
    def feed_forward_width(self) -> int:
        """Units of a feed-forward layer."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff

    @property
    def head_width(self) -> int:
        """K, each head's share of the width."""
        return self.d_model // self.num_heads

    def completed(self, *, norm: Norm, positions: Positions, activation: Activation) -> TransformerConfig:
        """This, with a family's own choices where it leaves them open; raises ValueError where they do not fit."""
        return replace(
            self,
            norm=self.norm or norm,
            positions=self.positions or positions,
            activation=self.activation or activation,
        )


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
    """Vaswani et al. 2017, with the norms moved in front of the sub-layers (Xiong et al. 2020) unless `norm` is post.

    One matrix embeds sources and targets and, transposed, gives the output; sources with a vocabulary of their own have
    their own matrix. Padding stands at the right. Dropout acts on embeddings and on every sub-layer's output, as in
    section 5.4 of the first paper. Own choices: pre, sinusoidal, relu.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        _refuse(config, "num_kv_heads", "DecoderOnly")
        self.config = config = config.completed(norm="pre", positions="sinusoidal", activation="relu")
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.source_embedding: nn.Embedding | None = None
        if config.source_vocab_size is not None:
            self.source_embedding = nn.Embedding(config.source_vocab_size, config.d_model)
        self.source_positions = _positions(config)
        self.target_positions = _positions(config)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.decoder = nn.ModuleList(
            DecoderLayer(config) for _ in range(config.num_decoder_layers or config.num_layers)
        )
        self.encoder_norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.decoder_norm = _norm(config) if config.norm == "pre" else nn.Identity()
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
        embedding = self.source_embedding or self.embedding
        x_BSD, rotation = self._embed(source_BS, embedding, self.source_positions, start=0)
        looked = []
        for layer in self.encoder:
            x_BSD, _, weights_BHSS = layer(x_BSD, None, mask_B11S, rotation, need_weights=need_weights)
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
        x_BTD, rotation = self._embed(target_BT, self.embedding, self.target_positions, start=state.position)
        past, looked = [], []
        for layer, before, memory in zip(self.decoder, state.past, state.memory, strict=True):
            x_BTD, cache, weights = layer(
                x_BTD, before, mask_TT, memory, state.memory_mask_B11S, rotation, need_weights=need_weights
            )
            past.append(cache)
            looked.append(weights)
        x_BTD = self.decoder_norm(x_BTD)
        if self.config.without == "norm":
            # What a norm's small weights do for the first guess; T5 does the same (Raffel et al. 2020).
            x_BTD = x_BTD * self.config.d_model**-0.5
        return F.linear(x_BTD, self.embedding.weight), state._replace(past=tuple(past)), looked

    def _embed(
        self, ids_BT: Tensor, embedding: nn.Embedding, positions: nn.Module | None, start: int
    ) -> tuple[Tensor, Rotation | None]:
        _check_length(start + ids_BT.shape[1], self.config.max_length)
        x_BTD, rotation = _placed(embedding(ids_BT) * self.config.d_model**0.5, positions, start)
        return self.dropout(x_BTD), rotation

    def _initialise(self) -> None:
        """Unit-sized embeddings on the way in, and small logits on the way out, so that the first guess is uniform."""
        for embedding in (self.embedding, self.source_embedding):
            if embedding is not None:
                nn.init.normal_(embedding.weight, std=self.config.d_model**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.config.without == "norm":
            # Nothing holds the residual stream's size: no layer changes it at first (Zhang et al. 2019, "Fixup").
            for name, parameter in self.named_parameters():
                if name.endswith(_ADDED):
                    nn.init.zeros_(parameter)
        norms = [module for module in self.modules() if isinstance(module, nn.LayerNorm)]
        for last in norms[-1:]:  # the one whose output the logits are made of
            nn.init.constant_(last.weight, self.config.d_model**-0.5)


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

    With `norm` post it is GPT (Radford et al. 2018), which has no final norm. The papers' positions are learned;
    sinusoids are scaled down to its embeddings. Padding stands at the right, where the mask already keeps it from being
    seen. Dropout acts on embeddings and on every sub-layer's output. Own choices: pre, sinusoidal, gelu.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        _refuse(config, "num_decoder_layers", "EncoderDecoder")
        self.config = config = config.completed(norm="pre", positions="sinusoidal", activation="gelu")
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = _positions(config)
        self.position_scale = _position_scale(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)
        _initialise_small(self, added_std=_SMALL_STD / math.sqrt(2 * config.num_layers))

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
        start = 0 if past is None else past.position
        _check_length(start + tokens_BT.shape[1], self.config.max_length)
        mask_TT = _causal(start, tokens_BT)
        x_BTD, rotation = _placed(self.embedding(tokens_BT), self.positions, start, self.position_scale)
        x_BTD = self.dropout(x_BTD)
        caches, looked = [], []
        for layer, before in zip(self.layers, [None] * len(self.layers) if past is None else past.caches, strict=True):
            x_BTD, cache, weights_BHTS = layer(x_BTD, before, mask_TT, rotation, need_weights=need_weights)
            caches.append(cache)
            looked.append(weights_BHTS)
        return self.norm(x_BTD), Past(tuple(caches)), looked


class EncoderOnly(nn.Module):
    """BERT (Devlin et al. 2019) without segments and next sentences: post-norm blocks that see both sides.

    Its logits are those of each place's own token; the last id of the vocabulary is the mask. Embeddings are normed,
    and with `norm` pre the last layer's output is, too; embeddings are tied to the output, which has a bias. Padding is
    masked. Dropout acts on embeddings and on every sub-layer's output. Own choices: post, learned, gelu.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        _refuse(config, "num_kv_heads", "DecoderOnly")
        _refuse(config, "num_decoder_layers", "EncoderDecoder")
        self.config = config = config.completed(norm="post", positions="learned", activation="gelu")
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = _positions(config)
        self.position_scale = _position_scale(config)
        self.embedding_norm = _norm(config)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_layers))
        self.norm = _norm(config) if config.norm == "pre" else nn.Identity()
        self.head = MaskedHead(config)
        self.dropout = nn.Dropout(config.dropout)
        _initialise_small(self, added_std=_SMALL_STD)

    @property
    def max_length(self) -> int:
        """The most tokens that can be read."""
        return self.config.max_length

    @property
    def mask_id(self) -> int:
        """The id that stands for a token to guess."""
        return self.config.vocab_size - 1

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits (BTV) of the token at each place; raises ValueError for more than `max_length` tokens."""
        x_BTD, _ = self._read(tokens_BT)
        logits_BTV: Tensor = self.head(x_BTD, self.embedding.weight)
        return logits_BTV

    def attention_weights(self, tokens_BT: Tensor) -> dict[str, list[Tensor]]:
        """Where every layer looks in `forward`: "self" (BHTT), first to last; raises ValueError as that does."""
        _, looked = self._read(tokens_BT, need_weights=True)
        return {"self": _asked_for(looked)}

    def _read(self, tokens_BT: Tensor, *, need_weights: bool = False) -> tuple[Tensor, list[Tensor | None]]:
        _check_length(tokens_BT.shape[1], self.config.max_length)
        mask_B11T = padding_mask(tokens_BT, self.config.pad_id)
        x_BTD, rotation = _placed(self.embedding(tokens_BT), self.positions, 0, self.position_scale)
        x_BTD = self.dropout(self.embedding_norm(x_BTD))
        looked = []
        for layer in self.layers:
            x_BTD, _, weights_BHTT = layer(x_BTD, None, mask_B11T, rotation, need_weights=need_weights)
            looked.append(weights_BHTT)
        return self.norm(x_BTD), looked


class _Layer(nn.Module):
    """What encoder and decoder layers share: where norms stand, what is added, and what is kept for the gradients."""

    read: Callable[..., Any]

    def __init__(self, config: TransformerConfig, *, cross: bool) -> None:
        super().__init__()
        self.post = config.norm == "post"
        self.residual = config.without != "residual"
        self.checkpointing = config.gradient_checkpointing
        self.attention_norm = _norm(config)
        self.attention = _attention(config)
        if cross:
            self.cross_attention_norm = _norm(config)
            self.cross_attention = _attention(config)
        self.feed_forward: FeedForward | None = None
        if config.without != "feed_forward":
            self.feed_forward_norm = _norm(config)
            self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """As `read`; with gradient checkpointing, what that computes in training is forgotten and computed again."""
        if self.checkpointing and self.training:
            return checkpoint(self.read, *inputs, use_reentrant=False, **options)
        return self.read(*inputs, **options)

    def _attend(
        self, x_BTD: Tensor, past: Cache | None, mask: Mask, rotation: Rotation | None, *, need_weights: bool
    ) -> tuple[Tensor, Cache, Tensor | None]:
        read_BTD = self._before(self.attention_norm, x_BTD)
        cache = self.attention.remember(read_BTD, rotation)
        if past is not None:
            cache = past.append(cache)
        mixed_BTD, weights_BHTS = self.attention(read_BTD, cache, mask, rotation, need_weights=need_weights)
        return self._after(self.attention_norm, x_BTD, mixed_BTD), cache, weights_BHTS

    def _transform(self, x_BTD: Tensor) -> Tensor:
        if self.feed_forward is None:
            return x_BTD
        changed_BTD: Tensor = self.feed_forward(self._before(self.feed_forward_norm, x_BTD))
        return self._after(self.feed_forward_norm, x_BTD, changed_BTD)

    def _before(self, norm: nn.Module, x_BTD: Tensor) -> Tensor:
        """What a sub-layer reads."""
        return x_BTD if self.post else cast("Tensor", norm(x_BTD))

    def _after(self, norm: nn.Module, x_BTD: Tensor, change_BTD: Tensor) -> Tensor:
        """`x_BTD` with what the sub-layer said of it."""
        change_BTD = self.dropout(change_BTD)
        x_BTD = x_BTD + change_BTD if self.residual else change_BTD
        return cast("Tensor", norm(x_BTD)) if self.post else x_BTD


class EncoderLayer(_Layer):
    """Self-attention and feed-forward; under a causal mask GPT's block."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, cross=False)

    def read(
        self,
        x_BTD: Tensor,
        past: Cache | None,
        mask: Mask,
        rotation: Rotation | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Cache, Tensor | None]:
        """The tokens one layer on (BTD), `past` with their keys and values after it, and asked for weights (BHTS)."""
        x_BTD, cache, weights_BHTS = self._attend(x_BTD, past, mask, rotation, need_weights=need_weights)
        return self._transform(x_BTD), cache, weights_BHTS


class DecoderLayer(_Layer):
    """Self-attention over what was read, cross-attention over the encoder's output, and feed-forward."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, cross=True)

    def read(
        self,
        x_BTD: Tensor,
        past: Cache,
        mask: Mask,
        memory: Cache,
        memory_mask_B11S: Tensor,
        rotation: Rotation | None = None,
        *,
        need_weights: bool = False,
    ) -> tuple[Tensor, Cache, tuple[Tensor | None, Tensor | None]]:
        """The targets one layer on (BTD), `past` with their keys and values after it, and asked for weights.

        The weights are those of the self-attention (BHTT) and of the cross-attention (BHTS).
        """
        x_BTD, cache, weights_BHTT = self._attend(x_BTD, past, mask, rotation, need_weights=need_weights)
        read_BTD = self._before(self.cross_attention_norm, x_BTD)
        mixed_BTD, weights_BHTS = self.cross_attention(read_BTD, memory, memory_mask_B11S, need_weights=need_weights)
        x_BTD = self._after(self.cross_attention_norm, x_BTD, mixed_BTD)
        return self._transform(x_BTD), cache, (weights_BHTT, weights_BHTS)


class FeedForward(nn.Sequential):
    """Two linear maps with an activation between, at every position alike.

    max(0, x) makes it equation 2 of Vaswani et al. 2017, GELU (Hendrycks and Gimpel 2016) GPT-2's. SwiGLU (Shazeer
    2020) has a third map, kept in one matrix with the first. Where the config leaves the activation open it is relu.
    """

    def __init__(self, config: TransformerConfig) -> None:
        gated = config.activation == "swiglu"
        super().__init__(
            nn.Linear(config.d_model, (1 + gated) * config.feed_forward_width, config.bias),
            _ACTIVATIONS[config.activation or "relu"](),
            nn.Linear(config.feed_forward_width, config.d_model, config.bias),
        )


class SwiGLU(nn.Module):
    """Swish(x W) * x V of x W and x V side by side, equation 6 of Shazeer 2020 before its last map."""

    def forward(self, x_BTF: Tensor) -> Tensor:
        """Half as wide as its input."""
        gate_BTF, value_BTF = x_BTF.chunk(2, dim=-1)
        return F.silu(gate_BTF) * value_BTF


class MaskedHead(nn.Module):
    """BERT's masked-language head: a linear map, an activation, a norm, and logits by the embeddings with a bias."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        # A gate would need a map of its own; heads of gated models have none.
        self.activation = nn.ReLU() if config.activation == "relu" else nn.GELU()
        self.norm = _norm(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_BTD: Tensor, embedding_VD: Tensor) -> Tensor:
        """Logits (BTV)."""
        return F.linear(self.norm(self.activation(self.dense(x_BTD))), embedding_VD, self.bias)


_ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "swiglu": SwiGLU}


def _norm(config: TransformerConfig) -> nn.Module:
    return nn.Identity() if config.without == "norm" else nn.LayerNorm(config.d_model)


def _attention(config: TransformerConfig) -> MultiHeadAttention:
    scaled = config.without != "scaling"
    return MultiHeadAttention(config.d_model, config.num_heads, config.num_kv_heads, bias=config.bias, scaled=scaled)


def _positions(config: TransformerConfig) -> nn.Module | None:
    if config.without == "positions":
        return None
    if config.positions == "rotary":
        return RotaryPositions(config.max_length, config.head_width)
    kind = SinusoidalPositions if config.positions == "sinusoidal" else LearnedPositions
    return kind(config.max_length, config.d_model)


def _position_scale(config: TransformerConfig) -> float:
    # Embeddings start small: sinusoids of size 1 would drown them, and little would be learned from the tokens.
    return _SMALL_STD if config.positions == "sinusoidal" else 1.0


def _placed(
    x_BTD: Tensor, positions: nn.Module | None, start: int, scale: float = 1.0
) -> tuple[Tensor, Rotation | None]:
    """What the layers read of embedded tokens: with positions added, or how attention is to turn them."""
    if positions is None:
        return x_BTD, None
    if isinstance(positions, RotaryPositions):
        return x_BTD, positions(start, x_BTD.shape[1])
    return x_BTD + positions(start, x_BTD.shape[1]) * scale, None


def _initialise_small(network: nn.Module, added_std: float) -> None:
    """BERT's and GPT-2's: one normal everywhere, but that what is added to the residual stream has its own."""
    for name, parameter in network.named_parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, std=added_std if name.endswith(_ADDED) else _SMALL_STD)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


def _refuse(config: TransformerConfig, name: str, owner: str) -> None:
    value = getattr(config, name)
    if value is not None:
        raise ValueError(f"{name}={value} is an option of {owner} only: leave it out")


def _causal(start: int, ids_BT: Tensor) -> Mask:
    """The mask for T tokens after `start` others."""
    length = ids_BT.shape[1]
    if length == 1:
        return None  # a single new token is the latest of all, so it may look everywhere
    return causal_mask(length, start + length, ids_BT.device) if start else CAUSAL


def _check_length(length: int, max_length: int) -> None:
    if length > max_length:
        raise ValueError(f"a sequence of {length} tokens is longer than max_length={max_length}: cut it off")


def _asked_for(weights: Iterable[Tensor | None]) -> list[Tensor]:
    return [layer for layer in weights if layer is not None]
