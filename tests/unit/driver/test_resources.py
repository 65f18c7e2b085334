"""What a trial asks for must lie on one node: refused with what exists, since Ray would wait for ever."""

from __future__ import annotations

import pytest

from tuneyard_pipelines.capacity import Node, Shape, fit, never_fits, place
from tuneyard_pipelines.cluster import check_resources
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.spec import Resources

GIB = 1 << 30


def node(gpus: float, *, cpus: float = 16, memory_gib: float = 64) -> Node:
    """A node as Ray tells of it; one without GPUs does not name them."""
    return Node.of({"CPU": cpus, "memory": memory_gib * GIB, **({"GPU": gpus} if gpus else {})})


@pytest.mark.parametrize(
    ("gpus", "nodes", "exists"),
    [
        (3, [node(1), node(2)], "16 CPU, 1 GPU, 64.0 GiB; 16 CPU, 2 GPU, 64.0 GiB"),
        (8, [node(4)], "16 CPU, 4 GPU, 64.0 GiB"),
        (8, [node(4), node(4)], "16 CPU, 4 GPU, 64.0 GiB; 16 CPU, 4 GPU, 64.0 GiB"),
        (1, [node(0)], "16 CPU, 0 GPU, 64.0 GiB"),
        (1, [], "none"),
    ],
)
def test_s8_more_gpus_than_one_node_has_are_refused_with_what_exists(gpus: int, nodes: list[Node], exists: str) -> None:
    with pytest.raises(InputError) as caught:
        check_resources(Resources(gpus_per_worker=gpus), nodes)
    message = str(caught.value)
    assert f"asks for 1 CPU, {gpus} GPU and 4.0 GiB of memory on one node" in message
    assert f"(nodes: {exists})" in message
    assert "lower cpus_per_worker, gpus_per_worker or memory_per_worker" in message


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        (Resources(gpus_per_worker=2), [node(1), node(2)]),
        (Resources(gpus_per_worker=4), [node(4)]),
        (Resources(gpus_per_worker=0), [node(0)]),
        (Resources(cpus_per_worker=16, memory_per_worker="64GiB"), [node(0)]),
    ],
)
def test_s8_what_one_node_can_hold_is_accepted(asked: Resources, nodes: list[Node]) -> None:
    check_resources(asked, nodes)


@pytest.mark.parametrize(
    "asked",
    [
        Resources(cpus_per_worker=12, gpus_per_worker=2),
        Resources(cpus_per_worker=17),
        Resources(gpus_per_worker=1, memory_per_worker="65GiB"),
    ],
)
def test_s8_one_node_must_hold_all_that_is_asked_for(asked: Resources) -> None:
    """Each node has enough of one thing, and none of everything."""
    with pytest.raises(InputError, match="no node of this cluster has that much"):
        check_resources(asked, [node(4, cpus=8), node(1, cpus=16)])


def test_the_workers_of_one_trial_spread_over_nodes() -> None:
    shape = Shape(cpus=1, gpus=2, memory_bytes=GIB, workers=3)
    assert fit(shape, [node(4), node(3)]) == 1
    assert [one.gpus for one in place(shape, 1, [node(3), node(5)])] == [1, 1]
    said = never_fits(shape, [node(3), node(3)])
    assert said is not None
    assert (
        "3 workers with 1 CPU, 2 GPU and 1.0 GiB of memory each, and the nodes of this cluster hold 2 of them" in said
    )
    assert "lower workers, cpus_per_worker" in said


def test_what_does_not_fit_takes_nothing() -> None:
    shape = Shape(cpus=4, gpus=1, memory_bytes=GIB)
    assert [one.cpus for one in place(shape, 9, [node(1, cpus=8), node(2, cpus=4)])] == [4, 0]
