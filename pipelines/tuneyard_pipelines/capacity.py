"""What a trial asks for, what the nodes of a cluster hold, and how many trials fit; pure.

A worker lies on one node with all of its own; the workers of a trial may lie on several. A share of a GPU lies on one
GPU: two of 0.5 fill it, and of two GPUs that are free by 0.4 each none has room for 0.8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import Resources

ACCELERATOR = "accelerator_type:"  # how Ray calls a node's resource that tells the kind of its GPUs
_SLACK = 1e-6  # three times a third is a whole


@dataclass(frozen=True)
class Node:
    """What one node has, in all or free: GPUs that are whole, what is left of others, and which kinds those are."""

    cpus: float
    gpus: float
    memory_bytes: float
    accelerators: frozenset[str] = frozenset()
    parts: tuple[float, ...] = ()

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> Node:
        """Of what Ray tells of a node, which does not name what there is none of."""
        kinds = frozenset(name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR))
        return cls(resources.get("CPU", 0), resources.get("GPU", 0), resources.get("memory", 0), kinds)

    @property
    def all_gpus(self) -> float:
        """The whole ones and the parts."""
        return self.gpus + sum(self.parts)


@dataclass(frozen=True)
class Shape:
    """What one trial asks for: so many workers, each of which lies on one node with all of its own.

    `gpus` below 1 is a share of one; `accelerator`: the kind that they must be, None for any.
    """

    cpus: int
    gpus: float
    memory_bytes: int
    workers: int = 1
    accelerator: str | None = None

    @classmethod
    def of(cls, resources: Resources) -> Shape:
        return cls(
            cpus=resources.cpus_per_worker,
            gpus=resources.gpus_per_worker,
            memory_bytes=resources.memory_per_worker_bytes,
            workers=resources.workers,
            accelerator=resources.accelerator_type,
        )

    @property
    def all_gpus(self) -> float:
        """Of all workers."""
        return self.workers * self.gpus

    def gpus_at(self, point: Mapping[str, Any]) -> float:
        """Of all workers of a trial of that point, whose resources are these where the point does not vary them."""
        workers = point.get("resources.workers", self.workers)
        return float(workers * point.get("resources.gpus_per_worker", self.gpus))


def largest(shapes: Iterable[Shape]) -> Shape:
    """The one that takes most in all: GPUs, then CPUs, then memory.

    Where the choices of a spec are free of each other, each part of it is as large as that of any other.
    """
    taken = {one: (one.all_gpus, one.workers * one.cpus, one.workers * one.memory_bytes) for one in shapes}
    return max(taken, key=lambda one: (*taken[one], one.workers))


def fit(shape: Shape, nodes: Iterable[Node]) -> int:
    """How many trials the nodes hold at a time."""
    return sum(_workers(shape, node) for node in nodes) // shape.workers


def place(shape: Shape, trials: int, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """What is free once so many trials lie on the first nodes that have room; what does not fit is left out."""
    left = min(trials, fit(shape, nodes)) * shape.workers
    free = list(nodes)
    for at, node in enumerate(nodes):
        if not left:
            break
        here = min(left, _workers(shape, node))
        left -= here
        free[at] = _beside(shape, here, node)
    return tuple(free)


def pack(trials: Iterable[tuple[Shape, int]], nodes: Iterable[Node]) -> tuple[Node, ...] | None:
    """What is free beside so many trials of each shape, or None where they cannot be packed so.

    First fit decreasing, small nodes first, so that what needs no GPU leaves those alone.
    """
    free = tuple(sorted(nodes, key=lambda node: (node.gpus, node.cpus, node.memory_bytes)))
    for shape, count in sorted(trials, key=lambda held: _size(held[0]), reverse=True):
        if fit(shape, free) < count:
            return None
        free = place(shape, count, free)
    return free


def fits_beside(shape: Shape, running: Sequence[Shape], nodes: Iterable[Node]) -> bool:
    """Whether one more trial fits beside those that run; not, where these cannot be packed."""
    free = pack(((one, 1) for one in running), nodes)
    return free is not None and fit(shape, free) > 0


def never_fits(shape: Shape, nodes: Sequence[Node]) -> str | None:
    """Why not even the empty nodes hold a trial, naming what is asked for and what exists; None if they do."""
    if fit(shape, nodes):
        return None
    kind = f" of type {shape.accelerator}" if shape.accelerator else ""
    one = f"{shape.cpus} CPU, {shape.gpus:g} GPU{kind} and {shape.memory_bytes / 2**30:.1f} GiB of memory"
    keys = ["cpus_per_worker", "gpus_per_worker", "memory_per_worker"]
    if shape.workers == 1:
        asked, rule = f"{one} on one node", "no node of this cluster has that much"
    else:
        held = sum(_workers(shape, node) for node in nodes)
        asked, rule = f"{shape.workers} workers with {one} each", f"the nodes of this cluster hold {held} of them"
        keys = ["workers", *keys]
    remedy = f"lower {', '.join(keys[:-1])} or {keys[-1]}"
    if shape.accelerator and fit(replace(shape, accelerator=None), nodes):
        remedy = "name another accelerator_type, or none for any"
    return f"resources: a trial asks for {asked}, and {rule} (nodes: {describe(nodes)}); {remedy}"


def describe(nodes: Sequence[Node]) -> str:
    """What each node has."""
    told = (
        f"{node.cpus:g} CPU, {node.all_gpus:g} GPU{_kinds(node)}, {node.memory_bytes / 2**30:.1f} GiB" for node in nodes
    )
    return "; ".join(told) or "none"


def times(amount: float, there: float) -> int:
    """How often an amount above 0 is there."""
    return math.floor(there / amount + _SLACK)


def _kinds(node: Node) -> str:
    return f" ({', '.join(sorted(node.accelerators))})" if node.accelerators and node.all_gpus else ""


def _size(shape: Shape) -> tuple[float, float, float]:
    return shape.gpus, shape.cpus, shape.memory_bytes


def _workers(shape: Shape, node: Node) -> int:
    if shape.accelerator and shape.accelerator not in node.accelerators:
        return 0
    return int(min(node.cpus // shape.cpus, _by_gpus(shape, node), node.memory_bytes // shape.memory_bytes))


def _by_gpus(shape: Shape, node: Node) -> float:
    """How many workers its GPUs hold."""
    if not shape.gpus:
        return math.inf
    if shape.gpus >= 1:
        return node.gpus // shape.gpus
    return math.floor(node.gpus) * times(shape.gpus, 1) + sum(times(shape.gpus, part) for part in node.parts)


def _beside(shape: Shape, workers: int, node: Node) -> Node:
    """What a node has left beside so many workers, for which it has room."""
    left = replace(
        node,
        cpus=node.cpus - workers * shape.cpus,
        memory_bytes=node.memory_bytes - workers * shape.memory_bytes,
    )
    if shape.gpus >= 1 or not shape.gpus:
        return replace(left, gpus=node.gpus - workers * shape.gpus)
    gpus, parts = node.gpus, sorted(node.parts)
    for _ in range(workers):  # as Ray does it: on the fullest GPU that has room
        at = next((at for at, part in enumerate(parts) if times(shape.gpus, part)), None)
        if at is None:
            gpus, at = gpus - 1, len(parts)
            parts.append(1.0)
        parts[at] -= shape.gpus
        parts.sort()
    return replace(left, gpus=gpus, parts=tuple(part for part in parts if part > _SLACK))
