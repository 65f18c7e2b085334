"""First fit never overfills a node, nor a GPU, whatever shares of GPUs are asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tuneyard_pipelines.capacity import Node, Shape, fit, fits_beside, pack, place

GPUS = st.sampled_from([0, 0, 1, 1, 2, 0.01, 0.1, 0.25, 0.3, 1 / 3, 0.5, 0.6, 0.75, 0.99])
KINDS = st.sampled_from([None, None, "A100", "H100"])
SHAPES = st.builds(Shape, st.integers(1, 4), GPUS, st.integers(1, 4), st.integers(1, 3), KINDS)
NODES = st.lists(
    st.builds(
        Node,
        st.integers(0, 9),
        st.integers(0, 4),
        st.integers(0, 20),
        st.sets(st.sampled_from(["A100", "H100"])).map(frozenset),
    ),
    max_size=4,
)
LITTLE = 1e-4


@given(SHAPES, st.integers(0, 20), NODES)
def test_what_is_placed_is_taken_and_no_more(shape: Shape, trials: int, nodes: list[Node]) -> None:
    free = place(shape, trials, nodes)
    placed = min(trials, fit(shape, nodes)) * shape.workers
    for whole, left in zip(nodes, free, strict=True):
        _sound(whole, left)
    taken = [
        (whole.cpus - left.cpus, whole.all_gpus - left.all_gpus, whole.memory_bytes - left.memory_bytes)
        for whole, left in zip(nodes, free, strict=True)
    ]
    assert sum(cpus for cpus, _, _ in taken) == placed * shape.cpus
    assert abs(sum(gpus for _, gpus, _ in taken) - placed * shape.gpus) < LITTLE
    assert sum(memory for _, _, memory in taken) == placed * shape.memory_bytes
    assert fit(shape, free) == fit(shape, nodes) - min(trials, fit(shape, nodes)) or trials >= fit(shape, nodes)
    if shape.accelerator:
        assert all(
            left == whole
            for whole, left in zip(nodes, free, strict=True)
            if shape.accelerator not in whole.accelerators
        )


@given(st.lists(st.tuples(SHAPES, st.integers(1, 4)), max_size=5), SHAPES, NODES)
def test_what_is_packed_overfills_no_node(held: list[tuple[Shape, int]], more: Shape, nodes: list[Node]) -> None:
    order = sorted(nodes, key=lambda node: (node.gpus, node.cpus, node.memory_bytes))
    free = pack(held, nodes)
    running = [shape for shape, count in held for _ in range(count)]
    assert fits_beside(more, running, nodes) == (free is not None and fit(more, free) > 0)
    if free is None:
        return
    for whole, left in zip(order, free, strict=True):
        _sound(whole, left)
    gone = sum(node.all_gpus for node in order) - sum(node.all_gpus for node in free)
    assert abs(gone - sum(shape.all_gpus for shape in running)) < LITTLE
    assert sum(node.cpus for node in order) - sum(node.cpus for node in free) == sum(
        shape.cpus * shape.workers for shape in running
    )


def _sound(whole: Node, left: Node) -> None:
    assert min(left.cpus, left.gpus, left.memory_bytes) >= 0
    assert all(0 < part < 1 for part in left.parts)
    assert left.gpus + len(left.parts) <= whole.gpus, "a part is of a GPU that is there"
