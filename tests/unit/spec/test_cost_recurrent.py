"""The closed formulas of recurrent and convolutional models against torch's own counters and the built models."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import plain_cells
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tuneyard_modules.convolution import ConvolutionalLanguageModel, ConvolutionConfig
from tuneyard_modules.recurrent import RecurrentConfig, RecurrentLanguageModel
from tuneyard_modules.seq2seq import Seq2Seq, Seq2SeqConfig
from tuneyard_pipelines import formulas as every_formula
from tuneyard_pipelines.formulas import VocabSizes

VOCAB = 97
SIZES = VocabSizes(VOCAB)
KINDS = ("none", "dot", "scaled_dot", "additive", "multi_head")
CELLS = ("rnn", "lstm", "gru")
POINTS: list[dict[str, Any]] = [
    *({"family": cell} for cell in CELLS),
    *({"family": "conv", "kernel_size": size} for size in (1, 3)),
    *({"family": "seq2seq", "cell": cell, "attention": kind} for cell, kind in product(CELLS, KINDS)),
]
each_point = pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(str(part) for part in point.values()))


def values(**changes: Any) -> dict[str, Any]:
    model = {"d_model": 64, "num_layers": 2, "sequence_length": 32, "dropout": 0.0, "tied_embeddings": True}
    return {f"model.{key}": value for key, value in (model | {"num_heads": 4} | changes).items()}


def formulas(family: str) -> every_formula.Formulas:
    of: every_formula.Formulas = getattr(every_formula, family.upper())
    return of


def built(point: dict[str, Any]) -> nn.Module:
    family, model = point["model.family"], {key.removeprefix("model."): value for key, value in point.items()}
    names = ["d_model", "num_layers", "dropout", "tied_embeddings"]
    common = {name: model[name] for name in names} | {"vocab_size": VOCAB, "max_length": model["sequence_length"]}
    if family == "conv":
        return ConvolutionalLanguageModel(ConvolutionConfig(kernel_size=model["kernel_size"], **common))
    if family == "seq2seq":
        own = {name: model[name] for name in ("cell", "attention", "num_heads")}
        return Seq2Seq(Seq2SeqConfig(**own, **common))
    return RecurrentLanguageModel(RecurrentConfig(cell=family, **common))


@contextmanager
def seen_as_products() -> Iterator[None]:
    """Cells and attention as single matrix products, which torch counts, and not as kernels, which it does not."""
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH):
        yield


@each_point
@pytest.mark.parametrize("changes", [{"d_model": 48}, {"num_layers": 1, "tied_embeddings": False}])
def test_the_forward_pass_takes_exactly_the_counted_operations(point: dict[str, Any], changes: dict[str, Any]) -> None:
    of, all_values = formulas(point["family"]), values(**point, sequence_length=7, **changes)
    network, tokens = built(all_values), torch.full((3, 7), 5)
    with seen_as_products(), FlopCounterMode(display=False) as forward:
        logits_BTV = network(*[tokens] * of.sequences)
    assert forward.get_total_flops() == 3 * 7 * of.sequences * of.forward_flops(all_values, SIZES)
    with seen_as_products(), FlopCounterMode(display=False) as backward:
        logits_BTV.sum().backward()
    # The gradient of the first state, which is no one's, is left out.
    assert 1.8 < backward.get_total_flops() / forward.get_total_flops() <= 2.0


@pytest.mark.parametrize("cell", CELLS)
def test_operations_are_those_of_the_equations(cell: str) -> None:
    point = values(family=cell)
    network, tokens = built(point), torch.full((3, 9), 5)
    assert isinstance(network, RecurrentLanguageModel)
    zeros = torch.zeros(2, 3, 64)
    with FlopCounterMode(display=False) as counted:
        x = network.vocabulary(tokens)
        states, _ = plain_cells.run(network.recurrence.layers, x, (zeros, zeros) if cell == "lstm" else (zeros,))
        network.vocabulary.logits(states)
    assert counted.get_total_flops() == 3 * 9 * formulas(cell).forward_flops(point, SIZES)


@each_point
@pytest.mark.parametrize("changes", [{"num_layers": 1}, {"num_layers": 3, "dropout": 0.1}])
def test_the_backward_pass_keeps_what_the_formula_says(point: dict[str, Any], changes: dict[str, Any]) -> None:
    """Storages that autograd holds, counted once; ids, lengths, norms' statistics and first states are the 3 %."""
    all_values = values(**point, **changes)
    of, network, rows, length = formulas(point["family"]), built(all_values), 4, 32
    weights = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        storage = saved.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return saved

    tokens = torch.full((rows, length), 5)
    source = tokens.clone()
    source[1, -1] = 0
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        logits_BTV = network(*[source, tokens][-of.sequences :])
        F.cross_entropy(logits_BTV.flatten(0, 1), tokens.flatten())
    floats = sum(storage.nbytes() for storage in kept.values()) / 4 / (rows * length) - VOCAB
    assert floats == pytest.approx(of.kept_floats(all_values), rel=0.03)


def test_parameters_by_hand() -> None:
    tied, own = values(d_model=10, num_layers=1), values(d_model=10, num_layers=1, tied_embeddings=False)
    assert formulas("rnn").parameters(tied, VocabSizes(7)) == 70 + 100 + 100 + 20
    assert formulas("lstm").parameters(tied, VocabSizes(7)) == 70 + 4 * 220
    assert formulas("gru").parameters(own, VocabSizes(7)) == 140 + 3 * 220
    conv = values(d_model=10, num_layers=1, kernel_size=3)
    assert formulas("conv").parameters(conv, VocabSizes(7)) == 70 + 600 + 20 + 100 + 10 + 20
    none = values(d_model=10, num_layers=1, cell="rnn", attention="none")
    both_ways, decoder, combine = 2 * (50 + 25 + 10), 200 + 100 + 20, 200
    assert formulas("seq2seq").parameters(none, VocabSizes(7, 5)) == 70 + 50 + both_ways + decoder + combine


def test_formulas_need_no_torch() -> None:
    code = "import sys, tuneyard_pipelines.formulas.recurrent; assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
