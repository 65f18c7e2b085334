from __future__ import annotations

import random
from contextlib import suppress

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tuneyard_pipelines import spec
from tuneyard_pipelines.constraints import ConstraintError, parse
from tuneyard_pipelines.plan import check, plan, runnable
from tuneyard_pipelines.proposals import Observed, propose
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec_errors import all_keys

quick = settings(max_examples=60, deadline=None)
KEYS = sorted({key.rpartition(".")[2] for key in all_keys(spec.SweepSpec)} | {"int", "uniform", "step", "lr", ""})
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(KEYS)
junk = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=6), inner, max_size=5)
    ),
    max_leaves=25,
)
FINE = {
    "version": 1,
    "name": "a",
    "task": "translation",
    "data": {"source": "builtin/dates"},
    "training": {"max_tokens": 1000},
    "search": {"trials": 3},
}


def read_or_refused(text: str) -> spec.SweepSpec | None:
    try:
        return spec.parse(text, file="junk.yaml")
    except spec.SpecError as error:
        refusal = error
    assert refusal.problems
    assert all(problem.place.startswith("junk.yaml") for problem in refusal.problems)
    return None


@quick
@given(junk)
def test_any_data_is_read_or_refused(data):
    read_or_refused(yaml.safe_dump(data, allow_unicode=True))


@quick
@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text):
    read_or_refused(text)


@quick
@given(st.text(alphabet="{}[]:,-?&*!|>'\"%@`#\n\t a1.", max_size=60))
def test_any_punctuation_is_read_or_refused(text):
    read_or_refused(text)


@quick
@given(st.sampled_from(sorted(FINE.keys() | {"model", "resources", "register", "tags", "constraints"})), junk)
def test_junk_in_one_place_of_a_fine_spec(key, data):
    read = read_or_refused(yaml.safe_dump({**FINE, key: data}, allow_unicode=True))
    if read is not None:
        assert spec.SweepSpec.model_validate_json(read.model_dump_json(by_alias=True)) == read


@quick
@given(st.sampled_from(sorted(all_keys(spec.SweepSpec))), st.text(max_size=30))
def test_any_override_is_read_or_refused(key, value):
    with suppress(spec.SpecError):
        spec.parse(yaml.safe_dump(FINE), file="a.yaml", overrides=[f"{key}={value}"])


@quick
@given(st.text(max_size=60) | st.text(alphabet="()<>=*+-/%. 19abdehilmnorstu_'", max_size=60))
def test_any_constraint_is_read_or_refused(text):
    names = {"num_heads": "model.num_heads", "model.num_heads": "model.num_heads"}
    with suppress(ConstraintError):
        assert parse(text, names).holds({"model.num_heads": 4}) in (True, False)


def whole_range(low: int, high: int):
    lists = st.lists(st.integers(low, high), min_size=1, max_size=4, unique=True)
    spans = st.tuples(st.integers(low, high), st.integers(0, 3), st.integers(1, 3)).map(
        lambda drawn: {"int": [drawn[0], drawn[0] + drawn[1] * drawn[2]], "step": drawn[2]}
    )
    return lists | spans


number_range = (
    st.lists(st.floats(0, 0.9), min_size=1, max_size=3, unique=True)
    | st.tuples(st.floats(0.001, 0.4), st.floats(0.5, 0.9)).map(lambda ends: {"uniform": list(ends)})
    | st.tuples(st.floats(0.001, 0.4), st.floats(0.5, 0.9)).map(lambda ends: {"loguniform": list(ends)})
)
models = st.fixed_dictionaries(
    {"d_model": whole_range(8, 40), "num_heads": whole_range(1, 6)},
    optional={
        "num_layers": whole_range(1, 4),
        "dropout": number_range,
        "positions": st.lists(st.sampled_from(["learned", "sinusoidal"]), min_size=1, unique=True),
    },
)


MORE = {"constraints": ["num_heads * num_layers <= 8"]}


def spec_of(model) -> spec.SweepSpec:
    return spec.parse(yaml.safe_dump({**FINE, **MORE, "model": model}), file="a.yaml")


@quick
@given(models, st.sampled_from([[], ["num_heads < 2"], ["1 / (num_heads - 3) < 2"], ["parameters < 3000"]]))
def test_a_look_refuses_what_the_plan_refuses(model, constraints):
    with suppress(spec.SpecError):
        read = spec.parse(yaml.safe_dump({**FINE, "constraints": constraints, "model": model}), file="a.yaml")
        assert told(check, read) == told(runnable, read)


def told(judge, read: spec.SweepSpec) -> str:
    try:
        judge(read)
    except spec.SpecError as refusal:
        return str(refusal)
    return ""


@quick
@given(models)
def test_a_spec_survives_json(model):
    read = spec_of(model)
    again = spec.SweepSpec.model_validate_json(read.model_dump_json(by_alias=True))
    assert again == read
    assert again.ranges == read.ranges


@quick
@given(models)
def test_the_size_of_a_space_is_the_number_of_its_points(model):
    space = Space(spec_of(model))
    if space.size is not None:
        points = [space.identity(point) for point in space.grid()]
        assert len(points) == len(set(points)) == space.size
        feasible = sum(space.broken_rule(point) is None for point in space.grid())
        assert plan(spec_of(model)).variants[0].feasible_points == feasible


@quick
@given(models, st.integers(0, 2**31))
def test_every_draw_is_a_point_that_makes_a_configuration(model, seed):
    read = spec_of(model)
    point = Space(read).sample(random.Random(seed))
    flat = read.at(point).flat()
    assert {key: flat[key] for key in point} == point


@settings(max_examples=25, deadline=None)
@given(models, st.sampled_from(["grid", "random", "tpe"]), st.integers(0, 1000), st.data())
def test_proposals_never_repeat_nor_break_a_rule(model, algorithm, seed, data):
    space = Space(spec_of(model))
    if space.size is None and algorithm == "grid":
        return
    history: list[Observed] = []
    for _ in range(8):
        point = propose(space, algorithm, seed, history)
        if point is None:
            break
        assert space.broken_rule(point) is None
        assert space.identity(point) not in {space.identity(observed.point) for observed in history}
        marks = data.draw(st.integers(0, 2))
        scores = tuple((share, data.draw(st.floats())) for share in (0.3, 1.0)[:marks])
        history.append(Observed(point, scores, data.draw(st.booleans())))
    else:
        return
    if space.size is not None:
        feasible = {space.identity(p) for p in space.grid() if space.broken_rule(p) is None}
        assert {space.identity(observed.point) for observed in history} == feasible


@settings(max_examples=25, deadline=None)
@given(models, st.sampled_from(["grid", "random", "tpe"]), st.integers(0, 1000), st.data())
def test_points_to_start_from_come_first_and_once(model, algorithm, seed, data):
    space = Space(spec_of(model))
    if space.size is None and algorithm == "grid":
        return
    drawn = [space.sample(random.Random(data.draw(st.integers(0, 99)))) for _ in range(data.draw(st.integers(1, 3)))]
    wanted = [point for point in drawn if space.broken_rule(point) is None]
    search = {"trials": 3, "include": wanted}
    read = spec.parse(yaml.safe_dump({**FINE, **MORE, "model": model, "search": search}), file="a.yaml")
    space, history = Space(read), []
    while len(history) < 6 and (point := propose(space, algorithm, seed, history)) is not None:
        history.append(Observed(point, ((1.0, data.draw(st.floats())),), data.draw(st.booleans())))
    tried = [space.identity(observed.point) for observed in history]
    first = list(dict.fromkeys(map(space.identity, wanted)))
    assert tried[: len(first)] == first
    assert len(tried) == len(set(tried))
    assert all(space.broken_rule(observed.point) is None for observed in history)
