"""What a sweep would do before it does it: points, trials, rungs, tokens. Trains and creates nothing."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tuneyard_pipelines.ranges import Choice, Range
from tuneyard_pipelines.space import Space, Survey
from tuneyard_pipelines.spec import SpecError, SweepSpec
from tuneyard_pipelines.spec_yaml import Problem, shown_value


@dataclass(frozen=True)
class Rung:
    """A share of the budget at which trials are compared, in the budget's unit, and how many trials reach it."""

    share: float
    budget: float
    trials: int


@dataclass(frozen=True)
class Plan:
    """What would run. `points` is None for a continuous space; token counts are None for a budget of epochs.

    `feasible_points` is exact where `sampled_points` is None; otherwise only `feasible_share` is known, from so many
    draws. `broken_rules` counts the examined points that break a rule; one point may break several.
    """

    name: str
    metric: str
    mode: str
    algorithm: str
    varied: dict[str, Any]
    points: int | None
    feasible_points: int | None
    feasible_share: float
    sampled_points: int | None
    broken_rules: dict[str, int]
    trials_asked: int | None
    trials: int
    budget_unit: str
    budget: float
    rungs: tuple[Rung, ...]
    most_tokens: int | None
    expected_tokens: int | None
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The plan as text, one fact a line."""
        return [
            f"sweep      {self.name}: {self.algorithm}, best by {self.metric} ({self.mode})",
            *(f"varied     {key}: {shown_value(written)}" for key, written in self.varied.items()),
            f"points     {self._points()}",
            *(f"           {count:,} break {rule}" for rule, count in self.broken_rules.items() if count),
            f"trials     {self._trials()}",
            f"budget     {_amount(self.budget)} {self.budget_unit} a trial",
            *(
                f"rung       {rung.share:.3f}: {_amount(rung.budget)} {self.budget_unit}, {rung.trials:,} trials"
                for rung in self.rungs
            ),
            f"tokens     {self._tokens()}",
            *(f"problem    {problem}" for problem in self.problems),
        ]

    def _points(self) -> str:
        size = "continuous" if self.points is None else f"{self.points:,}"
        if self.sampled_points is None:
            return f"{size}, {self.feasible_points:,} feasible"
        return f"{size}, {self.feasible_share:.1%} feasible (of {self.sampled_points:,} drawn)"

    def _trials(self) -> str:
        if self.trials_asked is not None and self.trials < self.trials_asked:
            return f"{self.trials:,} (all feasible points; {self.trials_asked:,} were asked for)"
        return f"{self.trials:,}"

    def _tokens(self) -> str:
        if self.most_tokens is None:
            return "known once the data is read"
        return f"at most {self.most_tokens:,}; about {self.expected_tokens:,} expected"


def plan(spec: SweepSpec) -> Plan:
    """What `spec` would run; `problems` says why it cannot."""
    space = Space(spec)
    survey = space.survey(spec.seed)
    trials = _trials(spec, space, survey)
    unit, amount = _budget(spec)
    rungs = _rungs(spec, unit, amount, trials)
    full_tokens = _tokens(spec, unit, amount)
    return Plan(
        name=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        algorithm=spec.search.algorithm,
        varied={key: held.written() for key, held in spec.ranges.items()},
        points=space.size,
        feasible_points=survey.feasible if survey.whole else None,
        feasible_share=survey.share,
        sampled_points=None if survey.whole else survey.examined,
        broken_rules=survey.broken,
        trials_asked=spec.search.trials,
        trials=trials,
        budget_unit=unit,
        budget=amount,
        rungs=rungs,
        most_tokens=None if full_tokens is None else trials * full_tokens,
        expected_tokens=None if full_tokens is None else round(_expected_budgets(rungs) * full_tokens),
        problems=_problems(spec, space, survey),
    )


def runnable(spec: SweepSpec, *, file: str = "") -> Plan:
    """The plan of a spec that can run. Raises SpecError, with `file` as its place, for one that cannot."""
    planned = plan(spec)
    if planned.problems:
        raise SpecError(Problem(file or spec.name, "", problem) for problem in planned.problems)
    return planned


def _amount(amount: float) -> str:
    return f"{amount:,.0f}" if float(amount).is_integer() else f"{amount:,.3f}"


def _trials(spec: SweepSpec, space: Space, survey: Survey) -> int:
    asked = spec.search.trials if space.keys else 1
    if survey.whole:
        return survey.feasible if asked is None else min(asked, survey.feasible)
    if asked is None:
        return round((space.size or 0) * survey.share)
    return asked if survey.feasible else 0


def _budget(spec: SweepSpec) -> tuple[str, float]:
    """Unit and largest amount of a trial's budget."""
    for unit in ("tokens", "steps", "epochs"):
        held = spec.values[f"training.max_{unit}"]
        if held is not None:
            return unit, _largest(held)
    raise ValueError("a spec without a budget")


def _tokens(spec: SweepSpec, unit: str, amount: float) -> int | None:
    """Most tokens of one trial."""
    if unit == "tokens":
        return int(amount)
    return int(amount * _largest(spec.values["training.batch_tokens"])) if unit == "steps" else None


def _largest(held: Any) -> float:
    if not isinstance(held, Range):
        return float(held)
    return float(max(map(float, held.values)) if isinstance(held, Choice) else held.high)


def _rungs(spec: SweepSpec, unit: str, amount: float, trials: int) -> tuple[Rung, ...]:
    shares = spec.rungs()
    return tuple(
        Rung(
            share=share,
            budget=amount * share if unit == "epochs" else math.ceil(amount * share),
            trials=min(trials, max(1, trials // spec.reduction_factor**number)),
        )
        for number, share in enumerate(shares)
    )


def _expected_budgets(rungs: tuple[Rung, ...]) -> float:
    """Full budgets spent when at every rung one of `reduction_factor` trials goes on, and the best at least."""
    before, total = 0.0, 0.0
    for rung in rungs:
        total += rung.trials * (rung.share - before)
        before = rung.share
    return total


def _problems(spec: SweepSpec, space: Space, survey: Survey) -> tuple[str, ...]:
    problems = list(survey.failing)
    if not survey.feasible:
        worst, count = max(survey.broken.items(), key=lambda entry: entry[1])
        drawn = f"all {survey.examined:,} points" if survey.whole else f"all of {survey.examined:,} points drawn"
        problems.append(
            f"no point is feasible: {drawn} break a rule; most, {count:,}, break {worst}: widen the ranges of its keys "
            "or relax it"
        )
    if not survey.whole and spec.search.algorithm == "grid" and spec.search.trials is None:
        problems.append(
            f"a grid of {space.size:,} points is more than can be tried: set search.trials, use fewer values, or set "
            "search.algorithm to random or tpe"
        )
    return tuple(problems)
