"""Points to start from: what names one, what is refused, and that they are tried first."""

from __future__ import annotations

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.plan import Machine, plan, runnable
from tuneyard_pipelines.proposals import Observed, propose
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import SpecError, SweepSpec

ONE = """\
name: a
task: translation
data: {source: builtin/dates}
model: {d_model: [48, 64], num_heads: [1, 3, 4], num_layers: {int: [1, 2]}}
training: {max_tokens: 9000}
search: {trials: 6}
"""
TWO = ONE + "variants: {deep: {model: {num_layers: [4, 6]}}, flat: {model: {d_model: 64, num_heads: 4}}}\n"


def accepted(*overrides: str, text: str = ONE) -> SweepSpec:
    return spec.parse(text, file="a.yaml", overrides=overrides)


def refused(include: str, *overrides: str, text: str = ONE) -> str:
    with pytest.raises(SpecError) as caught:
        spec.parse(text, file="a.yaml", overrides=(f"search.include={include}", *overrides))
    [problem] = caught.value.problems
    assert problem.place.startswith("--set search.include=")
    return f"{problem.key}: {problem.message}"


@pytest.mark.parametrize(
    "written",
    [
        "{d_model: 64, num_heads: 4, num_layers: 2}",
        "{num_layers: 2, model.num_heads: 4, d_model: 64}",
        "{model.d_model: 64, model.num_heads: 4.0, model.num_layers: 2.0}",
    ],
)
def test_a_point_is_named_by_full_or_short_names_in_any_order(written):
    [point] = Space(accepted(f"search.include=[{written}]")).included
    assert point == {"model.d_model": 64, "model.num_heads": 4, "model.num_layers": 2}
    assert list(point) == ["model.d_model", "model.num_heads", "model.num_layers"], "in the order of the keys"
    assert [type(value) for value in point.values()] == [int, int, int]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{d_model: 64, num_heads: 4}", "model.num_layers is missing; a point names d_model, num_heads, num_layers"),
        ("{}", "model.d_model is missing; a point names d_model, num_heads, num_layers"),
        ("{d_model: 64, num_heads: 2, num_layers: 1}", "num_heads: found 2; allowed: one of 1, 3, 4"),
        ("{d_model: 64, num_heads: 4, num_layers: 3}", "num_layers: found 3; allowed: a whole number from 1 to 2"),
        ("{d_model: 64, num_heads: 4, num_layers: 1.5}", "num_layers: found 1.5; allowed: a whole number from 1 to 2"),
        ("{d_model: 64, num_heads: true, num_layers: 1}", "num_heads: found True; allowed: one of 1, 3, 4"),
        ("{d_model: 64, num_heads: '4', num_layers: 1}", "num_heads: found '4'; allowed: one of 1, 3, 4"),
        ("{d_model: 64, num_heads: [4], num_layers: 1}", "num_heads: found [4]; allowed: one of 1, 3, 4"),
        ("{d_model: 64, heads: 4, num_layers: 1}", "'heads' is no varied key; a point names d_model, num_heads"),
        ("{d_model: 64, num_heads: 4, num_layers: 1, dropout: 0}", "'dropout' is no varied key; a point names"),
        ("{d_model: 64, model.d_model: 48, num_heads: 4, num_layers: 1}", "'model.d_model' stands twice"),
        ("{d_model: 64, num_heads: 3, num_layers: 1}", "the point breaks d_model % num_heads == 0"),
        ("{d_model: 64, num_heads: 4, num_layers: 1, variant: deep}", "this sweep has no variants"),
    ],
)
def test_a_point_that_does_not_belong_is_refused_with_the_reason(written, message):
    told = refused(f"[{{d_model: 64, num_heads: 4, num_layers: 2}}, {written}]")
    assert told.startswith("search.include[1]: found {")
    assert message in told


def test_a_point_that_breaks_a_constraint_is_refused():
    point = "[{d_model: 64, num_heads: 4, num_layers: 2}]"
    told = refused(point, "constraints=[num_heads * num_layers < 8]")
    assert told.endswith("the point breaks num_heads * num_layers < 8")
    assert accepted(f"search.include={point}", "constraints=[num_heads * num_layers <= 8]").search.include
    for unreadable in ("num_heads <", "max_steps < 3", "1 / (num_heads - 4) > 0"):
        with pytest.raises(SpecError) as caught:
            accepted(f"search.include={point}", f"constraints=['{unreadable}']")
        assert [problem.key for problem in caught.value.problems] == ["constraints[0]"], "which alone is to blame"


def test_a_point_that_costs_too_much_is_refused_once_the_vocabulary_is_known():
    read = accepted("search.include=[{d_model: 64, num_heads: 4, num_layers: 2}]", "constraints=[parameters < 240000]")
    assert plan(read).problems == (), "a guess of the vocabulary refuses nothing"
    few, many = (Machine(vocabularies={"char": VocabSizes(size)}, exact=True) for size in (60, 400))
    assert plan(read, few).problems == ()
    [problem] = plan(read, many).problems
    assert problem == (
        "search.include: the point breaks parameters < 240000; take that point out, or relax the constraint"
    )
    with pytest.raises(SpecError, match=r"a\.yaml: search\.include: the point breaks parameters < 240000"):
        runnable(read, many, file="a.yaml")


@pytest.mark.parametrize("held", ["3", "{num_heads: 4}", "[3]", "[[1]]", "null"])
def test_points_are_a_list_of_mappings(held):
    assert "allowed: a list of points such as [{num_heads: 4, learning_rate: 0.001}]" in refused(held)


def test_each_variant_has_its_own_points():
    flat, deep = "{variant: flat, num_layers: 1}", "{variant: deep, d_model: 48, num_heads: 3, num_layers: 6}"
    read = accepted(f"search.include=[{flat}, {deep}]", text=TWO)
    points = {name: Space(one).included for name, one in read.by_variant.items()}
    assert points == {
        "deep": ({"model.d_model": 48, "model.num_heads": 3, "model.num_layers": 6},),
        "flat": ({"model.num_layers": 1},),
    }


@pytest.mark.parametrize(
    "written", ["{num_layers: 1}", "{variant: falt, num_layers: 1}", "{variant: [flat]}", "{variant: {a: 1}}"]
)
def test_an_unknown_variant_is_refused_with_those_that_there_are(written):
    assert refused(f"[{written}]", text=TWO).endswith("; variant must be one of deep, flat")


def test_a_point_of_one_variant_is_none_of_another():
    told = refused("[{variant: flat, num_layers: 4}]", text=TWO)
    assert told.endswith("num_layers: found 4; allowed: a whole number from 1 to 2")
    told = refused("[{variant: flat, num_layers: 1, num_heads: 4}]", text=TWO)
    assert told.endswith("'num_heads' is no varied key; a point names num_layers")


def test_more_points_than_trials_are_refused():
    points = [f"{{d_model: {d}, num_heads: {h}, num_layers: {n}}}" for d in (48, 64) for h in (1, 4) for n in (1, 2)]
    told = refused(f"[{', '.join(points[:7])}]")
    assert told == "search.include: found 7 points, more than search.trials (6); raise that"
    assert accepted(f"search.include=[{', '.join(points[:6])}]").search.include


def test_more_points_of_a_variant_than_its_share_of_the_trials_are_refused():
    points = [f"{{variant: deep, d_model: 48, num_heads: {h}, num_layers: {n}}}" for h in (1, 3) for n in (4, 6)]
    told = refused(f"[{', '.join(points)}]", text=TWO)
    assert told == "search.include: found 4 points, more than the 3 of search.trials that deep has; raise that"
    assert accepted(f"search.include=[{', '.join(points[:3])}]", text=TWO).search.include


@pytest.mark.parametrize("algorithm", ["grid", "random", "tpe"])
def test_included_points_are_proposed_first_and_in_their_order(algorithm):
    points = ["{d_model: 64, num_heads: 4, num_layers: 2}", "{d_model: 48, num_heads: 3, num_layers: 1}"]
    include = f"search.include=[{points[0]}, {points[1]}, {points[0]}]"
    space = Space(accepted(include, f"search.algorithm={algorithm}", "search.trials=10"))
    history: list[Observed] = []
    while (point := propose(space, algorithm, 3, history)) is not None:
        history.append(Observed(point, ((1.0, float(len(history))),), finished=True))
    tried = [space.identity(observed.point) for observed in history]
    assert tried[:2] == [(64, 4, 2), (48, 3, 1)]
    assert len(tried) == len(set(tried)) == 10, "a point that stands twice is tried once"
    assert propose(space, algorithm, 3, history[1:]) == history[0].point
