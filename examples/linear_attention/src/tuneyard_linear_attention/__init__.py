"""What a sweep knows of the linear-attention language model before it trains one; no torch.

D model width, F feed-forward width, H heads, K head width, L layers, C chunk length, V vocabulary.
"""

from __future__ import annotations

from tuneyard_pipelines import formulas
from tuneyard_pipelines.architectures import HEADS_SHARE_THE_WIDTH, SINUSOIDS_COME_IN_PAIRS, Architecture
from tuneyard_pipelines.formulas import Formulas, Values, VocabSizes

CHUNK = 64  # tokens that attend to each other one by one, and to what was before through a sum


def _sizes(values: Values) -> tuple[int, int, int, int, int]:
    """D, F, H, L, C."""
    names = ("d_model", "d_ff", "num_heads", "num_layers", "sequence_length")
    d, f, heads, layers, length = (values[f"model.{name}"] for name in names)
    return d, f, heads, layers, min(CHUNK, length)


def _forward_flops(values: Values, vocabularies: VocabSizes) -> int:
    """As GPT's, but that a token meets C others and a sum of K (K + 1) numbers a head, whatever the window."""
    d, f, heads, layers, chunk = _sizes(values)
    within, across = 2 * chunk * (2 * d + heads), 4 * d * (d // heads + 1)
    return layers * (8 * d * d + within + across + 4 * d * f) + 2 * d * vocabularies.target


def _kept_floats(values: Values) -> int:
    """As GPT's, and phi of query and key, keys turned, values, quotients, C weights a head, a sum every C tokens."""
    d, f, heads, layers, chunk = _sizes(values)
    masks: bool = values["model.dropout"] > 0
    attention = 5 * d + 2 * heads + heads * chunk + d * (d // heads + 1) // chunk
    return layers * (8 * d + attention + 2 * f + 2 * d * masks) + 2 * d + d * masks


ARCHITECTURE = Architecture(
    tasks=("language_modeling",),
    network="tuneyard_linear_attention.network:build",
    cost=Formulas(1, formulas.GPT.parameters, _forward_flops, _kept_floats),
    keys=("model.d_model", "model.num_heads", "model.num_layers", "model.d_ff", "model.dropout", "model.positions"),
    words={"model.positions": ("sinusoidal", "learned")},
    rules=(HEADS_SHARE_THE_WIDTH, SINUSOIDS_COME_IN_PAIRS),
    defaults={"model.num_heads": 4, "model.positions": "learned"},
)
