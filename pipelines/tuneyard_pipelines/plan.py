"""What a sweep would do before it does it: points, trials, rungs, tokens, models, time. Trains and creates nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tuneyard_pipelines import architectures, cost
from tuneyard_pipelines.capacity import largest
from tuneyard_pipelines.catalog import Vocabularies, complete, tokenizer_name, vocab_sizes
from tuneyard_pipelines.cost import Speed
from tuneyard_pipelines.data_facts import DataFacts
from tuneyard_pipelines.formulas import VocabSizes
from tuneyard_pipelines.ranges import Choice, Point, Range
from tuneyard_pipelines.space import Space, Survey
from tuneyard_pipelines.spec import SpecError, SweepSpec, TrialConfig, display_name
from tuneyard_pipelines.spec_yaml import Problem, shown_value

WEIGHED = 300  # points of a variant whose cost is computed, at most


@dataclass(frozen=True)
class Machine:
    """What a plan cannot know by itself. Left out, what depends on it is left out, or marked as approximate.

    vocabularies: how many ids tokenizers have on this data, by `tokenizer_name`; exact: whether they were counted on
    all of it; data: its sizes, lengths and padding; speed: a calibration; slots: trials at once; memory_bytes: of this
    machine.
    """

    vocabularies: Vocabularies = field(default_factory=dict)
    exact: bool = False
    data: DataFacts | None = None
    speed: Speed | None = None
    slots: int = 1
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Rung:
    """A share of the budget at which trials are compared, in the budget's unit, and how many trials reach it."""

    share: float
    budget: float
    trials: int


@dataclass(frozen=True)
class Model:
    """What a point of the sweep costs; `approximate` where its vocabulary is not known for sure."""

    name: str
    parameters: int
    memory_bytes: int
    flops_per_token: int
    approximate: bool

    def __str__(self) -> str:
        about = "~" if self.approximate else ""
        return (
            f"{about}{self.parameters:,} parameters, {about}{_gib(self.memory_bytes)} to train, "
            f"{about}{self.flops_per_token:.3g} FLOPs a token{f' ({self.name})' if self.name else ''}"
        )


@dataclass(frozen=True)
class VariantPlan:
    """What would run of one variant; of a sweep without variants there is one, without a name.

    `points` is None for a continuous space; token counts are None for a budget of epochs. `feasible_points` is exact
    where `sampled_points` is None; otherwise only `feasible_share` is known, from so many draws. `broken_rules` counts
    the examined points that break a rule; one point may break several. `training_s`: of all its trials together, None
    without a calibration.
    """

    name: str
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
    smallest: Model | None
    largest: Model | None
    training_s: float | None
    problems: tuple[str, ...]

    def lines(self) -> list[str]:
        """One fact a line."""
        models = [("smallest", self.smallest), ("largest", self.largest)]
        if self.smallest == self.largest:
            models = [("model", self.smallest)]
        return [
            *(f"varied     {key}: {shown_value(written)}" for key, written in self.varied.items()),
            f"points     {self._points()}",
            *(f"           {count:,} break {rule}" for rule, count in self.broken_rules.items() if count),
            f"trials     {self._trials()}",
            f"budget     {_amount(self.budget)} {self.budget_unit} a trial",
            *(
                f"rung       {rung.share:.3f}: {_amount(rung.budget)} {self.budget_unit}, reached by {rung.trials:,}"
                for rung in self.rungs
            ),
            *(f"{label:<10} {model}" for label, model in models if model is not None),
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


@dataclass(frozen=True)
class Plan:
    """What would run. `training_s` is the time of training with all `slots` busy, without validation and start-up.

    `workers` and `gpus` are those of a trial; of the largest where trials differ, which `mixed` tells.
    """

    name: str
    metric: str
    mode: str
    algorithm: str
    variants: tuple[VariantPlan, ...]
    trials: int
    most_tokens: int | None
    expected_tokens: int | None
    slots: int
    workers: int
    gpus: float
    mixed: bool
    training_s: float | None
    data: DataFacts | None
    limits: tuple[str, ...]
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The plan as text, one fact a line."""
        head = f"sweep      {self.name}: {self.algorithm}, best by {self.metric} ({self.mode})"
        named = [f"variants   {len(self.variants)}, {self.trials:,} trials"] if self.variants[0].name else []
        inside = [
            line
            for variant in self.variants
            for line in ([f"variant    {variant.name}"] if variant.name else []) + variant.lines()
        ]
        return [
            head,
            *named,
            *inside,
            *([f"resources  {self._resources()}"] if self.workers > 1 or self.gpus else []),
            f"tokens     {self._tokens()}",
            *([f"time       {self._time()}"] if self.training_s is not None else []),
            *(f"{label:<10} {line}" for label, line in (self.data.lines() if self.data else ())),
            *(f"limit      {limit}" for limit in self.limits),
            *(f"problem    {problem}" for problem in self.problems),
        ]

    def _resources(self) -> str:
        workers = f"{self.workers:,} worker{'s' if self.workers > 1 else ''}"
        of = "of the largest trial" if self.mixed else "a trial"
        return f"{workers} and {self.gpus:g} GPU{'' if self.gpus == 1 else 's'} {of}"

    def _tokens(self) -> str:
        if self.most_tokens is None:
            return "known once the data is read"
        return f"at most {self.most_tokens:,}; about {self.expected_tokens:,} expected"

    def _time(self) -> str:
        at_once = f"{self.slots} trial{'s' if self.slots > 1 else ''} at once"
        taken = duration(self.training_s or 0.0)
        alone = ", as if each had one worker" if self.workers > 1 else ""
        return f"about {taken} of training on this machine, {at_once}{alone}; start-up, validation and scoring on top"


def plan(spec: SweepSpec, machine: Machine = Machine()) -> Plan:
    """What `spec` would run; `problems` says why it cannot."""
    variants = tuple(_variant(name, one, machine) for name, one in spec.by_variant.items())
    seconds = [one.training_s for one in variants]
    training_s = None if None in seconds else sum(one or 0.0 for one in seconds) / machine.slots
    problems = [problem for one in variants for problem in one.problems]
    takes = largest(spec.shapes) if spec.shapes else None
    return Plan(
        name=spec.name,
        metric=spec.metric,
        mode=spec.mode,
        algorithm=spec.search.algorithm,
        variants=variants,
        trials=sum(one.trials for one in variants),
        most_tokens=_sum([one.most_tokens for one in variants]),
        expected_tokens=_sum([one.expected_tokens for one in variants]),
        slots=machine.slots,
        workers=takes.workers if takes else 1,
        gpus=takes.all_gpus if takes else 0.0,
        mixed=len(spec.shapes) > 1,
        training_s=training_s,
        data=machine.data,
        limits=tuple(_limits(spec, training_s)),
        problems=tuple(dict.fromkeys(problems)),
    )


def runnable(spec: SweepSpec, machine: Machine = Machine(), *, file: str = "") -> Plan:
    """The plan of a spec that can run. Raises SpecError, with `file` as its place, for one that cannot."""
    planned = plan(spec, machine)
    if planned.problems:
        raise SpecError(Problem(file or spec.name, "", problem) for problem in planned.problems)
    return planned


def check(spec: SweepSpec, *, file: str = "") -> None:
    """Raises what `runnable` raises without a machine, at a small part of its cost: it looks no longer than it must."""
    if not all(map(_runs, spec.by_variant.values())):
        runnable(spec, file=file)


def extremes(spec: SweepSpec, machine: Machine) -> list[tuple[TrialConfig, VocabSizes]]:
    """The smallest and the largest model of each variant with its vocabulary: what a calibration measures.

    Those that count take a step of another kind, and hardly any time.
    """
    found: list[tuple[TrialConfig, VocabSizes]] = []
    for variant in spec.by_variant.values():
        if architectures.find(variant.architecture).counts:
            continue
        costs = _costs(variant, Space(variant, vocabularies=machine.vocabularies), machine)
        ends = [costs[0], costs[-1]] if len(costs) > 1 else costs
        found += [(variant.at(weighed.point), weighed.sizes) for weighed in ends]
    return found


def duration(seconds: float) -> str:
    """`45 s`, `3 min`, `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60:,} h {minutes % 60} min"


@dataclass(frozen=True)
class _Weighed:
    """A point with all its values and its cost."""

    point: Point
    values: Mapping[str, Any]
    sizes: VocabSizes
    cost: Mapping[str, int]


def _variant(name: str, spec: SweepSpec, machine: Machine) -> VariantPlan:
    space = Space(spec, vocabularies=machine.vocabularies)
    survey = space.survey(spec.seed)
    trials = _trials(spec, space, survey)
    unit, amount = _budget(spec)
    rungs = _rungs(spec, unit, amount, trials)
    full_tokens = _tokens(spec, unit, amount)
    costs = _costs(spec, space, machine)
    budgets = _expected_budgets(rungs)
    models = [
        Model(
            name=display_name(0, weighed.point).partition(" ")[2],
            parameters=weighed.cost["parameters"],
            memory_bytes=weighed.cost["memory_bytes"],
            flops_per_token=weighed.cost["flops_per_token"],
            approximate=_approximate(weighed.values, machine),
        )
        for weighed in (costs[:1] + costs[-1:])
    ]
    training_s = None
    if machine.speed is not None and full_tokens is not None and costs:
        each = [cost.seconds_per_token(weighed.values, weighed.sizes, machine.speed) for weighed in costs]
        training_s = budgets * full_tokens * sum(each) / len(each)
    return VariantPlan(
        name=name,
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
        expected_tokens=None if full_tokens is None else round(budgets * full_tokens),
        smallest=models[0] if models else None,
        largest=models[-1] if models else None,
        training_s=training_s,
        problems=(*_problems(spec, space, survey), *_unfit(space, machine), *_too_large(spec, costs, machine)),
    )


def _runs(spec: SweepSpec) -> bool:
    """Whether it has no problem; False where only the whole plan tells."""
    space, machine = Space(spec), Machine()
    enough = None if space.constrained else 1  # a constraint may fail at any point
    if _problems(spec, space, space.survey(spec.seed, enough=enough)):
        return False
    return any(not any(_too_large(spec, [one], machine)) for one in _weighed(spec, space, machine))


def _costs(spec: SweepSpec, space: Space, machine: Machine) -> list[_Weighed]:
    """Feasible points with their cost, the smallest model first: all of a small space, else a seeded sample."""
    found = _weighed(spec, space, machine)
    return sorted(found, key=lambda weighed: (weighed.cost["parameters"], weighed.cost["flops_per_token"]))


def _weighed(spec: SweepSpec, space: Space, machine: Machine) -> Iterator[_Weighed]:
    """As `_costs`, one after the other, the corners of a large space first."""
    for point in _some(space, spec.seed):
        if space.broken_rule(point) is None:
            values = complete({**spec.values, **point})
            sizes = vocab_sizes(values, machine.vocabularies)
            yield _Weighed(point, values, sizes, cost.derived(values, sizes))


def _approximate(values: Mapping[str, Any], machine: Machine) -> bool:
    """Whether the vocabulary of a point may be another one. Hardly any text has too few pairs of bytes for bpe."""
    known = machine.exact and tokenizer_name(values) in machine.vocabularies
    return not known and values["data.tokenizer.type"] not in ("byte", "bpe")


def _some(space: Space, seed: int) -> Iterator[Point]:
    if space.size is not None and space.size <= WEIGHED:
        yield from space.grid()
        return
    rng = random.Random(f"cost {seed}")
    yield from space.corners()
    for _ in range(WEIGHED):
        yield space.sample(rng)


def _unfit(space: Space, machine: Machine) -> Iterator[str]:
    """Names a point to start from that costs more than a constraint allows, where its vocabulary is known."""
    if machine.exact:
        try:
            _ = space.included
        except ValueError as error:
            yield f"search.include: {error}; take that point out, or relax the constraint"


def _limits(spec: SweepSpec, training_s: float | None) -> Iterator[str]:
    """The budget of the sweep, and whether it will be met."""
    for name, value in spec.budget:
        if value is not None:
            yield f"{name} {value}"
    limit_s = spec.budget.wall_clock_s
    if training_s is not None and limit_s is not None and training_s > limit_s:
        yield f"training alone takes longer than budget.wall_clock ({spec.budget.wall_clock}): it will be cut short"


def _too_large(spec: SweepSpec, costs: list[_Weighed], machine: Machine) -> Iterator[str]:
    """Says where no point can fit: weights, gradients and AdamW's moments alone are more than there is."""
    if not costs:
        return
    least_bytes = min(weighed.cost["parameters"] for weighed in costs) * cost.STATE_FLOATS * cost.FLOAT_BYTES
    limits = [("this machine has", machine.memory_bytes)]
    if spec.shapes and not any(shape.gpus for shape in spec.shapes):  # each worker holds the whole model
        limits.append(("resources.memory_per_worker is", max(shape.memory_bytes for shape in spec.shapes)))
    quota_bytes = spec.budget.checkpoint_limit_bytes
    state_bytes = least_bytes * 3 // cost.STATE_FLOATS  # a checkpoint holds no gradients
    if quota_bytes is not None and state_bytes > quota_bytes:
        yield (
            f"budget.checkpoint_bytes: {spec.budget.checkpoint_bytes} holds not one checkpoint of the smallest model, "
            f"{_gib(state_bytes)}; raise it"
        )
    for what, there_bytes in limits:
        if there_bytes is not None and least_bytes > there_bytes:
            yield (
                f"does not fit here: the smallest model needs {_gib(least_bytes)} for its weights and their training "
                f"alone, and {what} {_gib(there_bytes)}; make d_model or num_layers smaller, or give it more"
            )


def _gib(amount_bytes: int) -> str:
    return f"{amount_bytes / 2**30:,.1f} GiB" if amount_bytes >= 2**30 else f"{amount_bytes / 2**20:,.0f} MiB"


def _sum(counts: list[int | None]) -> int | None:
    return None if None in counts else sum(count or 0 for count in counts)


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
    batch_tokens, batches = (_largest(spec.values[f"training.{name}"]) for name in ("batch_tokens", "accumulate"))
    return int(amount * batch_tokens * batches) if unit == "steps" else None


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
        if not space.keys:
            problems.append(f"its one point cannot be built: {space.explained(worst)}")
            return tuple(problems)
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
