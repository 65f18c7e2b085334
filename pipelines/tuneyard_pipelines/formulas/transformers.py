"""What transformers cost, whatever their options.

D model width, F feed-forward width, S sequence length, V target vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

from tuneyard_pipelines.formulas.shape import Formulas, Values, VocabSizes, with_mask


class _Transformer(NamedTuple):
    """What a point says of a transformer. `kv_width` is that of all keys of a token, and of all values."""

    d: int
    f: int
    s: int
    kv_width: int
    layers: int
    decoder_layers: int
    norm: str
    positions: str
    activation: str
    bias: bool
    without: str
    dropout: bool
    checkpointing: bool

    @property
    def norm_parameters(self) -> int:
        return 0 if self.without == "norm" else 2 * self.d

    @property
    def final_norm_parameters(self) -> int:
        """After the last layer; post-norm layers end with a norm of their own."""
        return self.norm_parameters if self.norm == "pre" else 0

    @property
    def position_parameters(self) -> int:
        return self.s * self.d if self.positions == "learned" and self.without != "positions" else 0

    def layer_parameters(self, attentions: int) -> int:
        """Of one layer with so many attentions, each with its norm."""
        d, f, kv = self.d, self.f, self.kv_width
        inner = f * (1 + (self.activation == "swiglu"))
        attention = 2 * d * d + 2 * d * kv + self.bias * (2 * d + 2 * kv) + self.norm_parameters
        feed_forward = d * inner + f * d + self.bias * (inner + d) + self.norm_parameters
        return attentions * attention + (self.without != "feed_forward") * feed_forward

    @property
    def attention_flops(self) -> int:
        """Of one token: query, key, value and output, its scores with S tokens and the sum of their values."""
        return 4 * self.d * self.d + 4 * self.d * self.kv_width + 4 * self.s * self.d

    @property
    def feed_forward_flops(self) -> int:
        maps = 3 if self.activation == "swiglu" else 2
        return 2 * maps * self.d * self.f * (self.without != "feed_forward")

    def layer_kept(self, attentions: int) -> int:
        """Of one token; a sub-layer keeps what it reads and, where there are norms, what its own one reads or says.

        An attention keeps query, key, value and context, and an unrotated key beside a rotated one, for the value
        shares its memory. A feed-forward keeps what a ReLU lets through, which a GELU keeps beside its input; SwiGLU
        keeps both of its inputs, the swish and the product. On a CPU dropout keeps a mask of floats.
        """
        d, kv = self.d, self.kv_width
        around = (1 if self.without == "norm" else 2) * d + self.dropout * d
        rotated = kv if self.positions == "rotary" and self.without != "positions" else 0
        feed_forward = around + {"relu": 1, "gelu": 2, "swiglu": 4}[self.activation] * self.f
        attention = attentions * (around + 2 * d + 2 * kv) + rotated
        return attention + (self.without != "feed_forward") * feed_forward

    @property
    def ends_kept(self) -> int:
        """Of one token, outside of the layers: the mask of its embedding, and what is read of the last layer."""
        final_norm = self.norm == "pre" and self.without != "norm"
        return self.d * (1 + final_norm + self.dropout)

    def layers_kept(self, *stacks: tuple[int, int, int]) -> int:
        """Of so many layers, each by what it keeps and how much of that it is given; those of the last keep the most.

        Gradient checkpointing keeps what layers are given, and all of one layer while that is computed again.
        """
        if not self.checkpointing:
            return sum(count * kept for count, kept, _ in stacks)
        _, last_kept, last_given = stacks[-1]
        return sum(count * given for count, _, given in stacks) + last_kept - last_given


def _transformer(values: Values, *, norm: str = "pre", positions: str, activation: str) -> _Transformer:
    """The words are the family's own, for what a point leaves open."""
    d, f, layers, s = (values[f"model.{name}"] for name in ("d_model", "d_ff", "num_layers", "sequence_length"))
    groups = values.get("model.num_kv_heads")
    return _Transformer(
        d=d,
        f=f,
        s=s,
        kv_width=d if groups is None else d // values["model.num_heads"] * groups,
        layers=layers,
        decoder_layers=values.get("model.num_decoder_layers") or layers,
        norm=values.get("model.norm") or norm,
        positions=values.get("model.positions") or positions,
        activation=values.get("model.activation") or activation,
        bias=values.get("model.bias", True),
        without=values.get("model.without", "nothing"),
        dropout=values.get("model.dropout", 0) > 0,
        checkpointing=values.get("model.gradient_checkpointing", False),
    )


def _encoder_decoder(values: Values) -> _Transformer:
    return _transformer(values, positions="sinusoidal", activation="relu")


def _encoder_decoder_parameters(values: Values, sizes: VocabSizes) -> int:
    shape = _encoder_decoder(values)
    embeddings = (sizes.target + (sizes.source or 0)) * shape.d
    layers = shape.layers * shape.layer_parameters(1) + shape.decoder_layers * shape.layer_parameters(2)
    return embeddings + 2 * shape.position_parameters + layers + 2 * shape.final_norm_parameters


def _encoder_decoder_forward_flops(values: Values, sizes: VocabSizes) -> int:
    """Half of what a source and a target token take together."""
    shape = _encoder_decoder(values)
    attentions = (shape.layers + 2 * shape.decoder_layers) * shape.attention_flops
    feed_forwards = (shape.layers + shape.decoder_layers) * shape.feed_forward_flops
    return (attentions + feed_forwards) // 2 + shape.d * sizes.target


def _encoder_decoder_kept_floats(values: Values) -> int:
    """Of a source and a target token. A decoder layer is given keys and values of the source, beside its input."""
    shape = _encoder_decoder(values)
    encoder = (shape.layers, shape.layer_kept(1), shape.d)
    decoder = (shape.decoder_layers, shape.layer_kept(2), shape.d + 2 * shape.kv_width)
    return shape.layers_kept(encoder, decoder) + 2 * shape.ends_kept


def _gpt(values: Values) -> _Transformer:
    return _transformer(values, positions="learned", activation="gelu")


def _gpt_parameters(values: Values, sizes: VocabSizes) -> int:
    shape = _gpt(values)
    layers = shape.layers * shape.layer_parameters(1) + shape.final_norm_parameters
    return sizes.target * shape.d + shape.position_parameters + layers


def _gpt_forward_flops(values: Values, sizes: VocabSizes) -> int:
    shape = _gpt(values)
    return shape.layers * (shape.attention_flops + shape.feed_forward_flops) + 2 * shape.d * sizes.target


def _gpt_kept_floats(values: Values) -> int:
    shape = _gpt(values)
    return shape.layers_kept((shape.layers, shape.layer_kept(1), shape.d)) + shape.ends_kept


def _bert(values: Values) -> _Transformer:
    return _transformer(values, norm="post", positions="learned", activation="gelu")


def _bert_parameters(values: Values, sizes: VocabSizes) -> int:
    """GPT's, norms of the embeddings and of the head, the head's map, and a bias of every id."""
    shape, ids = _bert(values), with_mask(sizes)
    layers = shape.layers * shape.layer_parameters(1) + shape.final_norm_parameters
    head = shape.d * shape.d + shape.d + ids
    return ids * shape.d + shape.position_parameters + layers + 2 * shape.norm_parameters + head


def _bert_forward_flops(values: Values, sizes: VocabSizes) -> int:
    shape = _bert(values)
    head = 2 * shape.d * shape.d + 2 * shape.d * with_mask(sizes)
    return shape.layers * (shape.attention_flops + shape.feed_forward_flops) + head


def _bert_kept_floats(values: Values) -> int:
    """GPT's, what the embeddings' norm reads, and what the head's activation, norm and logits do."""
    shape = _bert(values)
    norm = shape.without != "norm"
    head = shape.d * ((1 if shape.activation == "relu" else 2) + norm)
    layers = shape.layers_kept((shape.layers, shape.layer_kept(1), shape.d))
    return layers + shape.ends_kept + norm * shape.d + head


TRANSFORMER = Formulas(2, _encoder_decoder_parameters, _encoder_decoder_forward_flops, _encoder_decoder_kept_floats)
GPT = Formulas(1, _gpt_parameters, _gpt_forward_flops, _gpt_kept_floats)
BERT = Formulas(1, _bert_parameters, _bert_forward_flops, _bert_kept_floats)
