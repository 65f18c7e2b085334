"""What a task makes of a point: each side with its own tokenizer, and what the vocabulary lacks as a fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tuneyard_pipelines import data, spec
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.objectives import Objective, objective, spelled


def made(folder: Path, rows: str, task: str, **tokenizer: str) -> tuple[Objective, torch.nn.Module, data.EncodedData]:
    """The objective of a file's texts, and an untrained network for it."""
    path = folder / ("a.tsv" if task == "translation" else "a.txt")
    path.write_text(rows, encoding="utf-8")
    written: dict[str, Any] = {
        "name": "a",
        "task": task,
        "data": {"source": str(path), "split": {"validation": 0.2, "test": 0.2}, "tokenizer": tokenizer},
        "model": {"d_model": 8, "num_heads": 1, "num_layers": 1, "sequence_length": 16},
        "training": {"max_steps": 1},
        "search": {"trials": 1},
    }
    held = spec.parse(json.dumps(written), file="spec.yaml")
    prepared = data.prepare(held.data, held.seed, folder / "cache", task)
    config = held.at({})
    encoded = data.encode(prepared, config.tokenizer)
    torch.manual_seed(0)
    network = build_network(config, encoded.sizes).eval()
    return objective(config, prepared, encoded), network, encoded


def test_each_side_of_a_translation_is_cut_and_spelled_by_its_own_vocabulary(tmp_path: Path) -> None:
    rows = "".join(f"{number} ab\t{number:x} XYZ\n" for number in range(100, 200))
    objective, network, encoded = made(tmp_path, rows, "translation", type="char", vocabulary="separate")
    assert encoded.sizes.source != encoded.sizes.target
    encoder, decoder, cross = objective.attention(network)
    assert {*"ab"} <= {*encoder.queries}
    assert not {*"XYZ"} & {*encoder.queries}
    assert {*"XYZ"} & {*decoder.keys}
    assert (cross.queries, cross.keys) == (decoder.queries, encoder.keys)
    module = objective.module(network)
    ids = encoded.tokenizers["target"].encode("XYZ")
    assert module._decode(ids) == "XYZ"
    assert encoded.tokenizers["source"].decode(ids) != "XYZ"
    assert len(objective.samples(module)) > 1


@pytest.mark.parametrize(("kind", "least"), [("word", 1 / 6), ("char", 0.0)])
def test_the_share_of_unknown_tokens_is_a_fact_of_the_data(tmp_path: Path, kind: str, least: float) -> None:
    rows = "".join(f"{number} same\t{' '.join(str(number))} same\n" for number in range(100, 200))
    objective, _, encoded = made(tmp_path, rows, "translation", type=kind)
    share = objective.facts["data/val_unknown_share"]
    assert share == encoded.unknown_share("validation") == pytest.approx(least, abs=0.05)


def test_an_unknown_word_costs_as_much_as_its_characters(tmp_path: Path) -> None:
    """Otherwise a small vocabulary of words would pass for a good model."""
    rows = "\n\n".join(f"same{number}" for number in range(100, 200))
    objective, network, encoded = made(tmp_path, rows, "language_modeling", type="word")
    documents = len(encoded.split("validation"))
    assert objective.facts["data/val_unknown_share"] == 1.0
    assert encoded.counts["validation"]["text"].unknown_characters == documents * len(" same100")
    bits = objective.module(network)._extra_bits
    assert bits == pytest.approx(documents * len(" same100") * 20.087, rel=1e-3)


def test_a_token_is_spelled_with_what_stands_before_it() -> None:
    tokenizer = data.TextTokenizer.train(["a b\n"], spec.Tokenizer(type="word"))
    assert spelled(tokenizer, [1, *tokenizer.encode("a b\n"), 3]) == ["<start>", "␣a", "␣b", "⏎", "<unknown>"]
