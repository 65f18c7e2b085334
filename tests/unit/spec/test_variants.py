"""Variants: what each means, what is shared, what is refused, and which metrics compare them."""

from __future__ import annotations

import json
import pickle

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from tuneyard_pipelines import spec
from tuneyard_pipelines.ranges import Choice, LogUniform
from tuneyard_pipelines.spec import SpecError, SweepSpec

TWO = """\
version: 1
name: a
task: translation
data: {source: builtin/dates}
model: {num_heads: [1, 2, 4], d_model: 64, dropout: 0.0}
training: {max_tokens: 9000}
search: {trials: 6}
variants:
  small: {model: {num_layers: [1, 2]}, training: {learning_rate: {loguniform: [1.0e-3, 1.0e-2]}}}
  wide: {model: {d_model: 256, num_heads: 4}}
"""
LANGUAGE = """\
name: a
task: language_modeling
data: {source: builtin/stdlib}
training: {max_tokens: 900}
search: {trials: 4}
"""


def accepted(*overrides: str, text: str = TWO) -> SweepSpec:
    return spec.parse(text, file="a.yaml", overrides=overrides)


def refused(*overrides: str, text: str = TWO) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec.parse(text, file="a.yaml", overrides=overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def test_a_variant_is_the_spec_with_what_it_sets():
    read = accepted()
    small, wide = read.by_variant.values()
    assert list(read.by_variant) == ["small", "wide"]
    assert small.ranges == {
        "model.num_heads": Choice((1, 2, 4)),
        "model.num_layers": Choice((1, 2)),
        "training.learning_rate": LogUniform(0.001, 0.01),
    }
    assert wide.ranges == {}, "a value takes the place of the spec's range"
    assert (small.values["model.d_model"], wide.values["model.d_model"]) == (64, 256)
    for one in (small, wide):
        assert (one.values["model.dropout"], one.values["training.max_tokens"]) == (0.0, 9000), "the spec's own stay"
        assert (one.name, one.variants, one.search.trials) == ("a", {}, 3), "trials are shared equally"
    assert wide.values["training.learning_rate"] == 1e-3
    assert read.varied == ("model.num_heads", "model.num_layers", "training.learning_rate")
    assert read.variant("wide") == wide
    with pytest.raises(KeyError):
        read.variant("")


def test_a_range_of_a_variant_takes_the_place_of_a_value():
    wide = accepted("variants.wide.model.d_model=[128, 256]", "variants.wide.model.num_heads=[8]").variant("wide")
    assert wide.ranges == {"model.d_model": Choice((128, 256)), "model.num_heads": Choice((8,))}
    assert wide.at({"model.d_model": 256, "model.num_heads": 8}).model.d_ff == 1024


def test_a_variant_that_sets_nothing_is_the_spec_itself():
    for nothing in ("{}", "{model: {}}", "{data: {tokenizer: {}}}"):
        plain = accepted(f"variants.wide={nothing}").variant("wide")
        assert plain.values == accepted("variants={}").values


def test_a_spec_without_variants_is_its_own_only_one():
    read = accepted("variants={}")
    assert read.by_variant == {"": read}
    assert read.variant("") is read


def test_a_variant_may_set_a_key_back_to_its_default():
    base = "training.label_smoothing=0.2"
    back = accepted(base, "variants.wide.training.label_smoothing=0.0")
    values = [one.values["training.label_smoothing"] for one in back.by_variant.values()]
    assert values == [0.2, 0.0]
    again = SweepSpec.model_validate(back.model_dump(mode="json", by_alias=True))
    assert again == back
    assert again.variant("wide").values["training.label_smoothing"] == 0.0


@pytest.mark.parametrize(("trials", "near"), [(7, "6 or 8"), (1, "2"), (13, "12 or 14")])
def test_trials_that_cannot_be_shared_equally_are_refused_with_near_ones_that_can(trials, near):
    [line] = refused(f"search.trials={trials}")
    assert line == (
        f"--set search.trials={trials}: search.trials: found {trials}; 2 variants have an equal share each: {near}, "
        "for example"
    )


def test_a_grid_tries_every_point_of_each_variant():
    grid = accepted("search={algorithm: grid}", "variants.small.training={}")
    assert [one.search.trials for one in grid.by_variant.values()] == [None, None]


@pytest.mark.parametrize(
    ("override", "key", "message"),
    [
        ("wide.model.n_head=4", "wide.model.n_head", 'unknown key "n_head"; did you mean num_heads?'),
        ("wide.lr=3", "wide.lr", 'unknown key "lr"; did you mean training.learning_rate?'),
        ("wide.modl={}", "wide.modl", 'unknown key "modl"; did you mean model?'),
        ("wide.xyz={}", "wide.xyz", 'unknown key "xyz"; a variant takes model, training, data'),
        ("wide.search={trials: 3}", "wide.search", 'unknown key "search"; a variant takes model, training, data'),
        ("wide.data.source=b.tsv", "wide.data.source", 'unknown key "source"; data takes tokenizer'),
        (
            "wide.model.num_heads=four",
            "wide.model.num_heads",
            'found "four"; allowed: an integer from 1 to 1024, or a range: [a, b, ..], {int: [a, b]}',
        ),
        ("wide.model.dropout=[0.1, 2]", "wide.model.dropout", "choice 2: 2 is not a number from 0 to less than 1"),
        (
            "wide.data.tokenizer.type=words",
            "wide.data.tokenizer.type",
            "allowed: one of char, word, byte, bpe, unigram, or a range",
        ),
        (
            "wide.model.architecture=[gpt, transformer]",
            "wide.model.architecture",
            "it takes one value, not a range; allowed: one of transformer, gpt",
        ),
        ("wide.model.architecture=gpt", "wide.model.architecture", "found gpt; translation takes transformer"),
        ("Wide={}", "Wide", 'found "Wide"; allowed: a name of 1 to 64 of a-z, 0-9, dot, dash and underscore'),
        ("wide=3", "wide", "found 3; allowed: a mapping of model, training, data"),
        ("wide=null", "wide", "found nothing; allowed: a mapping of model, training, data"),
        ("wide.model=null", "wide.model", "found nothing; allowed: a mapping of architecture, d_model"),
        (
            "wide.data.tokenizer.vocab_size=300",
            "wide.data.tokenizer.vocab_size",
            "goes with type: bpe, word, unigram only",
        ),
    ],
)
def test_what_is_wrong_in_a_variant_is_told_with_its_place(override, key, message):
    [line] = refused(f"variants.{override}")
    assert line.startswith(f"--set variants.{override}: variants.{key}: ")
    assert message in line


def test_errors_in_variants_have_the_line_of_the_file():
    text = TWO.replace("{d_model: 256, num_heads: 4}", "{d_model: wide, num_heads: 4, nlayers: 2}")
    assert [line.partition(": found")[0].partition(": unknown")[0] for line in refused(text=text)] == [
        "a.yaml:10: variants.wide.model.d_model",
        "a.yaml:10: variants.wide.model.nlayers",
    ]


@pytest.mark.parametrize("held", ["[1]", "3", "null"])
def test_variants_are_a_mapping(held):
    [line] = refused(f"variants={held}")
    assert "allowed: a mapping of at most 50 names to what each changes" in line


def test_variants_are_at_most_fifty():
    many = {f"v{number}": {} for number in range(51)}
    text = yaml.safe_dump({**yaml.safe_load(TWO), "variants": many, "search": {"trials": 51}})
    assert any("at most 50" in line for line in refused(text=text))


def test_what_the_spec_has_wrong_for_every_variant_is_told_once():
    [line] = refused("search.metric=val/bits_per_byte", "variants={a: {}, b: {}, c: {}}")
    assert "which is not measured in translation" in line
    plain = {
        **yaml.safe_load(TWO),
        "variants": {"a": {}, "b": {}},
        "search": {"metric": "val/bits_per_byte", "trials": 2},
    }
    with pytest.raises(ValidationError) as caught:
        SweepSpec.model_validate(plain)
    assert str(caught.value).count("which is not measured") == 1


def test_each_variant_has_a_budget_of_its_own():
    without = TWO.replace("training: {max_tokens: 9000}\n", "")
    each = ("variants.small.training.max_tokens=100", "variants.wide.training.max_steps=5")
    small, wide = accepted(*each, text=without).by_variant.values()
    assert small.at({"model.num_heads": 1, "model.num_layers": 1, "training.learning_rate": 0.002}).training.budget == (
        "tokens",
        100,
        1,
    )
    assert wide.at({}).training.budget == ("steps", 5, 1)
    lines = refused(each[0], text=without)
    assert any("exactly one of max_tokens, max_steps, max_epochs is needed; found none" in line for line in lines)
    [line] = refused("variants.wide.training.max_steps=5")
    assert "variants.wide.training.max_steps: exactly one of" in line
    assert line.endswith("found max_tokens and max_steps: keep one")


def test_the_rungs_of_a_variant_follow_from_its_own_ranges_and_trials():
    read = accepted()
    assert read.variant("small").rungs() == pytest.approx((1 / 9, 1 / 3, 1))
    assert read.variant("wide").rungs() == (1.0,), "one point has nobody to be compared with"
    assert accepted("search.trials=2").variant("small").rungs() == (1.0,), "so has one trial"


def test_a_grid_refuses_the_continuous_range_of_a_variant_where_it_stands():
    [line] = refused("search.algorithm=grid")
    assert line.startswith("a.yaml:9: variants.small.training.learning_rate: found {loguniform: [0.001, 0.01]}")


def test_a_spec_with_variants_survives_json_and_pickling():
    read = accepted("register={name: dates}")
    plain = read.model_dump(mode="json", by_alias=True)
    assert plain["variants"] == {
        "small": {"model": {"num_layers": [1, 2]}, "training": {"learning_rate": {"loguniform": [0.001, 0.01]}}},
        "wide": {"model": {"d_model": 256, "num_heads": 4}},
    }, "what a variant does not set stays unset"
    again = SweepSpec.model_validate(json.loads(json.dumps(plain)))
    assert again == read
    for name, one in read.by_variant.items():
        assert again.variant(name).values == one.values
        thawed = pickle.loads(pickle.dumps(one))
        assert (thawed.values, thawed.rungs(), thawed.search) == (one.values, one.rungs(), one.search)
    thawed = pickle.loads(pickle.dumps(read))
    assert thawed == read
    assert thawed.variant("small").ranges == read.variant("small").ranges


def test_the_schema_takes_variants_and_closes_them():
    validator = jsonschema.Draft202012Validator(spec.json_schema())
    good = yaml.safe_load(TWO)
    validator.validate(good)
    for bad in (
        {"wide": {"model": {"n_head": 3}}},
        {"wide": {"search": {}}},
        {"wide": {"data": {"source": "a.tsv"}}},
        {"wide": {"model": {"num_heads": "four"}}},
        {"wide": 3},
        {"Wide": {}},
    ):
        assert not validator.is_valid({**good, "variants": bad}), bad


def test_no_metric_of_language_modeling_compares_normal_forms():
    normal_forms = "data.tokenizer.normalization=[nfc, nfkc]"
    [line] = refused(normal_forms, text=LANGUAGE)
    assert "val/bits_per_byte cannot be compared while data.tokenizer.normalization varies; give data.token" in line
    assert line.endswith("data.tokenizer.normalization one value")
    assert accepted(normal_forms).metric == "val/exact_match"


def test_a_variant_keeps_the_keys_that_go_with_its_type_of_tokenizer():
    read = accepted(
        "data.tokenizer={type: word, vocab_size: 900, segmenter: jieba}",
        "variants={a: {data: {tokenizer: {type: bpe}}}, b: {data: {tokenizer: {type: byte}}}, c: {}}",
    )
    kept = {name: one.data.tokenizer for name, one in read.by_variant.items()}
    assert {name: (one.vocab_size, one.segmenter) for name, one in kept.items()} == {
        "a": (900, "none"),
        "b": (4000, "none"),
        "c": (900, "jieba"),
    }


TOKENIZERS = "{a: {data: {tokenizer: {type: byte}}}, b: {data: {tokenizer: {type: char}}}}"
SIZES = "{a: {data: {tokenizer: {type: bpe, vocab_size: 300}}}, b: {data: {tokenizer: {type: bpe, vocab_size: 500}}}}"
SMOOTHING = "{a: {training: {label_smoothing: 0.1}}, b: {}}"
DIFFERENT = [
    pytest.param(("data.tokenizer.type=[char, byte]",), "data.tokenizer.type", id="range of types"),
    pytest.param(
        ("data.tokenizer.type=bpe", "data.tokenizer.vocab_size=[300, 500]"),
        "data.tokenizer.vocab_size",
        id="range of sizes",
    ),
    pytest.param(("training.label_smoothing=[0, 0.1]",), "training.label_smoothing", id="range of smoothing"),
    pytest.param((f"variants={TOKENIZERS}",), "data.tokenizer.type", id="two types"),
    pytest.param(
        ("data.tokenizer={type: word, segmenter: [none, jieba]}",), "data.tokenizer.segmenter", id="segmenters"
    ),
    pytest.param((f"variants={SIZES}",), "data.tokenizer.vocab_size", id="two sizes"),
    pytest.param((f"variants={SMOOTHING}",), "training.label_smoothing", id="two smoothings"),
]


@pytest.mark.parametrize(("overrides", "varied"), DIFFERENT)
@pytest.mark.parametrize("metric", ["val/loss", "val/perplexity", "val/accuracy"])
def test_s12_what_means_something_else_in_another_trial_is_refused_with_what_does_not(metric, overrides, varied):
    smoothing = varied == "training.label_smoothing"
    if metric == "val/accuracy" and smoothing:
        assert accepted(f"search.metric={metric}", *overrides, text=LANGUAGE).metric == metric
        return
    [line] = refused(f"search.metric={metric}", *overrides, text=LANGUAGE)
    assert f"search.metric: {metric} cannot be compared while {varied} varies; use one of " in line
    comparable = line.partition("use one of ")[2].split(", ")
    assert comparable == ["val/bits_per_byte", *(["val/accuracy"] if smoothing else [])]
    for other in comparable:
        assert accepted(f"search.metric={other}", *overrides, text=LANGUAGE).metric == other


@pytest.mark.parametrize("overrides", [(f"variants={TOKENIZERS}",), (f"variants={SIZES}",)], ids=["types", "sizes"])
def test_s12_translation_is_told_its_own_metrics(overrides):
    for metric in ("val/loss", "val/perplexity", "val/accuracy"):
        [line] = refused(f"search.metric={metric}", *overrides)
        assert line.endswith("use one of val/exact_match, val/bleu, val/chrf")
    assert accepted(*overrides).metric == "val/exact_match"


def test_s12_bits_per_byte_is_what_a_language_model_is_compared_by_if_nothing_is_said():
    read = accepted(f"variants={TOKENIZERS}", text=LANGUAGE)
    assert (read.metric, read.mode) == ("val/bits_per_byte", "min")


def test_s12_variants_that_share_what_matters_are_compared_by_loss():
    same = "{a: {training: {label_smoothing: 0.1}, model: {d_model: 32}}, b: {training: {label_smoothing: 0.1}}}"
    assert accepted("search.metric=val/loss", f"variants={same}", text=LANGUAGE).metric == "val/loss"


@pytest.mark.parametrize(
    ("text", "metric", "measured"),
    [
        (LANGUAGE, "val/bleu", "val/bits_per_byte, val/accuracy, val/loss, val/perplexity"),
        (LANGUAGE, "val/exact_match", "val/bits_per_byte, val/accuracy, val/loss, val/perplexity"),
        (TWO, "val/bits_per_byte", "val/exact_match, val/accuracy, val/bleu, val/chrf, val/loss, val/perplexity"),
    ],
)
def test_s12_a_metric_that_the_task_does_not_measure_is_refused(text, metric, measured):
    [line] = refused(f"search.metric={metric}", text=text)
    task = "translation" if text == TWO else "language_modeling"
    assert line.endswith(f"found {metric}, which is not measured in {task}; use one of {measured}")
