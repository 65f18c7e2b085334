"""What a point costs by closed formula: parameters, FLOPs of a token, memory of a worker, and seconds once calibrated.

D model width, F feed-forward width, L layers, S sequence length, V vocabulary; a FLOP is an addition or a
multiplication, so that a multiply-add is two. `values` are the dotted keys of a point as `catalog.complete` gives them.

A token is an unpadded one in a sequence of S. Of an encoder-decoder it is half a source and half a target token: both
sides are taken to be equally long, and what a pair costs is shared among its 2 S tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

Values = Mapping[str, Any]

FLOAT_BYTES = 4
STATE_FLOATS = 4  # of a parameter: itself, its gradient and AdamW's two moments
LOGIT_FLOATS = 3  # of a logit: its log-probability, and the gradients of both
HEAP_SHARE = 2  # glibc's heap grew by 1.5 to 2.1 times what a batch keeps: freed blocks leave holes
PROCESS_BYTES = 400 * 2**20  # measured of a Ray worker with torch and Lightning, without what it shares with others


@dataclass(frozen=True)
class Speed:
    """How fast a machine trains: measured (FLOPs of a token, FLOPs per second), rising in the first."""

    points: tuple[tuple[int, float], ...]
    machine: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Speed:
        """Back from `to_dict`. Raises ValueError, KeyError or TypeError for anything else."""
        points = tuple((int(flops), float(rate)) for flops, rate in plain["points"])
        if not points or any(not (flops > 0 and 0 < rate < math.inf) for flops, rate in points):
            raise ValueError(f"points={points}: at least one, each of two positive numbers")
        return cls(tuple(sorted(points)), str(plain["machine"]))


def derived(values: Values, vocab_size: int) -> dict[str, int]:
    """The names that constraints may use beside the keys of a point."""
    return {
        "parameters": parameters(values, vocab_size),
        "memory_bytes": memory_bytes(values, vocab_size),
        "flops_per_token": flops_per_token(values, vocab_size),
    }


def parameters(values: Values, vocab_size: int) -> int:
    """Trained numbers of the built network, tied ones counted once."""
    return _family(values).parameters(values, vocab_size)


def flops_per_token(values: Values, vocab_size: int) -> int:
    """FLOPs of training on one token: the forward pass, and twice as many for its gradients.

    Matrix products only, those of scores and values over the whole sequence and the output layer among them: appendix F
    of Hoffmann et al. 2022 without softmax and embedding, which is a look-up here. Kaplan et al. 2020 (section 2.1)
    leave out the vocabulary.
    """
    return 3 * _family(values).forward_flops(values, vocab_size)


def memory_bytes(values: Values, vocab_size: int) -> int:
    """Memory of one worker that trains in float32 with AdamW, in bytes.

    16 bytes a parameter; twice what the backward pass needs of a batch of `training.batch_tokens` unpadded tokens (one
    example, where that is longer), its logits included; and the process with its libraries. Fused attention keeps no
    scores. Padding comes on top. Between 0.7 and 1.3 times the measured growth of seven models on a CPU; on a GPU
    untested.
    """
    family = _family(values)
    tokens: int = max(values["training.batch_tokens"], family.sequences * values["model.sequence_length"])
    smoothed: bool = values["training.label_smoothing"] > 0
    logit_floats = (LOGIT_FLOATS + smoothed) * vocab_size
    batch_floats = tokens * (family.kept_floats(values) + logit_floats) // family.sequences
    state_floats = STATE_FLOATS * family.parameters(values, vocab_size)
    return FLOAT_BYTES * (state_floats + HEAP_SHARE * batch_floats) + PROCESS_BYTES


def seconds_per_token(values: Values, vocab_size: int, speed: Speed) -> float:
    """Seconds of training on one token: its FLOPs, at the rate between the measured ones by the logarithm of FLOPs.

    Beyond the measured points the rate of the nearest one holds.
    """
    flops = flops_per_token(values, vocab_size)
    return flops / _rate(flops, speed.points)


@dataclass(frozen=True)
class Family:
    """The formulas of one architecture.

    `forward_flops` is of one token; `kept_floats` of one token of each of an example's `sequences`: the numbers that
    the backward pass needs of it, but for logits.
    """

    sequences: int
    parameters: Callable[[Values, int], int]
    forward_flops: Callable[[Values, int], int]
    kept_floats: Callable[[Values], int]


def _family(values: Values) -> Family:
    architecture = values["model.architecture"]
    if architecture not in FAMILIES:
        raise ValueError(f"model.architecture={architecture}: no formula for its cost; there is {', '.join(FAMILIES)}")
    return FAMILIES[architecture]


def _rate(flops: int, points: tuple[tuple[int, float], ...]) -> float:
    for (low, low_rate), (high, high_rate) in pairwise(points):
        if low <= flops < high:
            share = math.log(flops / low) / math.log(high / low)
            return low_rate + share * (high_rate - low_rate)
    return points[0][1] if flops < points[0][0] else points[-1][1]


def _sizes(values: Values) -> tuple[int, int, int, int]:
    """D, F, L, S."""
    names = ("d_model", "d_ff", "num_layers", "sequence_length")
    d, f, layers, s = (values[f"model.{name}"] for name in names)
    return d, f, layers, s


def _positions(values: Values) -> int:
    d, _, _, s = _sizes(values)
    return s * d if values["model.positions"] == "learned" else 0


def _transformer_parameters(values: Values, vocab_size: int) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    encoder_layer = 2 * norm + attention + feed_forward
    decoder_layer = 3 * norm + 2 * attention + feed_forward
    return vocab_size * d + 2 * _positions(values) + layers * (encoder_layer + decoder_layer) + 2 * norm


def _transformer_forward_flops(values: Values, vocab_size: int) -> int:
    """Half of what a source and a target token take together: in three attentions, two feed-forwards, one output."""
    d, f, layers, s = _sizes(values)
    return layers * 3 * _attention_flops(d, s) // 2 + layers * 4 * d * f + d * vocab_size


def _transformer_kept_floats(values: Values) -> int:
    """Of a source and a target token: in each layer 8 D + F and 14 D + F, and 4 D of the final norms.

    A norm keeps its input and, for what follows, its output; an attention query, key, value and context; a feed-forward
    what its ReLU lets through. On a CPU dropout keeps a mask of floats after the embedding and each sub-layer.
    """
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (22 * d + 2 * f + 5 * d * masks) + 4 * d + 2 * d * masks


def _gpt_parameters(values: Values, vocab_size: int) -> int:
    d, f, layers, _ = _sizes(values)
    norm, attention, feed_forward = 2 * d, 4 * d * d + 4 * d, 2 * d * f + f + d
    return vocab_size * d + _positions(values) + layers * (2 * norm + attention + feed_forward) + norm


def _gpt_forward_flops(values: Values, vocab_size: int) -> int:
    d, f, layers, s = _sizes(values)
    return layers * (_attention_flops(d, s) + 4 * d * f) + 2 * d * vocab_size


def _gpt_kept_floats(values: Values) -> int:
    """As above, but that a GELU keeps its input, too."""
    d, f, layers, _ = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    return layers * (8 * d + 2 * f + 2 * d * masks) + 2 * d + d * masks


def _attention_flops(d: int, s: int) -> int:
    """Of one token: query, key, value and output, its scores with S tokens and the sum of their values."""
    return 8 * d * d + 4 * s * d


FAMILIES: dict[str, Family] = {
    "transformer": Family(2, _transformer_parameters, _transformer_forward_flops, _transformer_kept_floats),
    "gpt": Family(1, _gpt_parameters, _gpt_forward_flops, _gpt_kept_floats),
}
