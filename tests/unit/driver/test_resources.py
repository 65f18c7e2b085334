"""What trials ask for must fit on the nodes: refused with what exists, since Ray would wait for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuneyard_pipelines.capacity import Node, Shape, fit, fits_beside, largest, never_fits, place
from tuneyard_pipelines.cluster import check_resources, request
from tuneyard_pipelines.errors import InputError
from tuneyard_pipelines.spec import Resources

GIB = 1 << 30


def node(gpus: float, *, cpus: float = 16, memory_gib: float = 64, kind: str = "") -> Node:
    """A node as Ray tells of it; one without GPUs does not name them."""
    named = {f"accelerator_type:{kind}": 1.0} if kind else {}
    return Node.of({"CPU": cpus, "memory": memory_gib * GIB, **({"GPU": gpus} if gpus else {}), **named})


ONE_GPU = Resources(gpus_per_worker=1)


@pytest.mark.parametrize(
    ("asked", "nodes", "told"),
    [
        (
            Resources(workers=8, gpus_per_worker=1),
            [node(4)],
            "8 workers with 1 CPU, 1 GPU and 4.0 GiB of memory each, and the nodes of this cluster hold 4 of them "
            "(nodes: 16 CPU, 4 GPU, 64.0 GiB); "
            "lower workers, cpus_per_worker, gpus_per_worker or memory_per_worker",
        ),
        (
            Resources(workers=4, gpus_per_worker=1),
            [node(1), node(2)],
            "hold 3 of them (nodes: 16 CPU, 1 GPU, 64.0 GiB; 16 CPU, 2 GPU, 64.0 GiB)",
        ),
        (
            Resources(cpus_per_worker=3),
            [node(0, cpus=1), node(0, cpus=2)],
            "3 CPU, 0 GPU and 4.0 GiB of memory on one node, and no node of this cluster has that much "
            "(nodes: 1 CPU, 0 GPU, 64.0 GiB; 2 CPU, 0 GPU, 64.0 GiB); "
            "lower cpus_per_worker, gpus_per_worker or memory_per_worker",
        ),
        (ONE_GPU, [node(0)], "(nodes: 16 CPU, 0 GPU, 64.0 GiB)"),
        (ONE_GPU, [], "(nodes: none)"),
        (Resources(workers=3, gpus_per_worker=0.6), [node(2)], "hold 2 of them"),
        (
            Resources(gpus_per_worker=1, accelerator_type="H100"),
            [node(1, kind="A100"), node(0)],
            "1 CPU, 1 GPU of type H100 and 4.0 GiB of memory on one node, and no node of this cluster has that much "
            "(nodes: 16 CPU, 1 GPU (A100), 64.0 GiB; 16 CPU, 0 GPU, 64.0 GiB); "
            "name another accelerator_type, or none for any",
        ),
    ],
)
def test_s8_what_the_nodes_do_not_hold_is_refused_with_what_exists(
    asked: Resources, nodes: list[Node], told: str
) -> None:
    with pytest.raises(InputError) as caught:
        check_resources([Shape.of(asked)], nodes)
    assert str(caught.value).startswith("resources: a trial asks for ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "nodes"),
    [
        (Resources(workers=3, gpus_per_worker=1), [node(1), node(2)]),
        (Resources(workers=4, gpus_per_worker=1), [node(4)]),
        (Resources(workers=4, gpus_per_worker=0.5), [node(2)]),
        (Resources(workers=10, gpus_per_worker=0.1), [node(1)]),
        (Resources(), [node(0)]),
        (Resources(cpus_per_worker=16, memory_per_worker="64GiB"), [node(0)]),
        (Resources(gpus_per_worker=1, accelerator_type="H100"), [node(1, kind="A100"), node(1, kind="H100")]),
    ],
)
def test_s8_what_the_nodes_hold_is_accepted(asked: Resources, nodes: list[Node]) -> None:
    check_resources([Shape.of(asked)], nodes)


@pytest.mark.parametrize(
    "asked",
    [
        Resources(cpus_per_worker=12, gpus_per_worker=1),
        Resources(cpus_per_worker=17),
        Resources(gpus_per_worker=1, memory_per_worker="65GiB"),
    ],
)
def test_s8_one_node_must_hold_all_of_a_worker(asked: Resources) -> None:
    """Each node has enough of one thing, and none of everything."""
    with pytest.raises(InputError, match="no node of this cluster has that much"):
        check_resources([Shape.of(asked)], [node(4, cpus=8), node(0, cpus=16)])


def test_every_shape_of_a_mixed_sweep_must_fit() -> None:
    shapes = [Shape.of(Resources(workers=count)) for count in (1, 4)]
    check_resources(shapes, [node(0, cpus=4)])
    with pytest.raises(InputError, match=r"4 workers .* hold 3 of them"):
        check_resources(shapes, [node(0, cpus=3)])


def test_a_worker_asks_ray_for_its_kind_of_gpu() -> None:
    asked = Resources(workers=2, gpus_per_worker=0.5, accelerator_type="A100")
    assert request(asked) == {"CPU": 1, "GPU": 0.5, "memory": 4 * GIB, "accelerator_type:A100": 0.001}
    assert request(Resources()) == {"CPU": 1, "memory": 4 * GIB}


def test_parts_of_gpus_are_no_whole_one() -> None:
    """Two that are free by 0.4 each have 0.8 together, and no room for it."""
    shape = Shape(cpus=1, gpus=0.6, memory_bytes=GIB)
    [left] = place(shape, 2, [node(2)])
    assert (left.gpus, [round(part, 6) for part in left.parts], round(left.all_gpus, 6)) == (0, [0.4, 0.4], 0.8)
    assert [fit(replace(shape, gpus=asked), [left]) for asked in (0.8, 0.4, 0.2, 1)] == [0, 2, 4, 0]


def test_a_share_lies_on_the_fullest_gpu_that_has_room() -> None:
    half, most = Shape(1, 0.5, GIB), Shape(1, 0.7, GIB)
    assert fits_beside(Shape(1, 1, GIB), [half, half], [node(2)])
    assert not fits_beside(Shape(1, 1, GIB), [half, most], [node(2)])
    assert fits_beside(Shape(1, 0.3, GIB), [half, most], [node(2)])


def test_a_trial_fits_beside_others_where_they_leave_it_room() -> None:
    one, two = Shape(1, 0, GIB), Shape(1, 0, GIB, workers=2)
    there = [node(0, cpus=2), node(0, cpus=2)]
    assert fits_beside(two, [one, one], there)
    assert not fits_beside(two, [two, one], there)
    assert fits_beside(one, [two, one], there)
    assert not fits_beside(one, [two, two, one], there)  # a node has gone: nothing counts as free


def test_the_largest_shape_is_as_large_in_each_part_as_any() -> None:
    shapes = [Shape(cpus, gpus, GIB, workers) for cpus in (1, 4) for gpus in (0.5, 1.0) for workers in (1, 2)]
    assert largest(shapes) == Shape(4, 1.0, GIB, 2)


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
