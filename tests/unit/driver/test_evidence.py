"""Evidence: a score can be added up again from its examples."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor
from torch.nn import functional as F

from tuneyard_modules.translation import bleu_tokenizer
from tuneyard_pipelines import data, evaluate, evidence, spec
from tuneyard_pipelines.build import build_network
from tuneyard_pipelines.data import BOS, EOS, EncodedData, PreparedData
from tuneyard_pipelines.evidence import SUMMARY, TABLE, Evidence
from tuneyard_pipelines.spec import TrialConfig

SPEC = """
version: 1
name: dates
task: translation
seed: 5
data: {source: builtin/dates, examples: 300, split: {validation: 0.1, test: 0.1}}
model: {d_model: 16, num_heads: 2, num_layers: 1, sequence_length: 16, dropout: 0.0}
training: {max_steps: 1, batch_tokens: 256}
search: {trials: 1}
"""
HEAD: dict[str, Any] = {
    "metrics": {"test/bleu": 1.5},
    "cut_off": 2,
    "test_fingerprint": "f",
    "metric_signature": {"bleu": "nrefs:1"},
    "decoding": {"method": "greedy"},
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    held = spec.parse(SPEC, file="spec.yaml")
    return data.prepare(held.data, held.seed, tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module", params=["joint", "separate"])
def config(request: pytest.FixtureRequest) -> TrialConfig:
    return spec.parse(SPEC, file="spec.yaml", overrides=[f"data.tokenizer.vocabulary={request.param}"]).at({})


@pytest.fixture(scope="module")
def encoded(prepared: PreparedData, config: TrialConfig) -> EncodedData:
    return data.encode(prepared, config.tokenizer)


@pytest.fixture
def nearly_right(prepared: PreparedData, encoded: EncodedData, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A decoder that knows the answers and spoils some; gives what it will say, in the order of the test split."""
    split = prepared.split("test")
    said = [text[: -(number % 3)] if number % 3 else text for number, text in enumerate(split["target"])]
    said[0] = ""
    length = 16
    by_source = {
        tuple(encoded.tokenizers["source"].encode(source)[: length - 1]): encoded.tokenizers["target"].encode(text)
        for source, text in zip(split["source"], said, strict=True)
    }
    assert len(by_source) == len(said)

    def greedy(network: object, source_BS: Tensor, **kwargs: Any) -> list[list[int]]:
        return [by_source[tuple(row[: row.index(EOS)])] for row in source_BS.tolist()]

    monkeypatch.setattr(evaluate, "greedy", greedy)
    return said


def columns(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pq.read_table(folder / TABLE).to_pydict()
    return found


def summed(rows: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def test_sums_over_the_examples_give_the_scores_of_sacrebleu(
    tmp_path: Path, prepared: PreparedData, encoded: EncodedData, config: TrialConfig, nearly_right: list[str]
) -> None:
    torch.manual_seed(1)
    network = build_network(config, encoded.sizes)
    batches: list[int] = []
    found = evaluate.score_test(network, config, prepared, encoded, tmp_path, "digest", lambda: batches.append(1))
    table = columns(tmp_path)
    references = list(prepared.split("test")["target"])
    assert found.examples == len(references) == len(table["id"])
    assert len(batches) > 1
    assert table["prediction"] == nearly_right
    assert table["id"] == list(prepared.split("test")["id"])

    bleu, chrf = BLEU(tokenize=bleu_tokenizer(references)), CHRF()
    expected_bleu = bleu.corpus_score(nearly_right, [references]).score
    assert 0 < expected_bleu < 100
    system, reference, *counts = summed(table["bleu"])
    again = BLEU.compute_bleu(counts[:4], counts[4:], system, reference, smooth_method="exp").score
    assert found.metrics["test/bleu"] == pytest.approx(expected_bleu) == pytest.approx(again)

    expected_chrf = chrf.corpus_score(nearly_right, [references]).score
    assert 0 < expected_chrf < 100
    assert found.metrics["test/chrf"] == pytest.approx(expected_chrf)
    assert chrf._compute_f_score(summed(table["chrf"])) == pytest.approx(expected_chrf)

    right = sum(said == reference for said, reference in zip(nearly_right, references, strict=True))
    assert 0 < right < len(references)
    assert sum(table["exact_match"]) == right
    assert found.metrics["test/exact_match"] == right / len(references)
    tokens = sum(table["target_tokens"])
    assert found.metrics["test/loss"] == pytest.approx(sum(table["nll"]) / tokens)
    assert found.metrics["test/perplexity"] == pytest.approx(math.exp(sum(table["nll"]) / tokens))
    assert found.metrics["test/accuracy"] == pytest.approx(sum(table["correct"]) / tokens)
    assert "test/bleu_char" not in found.metrics
    assert found.cut_off > 0, "some of these dates are longer than the window, and count all the same"
    assert found.test_fingerprint == prepared.test_fingerprint
    assert evidence.read(tmp_path) == found


def test_chinese_is_scored_by_the_word_and_by_the_character(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: PreparedData, encoded: EncodedData, config: TrialConfig
) -> None:
    references = ["我们明天早上八点钟出发去北京" + "好" * (number % 3) for number in range(len(prepared.split("test")))]
    table = prepared.split("test")
    chinese = {name: table[name] if name != "target" else references for name in ("id", "source", "target")}
    monkeypatch.setattr(type(prepared), "split", lambda self, name: chinese)
    monkeypatch.setattr(evaluate, "greedy", lambda network, source_BS, **kwargs: [[] for _ in source_BS])
    monkeypatch.setattr(type(encoded.tokenizers["target"]), "decode", lambda self, ids: "我们明天早上八点钟出发")
    network = build_network(config, encoded.sizes)
    found = evaluate.score_test(network, config, prepared, encoded, tmp_path)
    said = ["我们明天早上八点钟出发"] * len(references)
    for name, tokenizer in (("bleu", "zh"), ("bleu_char", "char")):
        expected = BLEU(tokenize=tokenizer).corpus_score(said, [references])
        assert found.metrics[f"test/{name}"] == pytest.approx(expected.score)
        assert f"tok:{tokenizer}" in found.metric_signature[name]
        system, reference, *counts = summed(columns(tmp_path)[name])
        again = BLEU.compute_bleu(counts[:4], counts[4:], system, reference, smooth_method="exp").score
        assert again == pytest.approx(expected.score), "the sums over the examples give the score"


def test_likelihoods_are_those_of_each_example_alone(
    tmp_path: Path, prepared: PreparedData, encoded: EncodedData, config: TrialConfig, nearly_right: list[str]
) -> None:
    torch.manual_seed(1)
    network = build_network(config, encoded.sizes)
    evaluate.score_test(network, config, prepared, encoded, tmp_path)
    table, split = columns(tmp_path), encoded.split("test")
    network.eval()
    for row in (0, 7, 20):
        source = [*split["source"][row][:15], EOS]
        target = [BOS, *split["target"][row][:15], EOS]
        with torch.no_grad():
            logits_TV = network(torch.tensor([source]), torch.tensor([target[:-1]]))[0]
        nll = F.cross_entropy(logits_TV, torch.tensor(target[1:]), reduction="sum")
        assert table["nll"][row] == pytest.approx(float(nll), rel=1e-4)
        assert table["target_tokens"][row] == len(target) - 1
        assert table["correct"][row] == int((logits_TV.argmax(-1) == torch.tensor(target[1:])).sum())
        assert table["length"][row] == len(split["source"][row])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written = evidence.write(tmp_path / "evidence", {"id": [1, 2], "exact_match": [0, 1]}, **HEAD)
    assert (written.examples, written.schema_version) == (2, 1)
    assert evidence.read(tmp_path / "evidence") == written


@pytest.mark.parametrize("damage", ["table", "no table", "head", "no head", "torn head"])
def test_evidence_whose_parts_disagree_is_none(tmp_path: Path, damage: str) -> None:
    evidence.write(tmp_path, {"id": [1, 2]}, **HEAD)
    match damage:
        case "table":
            (tmp_path / TABLE).write_bytes((tmp_path / TABLE).read_bytes() + b" ")
        case "no table":
            (tmp_path / TABLE).unlink()
        case "head":
            (tmp_path / SUMMARY).write_text((tmp_path / SUMMARY).read_text().replace('"digest": "', '"digest": "0'))
        case "no head":
            (tmp_path / SUMMARY).unlink()
        case "torn head":
            (tmp_path / SUMMARY).write_text((tmp_path / SUMMARY).read_text()[:-2])
    assert evidence.read(tmp_path) is None


def test_equal_signatures_have_equal_digests_whatever_their_order() -> None:
    one = {"bleu": "nrefs:1", "chrf": "nrefs:2"}
    assert evidence.signature_digest(one) == evidence.signature_digest(dict(reversed(one.items())))
    assert evidence.signature_digest(one) != evidence.signature_digest({**one, "bleu": "nrefs:2"})
    held = Evidence(examples=1, digest="d", **HEAD)
    assert replace(held, digest="e") != held
