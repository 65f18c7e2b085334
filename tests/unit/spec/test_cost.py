"""The closed formulas against published counts, torch's own counters, and the memory of a process that trains."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from tuneyard_modules.transformer import DecoderOnly, EncoderDecoder, EncoderOnly, TransformerConfig
from tuneyard_pipelines import cost, formulas
from tuneyard_pipelines.cost import Speed
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.formulas import VocabSizes

VOCAB = 97
SIZES = VocabSizes(VOCAB)
TRANSFORMERS = {
    "transformer": (EncoderDecoder, formulas.TRANSFORMER),
    "gpt": (DecoderOnly, formulas.GPT),
    "bert": (EncoderOnly, formulas.BERT),
}
OPTIONS = [
    {},
    {"d_model": 48, "num_heads": 3, "num_layers": 3, "d_ff": 80},
    *({"norm": norm, "dropout": dropout} for norm in ("pre", "post") for dropout in (0.0, 0.1)),
    *({"activation": activation} for activation in ("relu", "gelu", "swiglu")),
    *({"positions": positions} for positions in ("learned", "rotary")),
    *(
        {"norm": norm, "without": part, "positions": "rotary", "d_model": 96}
        for norm in ("pre", "post")
        for part in ("positions", "residual", "norm", "feed_forward", "scaling")
    ),
    {"bias": False},
]


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


def built(point: dict[str, Any], device: str) -> tuple[nn.Module, formulas.Formulas]:
    """The network, and its formulas."""
    kind, formula = TRANSFORMERS[point["model.architecture"]]
    shape = {key.removeprefix("model."): value for key, value in point.items() if key.startswith("model.")}
    del shape["architecture"]
    masked = kind is EncoderOnly
    with torch.device(device):
        return kind(TransformerConfig(VOCAB + masked, max_length=shape.pop("sequence_length"), **shape)), formula


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every architecture with every option, and with its own."""
    own = {"gpt": [{"num_kv_heads": 2}, {"num_kv_heads": 1, "positions": "rotary"}]}
    own |= {"transformer": [{"num_decoder_layers": 1}, {"num_decoder_layers": 4, "positions": "rotary"}], "bert": []}
    return [(name, changes) for name in TRANSFORMERS for changes in OPTIONS + own[name]]


def test_gpt2_and_gpt3_have_the_published_parameters():
    small = values("gpt", d_model=768, num_heads=12, num_layers=12, sequence_length=1024, positions="learned")
    assert cost.parameters(small, VocabSizes(50257)) == 124_439_808
    large = values("gpt", d_model=12288, num_heads=96, num_layers=96, sequence_length=2048, positions="learned")
    assert cost.parameters(large, VocabSizes(50257)) == 174_604_259_328


def test_gpt3_takes_the_published_operations():
    """Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300e9 tokens, which is six a parameter, without attention."""
    point = values("gpt", d_model=12288, num_heads=96, num_layers=96, sequence_length=2048, positions="learned")
    assert cost.flops_per_token(point, VocabSizes(50257)) * 300e9 == pytest.approx(3.14e23, rel=0.04)


@pytest.mark.parametrize(("architecture", "changes"), cases())
def test_a_training_step_takes_exactly_the_counted_operations(architecture, changes):
    point = values(architecture, **changes)
    (network, formula), length, rows = built(point, "cpu"), point["model.sequence_length"], 3
    tokens = torch.ones(rows, length, dtype=torch.long)
    # Plain products are all that the counter knows; over tensors without memory it takes twice as long.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        logits_BTV = network(*[tokens] * formula.sequences)
    with FlopCounterMode(display=False) as backward:
        logits_BTV.sum().backward()
    assert forward.get_total_flops() == rows * formula.sequences * length * formula.forward_flops(point, SIZES)
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


@pytest.mark.parametrize("architecture", ["transformer", "gpt"])
def test_training_takes_three_times_the_operations_of_a_forward_pass(architecture):
    point = values(architecture)
    assert cost.flops_per_token(point, SIZES) == 3 * TRANSFORMERS[architecture][1].forward_flops(point, SIZES)


@pytest.mark.parametrize(("architecture", "changes"), cases())
def test_the_backward_pass_keeps_what_the_formula_says(architecture, changes):
    """Storages that autograd holds, counted once; masks, indices and norms' statistics are the 3 % not in it."""
    point = values(architecture, **changes)
    network, formula = built(point, "cpu")
    assert kept_floats(network, point, formula) == pytest.approx(formula.kept_floats(point), rel=0.03)


@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("transformer", {"num_decoder_layers": 4}), ("gpt", {"num_kv_heads": 2}), ("bert", {})],
)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_checkpointed_layers_keep_their_inputs_and_one_of_them_the_rest(architecture, changes, norm):
    """What lives after a forward pass is what layers are given; the rest of one layer is what one layer more keeps."""
    point = values(architecture, **changes, norm=norm, num_layers=3, dropout=0.1)
    network, formula = built(point | {"model.gradient_checkpointing": True}, "cpu")
    rows, length = 4, point["model.sequence_length"]
    tokens = torch.full((rows, length), 5)
    with Alive(own_storages(network)) as alive:
        logits_BTV = network(*[tokens] * formula.sequences)
    given = alive.floats() / (rows * length) - logits_BTV.shape[-1]

    checkpointed = point | {"model.gradient_checkpointing": True}
    last = "model.num_decoder_layers" if architecture == "transformer" else "model.num_layers"
    fewer = {last: point[last] - 1}
    kept_of_one = formula.kept_floats(point) - formula.kept_floats(point | fewer)
    given_to_one = formula.kept_floats(checkpointed) - formula.kept_floats(checkpointed | fewer)
    assert given + kept_of_one - given_to_one == pytest.approx(formula.kept_floats(checkpointed), rel=0.03)
    assert formula.kept_floats(checkpointed) < 0.6 * formula.kept_floats(point)


class Alive(TorchDispatchMode):
    """What was made while this was on, beside those storages, and has not been freed."""

    def __init__(self, beside):
        super().__init__()
        self.beside = beside
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.made[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
        return made

    def floats(self):
        alive = [at for at, (storage, _) in self.made.items() if not storage.expired()]
        return sum(self.made[at][1] for at in alive if at not in self.beside) / 4


def kept_floats(network, point, formula):
    """Of a token of each sequence, without its logits."""
    length, rows = point["model.sequence_length"], 4
    own = own_storages(network)
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return saved

    tokens = torch.full((rows, length), 5)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        logits_BTV = network(*[tokens] * formula.sequences)
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens.flatten())
    return sum(storage.nbytes() for storage in kept.values()) / 4 / (rows * length) - logits_BTV.shape[-1]


def own_storages(network):
    return {tensor.untyped_storage().data_ptr() for tensor in (*network.parameters(), *network.buffers())}


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
    estimate = cost.memory_bytes(point, VocabSizes(4000)) - cost.PROCESS_BYTES
    assert estimate > 16 * cost.parameters(point, VocabSizes(4000))
    assert grown / 2 < estimate < grown * 2


def test_memory_follows_batch_vocabulary_smoothing_and_the_longest_example():
    point, small = values(), cost.memory_bytes(values(), SIZES)
    assert cost.memory_bytes(values(batch_tokens=1024), SIZES) > small
    smoothed = cost.memory_bytes(values(label_smoothing=0.1), SIZES)
    assert smoothed - small == 2 * 4 * VOCAB * 512 // 2
    assert cost.memory_bytes(values(batch_tokens=1), SIZES) == cost.memory_bytes(values(batch_tokens=64), SIZES)
    assert cost.memory_bytes(point, VocabSizes(10 * VOCAB)) > small
    # A second vocabulary has weights, but no logits.
    separate = cost.memory_bytes(point, VocabSizes(VOCAB, 10 * VOCAB))
    assert separate - small == 16 * 10 * VOCAB * point["model.d_model"]
    assert cost.flops_per_token(point, VocabSizes(VOCAB, 10 * VOCAB)) == cost.flops_per_token(point, SIZES)


def test_derived_names_are_those_of_constraints():
    assert cost.derived(values(), SIZES) == {
        "parameters": cost.parameters(values(), SIZES),
        "memory_bytes": cost.memory_bytes(values(), SIZES),
        "flops_per_token": cost.flops_per_token(values(), SIZES),
    }


def test_an_architecture_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"no architecture 'rwkv'; there is transformer, gpt"):
        cost.parameters(values("rwkv"), SIZES)


def test_seconds_lie_between_the_measured_rates_and_are_flat_beyond():
    point = values()
    flops = cost.flops_per_token(point, SIZES)
    speed = Speed(((flops // 4, 1e9), (flops * 4, 3e9)), "here")
    assert cost.seconds_per_token(point, SIZES, speed) == pytest.approx(flops / 2e9, rel=1e-6)
    for below_and_above in (((flops * 2, 5e9), (flops * 4, 9e9)), ((flops // 4, 9e9), (flops // 2, 5e9))):
        assert cost.seconds_per_token(point, SIZES, Speed(below_and_above, "here")) == pytest.approx(flops / 5e9)
    assert cost.seconds_per_token(point, SIZES, Speed(((flops, 4e9),), "here")) == pytest.approx(flops / 4e9)


def test_a_speed_comes_back_from_json_and_nonsense_does_not():
    speed = Speed(((10, 1.5), (20, 2.5)), "here")
    assert Speed.from_dict(speed.to_dict()) == speed
    for points in ([], [[10, 0.0]], [[10, float("nan")]], [[0, 1.0]], [[1]]):
        with pytest.raises((ValueError, TypeError)):
            Speed.from_dict({"points": points, "machine": "here"})


def test_cost_needs_no_torch():
    code = "import sys, tuneyard_pipelines.cost; assert not {'torch', 'numpy', 'pydantic'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
