"""What a trial asks for, what the nodes of a cluster hold, and how many trials fit; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuneyard_pipelines.spec import Resources


@dataclass(frozen=True)
class Node:
    """What one node has, in all or free."""

    cpus: float
    gpus: float
    memory_bytes: float

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> Node:
        """Of what Ray tells of a node, which does not name what there is none of."""
        return cls(resources.get("CPU", 0), resources.get("GPU", 0), resources.get("memory", 0))


@dataclass(frozen=True)
class Shape:
    """What one trial asks for: so many workers, each of which lies on one node with all of its own."""

    cpus: int
    gpus: int
    memory_bytes: int
    workers: int = 1

    @classmethod
    def of(cls, resources: Resources) -> Shape:
        return cls(resources.cpus_per_worker, resources.gpus_per_worker, resources.memory_per_worker_bytes)


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
        free[at] = Node(
            node.cpus - here * shape.cpus,
            node.gpus - here * shape.gpus,
            node.memory_bytes - here * shape.memory_bytes,
        )
    return tuple(free)


def never_fits(shape: Shape, nodes: Sequence[Node]) -> str | None:
    """Why not even the empty nodes hold a trial, naming what is asked for and what exists; None if they do."""
    if fit(shape, nodes):
        return None
    one = f"{shape.cpus} CPU, {shape.gpus} GPU and {shape.memory_bytes / 2**30:.1f} GiB of memory"
    if shape.workers == 1:
        asked, rule, keys = f"{one} on one node", "no node of this cluster has that much", ""
    else:
        held = sum(_workers(shape, node) for node in nodes)
        asked, rule = f"{shape.workers} workers with {one} each", f"the nodes of this cluster hold {held} of them"
        keys = "workers, "
    return (
        f"resources: a trial asks for {asked}, and {rule} (nodes: {describe(nodes)}); "
        f"lower {keys}cpus_per_worker, gpus_per_worker or memory_per_worker"
    )


def describe(nodes: Sequence[Node]) -> str:
    """What each node has."""
    told = (f"{node.cpus:g} CPU, {node.gpus:g} GPU, {node.memory_bytes / 2**30:.1f} GiB" for node in nodes)
    return "; ".join(told) or "none"


def _workers(shape: Shape, node: Node) -> int:
    gpus = node.gpus // shape.gpus if shape.gpus else math.inf
    return int(min(node.cpus // shape.cpus, gpus, node.memory_bytes // shape.memory_bytes))
