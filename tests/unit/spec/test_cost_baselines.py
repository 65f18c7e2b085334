"""The formulas of the neural baselines against torch's counter and what autograd keeps; n-grams cost no weight."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tuneyard_pipelines import architectures, cost
from tuneyard_pipelines.formulas import VocabSizes

SIZES = VocabSizes(97)
each = pytest.mark.parametrize(
    ("architecture", "changes"),
    [
        ("nplm", {}),
        ("nplm", {"order": 2, "d_model": 20, "d_ff": 33}),
        ("nplm", {"dropout": 0.2}),
        ("cbow", {}),
        ("cbow", {"d_model": 20, "window": 1}),
    ],
)


@each
def test_a_training_step_takes_the_counted_operations(architecture: str, changes: dict[str, Any]) -> None:
    network = families.network(architecture, sizes=SIZES, **changes).train()
    tokens_BT = torch.randint(4, 97, (3, families.LENGTH))
    with FlopCounterMode(display=False) as counted:
        network(tokens_BT).sum().backward()
    values = families.config(architecture, **changes).flat()
    assert counted.get_total_flops() == tokens_BT.numel() * cost.flops_per_token(values, SIZES)


@each
def test_the_backward_pass_keeps_what_the_formula_says(architecture: str, changes: dict[str, Any]) -> None:
    """Storages that autograd holds of floats, counted once, but for weights and log-probabilities."""
    network = families.network(architecture, sizes=SIZES, **changes).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if saved.is_floating_point() and saved.shape[-1:] != (1,) and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return saved

    tokens_BT = torch.randint(4, 97, (16, families.LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        logits_BTV = network(tokens_BT)
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT.flatten())
    values = families.config(architecture, **changes).flat()
    floats = sum(kept.values()) / tokens_BT.numel() - logits_BTV.shape[-1]
    assert loss.isfinite()
    assert floats == pytest.approx(architectures.find(architecture).cost.kept_floats(values), rel=0.03)


def test_counting_has_no_weight_and_costs_an_interpolation_of_all_words() -> None:
    values = families.config("ngram", order=4).flat()
    assert cost.parameters(values, SIZES) == 0
    assert cost.flops_per_token(values, SIZES) == 3 * 2 * 4 * 97
