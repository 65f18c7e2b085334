"""A key that nothing in a spec follows is refused where it is set; a range varies only what follows it."""

from __future__ import annotations

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.spec import SpecError, SweepSpec

BASE = """
name: families
task: language_modeling
data: {source: builtin/stdlib, tokenizer: {type: byte}}
training: {max_tokens: 1000}
"""


def parse(text: str) -> SweepSpec:
    return spec.parse(BASE + text, file="spec.yaml")


def refused(text: str) -> str:
    with pytest.raises(SpecError) as told:
        parse(text)
    return str(told.value)


def test_a_key_of_another_family_is_refused_with_those_that_follow_it() -> None:
    told = refused("model: {architecture: ngram, num_heads: 2}\n")
    assert "model.num_heads: goes with architecture: transformer" in told
    assert "only, not with ngram; take it out" in told
    assert "model.order: goes with architecture: nplm or ngram only, not with gpt" in refused("model: {order: 4}\n")


def test_counting_follows_no_optimiser() -> None:
    assert parse("model: {architecture: ngram}\n").at({}).flat().keys() == {
        "task",
        "seed",
        "model.architecture",
        "model.sequence_length",
        "model.order",
        "training.max_tokens",
        "training.batch_tokens",
        "training.accumulate",
        "training.evaluations",
        "data.tokenizer.type",
        "data.tokenizer.normalization",
        "resources.workers",
        "resources.cpus_per_worker",
        "resources.gpus_per_worker",
        "resources.memory_per_worker",
    }
    told = refused("model: {architecture: ngram}\nvariants: {a: {training: {learning_rate: 0.1}}}\n")
    assert "variants.a.training.learning_rate: goes with architecture: transformer" in told


def test_a_range_varies_only_the_variants_that_follow_it() -> None:
    families = parse(
        "model: {num_heads: [2, 4], order: [2, 3, 4]}\n"
        "variants: {counts: {model: {architecture: ngram}}, attends: {model: {architecture: gpt}}}\n"
        "search: {algorithm: grid}\n"
        'constraints: ["num_heads <= 2"]\n'
    )
    assert {name: tuple(one.ranges) for name, one in families.by_variant.items()} == {
        "counts": ("model.order",),
        "attends": ("model.num_heads",),
    }
    counts, attends = plan(families).variants
    assert (counts.points, counts.feasible_points) == (3, 3), "a constraint over what it has not does not bind it"
    assert (attends.points, attends.feasible_points) == (2, 1)


def test_a_constraint_that_binds_no_variant_is_refused() -> None:
    told = refused('model: {architecture: ngram}\nconstraints: ["num_heads <= 2"]\n')
    assert "constraints[0]" in told
    assert "model.num_heads goes with architecture: transformer" in told


def test_a_spec_that_was_accepted_is_accepted_with_all_its_keys_written_out() -> None:
    accepted = parse("model: {architecture: ngram}\n")
    assert SweepSpec.model_validate(accepted.model_dump(mode="json", by_alias=True)) == accepted


def test_a_rule_of_the_family_is_told() -> None:
    assert plan(parse("model: {architecture: nplm, order: 1}\n")).problems
