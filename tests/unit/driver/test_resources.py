"""What a trial asks for must lie on one node: refused with what exists, since Ray would wait for ever."""

from __future__ import annotations

import pytest

from tuneyard_pipelines.cluster import check_resources
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.spec import Resources

GIB = 1 << 30


def node(gpus: float, *, cpus: float = 16, memory_gib: float = 64) -> dict[str, float]:
    """A node as Ray tells of it; one without GPUs does not name them."""
    return {"CPU": cpus, "memory": memory_gib * GIB, **({"GPU": gpus} if gpus else {})}


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
def test_s8_more_gpus_than_one_node_has_are_refused_with_what_exists(
    gpus: int, nodes: list[dict[str, float]], exists: str
) -> None:
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
def test_s8_what_one_node_can_hold_is_accepted(asked: Resources, nodes: list[dict[str, float]]) -> None:
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
