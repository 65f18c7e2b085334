"""Whatever is submitted, grows and ends: order, room and limits of the queue are kept, and no sweep starves."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tuneyard.admission import Active, Decision, Limits, Rules, Sweep, decide
from tuneyard_pipelines.capacity import Node, Shape, fit

NODES = st.lists(st.builds(Node, st.integers(1, 4), st.integers(0, 3), st.integers(2, 6)), min_size=1, max_size=3)
SHAPES = st.builds(Shape, st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.sampled_from([1, 1, 1, 2]))
LIMITS = st.builds(
    Limits,
    st.none() | st.integers(1, 3),
    st.none() | st.integers(1, 4),
    st.none() | st.just(10.0),
    st.sampled_from([0.0, 10.0]),
)


class Queue(RuleBasedStateMachine):
    """A dispatcher and a cluster whose trials lie where Hypothesis puts them, not where the rules would."""

    @initialize(nodes=NODES, drivers=st.integers(1, 4), limits=LIMITS, preempt=st.booleans())
    def set_up(self, nodes: list[Node], drivers: int, limits: Limits, preempt: bool) -> None:
        self.nodes = nodes
        self.free = list(nodes)
        self.rules = Rules(drivers, {"ann": limits}, preempt)
        self.waiting: dict[str, Sweep] = {}
        self.active: dict[str, Active] = {}
        self.trials: dict[str, list[list[int]]] = {}  # of a sweep: of each trial, the nodes of its workers
        self.count = 0

    @rule(
        owner=st.sampled_from(["ann", "eve"]),
        priority=st.sampled_from([10, 50, 90]),
        shape=SHAPES,
        most=st.none() | st.integers(1, 4),
    )
    def submit(self, owner: str, priority: int, shape: Shape, most: int | None) -> None:
        self.count += 1
        one = Sweep(f"s{self.count}", owner, priority, self.count // 2, shape, most)
        self.waiting[one.id] = one

    @rule()
    def tick(self) -> None:
        decision = decide(list(self.waiting.values()), list(self.active.values()), self.nodes, self.rules)
        self.check(decision)
        self.follow(decision)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.active.values(), key=lambda one: one.id)))
        if one.most_trials is not None and one.trials >= one.most_trials:
            return
        free, places = list(self.free), []
        for _ in range(one.shape.workers):
            can = [at for at, node in enumerate(free) if fit(replace(one.shape, workers=1), [node])]
            if not can:
                return
            places.append(data.draw(st.sampled_from(can)))
            free[places[-1]] = minus(free[places[-1]], one.shape)
        self.free = free
        self.trials[one.id].append(places)
        self.active[one.id] = replace(one, trials=one.trials + 1, begun=True)

    @precondition(lambda self: any(self.trials.values()))
    @rule(data=st.data())
    def trial_ends(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(id for id, trials in self.trials.items() if trials)))
        self.give_back(id, [self.trials[id].pop()])
        self.active[id] = replace(self.active[id], trials=self.active[id].trials - 1)

    @precondition(lambda self: self.active)
    @rule(data=st.data())
    def sweep_ends(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.active))))

    @invariant()
    def none_starves(self) -> None:
        """From any state: once all that runs has ended and nothing new comes, all start, but who a limit keeps out."""
        if not hasattr(self, "waiting"):
            return
        waiting = dict(self.waiting)
        started: list[Sweep] = []
        while True:
            decision = decide(list(waiting.values()), [], self.nodes, self.rules)
            for id in decision.never:
                assert fit(waiting.pop(id).shape, self.nodes) == 0
            if not decision.start:
                break
            started += [waiting.pop(id) for id in decision.start]
        mine = self.rules.limits["ann"]
        for one in waiting.values():
            assert one.owner == "ann"
            assert gpus(one) > (mine.gpus or 99) or (gpus(one) and mine.used_gpu_hours >= (mine.gpu_hours or 99))
        others = [one for one in started if one.owner != "ann"]
        assert others == sorted(others, key=turn)

    def check(self, decision: Decision) -> None:
        assert sorted([*decision.start, *decision.waits, *decision.never]) == sorted(self.waiting)
        start = [self.waiting[id] for id in decision.start]
        assert start == sorted(start, key=turn)
        assert len(self.active) + len(start) <= max(len(self.active), self.rules.most_drivers)
        there = [(one, max(1, one.trials)) for one in self.active.values()]
        assert not start or packs(self.nodes, [*there, *((one, 1) for one in start)])
        self.check_limits(decision, start)
        held = [one for id, one in self.waiting.items() if id in decision.waits and not self.limited(one, decision)]
        assert not held or not start or turn(start[-1]) < min(turn(one) for one in held), "it passed one held for room"
        if not self.active and held:
            assert start, "an empty cluster stays empty"
        if decision.preempt:
            first = min(held, key=turn)
            assert self.rules.preempt
            assert not any(one.ending for one in self.active.values())
            assert all(self.active[id].priority < first.priority for id in decision.preempt)
            rest = [one for id, one in self.active.items() if id not in decision.preempt]
            after = decide(
                [first], rest + [as_active(one, decision) for one in start], self.nodes, Rules(self.rules.most_drivers)
            )
            assert after.start == (first.id,), "they make room enough"

    def check_limits(self, decision: Decision, start: list[Sweep]) -> None:
        limits = self.rules.limits["ann"]
        begin = [as_active(one, decision) for one in start if one.owner == "ann"]
        own = [one for one in self.active.values() if one.owner == "ann"] + begin
        if begin and limits.sweeps is not None:
            assert len(own) <= limits.sweeps
        if any(gpus(one) for one in begin):
            assert limits.gpu_hours is None or limits.used_gpu_hours < limits.gpu_hours
            assert limits.gpus is None or sum((one.most_trials or 0) * gpus(one) for one in own) <= limits.gpus

    def limited(self, one: Sweep, decision: Decision) -> bool:
        """Whether the limits of its owner's keep it waiting, beside what stands before it."""
        limits = self.rules.limits[one.owner] if one.owner == "ann" else Limits()
        before = [self.waiting[id] for id in decision.start if turn(self.waiting[id]) < turn(one)]
        own = [*self.active.values(), *(as_active(other, decision) for other in before)]
        own = [other for other in own if other.owner == one.owner]
        if limits.sweeps is not None and len(own) >= limits.sweeps:
            return True
        if not gpus(one) or (limits.gpus is None and limits.gpu_hours is None):
            return False
        if limits.gpu_hours is not None and limits.used_gpu_hours >= limits.gpu_hours:
            return True
        held = sum((other.most_trials or 0) * gpus(other) for other in own)
        if limits.gpus is None or held + gpus(one) > limits.gpus:
            return limits.gpus is not None
        mine = [self.waiting[id] for id in decision.waits if self.waiting[id].owner == one.owner]
        return any(0 < gpus(other) <= limits.gpus and turn(other) < turn(one) for other in mine)

    def follow(self, decision: Decision) -> None:
        for id in decision.never:
            del self.waiting[id]
        for id in decision.start:
            self.active[id] = as_active(self.waiting.pop(id), decision)
            self.trials[id] = []
        for id in decision.preempt:
            self.active[id] = replace(self.active[id], ending=True)

    def end(self, id: str) -> None:
        self.give_back(id, self.trials.pop(id))
        del self.active[id]

    def give_back(self, id: str, trials: list[list[int]]) -> None:
        for at in [at for places in trials for at in places]:
            self.free[at] = minus(self.free[at], self.active[id].shape, -1)


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=60, stateful_step_count=30)


def as_active(one: Sweep, decision: Decision) -> Active:
    return Active(**{**vars(one), "most_trials": decision.most_trials.get(one.id, one.most_trials)})


def turn(one: Sweep) -> tuple[int, int, str]:
    return -one.priority, one.queued_ms, one.id


def gpus(one: Sweep) -> int:
    return one.shape.gpus * one.shape.workers


def minus(node: Node, shape: Shape, times: int = 1) -> Node:
    return Node(
        node.cpus - times * shape.cpus, node.gpus - times * shape.gpus, node.memory_bytes - times * shape.memory_bytes
    )


def packs(nodes: list[Node], held: list[tuple[Sweep, int]]) -> bool:
    """Whether there is any way at all to lay so many trials of each on the nodes: all ways are tried."""
    workers = [replace(one.shape, workers=1) for one, trials in held for _ in range(trials * one.shape.workers)]

    @cache
    def lies(at: int, free: tuple[Node, ...]) -> bool:
        if at == len(workers):
            return True
        return any(
            lies(at + 1, tuple(sorted((*free[:on], minus(free[on], workers[at]), *free[on + 1 :]), key=str)))
            for on in range(len(free))
            if fit(workers[at], [free[on]])
        )

    return lies(0, tuple(nodes))
