"""Which waiting sweeps may start now, what the others wait for, and which running ones must make room; pure.

The order is priority, then age, then id, and it is strict: the first that waits for room, or for a driver's place,
holds back all behind it, also those that would fit. Otherwise small sweeps would take every bit of room that gets free,
and a large one would starve. Since none passes it, its turn comes at the latest when all that run now have ended. One
that waits for a limit of its owner's holds back nobody but its owner's later ones.

A sweep starts when one trial of it fits beside what the others hold. A sweep holds what its running trials need, which
they keep between their legs, and what one trial needs where none runs; before its first trial has started, all that it
may take. Where a trial runs is not known here, so all are packed: first fit decreasing, small nodes first, so that what
needs no GPU leaves those alone. Where what runs cannot be packed so, nothing counts as free until some of it has ended.

A sweep whose trials differ in shape counts as if each had its largest one (`capacity.largest`): it may wait for more
than its next trial needs, and holds more than some of its trials do, so that none starts into room that is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tuneyard_pipelines.capacity import Node, Shape, fit, never_fits, pack, place, times


@dataclass(frozen=True)
class Sweep:
    """One that waits, since `queued_ms`; `most_trials` of it run at once, None: as many as fit."""

    id: str
    owner: str
    priority: int
    queued_ms: int
    shape: Shape
    most_trials: int | None = None


@dataclass(frozen=True)
class Active(Sweep):
    """One that has a driver: `trials` run now, `begun` says that one ever did, `ending` that it was asked to end."""

    trials: int = 0
    begun: bool = False
    ending: bool = False


@dataclass(frozen=True)
class Limits:
    """What the sweeps of one owner may take together; None: no limit."""

    sweeps: int | None = None
    gpus: int | None = None
    gpu_hours: float | None = None
    used_gpu_hours: float = 0.0


@dataclass(frozen=True)
class Rules:
    """How many drivers there may be, the `limits` of owners, and why the queue is `paused`, if it is."""

    most_drivers: int
    limits: Mapping[str, Limits] = field(default_factory=dict)
    preempt: bool = False
    paused: str | None = None


@dataclass(frozen=True)
class Decision:
    """Each waiting sweep is in `start`, in order, or in `waits`, with what for, or in `never`, with reason and text.

    `preempt` names the active ones that must make room. `most_trials` says, of those that start under a limit on GPUs,
    how many trials at once keep it: their drivers must be told, and it is their `most_trials` from then on.
    """

    start: tuple[str, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    preempt: tuple[str, ...] = ()
    never: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    most_trials: Mapping[str, int] = field(default_factory=dict)


def decide(waiting: Sequence[Sweep], active: Sequence[Active], nodes: Sequence[Node], rules: Rules) -> Decision:
    """What is to happen now. `nodes` say what each has in all; none: the cluster is not known, and nobody starts."""
    too_large = {one.id: text for one in waiting if nodes and (text := never_fits(one.shape, nodes))}
    never = {sweep_id: ("no_capacity", text) for sweep_id, text in too_large.items()}
    queue = sorted((one for one in waiting if one.id not in never), key=_turn)
    if rules.paused is not None or not nodes:
        text = "the cluster does not answer" if rules.paused is None else f"paused: {rules.paused}"
        return Decision(waits={one.id: text for one in queue}, never=never)
    there, free = list(active), _free(nodes, active)
    waits: dict[str, str] = {}
    most_trials: dict[str, int] = {}
    limited: dict[str, Sweep] = {}  # by owner, the first that waits for its own
    first: Sweep | None = None  # of those that wait for room or a place
    for one in queue:
        limits = rules.limits.get(one.owner, Limits())
        own = [other for other in there if other.owner == one.owner]
        if text := _limit(one, limits, own, nodes):
            waits[one.id] = text
            if limits.gpus is None or _gpus(one) <= limits.gpus:  # else the limit must change first
                limited.setdefault(one.owner, one)
        elif _gpus(one) and one.owner in limited:
            waits[one.id] = f"behind {limited[one.owner].id}, which waits for the limit of {one.owner}"
        elif len(there) >= rules.most_drivers:
            first = first or one
            waits[one.id] = f"{_count(len(there), 'sweep')} run at once, the most allowed{_ahead(waits)}"
        elif not fit(one.shape, free):
            first = first or one
            needed, there_is = _shortage(one.shape, free)
            waits[one.id] = f"needs {needed}, {there_is}{_ahead(waits)}"
        elif first is not None:
            waits[one.id] = f"behind {first.id}, which needs {_shortage(first.shape, free)[0]}"
        else:
            if (allowed := _allowed(one, limits, own, nodes)) is not None:
                most_trials[one.id] = min(_most(one, nodes), allowed)
            there.append(Active(**vars(replace(one, most_trials=most_trials.get(one.id, one.most_trials)))))
            free = _free(nodes, there)
    start = tuple(one.id for one in there[len(active) :])
    preempt = _making_room(first, there, nodes, rules) if rules.preempt and first is not None else ()
    return Decision(start, waits, preempt, never, most_trials)


def _turn(one: Sweep) -> tuple[int, int, str]:
    return -one.priority, one.queued_ms, one.id


def _limit(one: Sweep, limits: Limits, own: Sequence[Active], nodes: Sequence[Node]) -> str | None:
    """Which limit of its owner's it waits for, beside the owner's own active ones."""
    rule = f"the limit of {one.owner}"
    if limits.sweeps is not None and len(own) >= limits.sweeps:
        return f"your own {_count(len(own), 'running sweep')}, {rule}"
    if _gpus(one) and limits.gpu_hours is not None and limits.used_gpu_hours >= limits.gpu_hours:
        return f"{limits.used_gpu_hours:.1f} of your {limits.gpu_hours:g} GPU-hours are used, {rule}"
    if _allowed(one, limits, own, nodes) == 0:
        return f"needs {_count(_gpus(one), 'GPU')} a trial beside your own sweeps; {limits.gpus} in all, {rule}"
    return None


def _allowed(one: Sweep, limits: Limits, own: Sequence[Active], nodes: Sequence[Node]) -> int | None:
    """How many trials at once its owner's limit on GPUs leaves it; None: it is not concerned."""
    if limits.gpus is None or not _gpus(one):
        return None
    left = limits.gpus - sum(_most(other, nodes) * _gpus(other) for other in own)
    return max(0, times(_gpus(one), left))


def _gpus(one: Sweep) -> float:
    return one.shape.all_gpus


def _most(one: Sweep, nodes: Sequence[Node]) -> int:
    return fit(one.shape, nodes) if one.most_trials is None else one.most_trials


def _free(nodes: Sequence[Node], active: Sequence[Active]) -> tuple[Node, ...]:
    """What each node has left beside what the active sweeps hold; nothing where that cannot be packed."""
    there = [one for one in active if fit(one.shape, nodes)]  # the others' nodes have gone
    free = pack(((one.shape, _held(one)) for one in there), nodes)
    if free is None:
        return ()
    for one in there:
        if not one.begun:
            free = place(one.shape, _most(one, nodes) - _held(one), free)
    return free


def _held(one: Active) -> int:
    return max(1, one.trials)


def _shortage(shape: Shape, free: Sequence[Node]) -> tuple[str, str]:
    """What a trial needs and does not find, and how much of it is free."""
    free = [node for node in free if shape.accelerator is None or shape.accelerator in node.accelerators]
    amounts = (
        (shape.gpus, f"{shape.accelerator or ''} GPU".lstrip(), [node.all_gpus for node in free]),
        (shape.cpus, "CPU", [node.cpus for node in free]),
        (shape.memory_bytes / 2**30, "GiB of memory", [node.memory_bytes / 2**30 for node in free]),
    )
    for asked, name, there in amounts:
        if asked * shape.workers > sum(there):
            return f"{_count(asked * shape.workers, name)} a trial", f"{_number(sum(there))} free"
    for asked, name, there in amounts:
        if asked > max(there):
            return f"{_count(asked, name)} on one node", f"at most {_number(max(there))} free on one"
    all_of_it = ", ".join(_count(asked, name) for asked, name, _ in amounts if asked)
    if shape.workers == 1:
        return f"{all_of_it} on one node", "not free together on any"
    return f"{shape.workers} workers with {all_of_it} each", "not free in such parts"


def _making_room(first: Sweep, there: Sequence[Active], nodes: Sequence[Node], rules: Rules) -> tuple[str, ...]:
    """Whom to end for it: of the lowest priority, the youngest first, and nobody whose end it does not need."""
    if any(one.ending for one in there):
        return ()  # its room is not free yet, and may be enough

    def enough(going: Sequence[Active]) -> bool:
        rest = [one for one in there if one not in going]
        return len(rest) < rules.most_drivers and fit(first.shape, _free(nodes, rest)) > 0

    going: list[Active] = []
    for one in sorted((one for one in there if one.priority < first.priority), key=_turn, reverse=True):
        going.append(one)
        if enough(going):
            break
    else:
        return ()
    for one in tuple(reversed(going)):
        if enough(fewer := [other for other in going if other is not one]):
            going = fewer
    return tuple(one.id for one in going)


def _ahead(waits: Mapping[str, str]) -> str:
    return f"; {len(waits)} ahead" if waits else "; the next"


def _count(number: float, noun: str) -> str:
    return f"{_number(number)} {noun}{'' if number == 1 or noun.startswith('GiB') else 's'}"


def _number(number: float) -> str:
    return f"{number:.{2 if number < 1 else 1}f}".rstrip("0").rstrip(".")
