from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.ranges import Choice, Integers, LogUniform, Uniform
from tuneyard_pipelines.spec import SpecError

SMALLEST = """\
version: 1
name: dates
task: translation
data:
  source: builtin/dates
training:
  max_tokens: 3000000
"""


def accepted(more: str = "", *overrides: str) -> spec.SweepSpec:
    return spec.parse(SMALLEST + more, file="dates.yaml", overrides=overrides)


def refused(text: str, *overrides: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        spec.parse(text, file="dates.yaml", overrides=overrides)
    assert caught.value.exit_code == 2
    assert all(problem.place for problem in caught.value.problems)
    return str(caught.value).splitlines()


def test_defaults_of_the_smallest_spec():
    read = accepted()
    config = read.at({})
    assert read.ranges == {}
    assert (config.model.d_model, config.model.d_ff, config.training.batch_tokens) == (128, 512, 4096)
    assert (read.metric, read.mode, read.rungs()) == ("val/exact_match", "max", (1.0,))
    assert config.training.budget == ("tokens", 3_000_000, 1)
    resources = read.resources_at({})
    assert (resources.memory_per_worker_bytes, resources.stall_timeout_s) == (4 << 30, 600)


@pytest.mark.parametrize(
    ("written", "held"),
    [
        ("model.num_heads=[1, 2, 4]", Choice((1, 2, 4))),
        ("model.num_heads=[4]", Choice((4,))),
        ("model.num_heads={int: [1, 3]}", Integers(1, 3)),
        ("model.num_heads={int: [2, 2]}", Integers(2, 2)),
        ("model.sequence_length={int: [16, 64], step: 16}", Integers(16, 64, 16)),
        ("model.dropout={uniform: [0, 0.5]}", Uniform(0.0, 0.5)),
        ("training.learning_rate={loguniform: [1e-3, 1e-2]}", LogUniform(1e-3, 1e-2)),
        ("model.positions=[learned, sinusoidal]", Choice(("learned", "sinusoidal"))),
        ("model.dropout=[0, 0.1]", Choice((0.0, 0.1))),
        ("model.d_ff=[128, 256]", Choice((128, 256))),
        ("data.tokenizer.type=[char, bpe]", Choice(("char", "bpe"))),
    ],
)
def test_every_form_of_range(written, held):
    read = accepted("", written, "search.trials=3")
    assert list(read.ranges.values()) == [held]
    assert spec.SweepSpec.model_validate_json(read.model_dump_json(by_alias=True)) == read
    assert spec.SweepSpec.model_validate(read.model_dump(mode="json", by_alias=True)) == read


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("model.num_heads=[]", "an empty list leaves nothing to try"),
        ("model.num_heads=[4, 4]", "choice 2: 4 stands twice"),
        ("model.dropout=[0.5, 5e-1]", "choice 2: 0.5 stands twice"),
        ("model.num_heads=[4, four]", 'choice 2: "four" is not an integer from 1 to 1024'),
        ("model.num_heads=[4, 2.5]", "choice 2: 2.5 is not an integer"),
        ("model.num_heads=[4, true]", "choice 2: true is not an integer"),
        ("model.num_heads=[4, null]", "choice 2: nothing is not an integer"),
        ("model.num_heads=[[1, 2], 4]", "choice 1: [1, 2] is not an integer"),
        ("model.dropout=[0.1, 2]", "choice 2: 2 is not a number from 0 to less than 1"),
        ("model.dropout={uniform: [0.1, 2]}", "high end: 2 is not a number from 0 to less than 1"),
        ("model.dropout={uniform: [0.5, 0.1]}", "the first end must be below the second"),
        ("model.dropout={uniform: [0.1, 0.1]}", "the first end must be below the second"),
        ("model.dropout={uniform: 0.1}", "uniform takes its two ends"),
        ("model.dropout={uniform: [0.1, 0.2, 0.3]}", "uniform takes its two ends"),
        ("model.dropout={uniform: [0.1, 0.2], step: 1}", "step goes with int only"),
        ("training.warmup={loguniform: [0, 0.1]}", "both ends must be above 0"),
        ("training.learning_rate={loguniform: [-1, 0.1]}", "low end: -1 is not a number above 0"),
        ("model.num_layers={int: [3, 1]}", "the first end must not be above the second"),
        ("model.num_layers={int: [1, 10], step: 4}", "reaches 9, not 10; write {int: [1, 9], step: 4}"),
        ("model.num_layers={int: [1, 3], step: 0}", "step 0: must be a whole number of at least 1"),
        ("model.num_layers={uniform: [1, 3]}", "write one of [a, b, ..], {int: [a, b]}"),
        ("model.num_layers={choice: [1, 3]}", "write one of [a, b, ..], {int: [a, b]}"),
        ("model.num_layers={int: [1, 3], uniform: [1, 3]}", "not a form of range"),
        ("model.positions=[learned, alibi]", 'choice 2: "alibi" is not one of sinusoidal, learned, rotary'),
        ("model.positions={int: [1, 2]}", "write one of [a, b, ..]"),
    ],
)
def test_a_range_is_held_to_its_key_and_to_its_form(written, message):
    [line] = refused(SMALLEST, written, "search.trials=3")
    assert message in line
    assert line.startswith(f"--set {written}: {written.partition('=')[0]}: found ")


@pytest.mark.parametrize(
    "key",
    [
        "task",
        "name",
        "register.name",
        "seed",
        "model.architecture",
        "data.source",
        "data.split.test",
        "search.algorithm",
        "search.trials",
        "search.metric",
        "search.scheduler.min_share",
        "resources.on_idle_gpu",
    ],
)
@pytest.mark.parametrize("held", ["[1, 2]", "{uniform: [0.1, 0.2]}", "{int: [1, 2]}"])
def test_s4_a_range_where_one_value_is_needed_is_refused_with_the_path(key, held):
    lines = refused(SMALLEST, f"{key}={held}")
    assert any(f": {key}: found " in line and "it takes one value, not a range; allowed: " in line for line in lines)


def test_s4_a_range_of_schedulers_is_refused():
    [line] = refused(SMALLEST, "search.scheduler=[none, asha]")
    assert 'search.scheduler: found ["none", "asha"]; allowed: none, asha, or {type: asha' in line


@pytest.mark.parametrize(
    ("written", "number"),
    [("1e-3", 1e-3), ("1.0e-3", 1e-3), ("1E-3", 1e-3), (".001", 1e-3), ("1e0", 1.0), ("1", 1.0), ("1.", 1.0)],
)
def test_s5_a_number_is_a_number_however_it_is_written(written, number):
    config = accepted("", f"training.learning_rate={written}").at({})
    assert type(config.training.learning_rate) is float
    assert config.training.learning_rate == number


def test_s5_numbers_inside_ranges_and_whole_numbers():
    read = accepted(
        "search: {trials: 2}\n", "training.learning_rate={loguniform: [1e-3, 1e-2]}", "training.max_tokens=3e6"
    )
    assert read.ranges == {"training.learning_rate": LogUniform(0.001, 0.01)}
    assert read.values["training.max_tokens"] == 3_000_000
    assert type(read.values["training.max_tokens"]) is int


def test_s5_a_quoted_number_is_text_and_refused_by_name():
    [line] = refused(SMALLEST + "model:\n  d_model: '64'\n")
    assert line == (
        'dates.yaml:9: model.d_model: found "64"; allowed: an integer from 1 to 16384, '
        "or a range: [a, b, ..], {int: [a, b]}"
    )


@pytest.mark.parametrize(
    ("section", "word", "meant"),
    [
        ("training", "lr", "learning_rate"),
        ("model", "heads", "num_heads"),
        ("model", "num_head", "num_heads"),
        ("model", "numHeads", "num_heads"),
        ("model", "Num-Heads", "num_heads"),
        ("model", "learning_rate", "training.learning_rate"),
        ("search", "max_concurent_trials", "max_concurrent_trials"),
    ],
)
def test_s6_did_you_mean(section, word, meant):
    text = SMALLEST.replace("training:\n", f"training:\n  {word}: 3\n") if section == "training" else ""
    lines = refused(text or SMALLEST + f"{section}:\n  {word}: 3\n")
    assert [line for line in lines if f'{section}.{word}: unknown key "{word}"; did you mean {meant}?' in line]


def test_s6_a_known_key_at_the_top_is_told_its_section():
    [line] = refused(SMALLEST + "num_heads: 4\n")
    assert line == 'dates.yaml:8: num_heads: unknown key "num_heads"; did you mean model.num_heads?'


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("hidden_size", "model.d_model"),
        ("n_embd", "model.d_model"),
        ("n_head", "model.num_heads"),
        ("nhead", "model.num_heads"),
        ("n_heads", "model.num_heads"),
        ("heads", "model.num_heads"),
        ("n_layer", "model.num_layers"),
        ("num_hidden_layers", "model.num_layers"),
        ("layers", "model.num_layers"),
        ("block_size", "model.sequence_length"),
        ("context_length", "model.sequence_length"),
        ("max_seq_len", "model.sequence_length"),
        ("seq_len", "model.sequence_length"),
        ("max_seq_length", "model.sequence_length"),
        ("lr", "training.learning_rate"),
        ("batch_size", "training.batch_tokens"),
        ("dropout_rate", "model.dropout"),
        ("attn_pdrop", "model.dropout"),
        ("epochs", "training.max_epochs"),
        ("steps", "training.max_steps"),
        ("num_samples", "search.trials"),
        ("n_trials", "search.trials"),
        ("gpus", "resources.gpus_per_worker"),
        ("num_gpus", "resources.workers"),
        ("nproc_per_node", "resources.workers"),
        ("world_size", "resources.workers"),
    ],
)
def test_s14_other_tools_words_are_refused_with_ours(word, meant):
    [line] = refused(SMALLEST + f"{word}: 3\n")
    assert line.startswith(f'dates.yaml:8: {word}: unknown key "{word}"; did you mean {meant}')
    section, _, key = meant.rpartition(".")
    if section in ("model", "search"):
        [line] = refused(SMALLEST + f"{section}:\n  {word}: 3\n")
        assert f"dates.yaml:9: {section}.{word}" in line
        assert f"did you mean {key}" in line


def test_every_foreign_word_leads_to_a_key_that_exists():
    from tuneyard_pipelines.spec_errors import all_keys
    from tuneyard_pipelines.vocabulary import FOREIGN

    known = set(all_keys(spec.SweepSpec))
    assert set(FOREIGN.values()) <= known
    ours = {key.rpartition(".")[2] for key in known}
    assert ours & FOREIGN.keys() == {"max_length"}  # of data.generate; elsewhere it stands for sequence_length


def test_s9_grid_over_a_continuous_range_is_refused_with_the_forms_it_takes():
    [line] = refused(SMALLEST + "search: {algorithm: grid}\nmodel:\n  dropout: {uniform: [0, 0.5]}\n")
    assert line.startswith("dates.yaml:10: model.dropout: found {uniform: [0.0, 0.5]}, a continuous range")
    assert "grid takes a list [a, b, ..] or, for whole numbers, {int: [a, b], step: n}" in line
    assert "random or tpe" in line


@pytest.mark.parametrize("name", ["pbt", "hyperband", "median"])
def test_s11_an_unknown_scheduler_or_algorithm_is_refused_with_those_that_exist(name):
    [line] = refused(SMALLEST + f"search:\n  scheduler: {name}\n")
    assert line.startswith(f'dates.yaml:9: search.scheduler: found "{name}"; allowed: none, asha, or {{type: asha')
    lines = refused(SMALLEST + f"search:\n  scheduler: {{type: {name}}}\n")
    assert f'search.scheduler.type: found "{name}"; allowed: none, asha' in lines[0]
    [line] = refused(SMALLEST + f"search:\n  algorithm: {name}\n")
    assert f'search.algorithm: found "{name}"; allowed: one of tpe, random, grid' in line


@pytest.mark.parametrize("metric", ["val/loss", "val/perplexity"])
@pytest.mark.parametrize(
    "varied",
    [
        ("data.tokenizer.type=[char, bpe]",),
        ("data.tokenizer.type=bpe", "data.tokenizer.vocab_size=[300, 500]"),
        ("training.label_smoothing={uniform: [0, 0.1]}",),
    ],
)
def test_s12_what_cannot_be_compared_is_refused(metric, varied):
    [line] = refused(SMALLEST, f"search.metric={metric}", "search.trials=4", *varied)
    assert f"search.metric: {metric} cannot be compared while {varied[-1].partition('=')[0]} varies" in line
    assert "use one of val/exact_match" in line
    assert "val/loss," not in line
    assert accepted("", f"search.metric={metric}").mode == "min"


def test_s12_token_accuracy_depends_on_the_tokenizer_but_not_on_label_smoothing():
    varied = "training.label_smoothing=[0, 0.1]"
    assert accepted("", "search.metric=val/accuracy", "search.trials=2", varied).mode == "max"
    [line] = refused(SMALLEST, "search.metric=val/accuracy", "search.trials=2", "data.tokenizer.type=[char, bpe]")
    assert "use one of val/exact_match, val/bleu, val/chrf" in line


def test_all_problems_of_a_file_are_told_at_once_in_order_with_their_lines():
    lines = refused(
        """\
name: Dates
task: translation
data:
  source: builtin/dates
  tokenizer: {type: char}
model:
  num_heads: four
  n_layer: 2
  dropout: [0.1, 2]
training:
  max_tokens: 1000
  max_steps: 10
search:
  trials: no
constraints:
  - num_heads < 3
  - hedas < 3
tags: {year: 2024}
""",
        "model.d_model=wide",
    )
    places = [line.split(": ")[:2] for line in lines]
    assert places == [
        ["dates.yaml:1", "name"],
        ["dates.yaml:7", "model.num_heads"],
        ["dates.yaml:8", "model.n_layer"],
        ["dates.yaml:9", "model.dropout"],
        ["dates.yaml:12", "training.max_steps"],
        ["dates.yaml:14", "search.trials"],
        ["dates.yaml:17", "constraints[1]"],
        ["dates.yaml:18", "tags.year"],
        ["--set model.d_model=wide", "model.d_model"],
    ]
    assert 'found "four"; allowed: an integer from 1 to 1024, or a range: [a, b, ..], {int: [a, b]}' in lines[1]


def test_a_file_of_thousands_of_problems_tells_the_first_hundred():
    lines = refused("\n".join(f"key{number}: 1" for number in range(3_000)))
    assert len(lines) == 101
    assert lines[-1] == "dates.yaml: and more than 100 problems in all"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{}", "training: exactly one of max_tokens, max_steps, max_epochs is needed; found none"),
        ("{max_tokens: 5, max_epochs: 1}", "training.max_epochs: exactly one of"),
        ("{max_steps: 0}", "training.max_steps: found 0; allowed: an integer from 1"),
        ("{max_epochs: .inf}", "training.max_epochs: found .inf; not a finite number"),
        ("{max_epochs: -.INF}", "training.max_epochs: found -.INF; not a finite number"),
        ("{max_epochs: .nan}", "training.max_epochs: found .nan; not a finite number"),
        ("{max_epochs: 1e999}", "training.max_epochs: found 1e999; too large for a number"),
    ],
)
def test_a_budget_is_exactly_one(given, message):
    lines = refused(SMALLEST, f"training={given}")
    assert message in lines[0]


def test_asha_compares_at_one_budget():
    varied = "training.max_tokens=[1000, 2000]"
    [line] = refused(SMALLEST, varied, "search.trials=2")
    assert "training.max_tokens: a range; asha compares at shares of one budget" in line
    assert accepted("", varied, "search.trials=2", "search.scheduler=none").rungs() == (1.0,)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.num_heads=[1, 2]"], "search.trials: missing; tpe must know how many points to try"),
        (["data.tokenizer.vocab_size=300"], "data.tokenizer.vocab_size: goes with type: bpe, word, unigram only"),
        (
            ["data.tokenizer.type=[char, bpe]", "data.tokenizer.vocab_size=[300, 400]", "search.trials=2"],
            "char would be tried twice",
        ),
        (["search.scheduler={type: none, min_share: 0.2}"], "search.scheduler.min_share: goes with type: asha only"),
        (["search.scheduler={type: asha, min_share: 0.5}"], "no rung lies below the full budget: at most 0.3333"),
        (["data.columns={source: 1, target: 2}"], "data.columns: goes with a file only, not with builtin/dates"),
        (["data.header=true"], "data.header: goes with a file only"),
        (["data.source=pairs.tsv", "data.examples=50"], "data.examples: goes with builtin/dates, builtin/numbers, "),
        (["data.source=pairs.tsv", "data.columns={source: 1, target: 1}"], "found 1 for source and target"),
        (
            ["data.source=pairs.tsv", "data.columns={source: 0, target: 1}"],
            "data.columns.source: found 0; allowed: a col",
        ),
        (
            ["data.source=pairs.tsv", "data.columns={source: text, target: 2}"],
            'data.columns.source: found "text" while header is false',
        ),
        (["data.source=pairs.xls"], 'data.source: found "pairs.xls"; allowed: one of builtin/dates, builtin/numbers,'),
        (["data.source=builtin/number"], 'no built-in data "builtin/number"; there is builtin/dates'),
        (["data.split.test=0.5"], "data.split.test: found 0.5; allowed: a share above 0 and below 0.5"),
        (["register={name: a/b}"], 'register.name: found "a/b"; allowed: 1 to 64 of a-z'),
        (["register=dates"], 'register: found "dates"; allowed: a mapping such as {name: dates}'),
        (["resources.stall_timeout=600"], "resources.stall_timeout: found 600; allowed: a duration"),
        (["resources.stall_timeout=10 minutes"], "allowed: a duration of 1s to 7d such as 90s, 10m or 1h30m"),
        (["resources.memory_per_worker=4 gigs"], "allowed: an amount of memory"),
        (["resources.gpus_per_worker=-1"], "resources.gpus_per_worker: found -1; allowed: 0, a share of a GPU"),
        (["version=2"], "version: found 2; allowed: 1"),
        (["task=translatoin"], "did you mean translation?"),
        (["budgets={wall_clock: 20m}"], 'budgets: unknown key "budgets"; did you mean budget?'),
        (["zzz=1"], 'zzz: unknown key "zzz"; a spec takes version, name'),
        (["description=" + "x" * 7_000], "allowed: text of at most 4000 characters"),
        (['description="a\\u0000b"'], "character 2 is U+0000, a control character"),
        (["constraints=num_heads < 3"], "allowed: a list of at most 100 expressions"),
        (["model=3"], "model: found 3; allowed: a mapping of architecture, d_model"),
        (["model="], "model: found nothing; allowed: a mapping of architecture"),
        (["seed=-1"], "seed: found -1; allowed: an integer from 0 to 4,294,967,295"),
        (["data.header=yes"], "data.header: found yes; some YAML readers take it for a boolean; write true, false"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides, message):
    lines = refused(SMALLEST, *overrides)
    assert any(message in line for line in lines), lines
    assert all(len(line) < 500 for line in lines)


def test_missing_keys_are_named():
    lines = refused("seed: 1\n")
    assert [line.split(": ")[1] for line in lines] == ["name", "task", "data", "training"]
    [line] = refused(SMALLEST.replace("source: builtin/dates", "examples: 100"))
    assert line.startswith("dates.yaml:4: data.source: missing; it takes one of builtin/dates, builtin/numbers,")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "dates.yaml: found an empty file; a spec is a mapping"),
        ("# only a comment\n", "found an empty file"),
        ("- name: a\n", 'found [{name: "a"}] at the top; a spec is a mapping'),
        ("42", "found 42 at the top"),
        ("\tname: a\n", "dates.yaml:1: a tab begins the line or a value"),
        ("name: a\nmodel:\n\td_model: 3\n", "dates.yaml:3: a tab begins the line or a value"),
        ("name: a\n---\nname: b\n", "dates.yaml:2: a second document begins"),
        ("a: &x [1]\nb: *x\n", "dates.yaml:1: &x: anchors and aliases are not read; write the value out"),
        ("b: *x\n", "dates.yaml:1: *x: anchors and aliases are not read"),
        ("name: !!python/object/apply:os.system [ls]\n", "is not read; leave it out"),
        ("name: !secret x\n", "the tag !secret is not read"),
        ("name: [1, 2\n", "dates.yaml:2: not YAML: did not find expected"),
        ("name: 'a\n", "not YAML: found unexpected end of stream"),
        ("name: a: b\n", "dates.yaml:1: not YAML: mapping values are not allowed"),
        ("? [a, b]\n: c\n", "dates.yaml:1: a key must be a plain word"),
        ("a: " + "[" * 40, "nested more than 16 levels deep"),
        ("name: a\x00b\n", "control characters are not allowed"),
        ("name: \ud800\n", "half a character"),
        ("a: [" + "1, " * 30_000 + "1]\n", "more than 20,000 entries"),
        ("#" * (1 << 20) + "\n", "larger than 1,048,576 bytes"),
        ("#" + "字" * 400_000 + "\n", "larger than 1,048,576 bytes"),
    ],
)
def test_text_that_holds_no_spec(text, message):
    [line] = refused(text)
    assert message in line


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no", "take it for a boolean"),
        ("On", "take it for a boolean"),
        ("010", "take it for octal"),
        ("0o10", "take it for octal"),
        ("0x1F", "not a decimal number"),
        ("10:30", "count it in sixties"),
        ("1:30:00", "count it in sixties"),
        ("9" * 200, "too many digits"),
    ],
)
def test_what_reads_two_ways_is_refused_even_where_text_is_taken(value, reason):
    [line] = refused(SMALLEST + f"tags: {{note: {value}}}\n")
    assert line.startswith("dates.yaml:8: tags.note: found ")
    assert reason in line
    assert accepted(f'tags: {{note: "{value}"}}\n').tags == {"note": value}


def test_plain_words_that_look_like_other_things_stay_text():
    tags = accepted("tags: {a: 2024-01-01, b: 'no', c: y, d: 1.2.3, 1e3: x, on: z}\n").tags
    assert tags == {"a": "2024-01-01", "b": "no", "c": "y", "d": "1.2.3", "1e3": "x", "on": "z"}
    assert accepted("", "training.max_tokens=3_000_000").values["training.max_tokens"] == 3_000_000


def test_duplicate_keys_are_refused_with_both_lines():
    [line] = refused(SMALLEST + "model:\n  d_model: 64\n  d_model: 128\n")
    assert line == "dates.yaml:10: model.d_model: stands twice (first at dates.yaml:9); keep one"


def test_overrides_are_read_as_yaml_and_named_as_the_place():
    read = accepted("", "model.d_model=256", "training.learning_rate={loguniform: [1e-4, 1e-3]}", "search.trials=5")
    assert read.values["model.d_model"] == 256
    assert read.ranges["training.learning_rate"] == LogUniform(1e-4, 1e-3)
    assert accepted("", "model.d_model=64", "model.d_model=32").values["model.d_model"] == 32
    assert accepted("model: {d_model: no}\n", "model.d_model=32").values["model.d_model"] == 32
    for wrong, message in [
        ("model.d_model", "write KEY=VALUE"),
        ("=3", "write KEY=VALUE"),
        ("model..d_model=3", "write KEY=VALUE"),
        ("model.d_model=[1", "not YAML"),
        ("name.first=3", 'name: holds "dates", and so no key first'),
        ("model.dmodel=3", "did you mean d_model?"),
        ("model.d_model=10:30", "count it in sixties"),
    ]:
        [line] = refused(SMALLEST, wrong)
        assert line.startswith(f"--set {wrong}: ")
        assert message in line


def test_budget_by_override_names_the_other_one():
    [line] = refused(SMALLEST, "training.max_steps=10")
    assert "found max_tokens and max_steps: keep one" in line


def test_r12_long_and_chinese_texts_are_kept_or_refused_by_name():
    long = "字" * 7_000
    assert accepted("", f"tags={{备注: {long}}}").tags == {"备注": long}
    [line] = refused(SMALLEST, f"tags={{a: {'字' * 8_001}}}")
    assert "tags.a: found 8,001 characters; a tag holds at most 8,000" in line
    [line] = refused(SMALLEST, f"tags={{{'字' * 1_000}: a}}")
    assert "the name has 1,000 characters" in line
    [line] = refused(SMALLEST, f'tags={{? "{long}" : a}}')
    assert "the name has 7,000 characters" in line
    assert len(line) < 500


@pytest.mark.parametrize("name", ["mlflow.note", "tuneyard.outcome", "../x", "/x", "a//b", ".", "a@b", ""])
def test_r12_tag_names_that_mlflow_would_change_or_refuse(name):
    [line] = refused(SMALLEST, f"tags={{'{name}': a}}")
    assert "a tag's name has 1 to 250 letters" in line


def test_more_tags_than_are_kept():
    [line] = refused(SMALLEST, "tags={" + ", ".join(f"t{number}: a" for number in range(51)) + "}")
    assert "found 51 tags; at most 50 are kept" in line


def test_s7_a_run_name_is_short_whatever_the_point_holds():
    point = {"model.num_heads": 4, "model.num_layers": 2, "model.sequence_length": 32}
    assert spec.display_name(7, point) == "t07 heads=4 layers=2 length=32"
    assert (
        spec.display_name(12, {"training.learning_rate": 0.0034567, "model.d_model": 64}) == "t12 lr=0.00346 width=64"
    )
    assert spec.display_name(123, {"data.tokenizer.type": "bpe"}) == "t123 tokenizer=bpe"
    assert spec.display_name(1, {}) == "t01"
    many = {f"model.a_rather_long_key_{number}": "字 / " * 100 for number in range(25)}
    assert len(spec.display_name(1, many)) == 120


def test_short_names_are_unique_over_all_keys():
    keys = list(accepted().values)
    assert len({spec.short_name(key) for key in keys}) == len(keys)
    read = accepted("", "model.num_heads=[1, 2]", "training.warmup=[0.1, 0.2]", "search.trials=3")
    assert read.short_names == {"model.num_heads": "heads", "training.warmup": "warmup"}


def test_a_point_becomes_a_whole_configuration():
    read = accepted("", "model.num_heads=[2, 4]", "data.tokenizer.type=[char, bpe]", "search.trials=3")
    flat = read.at({"model.num_heads": 2, "data.tokenizer.type": "bpe"}).flat()
    assert (flat["model.num_heads"], flat["model.d_ff"], flat["data.tokenizer.vocab_size"]) == (2, 512, 4000)
    assert flat["training.max_tokens"] == 3_000_000
    assert "training.max_steps" not in flat
    assert "data.tokenizer.vocab_size" not in read.at({"model.num_heads": 2, "data.tokenizer.type": "char"}).flat()
    for point in ({}, {"model.num_heads": 2}, {"model.num_heads": 2, "data.tokenizer.type": "bpe", "seed": 1}):
        with pytest.raises(ValueError, match=r"a point of dates holds model\.num_heads, data\.tokenizer\.type"):
            read.at(point)


def test_a_spec_and_a_configuration_travel_between_processes():
    read = accepted("", "model.num_heads=[1, 2]", "search.trials=2")
    again = pickle.loads(pickle.dumps(read))
    assert again == read
    assert again.at({"model.num_heads": 2}) == pickle.loads(pickle.dumps(read.at({"model.num_heads": 2})))


@pytest.mark.parametrize(
    ("scheduler", "rungs"),
    [
        ("asha", (1 / 9, 1 / 3, 1.0)),
        ("none", (1.0,)),
        ("{type: asha, min_share: 0.34, reduction_factor: 2}", (0.5, 1.0)),
        ("{type: asha, min_share: 0.25, reduction_factor: 2}", (0.25, 0.5, 1.0)),
        ("{type: asha, min_share: 0.12}", (1 / 3, 1.0)),
        ("{type: asha, min_share: 0.01, reduction_factor: 10}", (0.01, 0.1, 1.0)),
        ("{type: none}", (1.0,)),
    ],
)
def test_rungs_are_powers_of_the_reduction_factor_down_to_the_least_share(scheduler, rungs):
    read = accepted("", f"search.scheduler={scheduler}", "model.num_heads=[1, 2]", "search.trials=9")
    assert read.rungs() == rungs
    assert accepted("", f"search.scheduler={scheduler}", "model.num_heads=[1, 2]", "search.trials=1").rungs() == (1.0,)
    assert spec.SweepSpec.model_validate_json(read.model_dump_json(by_alias=True)).rungs() == rungs


def test_a_data_file_counts_from_the_folder_of_the_spec_and_must_exist(tmp_path):
    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    path = tmp_path / "sweep.yaml"
    path.write_text(SMALLEST.replace("builtin/dates", "pairs.tsv"))
    assert spec.load(path).data.source == str(tmp_path / "pairs.tsv")
    with pytest.raises(
        SpecError, match=r"sweep.yaml:5: data.source: .*absent.tsv does not exist; a relative path counts"
    ):
        path.write_text(SMALLEST.replace("builtin/dates", "absent.tsv")) and spec.load(path)
    (tmp_path / "folder.tsv").mkdir()
    with pytest.raises(SpecError, match=r"folder\.tsv is no file"):
        spec.load(path, ["data.source=folder.tsv"])


def test_a_data_file_named_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "pairs.txt").write_text("a\tb\n")
    (tmp_path / "specs" / "sweep.yaml").write_text(SMALLEST.replace("builtin/dates", "pairs.txt"))
    monkeypatch.chdir(tmp_path)
    assert spec.load(Path("specs/sweep.yaml")).data.source == str(tmp_path / "specs" / "pairs.txt")


def test_files_that_cannot_be_read(tmp_path):
    cases = {
        tmp_path / "absent.yaml": "no such file",
        tmp_path: "this is a folder; name the spec file in it",
        tmp_path / "x\0y.yaml": "cannot be read",
    }
    (tmp_path / "latin.yaml").write_bytes(b"name: a\ndescription: caf\xe9\n")
    cases[tmp_path / "latin.yaml"] = "latin.yaml:2: byte 0xe9 is not UTF-8; save the file as UTF-8 text"
    (tmp_path / "wide.yaml").write_bytes("name: a\n".encode("utf-16"))
    cases[tmp_path / "wide.yaml"] = "is UTF-16 text; save it as UTF-8"
    (tmp_path / "big.yaml").write_bytes(b"#" * (1 << 20) + "字".encode())
    cases[tmp_path / "big.yaml"] = "larger than 1,048,576 bytes"
    if os.geteuid() != 0:
        (tmp_path / "closed.yaml").touch(mode=0)
        cases[tmp_path / "closed.yaml"] = "cannot be read (Permission denied)"
    for path, message in cases.items():
        with pytest.raises(SpecError) as caught:
            spec.load(path)
        assert message in str(caught.value)
        assert len(caught.value.problems) == 1


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path):
    path = tmp_path / "sweep.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALLEST.replace("\n", "\r\n").encode())
    assert spec.load(path).name == "dates"
