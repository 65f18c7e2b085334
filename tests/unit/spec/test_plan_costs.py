"""What a plan says of models, variants and time, and how sure it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.cost import Speed
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.plan import Machine, duration, extremes, plan
from tuneyard_pipelines.spec import SweepSpec

EXAMPLES = Path(__file__).parents[3] / "examples"
GPT = """\
name: a
task: language_modeling
data: {source: builtin/stdlib, tokenizer: {type: byte}}
model: {d_model: [8, 16], num_heads: 1, num_layers: [1, 2], sequence_length: 4}
training: {max_tokens: 9000, batch_tokens: 4}
search: {trials: 4, scheduler: none}
"""
TWO = GPT + "variants: {flat: {model: {num_layers: 1}}, deep: {model: {num_layers: 4, d_model: 16}}}\n"
UNKNOWN = Machine()


def accepted(*overrides: str, text: str = GPT) -> SweepSpec:
    return spec.parse(text, file="a.yaml", overrides=overrides)


def told(read: SweepSpec, machine: Machine = UNKNOWN, word: str = "") -> list[str]:
    return [line for line in plan(read, machine).lines() if line.startswith(word)]


def test_gpt2_small_has_the_published_parameters():
    small = "model={d_model: 768, num_heads: 12, num_layers: 12, sequence_length: 1024}"
    read = accepted(small, "data.tokenizer={type: bpe, vocab_size: 50257}")
    [line] = told(read, word="model ")
    assert line.startswith("model      124,439,808 parameters, ")
    assert plan(read).variants[0].smallest.parameters == 124_439_808


def test_gpt3_is_planned_to_its_published_parameters_and_does_not_fit():
    read = spec.load(EXAMPLES / "gpt3.yaml")
    planned = plan(read, Machine(memory_bytes=1 << 40))
    [one] = planned.variants
    assert (one.smallest, one.trials, one.most_tokens) == (one.largest, 1, 300_000_000_000)
    assert (one.smallest.parameters, one.smallest.approximate) == (174_604_259_328, False)
    alone = 16 * 174_604_259_328 / 2**30
    assert planned.problems[0] == (
        f"does not fit here: the smallest model needs {alone:,.1f} GiB for its weights and their training alone, and "
        "this machine has 1,024.0 GiB; make d_model or num_layers smaller, or give it more"
    )
    assert "resources.memory_per_worker is" in plan(read).problems[0]


def test_what_does_not_fit_is_judged_by_the_smallest_model():
    weights = [16 * plan(accepted(f"model.d_model={d}")).variants[0].smallest.parameters for d in (8, 2048)]
    between = Machine(memory_bytes=sum(weights) // 2)
    assert plan(accepted("model.d_model=[8, 2048]"), between).problems == ()
    assert "does not fit here" in plan(accepted("model.d_model=2048"), between).problems[0]
    variants = "variants={small: {}, large: {model: {d_model: 2048}}}"
    [problem] = plan(accepted(variants), between).problems
    assert "does not fit here" in problem, "one variant that cannot run is a problem of the sweep"


def test_smallest_and_largest_are_those_of_all_feasible_points():
    [one] = plan(accepted()).variants
    assert (one.smallest.parameters, one.smallest.name) == (3000, "width=8 layers=1")
    assert (one.largest.parameters, one.largest.name) == (10816, "width=16 layers=2")
    [one] = plan(accepted("constraints=[d_model * num_layers == 16]")).variants
    assert (one.smallest.name, one.largest.name) == ("width=8 layers=2", "width=16 layers=1")
    lines = told(accepted())
    assert next(line for line in lines if line.startswith("smallest")).startswith("smallest   3,000 parameters, ")
    assert next(line for line in lines if line.startswith("largest")).endswith("(width=16 layers=2)")


def test_a_large_space_is_weighed_at_both_ends_and_between():
    [one] = plan(accepted("model.d_model={int: [8, 4000]}", "model.num_layers={int: [1, 9]}")).variants
    assert (one.smallest.name, one.largest.name) == ("width=8 layers=1", "width=4000 layers=9")


def test_a_space_without_a_feasible_point_has_no_model():
    [one] = plan(accepted("constraints=[d_model > 99]"), Machine(speed=Speed(((1, 1.0),), "m"))).variants
    assert (one.smallest, one.largest, one.training_s) == (None, None, None)
    assert not [line for line in one.lines() if line.startswith(("smallest", "largest", "model"))]


SIXTY = {"char": VocabSizes(60)}


@pytest.mark.parametrize(
    ("tokenizer", "machine", "approximate"),
    [
        ("{type: char}", Machine(), True),
        ("{type: char}", Machine(vocabularies=SIXTY), True),
        ("{type: char}", Machine(vocabularies=SIXTY, exact=True), False),
        ("{type: byte}", Machine(), False),
        ("{type: bpe, vocab_size: 300}", Machine(), False),
        ("{type: word}", Machine(exact=True), True),
        ("{type: word}", Machine(vocabularies={"word 4000": VocabSizes(70)}, exact=True), False),
        ("{type: char, normalization: nfkc}", Machine(vocabularies=SIXTY, exact=True), True),
    ],
)
def test_what_depends_on_characters_that_were_only_sampled_is_marked(tokenizer, machine, approximate):
    read = accepted(f"data.tokenizer={tokenizer}", "model={d_model: 8, num_heads: 1}")
    lines = [line for line in told(read, machine) if "parameters, " in line]
    assert lines
    for line in lines:
        assert line.count("~") == (3 if approximate else 0)
    assert plan(read, machine).variants[0].smallest.approximate == approximate


def test_only_the_models_whose_vocabulary_is_not_known_are_marked():
    read = accepted("data.tokenizer.type=[char, byte]", "model={d_model: 8, num_heads: 1}")
    [one] = plan(read, Machine(vocabularies=SIXTY)).variants
    assert (one.smallest.approximate, one.largest.approximate) == (True, False)


def test_the_vocabulary_of_characters_is_that_of_the_data():
    read = accepted("data.tokenizer.type=char", "model.d_model=8", "model.num_layers=1")
    few, many = (
        plan(read, Machine(vocabularies={"char": VocabSizes(count)})).variants[0].smallest.parameters
        for count in (60, 70)
    )
    assert many - few == 10 * 8


def test_each_variant_has_its_own_lines_and_the_sweep_their_sum():
    planned = plan(accepted(text=TWO))
    assert [one.name for one in planned.variants] == ["flat", "deep"]
    assert [(one.trials, one.trials_asked, one.feasible_points) for one in planned.variants] == [(2, 2, 2), (1, 2, 1)]
    assert (planned.trials, planned.most_tokens, planned.expected_tokens) == (3, 27_000, 27_000)
    lines = planned.lines()
    assert lines[:3] == [
        "sweep      a: tpe, best by val/bits_per_byte (min)",
        "variants   2, 3 trials",
        "variant    flat",
    ]
    inside = lines[lines.index("variant    deep") :]
    assert inside[1:3] == ["points     1, 1 feasible", "trials     1 (all feasible points; 2 were asked for)"]
    assert next(line for line in inside if line.startswith("model ")).split()[1] == f"{264 * 16 + 4 * 3280 + 32:,}"
    assert not any(line.startswith("variant") for line in told(accepted()))
    assert [one["name"] for one in json.loads(json.dumps(planned.to_dict()))["variants"]] == ["flat", "deep"]


def test_a_calibration_measures_the_ends_of_each_variant():
    found = extremes(accepted(text=TWO), Machine())
    assert [(config.model.d_model, config.model.num_layers, size.target) for config, size in found] == [
        (8, 1, 260),
        (16, 1, 260),
        (16, 4, 260),
    ]


def test_time_is_told_only_of_a_machine_whose_speed_is_known():
    assert told(accepted(), word="time") == []
    assert plan(accepted()).training_s is None
    flops = {name: plan(accepted(*at)).variants[0].smallest.flops_per_token for name, at in AT.items()}
    speed = Speed(((1, 1000.0),), "a machine")
    planned = plan(accepted(), Machine(speed=speed, slots=2))
    assert planned.training_s == pytest.approx(9000 * sum(flops.values()) / 1000 / 2), "two trials at once"
    [line] = told(accepted(), Machine(speed=speed, slots=2), "time")
    about = duration(planned.training_s)
    head = f"time       about {about} of training on this machine, 2 trials at once"
    assert line == f"{head}; start-up, validation and scoring on top"
    each = [plan(one, Machine(speed=speed)).training_s for one in accepted(text=TWO).by_variant.values()]
    assert plan(accepted(text=TWO), Machine(speed=speed)).training_s == pytest.approx(sum(each))
    epochs = accepted("training={max_epochs: 2}")
    assert plan(epochs, Machine(speed=speed)).training_s is None, "tokens of an epoch are not known yet"


AT = {(d, n): (f"model.d_model={d}", f"model.num_layers={n}") for d in (8, 16) for n in (1, 2)}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "2 h 0 min"), (7800, "2 h 10 min"), (4e6, "1,111 h 7 min")],
)
def test_a_duration_is_told_in_two_units_at_most(seconds, words):
    assert duration(seconds) == words
