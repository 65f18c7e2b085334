from __future__ import annotations

import pytest

from tuneyard_pipelines import spec
from tuneyard_pipelines.constraints import ConstraintError, parse
from tuneyard_pipelines.space import Space
from tuneyard_pipelines.spec import SpecError

VALUES = {"model.num_heads": 4, "model.d_model": 64, "training.learning_rate": 0.01, "model.positions": "learned"}
NAMES = {key.rpartition(".")[2]: key for key in VALUES} | {key: key for key in VALUES}
SPEC = """\
name: a
task: translation
data: {source: builtin/dates}
training: {max_tokens: 1000}
search: {algorithm: random, trials: 4}
model: {num_heads: [1, 2, 4], num_layers: [1, 2]}
"""


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("num_heads <= 4", True),
        ("model.num_heads * 2 < 8", False),
        ("learning_rate < 0.01 or d_model <= 64", True),
        ("not (num_heads == 4)", False),
        ("1 < num_heads < 4", False),
        ("max(num_heads, 7) == 7 and min(1, 2) == 1 and abs(-3) == 3", True),
        ("d_model ** 2 * 12 <= 5e4", True),
        ("d_model % num_heads == 0 and d_model // 3 == 21 and d_model / 128 == 0.5", True),
        ("positions == 'learned'", True),
        ("-num_heads + 5 == +1 != 2 - 0", True),
    ],
)
def test_what_an_expression_may_say(text, holds):
    assert parse(text, NAMES).holds(VALUES) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not an expression"),
        ("num_heads <", "not an expression"),
        ("num_heads = 4", "not an expression"),
        ("num_heads < 4; 1", "not an expression"),
        ("1if num_heads else 2", "is not allowed"),
        ("num_heads", "must be true or false at every point"),
        ("num_heads and d_model", "must be true or false"),
        ("num_heads + 1", "must be true or false"),
        ("True", "must be true or false"),
        ("n_head < 3", "unknown name 'n_head'; did you mean num_heads?"),
        ("num_hedas < 3", "did you mean num_heads?"),
        ("model.heads < 3", "did you mean num_heads?"),
        ("zzz < 3", "unknown name 'zzz'; known names: d_model, learning_rate, num_heads, positions"),
        ("__import__('os').system('ls') == 0", "is not allowed"),
        ("num_heads.__class__ == 1", "unknown name 'num_heads.__class__'"),
        ("(1).__class__ == 1", "only names of keys have dots"),
        ("open('x') == 1", "is not allowed"),
        ("max(x for x in [1]) == 1", "is not allowed"),
        ("max(*positions) == 1", "is not allowed"),
        ("max() == 1", "is not allowed"),
        ("max(1, key=abs) == 1", "is not allowed"),
        ("(lambda: 1)() == 1", "is not allowed"),
        ("[1, 2] == 1", "is not allowed"),
        ("num_heads in [1, 2]", "is not allowed"),
        ("num_heads is 4", "is not allowed"),
        ("positions[0] == 'l'", "is not allowed"),
        ("f'{num_heads}' == '4'", "is not allowed"),
        ("(a := 3) == 3", "is not allowed"),
        ("1 if num_heads else 2 == 1", "is not allowed"),
        ("1 << 99999999 > 0", "is not allowed"),
        ("None == None", "is not allowed"),
        ("1j == 1", "is not allowed"),
        ("b'' == 1", "is not allowed"),
        ("num_heads < " + "9" * 5_000, "at most 1000 are read"),
        ("-" * 900 + "1 < 2", "nested more than 40 levels"),
        ("(" * 400 + "1" + ")" * 400 + " < 2", "not an expression"),
        ("not " * 200 + "(1 < 2)", "nested more than 40 levels"),
    ],
)
def test_what_an_expression_may_not_say(text, message):
    with pytest.raises(ConstraintError) as caught:
        parse(text, NAMES)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / (num_heads - 4) > 0", "division by zero"),
        ("num_heads % 0 == 1", "division by zero"),
        ("9 ** 9 ** 9 > 1", "an exponent up to 16"),
        ("(-8) ** 0.5 > 1", "a root of a negative number"),
        ("0 ** -1 > 1", "division by zero"),
        ("10.0 ** 16 ** 2 > 1", "an exponent up to 16"),
        ("positions * 1000 == 1", "text can only be compared"),
        ("'%d' % 3 == '3'", "text can only be compared"),
        ("positions < 3", "not supported between"),
        ("max(positions, 3) == 3", "not supported between"),
    ],
)
def test_an_expression_that_cannot_be_computed_says_why(text, message):
    with pytest.raises(ConstraintError, match=message.replace("*", r"\*")):
        parse(text, NAMES).holds(VALUES)


def refused(constraint: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        spec.parse(f"{SPEC}constraints:\n  - {constraint}\n", file="a.yaml", overrides=overrides)
    return str(caught.value)


def test_a_spec_refuses_an_expression_that_cannot_be_read_or_computed_at_some_point():
    assert refused("num_hedas < 3").startswith('a.yaml:8: constraints[0]: "num_hedas < 3": unknown name')
    assert refused("num_heads / (num_layers - 2) > 0") == (
        'a.yaml:8: constraints[0]: "num_heads / (num_layers - 2) > 0" cannot be computed at '
        "model.num_heads = 1, model.num_layers = 2: division by zero"
    )
    assert "training.max_steps has no value in this spec" in refused("max_steps < 3")
    assert "data.tokenizer.vocab_size has no value here" in refused("vocab_size < 3000")
    for expression in ("max_heads < 3", "type > 3", "seed.x < 3"):
        assert "constraints[0]" in refused(expression)


def test_all_constraints_are_checked_at_once():
    with pytest.raises(SpecError) as caught:
        spec.parse(SPEC + "constraints: [hedas < 1, 1 / (num_heads - 2) > 0, max_steps < 2]\n", file="a.yaml")
    assert sorted(problem.key for problem in caught.value.problems) == [
        "constraints[0]",
        "constraints[1]",
        "constraints[2]",
    ]


def test_a_constraint_reads_every_key_of_the_point_fixed_ones_too():
    text = (
        "num_heads * num_layers <= 4 and d_ff == 512 and tokenizer.type == 'char' and seed == 1 and max_tokens >= 1000"
    )
    space = Space(spec.parse(f'{SPEC}constraints: ["{text}"]\n', file="a.yaml"))
    kept = [space.identity(point) for point in space.grid() if space.broken_rule(point) is None]
    assert kept == [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)]
    assert space.broken_rule({"model.num_heads": 4, "model.num_layers": 2}) == text


def test_a_constraint_that_cannot_be_computed_allows_nothing():
    held = parse("4 / workers > 1", {"workers": "resources.workers"})
    assert [held.allows({"resources.workers": count}) for count in (0, 2, 4)] == [False, True, False]
