"""Which data goes with which task, which columns with which file, and which tokenizer with which size."""

from __future__ import annotations

import pytest

from tuneyard_pipelines import catalog, spec
from tuneyard_pipelines.formulas import VocabSizes

SMALLEST = """\
version: 1
name: dates
task: translation
data:
  source: builtin/dates
training:
  max_tokens: 3000000
"""


def accepted(*overrides: str) -> spec.SweepSpec:
    return spec.parse(SMALLEST, file="dates.yaml", overrides=overrides)


def refused(*overrides: str) -> list[str]:
    with pytest.raises(spec.SpecError) as caught:
        accepted(*overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.source=builtin/stdlib"], 'found "builtin/stdlib"; translation takes builtin/dates, or the path of a'),
        (["data.source=a.csv", "data.columns={source: 1}"], "data.columns.target: missing; translation needs a column"),
        (
            ["data.source=a.csv", "data.columns={source: 1, target: 2, text: 3}"],
            "data.columns.text: does not go with translation, whose columns are source and target",
        ),
        (["data.source=a.jsonl", "data.columns={source: 1, target: b}"], "data.columns.source: found 1; a .jsonl file"),
        (["data.source=a.jsonl", "data.header=true"], "data.header: a .jsonl file has names without a header"),
        (
            ["data.tokenizer={type: byte, vocab_size: 300}"],
            "data.tokenizer.vocab_size: goes with type: bpe, word, unigram only",
        ),
        (
            ["data.tokenizer.segmenter=jieba"],
            "data.tokenizer.segmenter: goes with type: word only; take it out, or set",
        ),
        (
            ["data.tokenizer={type: [word, bpe], segmenter: [none, jieba]}", "search.trials=2"],
            "bpe has no segmenter: bpe would be tried twice",
        ),
        (
            ["data.tokenizer.type=[bpe, byte]", "data.tokenizer.vocab_size=[300, 400]", "search.trials=2"],
            "byte would be tried twice",
        ),
    ],
)
def test_what_does_not_fit_translation_is_refused_by_name(overrides, message):
    [line] = refused(*overrides)
    assert message in line


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.source=a.csv"],
        ["data.source=a.csv", "data.columns={source: de, target: en}", "data.header=true"],
        ["data.source=a.jsonl", "data.columns={source: de, target: en}"],
    ],
)
def test_tables_that_fit_translation(overrides):
    assert accepted(*overrides).task == "translation"


LANGUAGE = "task=language_modeling"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            [],
            '"builtin/dates"; language_modeling takes builtin/stdlib, or the path of a file (.txt .csv .jsonl .parquet',
        ),
        (["data.source=a.tsv"], 'data.source: found "a.tsv"; language_modeling takes builtin/stdlib'),
        (["data.source=builtin/stdlib", "data.examples=50"], "data.examples: goes with builtin/dates only"),
        (["data.source=builtin/stdlib", "data.columns={text: 1}"], "data.columns: goes with a file only, not with"),
        (
            ["data.source=a.txt", "data.columns={text: 1}"],
            "data.columns: goes with .csv, .jsonl and .parquet only; a .txt file",
        ),
        (
            ["data.source=a.txt", "data.header=true"],
            "data.header: goes with .csv, .jsonl and .parquet only; a .txt file",
        ),
        (["data.source=a.csv", "data.columns={text: body}"], 'data.columns.text: found "body" while header is false'),
        (["data.source=a.csv", "data.columns={source: 1, text: 2}"], "data.columns.source: does not go with language"),
        (["data.source=a.csv", "data.columns={}"], "data.columns.text: missing; language_modeling needs a column for"),
        (["data.source=a.jsonl", "data.columns={text: 1}"], "data.columns.text: found 1; a .jsonl file has names"),
    ],
)
def test_what_does_not_fit_language_modeling_is_refused_by_name(overrides, message):
    [line] = refused(LANGUAGE, *overrides)
    assert message in line


@pytest.mark.parametrize(
    "overrides",
    [
        ["data.source=builtin/stdlib", "data.tokenizer.type=byte"],
        ["data.source=a.txt"],
        ["data.source=a.csv", "data.columns={text: 2}"],
        ["data.source=a.csv", "data.columns={text: body}", "data.header=true"],
        ["data.source=A.JSONL", "data.columns={text: body}"],
    ],
)
def test_documents_that_fit_language_modeling(overrides):
    assert accepted(LANGUAGE, *overrides).task == "language_modeling"


def test_a_source_is_not_blamed_for_a_task_that_is_wrong():
    [line] = refused("task=language", "data.source=builtin/stdlib")
    assert "task: found" in line


def test_what_a_tokenizer_will_hold_is_known_without_text():
    values = {"data.tokenizer.vocab_size": 999, "data.tokenizer.vocabulary": "joint"}
    sizes = {
        kind: catalog.vocab_sizes({**values, "data.tokenizer.type": kind}, {}).target
        for kind in ("word", "bpe", "byte", "unigram")
    }
    assert sizes == {"word": 999, "bpe": 999, "byte": 260, "unigram": 999}
    separate = {**values, "data.tokenizer.type": "byte", "data.tokenizer.vocabulary": "separate"}
    assert catalog.vocab_sizes(separate, {}) == VocabSizes(260, 260)
    assert catalog.vocab_sizes(separate, {"byte separate": VocabSizes(5, 7)}) == VocabSizes(5, 7)
    assert catalog.vocab_sizes(separate, {"byte": VocabSizes(5)}) == VocabSizes(260, 260)
    assert "data.tokenizer.vocab_size" not in accepted("data.tokenizer.type=byte").at({}).flat()


def test_a_key_that_does_not_apply_to_a_point_is_left_out():
    read = accepted("data.tokenizer={type: [word, bpe], segmenter: jieba}", "search.trials=2")
    points = {kind: read.at({"data.tokenizer.type": kind}) for kind in ("word", "bpe")}
    assert points["word"].flat()["data.tokenizer.segmenter"] == points["word"].tokenizer.segmenter == "jieba"
    assert "data.tokenizer.segmenter" not in points["bpe"].flat()
    assert points["bpe"].tokenizer.segmenter == "none"
