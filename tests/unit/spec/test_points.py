"""What a point costs in constraints, and what a range takes for one of its values."""

from __future__ import annotations

import math

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.plan import plan
from tuneyard_pipelines.ranges import Choice, Integers, LogUniform, Uniform
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import SpecError, SweepSpec

BYTES = """\
name: a
task: language_modeling
data: {source: builtin/stdlib, tokenizer: {type: byte}}
model: {d_model: [8, 16], num_heads: 1, num_layers: [1, 2], sequence_length: 4}
training: {max_tokens: 9000, batch_tokens: 4}
search: {trials: 4}
"""
# Of gpt with tied embeddings, learned positions and F = 4 D: (V + S) D + L (12 D^2 + 13 D) + 2 D.
PARAMETERS = {(8, 1): 3000, (8, 2): 3872, (16, 1): 7536, (16, 2): 10816}
# Three times the forward pass: L (8 D^2 + 4 S D + 16 D^2) + 2 D V.
FLOPS = {(8, 1): 17472, (8, 2): 22464, (16, 1): 44160, (16, 2): 63360}


def accepted(*overrides: str, text: str = BYTES) -> SweepSpec:
    return spec.parse(text, file="a.yaml", overrides=overrides)


def kept(constraint: str, characters: int | None = None, *overrides: str) -> list[tuple[object, ...]]:
    known = {"char": VocabSizes(characters)} if characters else {}
    space = Space(accepted(f'constraints=["{constraint}"]', *overrides), vocabularies=known)
    return [space.identity(point) for point in space.grid() if space.broken_rule(point) is None]


def test_the_costs_of_a_small_space_are_those_counted_by_hand():
    for (width, layers), count in PARAMETERS.items():
        assert (260 + 4) * width + layers * (12 * width**2 + 13 * width) + 2 * width == count
        assert 3 * (layers * (24 * width**2 + 16 * width) + 2 * width * 260) == FLOPS[width, layers]
        assert kept(f"parameters == {count} and flops_per_token == {FLOPS[width, layers]}") == [(width, layers)]


@pytest.mark.parametrize(
    ("constraint", "feasible"),
    [
        ("parameters <= 3872", [(8, 1), (8, 2)]),
        ("parameters < 3872", [(8, 1)]),
        ("flops_per_token > 22464", [(16, 1), (16, 2)]),
        ("parameters / num_layers < 5408", [(8, 1), (8, 2)]),
        ("parameters < 10000 and d_model > 8", [(16, 1)]),
        ("memory_bytes > 1e12", []),
        ("memory_bytes > 400 * 1024 * 1024", [(8, 1), (8, 2), (16, 1), (16, 2)]),
    ],
)
def test_a_constraint_over_costs_keeps_exactly_the_points_that_hold_it(constraint, feasible):
    assert kept(constraint) == feasible
    [planned] = plan(accepted(f'constraints=["{constraint}"]')).variants
    assert planned.feasible_points == len(feasible)
    assert planned.broken_rules[constraint] == 4 - len(feasible)


def test_memory_grows_with_batches_and_is_told_in_bytes():
    grown = 'constraints=["memory_bytes > 430e6"]'
    small, large = (Space(accepted(grown, f"training.batch_tokens={tokens}")) for tokens in (4, 40_000))
    point = {"model.d_model": 16, "model.num_layers": 2}
    assert small.broken_rule(point) == "memory_bytes > 430e6"
    assert large.broken_rule(point) is None


def test_costs_follow_the_vocabulary_that_the_data_has():
    char = "data.tokenizer.type=char"
    assert kept("parameters <= 3000", 260, char) == [(8, 1)]
    assert kept("parameters <= 3000", 261, char) == []
    assert kept("parameters <= 3000", None, char) == [(8, 1), (8, 2)], "guessed at 128 until it is known"
    assert kept("parameters <= 3000", 9999) == [(8, 1)], "bytes do not depend on the data"
    bpe = ("data.tokenizer.type=bpe", "data.tokenizer.vocab_size=[260, 300]")
    assert kept("parameters <= 3000", None, *bpe) == [(8, 1, 260)]


def test_the_names_of_costs_are_no_keys():
    with pytest.raises(SpecError, match="unknown name 'parameter'"):
        accepted('constraints=["parameter < 3"]')
    with pytest.raises(SpecError, match='unknown key "parameters"'):
        accepted("model.parameters=3")


@pytest.mark.parametrize(
    ("held", "written", "taken"),
    [
        (Choice((1, 2, 4)), 4, 4),
        (Choice((1, 2, 4)), 4.0, 4),
        (Choice((0.0, 0.1)), 0, 0.0),
        (Choice(("learned", "sinusoidal")), "learned", "learned"),
        (Choice((True, False)), False, False),
        (Integers(2, 10, 4), 6, 6),
        (Integers(2, 10, 4), 10.0, 10),
        (Integers(2, 10, 4), 2, 2),
        (Uniform(0.0, 0.5), 0, 0.0),
        (Uniform(0.0, 0.5), 0.5, 0.5),
        (LogUniform(1e-4, 1.0), 1, 1.0),
        (LogUniform(1e-4, 1.0), 1e-4, 1e-4),
    ],
)
def test_a_range_takes_its_values_in_its_own_type(held, written, taken):
    found = held.take(written)
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("held", "allowed"),
    [
        (Choice((1, 2, 4)), "one of 1, 2, 4"),
        (Choice((0.0, 1.0)), "one of 0.0, 1.0"),
        (Choice(("1", "learned")), "one of 1, learned"),
        (Integers(0, 10, 4), "a whole number from 0 to 10, 4 apart"),
        (Integers(0, 3), "a whole number from 0 to 3"),
        (Uniform(0.0, 1.0), "a number from 0 to 1"),
        (LogUniform(1e-4, 1.0), "a number from 0.0001 to 1"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "written",
    [True, False, "2", "", None, 3.5, -1, 11, math.nan, math.inf, -math.inf, [1], {"int": 1}, 10**400],
    ids=lambda value: str(value)[:8],
)
def test_a_range_takes_nothing_else_and_says_what_it_takes(held, allowed, written):
    with pytest.raises(ValueError) as caught:
        held.take(written)
    assert str(caught.value) == f"found {written!r}; allowed: {allowed}"


def test_a_choice_among_truths_takes_no_numbers():
    for written in (1, 0, 1.0, "true"):
        with pytest.raises(ValueError, match="allowed: one of True, False"):
            Choice((True, False)).take(written)


def test_what_is_not_varied_has_no_point():
    single = Space(accepted("model.d_model=8", "model.num_layers=1"))
    assert single.read_point({}) == {}
    with pytest.raises(ValueError, match="'d_model' is no varied key; a point names no key, for nothing is varied"):
        single.read_point({"d_model": 8})
