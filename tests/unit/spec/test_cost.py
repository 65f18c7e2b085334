"""The closed formulas against published counts, torch's own counters, and the memory of a process that trains."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, TransformerConfig
from tuneyard_pipelines import architectures, cost
from tuneyard_pipelines.cost import Speed
from tuneyard_pipelines.errors import InputError

VOCAB = 97


def values(architecture: str = "transformer", **changes: Any) -> dict[str, Any]:
    """The keys of a point that cost something; `changes` are of the model, or of training by their full name."""
    model = {"d_model": 64, "num_heads": 4, "num_layers": 2, "sequence_length": 32, "dropout": 0.0}
    model |= {"positions": "sinusoidal"}
    training = {"batch_tokens": 512, "label_smoothing": 0.0}
    for key, value in changes.items():
        (training if key in training else model)[key] = value
    model.setdefault("d_ff", 4 * model["d_model"])
    dotted = {f"model.{key}": value for key, value in model.items()}
    return {"model.architecture": architecture, **dotted, **{f"training.{k}": value for k, value in training.items()}}


def built(point: dict[str, Any], device: str) -> tuple[nn.Module, int]:
    """The network, and how many sequences it takes."""
    network, sequences = {"transformer": (EncoderDecoder, 2), "gpt": (DecoderOnly, 1)}[point["model.architecture"]]
    keys = ("d_model", "num_heads", "num_layers", "d_ff", "dropout", "positions")
    with torch.device(device):
        config = TransformerConfig(
            vocab_size=VOCAB,
            max_length=point["model.sequence_length"],
            **{key: point[f"model.{key}"] for key in keys},
        )
        return network(config), sequences


def test_gpt2_and_gpt3_have_the_published_parameters():
    small = values("gpt", d_model=768, num_heads=12, num_layers=12, sequence_length=1024, positions="learned")
    assert cost.parameters(small, 50257) == 124_439_808
    large = values("gpt", d_model=12288, num_heads=96, num_layers=96, sequence_length=2048, positions="learned")
    assert cost.parameters(large, 50257) == 174_604_259_328


def test_gpt3_takes_the_published_operations():
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300e9 tokens, which is six a parameter, without attention."""
    point = values("gpt", d_model=12288, num_heads=96, num_layers=96, sequence_length=2048, positions="learned")
    assert cost.flops_per_token(point, 50257) * 300e9 == pytest.approx(3.14e23, rel=0.04)


@pytest.mark.parametrize("architecture", ["transformer", "gpt"])
@pytest.mark.parametrize("changes", [{}, {"d_model": 48, "num_heads": 3, "num_layers": 3, "d_ff": 80}])
def test_a_training_step_takes_exactly_the_counted_operations(architecture, changes):
    point = values(architecture, **changes)
    (network, sequences), length, rows = built(point, "meta"), point["model.sequence_length"], 3
    tokens = torch.ones(rows, length, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as forward:
        logits_BTV = network(*[tokens] * sequences)
    with FlopCounterMode(display=False) as backward:
        logits_BTV.sum().backward()
    counted = forward.get_total_flops() + backward.get_total_flops()
    assert counted == rows * sequences * length * cost.flops_per_token(point, VOCAB)
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


@pytest.mark.parametrize("architecture", ["transformer", "gpt"])
@pytest.mark.parametrize("changes", [{}, {"dropout": 0.1}, {"num_layers": 3, "d_ff": 80}])
def test_the_backward_pass_keeps_what_the_formula_says(architecture, changes):
    """Storages that autograd holds, counted once; masks, indices and norms' statistics are the 3 % not in it."""
    point = values(architecture, **changes)
    (network, sequences), length, rows = built(point, "cpu"), point["model.sequence_length"], 4
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return saved

    tokens = torch.full((rows, length), 5)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        logits_BTV = network(*[tokens] * sequences)
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens.flatten())
    floats = sum(storage.nbytes() for storage in kept.values()) / 4 / (rows * length) - VOCAB
    assert floats == pytest.approx(architectures.find(architecture).cost.kept_floats(point), rel=0.03)


GROWTH = """
import torch
from tuneyard_modules.transformer import EncoderDecoder, TransformerConfig
torch.set_num_threads(1)

def peak():  # getrusage would begin with the peak of the process that started this one
    line = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

before = peak()
network = EncoderDecoder(TransformerConfig({vocab}, {d_model}, 4, 3, {length}, dropout=0.1))
optimizer = torch.optim.AdamW(network.parameters(), fused=True)
for _ in range(3):
    ids = torch.randint(3, {vocab}, ({rows}, {length}))
    logits = network(ids, ids)
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    del logits
print(peak() - before)
"""


def test_memory_is_near_what_a_training_process_grows_by():
    point = values(d_model=128, num_layers=3, batch_tokens=2048, dropout=0.1)
    rows, length = 32, 32
    code = GROWTH.format(vocab=4000, d_model=128, length=length, rows=rows)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown = int(ran.stdout)
    estimate = cost.memory_bytes(point, 4000) - cost.PROCESS_BYTES
    assert estimate > 16 * cost.parameters(point, 4000)
    assert grown / 2 < estimate < grown * 2


def test_memory_follows_batch_vocabulary_smoothing_and_the_longest_example():
    point, small = values(), cost.memory_bytes(values(), VOCAB)
    assert cost.memory_bytes(values(batch_tokens=1024), VOCAB) > small
    smoothed = cost.memory_bytes(values(label_smoothing=0.1), VOCAB)
    assert smoothed - small == 2 * 4 * VOCAB * 512 // 2
    assert cost.memory_bytes(values(batch_tokens=1), VOCAB) == cost.memory_bytes(values(batch_tokens=64), VOCAB)
    assert cost.memory_bytes(point, 10 * VOCAB) > small


def test_derived_names_are_those_of_constraints():
    assert cost.derived(values(), VOCAB) == {
        "parameters": cost.parameters(values(), VOCAB),
        "memory_bytes": cost.memory_bytes(values(), VOCAB),
        "flops_per_token": cost.flops_per_token(values(), VOCAB),
    }


def test_an_architecture_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"no architecture 'rwkv'; there is transformer, gpt"):
        cost.parameters(values("rwkv"), VOCAB)


def test_seconds_lie_between_the_measured_rates_and_are_flat_beyond():
    point = values()
    flops = cost.flops_per_token(point, VOCAB)
    speed = Speed(((flops // 4, 1e9), (flops * 4, 3e9)), "here")
    assert cost.seconds_per_token(point, VOCAB, speed) == pytest.approx(flops / 2e9, rel=1e-6)
    for below_and_above in (((flops * 2, 5e9), (flops * 4, 9e9)), ((flops // 4, 9e9), (flops // 2, 5e9))):
        assert cost.seconds_per_token(point, VOCAB, Speed(below_and_above, "here")) == pytest.approx(flops / 5e9)
    assert cost.seconds_per_token(point, VOCAB, Speed(((flops, 4e9),), "here")) == pytest.approx(flops / 4e9)


def test_a_speed_comes_back_from_json_and_nonsense_does_not():
    speed = Speed(((10, 1.5), (20, 2.5)), "here")
    assert Speed.from_dict(speed.to_dict()) == speed
    for points in ([], [[10, 0.0]], [[10, float("nan")]], [[0, 1.0]], [[1]]):
        with pytest.raises((ValueError, TypeError)):
            Speed.from_dict({"points": points, "machine": "here"})


def test_cost_needs_no_torch():
    code = "import sys, tuneyard_pipelines.cost; assert not {'torch', 'numpy', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
