"""Who starts, what the others wait for, and who makes room: one rule of the queue a test."""

from __future__ import annotations

from typing import Any

import pytest

from tuneyard.admission import Active, Decision, Limits, Rules, Sweep, decide
from tuneyard_pipelines.capacity import Node, Shape

GIB = 1 << 30
NODE = Node(cpus=16, gpus=4, memory_bytes=64 * GIB)


def shape(gpus: int = 0, cpus: int = 1, gib: int = 1, workers: int = 1) -> Shape:
    return Shape(cpus, gpus, gib * GIB, workers)


def sweep(id: str, gpus: int = 0, priority: int = 50, age: int = 0, owner: str = "ann", **more: Any) -> Sweep:
    """`age`: the higher, the longer it has waited."""
    return Sweep(id, owner, priority, 1_000 - age, more.pop("shape", shape(gpus)), **more)


def active(id: str, gpus: int = 0, trials: int = 1, priority: int = 50, age: int = 0, **more: Any) -> Active:
    of_sweep = sweep(id, gpus, priority, age, more.pop("owner", "bob"), shape=more.pop("shape", shape(gpus)))
    return Active(**{**vars(of_sweep), "trials": trials, "begun": True, **more})


def decided(
    waiting: list[Sweep],
    there: list[Active] | tuple[Active, ...] = (),
    nodes: list[Node] | tuple[Node, ...] = (NODE,),
    **rules: Any,
) -> Decision:
    return decide(waiting, there, nodes, Rules(**{"most_drivers": 8, **rules}))


def test_they_start_by_priority_then_age_then_id() -> None:
    waiting = [
        sweep("young", age=1, most_trials=1),
        sweep("old", age=9, most_trials=1),
        sweep("b", age=1, priority=90, most_trials=1),
        sweep("a", age=1, priority=90, most_trials=1),
    ]
    assert decided(waiting) == Decision(start=("a", "b", "old", "young"))


def test_q8_a_small_one_of_low_priority_does_not_pass_a_large_one_that_waits_for_gpus() -> None:
    waiting = [sweep("large", gpus=4, priority=90), sweep("small", gpus=1, priority=10)]
    decision = decided(waiting, [active("there", gpus=2)])
    assert decision.start == ()
    assert decision.waits == {
        "large": "needs 4 GPUs a trial, 2 free; the next",
        "small": "behind large, which needs 4 GPUs a trial",
    }


def test_q8_small_ones_that_keep_coming_do_not_starve_a_large_one() -> None:
    """Each round a small one ends and another comes; whoever passed would hold the room for ever."""
    there = [active(f"first{at}", gpus=1) for at in range(4)]
    large = sweep("large", gpus=4, age=500)
    for at in range(4):
        small = [sweep(f"late{at}-{number}", gpus=1, age=400 - at) for number in range(3)]
        assert decided([*small, large], there).start == ()
        there = there[1:]
    assert decided([*small, large], there).start[0] == "large"


def test_of_those_behind_each_is_told_what_it_lacks_itself() -> None:
    waiting = [sweep("a", gpus=4, age=3), sweep("b", gpus=3, age=2), sweep("c", age=1)]
    decision = decided(waiting, [active("there", gpus=2)])
    assert decision.waits["b"] == "needs 3 GPUs a trial, 2 free; 1 ahead"
    assert decision.waits["c"] == "behind a, which needs 4 GPUs a trial"


def test_no_more_drivers_than_allowed() -> None:
    waiting = [sweep("a", age=3, most_trials=1), sweep("b", age=2), sweep("c", age=1)]
    decision = decided(waiting, [active(f"there{at}") for at in range(7)])
    assert decision.start == ("a",)
    assert decision.waits == {
        "b": "8 sweeps run at once, the most allowed; the next",
        "c": "8 sweeps run at once, the most allowed; 1 ahead",
    }


def test_paused_starts_and_preempts_nobody_and_says_why() -> None:
    decision = decided([sweep("a", gpus=4)], [active("b", gpus=4, priority=0)], preempt=True, paused="new disks")
    assert decision == Decision(waits={"a": "paused: new disks"})


def test_a_cluster_that_is_not_known_starts_nobody_and_refuses_nobody() -> None:
    assert decided([sweep("a", gpus=99)], nodes=()) == Decision(waits={"a": "the cluster does not answer"})


@pytest.mark.parametrize(
    ("gpus", "held", "exists"), [(8, [4], "16 CPU, 4 GPU"), (3, [1, 2], "16 CPU, 1 GPU, 64.0 GiB; 16 CPU, 2 GPU")]
)
def test_s8_what_can_never_fit_is_refused_with_what_exists_and_holds_nobody_back(
    gpus: int, held: list[int], exists: str
) -> None:
    nodes = [Node(16, count, 64 * GIB) for count in held]
    decision = decided([sweep("large", gpus=gpus, priority=90), sweep("small", gpus=1)], nodes=nodes)
    assert decision.start == ("small",)
    reason, text = decision.never["large"]
    assert reason == "no_capacity"
    assert f"{gpus} GPU" in text
    assert exists in text
    assert decided([sweep("large", gpus=gpus)], nodes=nodes, paused="x").never.keys() == {"large"}


@pytest.mark.parametrize(
    ("asked", "held", "nodes", "text"),
    [
        (shape(gpus=2), [shape(gpus=3)] * 2, [NODE, NODE], "needs 2 GPUs on one node, at most 1 free on one"),
        (shape(cpus=12), [shape(cpus=8)], [NODE], "needs 12 CPUs a trial, 8 free"),
        (shape(gib=40), [shape(gib=32)], [NODE], "needs 40 GiB of memory a trial, 32 free"),
        (shape(gpus=1, cpus=8, workers=3), [shape(cpus=8)], [NODE, NODE], None),
        (
            shape(gpus=3, cpus=9, workers=3),
            [shape(gpus=3, cpus=7), shape(gpus=2, cpus=7)],
            [Node(20, 6, 64 * GIB), NODE, NODE],
            "needs 3 workers with 3 GPUs, 9 CPUs, 1 GiB of memory each, not free in such parts",
        ),
        (
            shape(gpus=4, cpus=16),
            [shape(gpus=1)],
            [Node(16, 8, 64 * GIB), Node(24, 0, 64 * GIB)],
            "needs 4 GPUs, 16 CPUs, 1 GiB of memory on one node, not free together on any",
        ),
    ],
)
def test_where_room_is_short_it_is_told_of_what(
    asked: Shape, held: list[Shape], nodes: list[Node], text: str | None
) -> None:
    there = [active(f"there{at}", shape=one) for at, one in enumerate(held)]
    decision = decided([sweep("a", shape=asked)], there, nodes)
    assert decision.waits.get("a") == (text and f"{text}; the next")


def test_nodes_without_gpus_are_filled_first() -> None:
    nodes = [Node(4, 4, 64 * GIB), Node(4, 0, 64 * GIB)]
    waiting = [sweep("cpus", age=2, most_trials=4), sweep("gpus", age=1, shape=shape(gpus=4, cpus=4))]
    assert decided(waiting, nodes=nodes).start == ("cpus", "gpus")


def test_one_that_has_not_begun_holds_all_that_it_may_take() -> None:
    waiting = [sweep("next", gpus=1)]
    assert decided(waiting, [active("new", gpus=1, begun=False, trials=0)]).start == ()
    assert decided(waiting, [active("new", gpus=1, begun=False, trials=0, most_trials=3)]).start == ("next",)
    assert decided(waiting, [active("old", gpus=1, trials=3)]).start == ("next",)
    assert decided([sweep("a", gpus=1, age=1), *waiting]).start == ("a",), "of one round, too"


def test_one_without_a_running_trial_holds_one_trials_worth() -> None:
    assert decided([sweep("a", gpus=2)], [active("between", gpus=3, trials=0)]).start == ()
    assert decided([sweep("a", gpus=1)], [active("between", gpus=3, trials=0)]).start == ("a",)


def test_what_lay_on_a_node_that_went_away_holds_nothing_and_what_cannot_be_packed_leaves_nothing() -> None:
    small = [Node(4, 1, 64 * GIB)]
    assert decided([sweep("a", gpus=1)], [active("gone", gpus=4)], small).start == ("a",)
    assert decided([sweep("a")], [active("some", gpus=1, trials=2)], small).start == ()


def test_one_that_waits_for_its_owners_limit_holds_back_only_its_owner() -> None:
    waiting = [sweep("mine", age=3), sweep("mine too", age=2), sweep("yours", owner="eve", age=1)]
    there = [active("a1", owner="ann"), active("a2", owner="ann")]
    decision = decided(waiting, there, limits={"ann": Limits(sweeps=2)})
    assert decision.start == ("yours",)
    assert decision.waits == {
        "mine": "your own 2 running sweeps, the limit of ann",
        "mine too": "your own 2 running sweeps, the limit of ann",
    }


def test_a_limit_on_gpus_is_kept_by_what_sweeps_may_take_and_says_how_many_trials_keep_it() -> None:
    limits = {"ann": Limits(gpus=3)}
    decision = decided([sweep("a", gpus=1, age=3), sweep("b", gpus=1, age=2), sweep("c", age=1)], limits=limits)
    assert decision.start == ("a", "c"), "what needs no GPU goes on"
    assert decision.most_trials == {"a": 3}
    assert decision.waits == {"b": "needs 1 GPU a trial beside your own sweeps; 3 in all, the limit of ann"}
    there = [active("a", gpus=1, owner="ann", trials=1, most_trials=2)]
    decision = decided([sweep("large", gpus=2, age=3), sweep("small", gpus=1, age=2)], there, limits=limits)
    assert decision.start == ()
    assert decision.waits["small"] == "behind large, which waits for the limit of ann"


def test_one_above_its_owners_limit_waits_for_a_change_and_holds_back_nobody() -> None:
    decision = decided([sweep("a", gpus=4, age=2), sweep("b", gpus=2)], limits={"ann": Limits(gpus=3)})
    assert decision.start == ("b",)
    assert decision.most_trials == {"b": 1}
    assert decision.waits == {"a": "needs 4 GPUs a trial beside your own sweeps; 3 in all, the limit of ann"}


def test_used_up_gpu_hours_hold_back_what_needs_gpus() -> None:
    limits = {"ann": Limits(gpu_hours=10, used_gpu_hours=10.04)}
    decision = decided([sweep("a", gpus=1, age=2), sweep("b")], limits=limits)
    assert decision.start == ("b",)
    assert decision.waits == {"a": "10.0 of your 10 GPU-hours are used, the limit of ann"}


def test_preemption_is_off_unless_asked_for() -> None:
    assert decided([sweep("a", gpus=4, priority=90)], [active("b", gpus=4, priority=10)]).preempt == ()


@pytest.mark.parametrize(
    ("there", "preempted"),
    [
        ([active("b", gpus=4, priority=89)], ("b",)),
        ([active("b", gpus=4, priority=90)], ()),
        ([active("b", gpus=4, priority=95)], ()),
        ([active("old", gpus=2, age=9, priority=5), active("young", gpus=2, age=1, priority=5)], ("young",)),
        ([active("low", gpus=2, age=9, priority=4), active("young", gpus=2, age=1, priority=5)], ("low",)),
        ([active("a1", gpus=1, age=1), active("a2", gpus=1, age=2), active("a3", gpus=2, age=3)], ("a1", "a2")),
        ([active("cpus", priority=1), active("gpus", gpus=3, priority=2)], ("gpus",)),
        ([active("one", gpus=1, priority=1), active("three", gpus=3, priority=2)], ("three",)),
        ([active("low", gpus=2, priority=1), active("equal", gpus=2, priority=90)], ("low",)),
        ([active("low", gpus=1, priority=1), active("equal", gpus=3, priority=90)], ()),
        ([active("low", gpus=3, priority=1), active("ends", gpus=1, priority=1, ending=True)], ()),
    ],
)
def test_preemption_ends_the_lowest_and_youngest_and_no_more_than_needed(
    there: list[Active], preempted: tuple[str, ...]
) -> None:
    waiting = [sweep("a", gpus=2, priority=90), sweep("behind", gpus=4, priority=80)]
    decision = decided(waiting, there, preempt=True)
    assert decision.preempt == preempted
    assert decision.start == ()


def test_preemption_frees_a_drivers_place() -> None:
    there = [active("b", priority=10), active("c", priority=5), active("d", priority=90)]
    assert decided([sweep("a", priority=90)], there, most_drivers=3, preempt=True).preempt == ("c",)


def test_nobody_makes_room_for_one_that_waits_for_its_owners_limit() -> None:
    waiting = [sweep("a", gpus=4, priority=90)]
    there = [active("b", gpus=4, priority=10)]
    assert decided(waiting, there, preempt=True, limits={"ann": Limits(sweeps=0)}).preempt == ()
