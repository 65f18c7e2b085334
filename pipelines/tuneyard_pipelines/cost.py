"""What a point costs by its architecture's formulas: parameters, FLOPs, memory, and seconds once calibrated.

What a FLOP and a token are, and what `values` holds, stands in `formulas`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from tuneyard_pipelines import architectures
from tuneyard_pipelines.formulas import Formulas, Values, VocabSizes

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


def derived(values: Values, sizes: VocabSizes) -> dict[str, int]:
    """All of `DERIVED` at a point."""
    return {name: of(values, sizes) for name, of in DERIVED.items()}


def parameters(values: Values, sizes: VocabSizes) -> int:
    """Trained numbers of the built network, tied ones counted once."""
    return _formulas(values).parameters(values, sizes)


def flops_per_token(values: Values, sizes: VocabSizes) -> int:
    """FLOPs of training on one token: the forward pass, and twice as many for its gradients.

    Matrix products only, those of scores and values over the whole sequence and the output layer among them: appendix F
    of Hoffmann et al. 2022 without softmax and embedding, which is a look-up here. Kaplan et al. 2020 (section 2.1)
    leave out the vocabulary.
    """
    return 3 * _formulas(values).forward_flops(values, sizes)


def memory_bytes(values: Values, sizes: VocabSizes) -> int:
    """Memory of one worker that trains in float32 with AdamW, in bytes.

    16 bytes a parameter, and 4 more of each of its values that an average keeps; twice what the backward pass needs of
    a batch of `training.batch_tokens` unpadded tokens (one example, where that is longer), its logits included; and the
    process with its libraries. Fused attention keeps no scores. Mixed precision is taken for float32: it halves what a
    batch keeps, and adds half a copy of the weights. Padding comes on top. Between 0.7 and 1.3 times the measured
    growth of seven models on a CPU; on a GPU untested.
    """
    formulas = _formulas(values)
    tokens: int = max(values["training.batch_tokens"], formulas.sequences * values["model.sequence_length"])
    smoothed: bool = values.get("training.label_smoothing", 0.0) > 0
    logit_floats = (LOGIT_FLOATS + smoothed) * sizes.target
    batch_floats = tokens * (formulas.kept_floats(values) + logit_floats) // formulas.sequences
    state_floats = (STATE_FLOATS + _averaged_floats(values)) * formulas.parameters(values, sizes)
    return FLOAT_BYTES * (state_floats + HEAP_SHARE * batch_floats) + PROCESS_BYTES


DERIVED: Mapping[str, Callable[[Values, VocabSizes], int]] = {
    "parameters": parameters,
    "memory_bytes": memory_bytes,
    "flops_per_token": flops_per_token,
}
"""The names that constraints may use beside the keys of a point."""


def seconds_per_token(values: Values, sizes: VocabSizes, speed: Speed) -> float:
    """Seconds of training on one token: its FLOPs, at the rate between the measured ones by the logarithm of FLOPs.

    Beyond the measured points the rate of the nearest one holds.
    """
    flops = flops_per_token(values, sizes)
    return flops / _rate(flops, speed.points)


def _averaged_floats(values: Values) -> int:
    """Of a parameter: its moving average; or its last values, and their mean while that is validated."""
    copies: dict[str, int] = {"none": 0, "ema": 1, "last": values.get("training.last_checkpoints", 0) + 1}
    return copies[values.get("training.average", "none")]


def _formulas(values: Values) -> Formulas:
    return architectures.find(values["model.architecture"]).cost


def _rate(flops: int, points: tuple[tuple[int, float], ...]) -> float:
    for (low, low_rate), (high, high_rate) in pairwise(points):
        if low <= flops < high:
            share = math.log(flops / low) / math.log(high / low)
            return low_rate + share * (high_rate - low_rate)
    return points[0][1] if flops < points[0][0] else points[-1][1]
