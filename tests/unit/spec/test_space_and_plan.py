from __future__ import annotations

import json
import random

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.plan import check, plan, runnable
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import SpecError, SweepSpec

SMALLEST = "name: a\ntask: translation\ndata: {source: builtin/dates}\ntraining: {max_tokens: 9000}\n"
RULE = "d_model % num_heads == 0"


def sweep(*overrides: str) -> SweepSpec:
    return spec.parse(SMALLEST, file="a.yaml", overrides=overrides)


S1 = sweep("model.d_model=[64, 96, 100]", "model.num_heads=[3, 4, 6]", "search.algorithm=grid")


def only(spec):
    """The plan of a sweep without variants, as that of its one variant."""
    [variant] = plan(spec).variants
    return variant


def test_s1_infeasible_pairs_are_counted_and_named():
    space = Space(S1)
    feasible = [space.identity(point) for point in space.grid() if space.broken_rule(point) is None]
    assert feasible == [(64, 4), (96, 3), (96, 4), (96, 6), (100, 4)]
    planned = only(S1)
    assert (planned.points, planned.feasible_points, planned.trials, planned.sampled_points) == (9, 5, 5, None)
    assert planned.broken_rules[RULE] == 4
    assert planned.problems == ()
    text = "\n".join(planned.lines())
    assert "9, 5 feasible" in text
    assert f"4 break {RULE}" in text


def test_odd_widths_have_no_sinusoidal_positions():
    space = Space(
        sweep("model.d_model=[63, 64]", "model.num_heads=1", "model.positions=[learned, sinusoidal]", "search.trials=4")
    )
    kept = [space.identity(point) for point in space.grid() if space.broken_rule(point) is None]
    assert kept == [(63, "learned"), (64, "learned"), (64, "sinusoidal")]


def test_a_lone_point_that_cannot_be_built_is_told_with_the_rule_and_its_keys():
    [problem] = only(sweep("model.num_heads=5", "model.d_model=64")).problems
    assert problem == (
        "its one point cannot be built: it breaks d_model % num_heads == 0, for every head takes an equal share of the "
        "width; found model.d_model = 64, model.num_heads = 5: change one of them"
    )
    [problem] = only(sweep("model.num_heads=4", "constraints=[num_heads < 2]")).problems
    assert problem.endswith("it breaks the constraint num_heads < 2: change the keys of that, or leave it out")


def test_s2_a_space_without_a_feasible_point_is_refused_with_the_rule_that_kills_most():
    overrides = ["model.num_heads=[2, 4]", "model.num_layers=[1, 2]", "search.trials=4"]
    dead = sweep(*overrides, "constraints=[num_heads > 2, num_heads * num_layers < 2, num_layers < 3]")
    planned = only(dead)
    assert (planned.feasible_points, planned.trials) == (0, 0)
    assert planned.problems == (
        "no point is feasible: all 4 points break a rule; most, 4, break num_heads * num_layers < 2: widen the ranges "
        "of its keys or relax it",
    )
    with pytest.raises(SpecError, match=r"a.yaml: no point is feasible: .* num_heads \* num_layers < 2"):
        runnable(dead, file="a.yaml")
    assert runnable(S1).trials == 5


def test_s2_one_fixed_point_that_breaks_a_built_in_rule():
    assert RULE in plan(sweep("model.d_model=100", "model.num_heads=3")).problems[0]


def test_s2_a_continuous_space_without_a_feasible_draw():
    dead = sweep(
        "training.learning_rate={uniform: [0.1, 0.2]}", "search.trials=3", "constraints=[learning_rate < 0.05]"
    )
    [problem] = plan(dead).problems
    assert "all of 2,000 points drawn break a rule; most, 2,000, break learning_rate < 0.05" in problem


def test_a_constraint_that_fails_at_a_rare_point_is_a_problem_of_the_plan():
    rare = sweep(
        "training.batch_tokens={int: [1, 1000]}", "search.trials=3", "constraints=[1 / (batch_tokens - 7) < 2]"
    )
    [problem] = plan(rare).problems
    assert "cannot be computed at training.batch_tokens = 7: division by zero" in problem
    assert Space(rare).broken_rule({"training.batch_tokens": 7}) == "1 / (batch_tokens - 7) < 2"


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (["model.d_model=100", "model.num_heads=3"], "its one point cannot be built"),
        (["model.num_heads=[3, 5]", "search.trials=2"], "no point is feasible"),
        (
            ["training.batch_tokens={int: [1, 1000]}", "search.trials=3", "constraints=[1 / (batch_tokens - 7) < 2]"],
            "cannot be computed",
        ),
        (["training.batch_tokens={int: [1, 1000000000]}", "search.algorithm=grid"], "is more than can be tried"),
        (["model.d_model=16384", "model.num_layers=8"], "does not fit here"),
        (["budget.checkpoint_bytes=1MiB", "model.d_model=[1024, 2048]", "search.trials=2"], "holds not one checkpoint"),
    ],
)
def test_a_look_refuses_with_the_words_of_the_whole_plan(overrides: list[str], why: str):
    read = sweep(*overrides)
    with pytest.raises(SpecError, match=why) as of_the_plan:
        runnable(read, file="a.yaml")
    with pytest.raises(SpecError) as of_the_look:
        check(read, file="a.yaml")
    assert str(of_the_look.value) == str(of_the_plan.value)
    check(S1)


def test_a_grid_runs_in_order_with_the_last_key_moving_fastest():
    space = Space(sweep("model.num_heads=[4, 1]", "model.num_layers={int: [1, 5], step: 2}", "search.algorithm=grid"))
    assert [space.identity(point) for point in space.grid()] == [(4, 1), (4, 3), (4, 5), (1, 1), (1, 3), (1, 5)]
    assert space.size == 6


def test_a_sweep_without_ranges_is_one_point():
    single = sweep()
    assert (Space(single).size, list(Space(single).grid()), Space(single).sample(random.Random(1))) == (1, [{}], {})
    planned = only(single)
    assert (planned.points, planned.trials, len(planned.rungs), planned.most_tokens) == (1, 1, 1, 9000)


def test_a_huge_finite_space_is_sampled_and_never_enumerated():
    huge = sweep(*(f"training.{key}={{int: [1, 1000000000]}}" for key in ("batch_tokens",)), "search.trials=3")
    planned = only(huge)
    assert (planned.points, planned.feasible_points, planned.sampled_points) == (10**9, None, 2000)
    assert next(Space(huge).grid()) == {"training.batch_tokens": 1}
    everything = plan(sweep("training.batch_tokens={int: [1, 1000000000]}", "search.algorithm=grid"))
    assert "a grid of 1,000,000,000 points is more than can be tried: set search.trials" in everything.problems[0]


def test_a_sampled_share_says_so_and_repeats():
    half = sweep("model.dropout={uniform: [0, 0.8]}", "search.trials=3", "constraints=[dropout < 0.4]")
    planned = only(half)
    assert planned == only(half)
    assert planned.feasible_share == pytest.approx(0.5, abs=0.05)
    assert any("feasible (of 2,000 drawn)" in line for line in planned.lines())


def test_trials_are_no_more_than_there_are_points():
    few = only(sweep("model.num_heads=[1, 2, 3]", "search.trials=12"))
    assert (few.trials, few.trials_asked) == (2, 12)
    assert any("2 (all feasible points; 12 were asked for)" in line for line in few.lines())


def test_rungs_and_tokens_of_the_plan():
    ladder = only(sweep("model.num_layers={int: [1, 9]}", "search.trials=9"))
    assert [(rung.budget, rung.trials) for rung in ladder.rungs] == [(1000, 9), (3000, 3), (9000, 1)]
    assert ladder.most_tokens == 81_000
    assert ladder.expected_tokens == 9 * 1000 + 3 * 2000 + 1 * 6000
    full = only(sweep("model.num_layers={int: [1, 9]}", "search.trials=9", "search.scheduler=none"))
    assert full.most_tokens == full.expected_tokens == 81_000


@pytest.mark.parametrize(
    ("training", "unit", "budget", "tokens"),
    [
        ("{max_steps: 10, batch_tokens: 50}", "steps", 10, 1000),
        ("{max_steps: 10, batch_tokens: [50, 70]}", "steps", 10, 1400),
        ("{max_epochs: 1.5}", "epochs", 1.5, None),
        ("{max_tokens: [500, 700]}", "tokens", 700, 1400),
        ("{max_tokens: {int: [500, 700]}}", "tokens", 700, 1400),
    ],
)
def test_budgets_in_every_unit(training, unit, budget, tokens):
    whole = plan(sweep(f"training={training}", "model.num_heads=[1, 2]", "search={trials: 2, scheduler: none}"))
    [planned] = whole.variants
    assert (planned.budget_unit, planned.budget) == (unit, budget)
    assert planned.most_tokens == tokens
    [told] = [line for line in whole.lines() if line.startswith("tokens ")]
    assert told.endswith("known once the data is read" if tokens is None else f"about {tokens:,} expected")
    assert planned.rungs[-1].budget == budget


def test_a_plan_is_plain_data():
    assert json.loads(json.dumps(plan(S1).to_dict()))["variants"][0]["feasible_points"] == 5
