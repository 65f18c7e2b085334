"""Constraints: short expressions over a point, such as `num_heads * num_layers <= 16`, that cannot do anything else.

An expression compares (`< <= > >= == !=`), joins comparisons (`and or not`) and computes (`+ - * / // % **`, `min`,
`max`, `abs`) over numbers, texts and the names of keys. Nothing else parses, so nothing else is ever evaluated.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tuneyard_pipelines.vocabulary import nearest

LONGEST = 1_000  # characters
DEEPEST = 40  # levels of nesting
_LARGEST_POWER = 16
_LARGEST_BASE = 10**9


class ConstraintError(ValueError):
    """An expression that cannot be read, or that cannot be computed at some point."""


class Constraint:
    """A parsed expression; `names` are the dotted keys that it reads."""

    def __init__(self, text: str, names: tuple[str, ...], tree: ast.expr) -> None:
        from simpleeval import SimpleEval

        self.text, self.names, self._tree = text, names, tree
        self._evaluator = SimpleEval(operators=_OPERATORS, functions=_FUNCTIONS)

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Whether all keys of a point, dotted, keep it. Raises ConstraintError where it cannot be computed."""
        missing = [name for name in self.names if name not in values]
        if missing:
            raise ConstraintError(f"{missing[0]} has no value here")
        self._evaluator.names = values
        try:
            return bool(self._evaluator.eval(self.text, previously_parsed=self._tree))
        except ZeroDivisionError:
            raise ConstraintError("division by zero") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ConstraintError(str(error)) from None

    def allows(self, values: Mapping[str, Any]) -> bool:
        """Whether it holds; where it cannot be computed, it does not."""
        try:
            return self.holds(values)
        except ConstraintError:
            return False


def parse(text: str, names: Mapping[str, str]) -> Constraint:
    """Read an expression; `names` maps every name that may be used to its dotted key. Raises ConstraintError."""
    if len(text) > LONGEST:
        raise ConstraintError(f"{len(text)} characters; at most {LONGEST} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConstraintError(f"not an expression ({getattr(error, 'msg', error)}); {_EXAMPLE}") from None
    resolver = _Resolver(names)
    resolved: ast.expr = resolver.visit_bounded(tree, 0)
    if not _is_boolean(resolved):
        raise ConstraintError(f"must be true or false at every point; {_EXAMPLE}")
    return Constraint(text, tuple(dict.fromkeys(resolver.used)), resolved)


_EXAMPLE = "write a comparison such as num_heads * num_layers <= 16"
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs}
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


class _Resolver:
    """Copies a tree of allowed nodes with every name, dotted or short, replaced by its dotted key."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names
        self.used: list[str] = []

    def visit_bounded(self, node: ast.expr, depth: int) -> ast.expr:
        if depth > DEEPEST:
            raise ConstraintError(f"nested more than {DEEPEST} levels deep; split it into several constraints")

        def visit(child: ast.expr) -> ast.expr:
            return self.visit_bounded(child, depth + 1)

        match node:
            case ast.Constant(value=bool() | int() | float() | str()):
                return node
            case ast.Name() | ast.Attribute():
                return ast.Name(self._key(node), ast.Load())
            case ast.BoolOp(op=op, values=values):
                return ast.BoolOp(op, [visit(value) for value in values])
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd() as op, operand=operand):
                return ast.UnaryOp(op, visit(operand))
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _ARITHMETIC):
                return ast.BinOp(visit(left), op, visit(right))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(isinstance(op, _COMPARISONS) for op in ops):
                return ast.Compare(visit(left), ops, [visit(other) for other in others])
            case ast.Call(func=ast.Name(id=name) as func, args=[_, *_] as args, keywords=[]) if name in _FUNCTIONS:
                return ast.Call(func, [visit(arg) for arg in args], [])
        raise ConstraintError(
            f"{_source(node)!r} is not allowed; a constraint compares keys with "
            "< <= > >= == != and may use and, or, not, + - * / // % **, min, max, abs"
        )

    def _key(self, node: ast.Name | ast.Attribute) -> str:
        name = _dotted(node)
        if name not in self.names:
            guess = nearest(name, self.names)
            known = (
                f"did you mean {guess}?"
                if guess
                else f"known names: {', '.join(sorted(set(self.names) - _full(self.names)))}"
            )
            raise ConstraintError(f"unknown name {name[:80]!r}; {known}")
        self.used.append(self.names[name])
        return self.names[name]


def _full(names: Mapping[str, str]) -> set[str]:
    return {name for name, key in names.items() if name == key and "." in name}


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise ConstraintError(f"{_source(node)!r} is not allowed before a dot; only names of keys have dots")
    return ".".join([node.id, *reversed(parts)])


def _source(node: ast.expr) -> str:
    try:
        text = ast.unparse(node)
    except RecursionError:
        text = "..."
    return text if len(text) <= 60 else text[:57] + "..."


def _is_boolean(node: ast.expr) -> bool:
    match node:
        case ast.Compare():
            return True
        case ast.BoolOp(values=values):
            return all(_is_boolean(value) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _is_boolean(operand)
    return False


def _number(value: Any) -> Any:
    if isinstance(value, str):
        raise TypeError(f"{value[:40]!r} is text, and text can only be compared")
    return value


def _numeric(compute: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: compute(*map(_number, values))


def _power(base: Any, exponent: Any) -> Any:
    if abs(base) > _LARGEST_BASE or abs(exponent) > _LARGEST_POWER:
        raise ValueError(f"a power takes a base up to {_LARGEST_BASE:.0e} and an exponent up to {_LARGEST_POWER}")
    result = base**exponent
    if isinstance(result, complex):
        raise ValueError("a root of a negative number")
    return result


_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: _numeric(operator.add),
    ast.Sub: _numeric(operator.sub),
    ast.Mult: _numeric(operator.mul),
    ast.Div: _numeric(operator.truediv),
    ast.FloorDiv: _numeric(operator.floordiv),
    ast.Mod: _numeric(operator.mod),
    ast.Pow: _numeric(_power),
    ast.USub: _numeric(operator.neg),
    ast.UAdd: _numeric(operator.pos),
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
