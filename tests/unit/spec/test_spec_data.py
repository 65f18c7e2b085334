"""Which data goes with which task, which columns with which file, and which tokenizer with which size."""

from __future__ import annotations

import json

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
        (["data.source=builtin/stdlib"], 'found "builtin/stdlib"; translation takes builtin/dates, builtin/numbers, '),
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


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("builtin/dates", "{symbols: 9}", "symbols: goes with builtin/copy, builtin/reverse, builtin/sort or"),
        ("builtin/copy", "{languages: [de]}", "languages: goes with builtin/numbers only, not with builtin/copy"),
        ("builtin/sort", "{distractors: 4}", "distractors: goes with builtin/recall only, not with builtin/sort"),
        ("builtin/recall", "{largest: 99}", "largest: goes with builtin/numbers only, not with builtin/recall"),
        ("a.csv", "{min_length: 2}", "min_length: goes with builtin/copy, builtin/reverse, builtin/sort or builtin"),
        ("builtin/copy", "{max_length: 3}", "max_length: found 3, below min_length (4); raise it, or lower min_length"),
        ("builtin/recall", "{max_length: 17}", "max_length: found 17 pairs, whose letters differ, but symbols is 16"),
        ("builtin/copy", "{symbols: 4097}", "symbols: found 4097; allowed: an integer from 2 to 4096"),
        ("builtin/copy", "{min_length: 0}", "min_length: found 0; allowed: an integer from 1 to 65536"),
        ("builtin/numbers", "{largest: 1000000}", "largest: found 1000000; allowed: an integer from 9 to 999,999"),
        ("builtin/numbers", "{languages: [xx]}", 'languages: found "xx"; allowed: a list of de, en, es, fa,'),
        ("builtin/numbers", "{languages: [de, [fr]]}", 'languages: found ["fr"]; allowed: a list of de, en,'),
        ("builtin/numbers", "{languages: de}", 'languages: found "de"; allowed: a list of de, en, es, fa, fi,'),
        ("builtin/numbers", "{languages: []}", "languages: found []; allowed: a list of de, en, es, fa, fi, fr,"),
        ("builtin/numbers", "{languages: [de, en, de]}", "languages: found de twice; name each language once"),
    ],
)
def test_settings_that_do_not_fit_the_data_that_is_made(source, settings, message):
    [line] = refused(f"data.source={source}", f"data.generate={settings}")
    assert f"data.generate.{message}" in line


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("builtin/numbers", {"languages": ["th", "de"], "largest": 99}),
        ("builtin/sort", {"min_length": 1, "max_length": 64, "symbols": 62}),
        ("builtin/recall", {"min_length": 2, "max_length": 2, "symbols": 2, "distractors": 30}),
    ],
)
def test_settings_of_data_that_is_made_are_kept(source, settings):
    held = accepted(f"data.source={source}", "data.examples=10", f"data.generate={json.dumps(settings)}")
    assert spec.SweepSpec.model_validate_json(held.model_dump_json(by_alias=True)) == held
    assert settings.items() <= held.model_dump(mode="json")["data"]["generate"].items()


def test_the_schema_knows_the_languages():
    settings = spec.json_schema()["$defs"]["Generate"]["properties"]
    assert settings["languages"]["items"]["enum"] == list(catalog.NUMBER_LANGUAGES)


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("data.max_length=9", "data.generate.max_length?"),
        ("model.max_length=9", "sequence_length (in tokens)?"),
        ("training.max_length=9", "model.sequence_length (in tokens)?"),
        ("max_length=9", "model.sequence_length (in tokens)?"),
        ("data.noise=9", "data.generate.distractors?"),
    ],
)
def test_max_length_means_what_its_section_is_about(override, meant):
    [line] = refused(override)
    assert line.endswith(f"did you mean {meant}")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.source=hub/poems"], 'data.source: found "hub/poems"; allowed: one of builtin/dates, '),
        (["data.source=hub/jo/poems/x"], 'data.source: found "hub/jo/poems/x"; allowed: one of builtin/dates, '),
        (["data.source=hub/../poems"], 'data.source: found "hub/../poems"; allowed: one of'),
        (["data.config=x"], "data.config: goes with a data set of the hub or a folder only, not with builtin/dates"),
        (["data.source=a.csv", "data.config=x"], "data.config: goes with a data set of the hub or a folder only, not"),
        (
            ["data.source=here", "data.revision=v1"],
            "data.revision: goes with a data set of the hub only, not with here",
        ),
        (["data.source=hub/jo/poems", "data.config=''"], 'data.config: found ""; allowed: text of 1 to 256 characters'),
        (["data.source=hub/jo/poems", "data.header=true"], "data.header: goes with a file only, not with hub/jo/poems"),
        (["data.source=hub/jo/poems", "data.encoding=utf-16"], "data.encoding: goes with files of text only, not with"),
        (
            ["data.source=hub/jo/poems", "data.columns={source: 1, target: b}"],
            "data.columns.source: found 1; a data set has names: give the column's name",
        ),
        (["data.source=here", "data.columns={source: a}"], "data.columns.target: missing; translation needs a column"),
        (
            ["data.source=here", "data.split.test=t.csv"],
            'data.split.test: found "t.csv"; a split of its own is written',
        ),
    ],
)
def test_what_does_not_fit_a_data_set_is_refused_by_name(overrides, message):
    [line] = refused(*overrides)
    assert message in line


@pytest.mark.parametrize("task", ["translation", "language_modeling"])
@pytest.mark.parametrize("source", ["hub/jo/poems.v2", "hub/jo-b/a_b", "here", "../a.b/c", "set.v2/"])
def test_data_sets_that_fit(task, source):
    held = accepted(f"task={task}", f"data.source={source}", "data.config=large", "data.split.group_by=[author]")
    assert held.data.source.startswith("hub/") == source.startswith("hub/")
    assert catalog.TASK_DATA[task].takes(held.data.source)


def test_a_data_set_of_the_hub_is_not_looked_for_here_and_a_folder_is(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_text(SMALLEST.replace("builtin/dates", "hub/jo/poems") + "# \n")
    assert spec.load(path, ["data.revision=v1.0"]).data.revision == "v1.0"
    (tmp_path / "set.v2").mkdir()
    assert spec.load(path, ["data.source=set.v2/"]).data.source == f"{tmp_path}/set.v2/"
    (tmp_path / "plain").write_text("a")
    for source, message in {
        "gone": f"{tmp_path}/gone does not exist; a relative path counts from the folder of the spec",
        "plain": f"{tmp_path}/plain is no folder, and its name does not say what kind of file it is; a relative",
    }.items():
        with pytest.raises(spec.SpecError) as caught:
            spec.load(path, [f"data.source={source}"])
        assert message in str(caught.value)


LANGUAGE = "task=language_modeling"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.source=builtin/numbers"], 'found "builtin/numbers"; language_modeling takes builtin/stdlib, '),
        ([], 'found "builtin/dates"; language_modeling takes builtin/stdlib, builtin/copy, '),
        (["data.source=a.tsv"], 'data.source: found "a.tsv"; language_modeling takes builtin/stdlib'),
        (
            ["data.source=builtin/stdlib", "data.examples=50"],
            "data.examples: goes with builtin/dates, builtin/numbers, ",
        ),
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
        ["data.source=builtin/recall", "data.examples=50", "data.generate={distractors: 8, symbols: 20}"],
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
