"""The inside of a simulated cluster: its nodes, their allocations, and the attempts that it runs.

It behaves as Ray and our gateway would: what does not fit waits, and what was sent ahead inherits slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol, TypeAlias

from ray_multicluster_scheduler.common.model import FailureClass, NodeSnapshot, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import Strategy
from ray_multicluster_scheduler.common.model.resources import ResourceShape, fits, shape_of
from ray_multicluster_scheduler.scheduler.cluster.packing import pack
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.slots import Slots
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, Event, PlaceMoved, Started
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.simulation.model import SimulatedCluster
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import Clockwork

_NOISE = 1e-9
_DIGITS = 6


class Node:
    """One node. ``wanted`` is the share of it that others want, ``others`` what they have."""

    __slots__ = ("alive", "free", "name", "others", "total", "wanted")

    def __init__(self, name: str, total: Resources) -> None:
        self.name, self.total = name, total
        self.alive = True
        self.wanted = 0.0
        self.others: dict[str, float] = {}
        self.free = dict(total)


Parts: TypeAlias = Sequence[tuple[Node, Resources]]
"""What something takes of which node."""


class Room:
    """Of one cluster. Every change is seen in ``used`` (ours) and ``changes``."""

    __slots__ = ("changes", "nodes", "used")

    def __init__(self, cluster: str, sizes: Iterable[Resources]) -> None:
        self.nodes = [Node(f"{cluster}-n{number}", size) for number, size in enumerate(sizes, start=1)]
        self.used: dict[str, float] = {}
        self.changes = 0

    def take(self, task: TaskDescription) -> Parts | None:
        """Room for it, taken, or None if there is none now. Ray puts what fits one node where it fills it best."""
        parts = self._find(task)
        if parts is not None:
            for node, amounts in parts:
                self._add(node, amounts, -1.0)
            self.changes += 1
        return parts

    def give_back(self, parts: Parts) -> None:
        """It is over; others get what they still want."""
        for node, amounts in parts:
            self._add(node, amounts, 1.0)
            if node.wanted:
                self._let_others(node)
        self.changes += 1

    def others_want(self, node: Node, share: float) -> None:
        """From now on others want this share of it."""
        node.wanted = share
        self._let_others(node)
        self.changes += 1

    def seen(self) -> tuple[NodeSnapshot, ...]:
        """The nodes that live, as a snapshot tells of them."""
        return tuple(
            NodeSnapshot(node.name, node.total, {name: round(left, _DIGITS) for name, left in node.free.items()})
            for node in self.nodes
            if node.alive
        )

    def totals(self) -> dict[str, Resources]:
        """What the nodes that live have."""
        return {node.name: node.total for node in self.nodes if node.alive}

    def total(self) -> dict[str, float]:
        """The same over all of them."""
        amounts: dict[str, float] = {}
        for node in self.nodes:
            if node.alive:
                for name, amount in node.total.items():
                    amounts[name] = amounts.get(name, 0.0) + amount
        return amounts

    def _find(self, task: TaskDescription) -> Parts | None:
        if task.gang is not None:
            return self._find_all([member.requirements for member in task.gang.members], task.gang.strategy)
        need = task.placement
        if not need:
            return ()
        best, least = None, 0.0
        for node in self.nodes:
            if node.alive and fits(need, node.free):
                left = node.free.get("CPU", 0.0)
                if best is None or left < least:
                    best, least = node, left
        if best is not None:
            return ((best, task.requirements),)
        return self._spread(need) if task.kind == "job" else None

    def _find_all(self, bundles: Sequence[Resources], strategy: Strategy) -> Parts | None:
        alive = [node for node in self.nodes if node.alive]
        chosen = pack(bundles, strategy, [node.free for node in alive])
        return None if chosen is None else [(alive[at], need) for at, need in zip(chosen, bundles, strict=True)]

    def _spread(self, need: Resources) -> Parts | None:
        """A job's own tasks go wherever there is room."""
        missing = dict(need)
        parts: list[tuple[Node, Resources]] = []
        for node in self.nodes:
            part = (
                {name: min(amount, node.free.get(name, 0.0)) for name, amount in missing.items()} if node.alive else {}
            )
            part = {name: amount for name, amount in part.items() if amount > _NOISE}
            if part:
                parts.append((node, part))
                for name, amount in part.items():
                    missing[name] -= amount
        return None if any(amount > _NOISE for amount in missing.values()) else parts

    def _add(self, node: Node, amounts: Resources, sign: float) -> None:
        free, used = node.free, self.used
        for name, amount in amounts.items():
            free[name] = free.get(name, 0.0) + sign * amount
            used[name] = used.get(name, 0.0) - sign * amount

    def _let_others(self, node: Node) -> None:
        for name, total in node.total.items():
            has = node.others.get(name, 0.0)
            wanted = total * node.wanted if name == "memory" else round(total * node.wanted)
            more = min(wanted - has, node.free[name])
            node.others[name] = has + more
            node.free[name] -= more


class Work:
    """An item in a run: what it is, how long it takes, and what was seen of it."""

    __slots__ = ("begun_at", "fails", "losses", "run_s", "shape", "task")

    def __init__(self, task: TaskDescription, run_s: float, fails: int = 0) -> None:
        self.task, self.run_s, self.fails = task, run_s, fails
        self.shape: ResourceShape = shape_of(task.requirements)
        self.begun_at: float | None = None
        """When user code of it first began."""
        self.losses = 0
        """Attempts that ended by a crash or with their cluster."""


class Attempt:
    """``asked_to_end``: we want it to be over. ``over``: it is, over there."""

    __slots__ = ("asked_to_end", "began_at", "key", "order", "over", "parts", "work")

    def __init__(self, order: Dispatch, work: Work) -> None:
        self.order, self.work = order, work
        self.key = (order.task_id, order.attempt)
        self.parts: Parts | None = None
        self.began_at: float | None = None
        self.asked_to_end = False
        self.over = False


Key: TypeAlias = tuple[str, int]
TOLD_TOGETHER_S = 0.05
"""Of what is over so soon, start and end are told together."""


class Watcher(Protocol):
    """Who is told the truth: what really begins and ends over there."""

    def began(self, cluster: str, attempt: Attempt) -> None: ...

    def over(self, cluster: str, attempt: Attempt, how: str) -> None: ...

    def nodes(self, cluster: str, room: Room) -> None: ...

    def trouble(self, what: str) -> None: ...


class FarSide:
    """``tell`` takes what the cluster says, for as long as anybody can hear it."""

    def __init__(
        self,
        spec: SimulatedCluster,
        clock: Clockwork,
        chance: Random,
        tell: Callable[[Event, bool], None],
        watcher: Watcher,
    ) -> None:
        self.spec, self.name = spec, spec.name
        self.room = Room(spec.name, spec.nodes)
        self.has: dict[Key, Attempt] = {}
        """Everything it was given that is not over."""
        self._clock, self._chance, self._tell, self._watcher = clock, chance, tell, watcher
        self._slots = Slots()
        self._with_ray: dict[Key, Attempt] = {}
        """Given to Ray, which has no room for it yet."""
        self.taken_back = 0

    def take(self, attempt: Attempt) -> None:
        """An attempt arrived."""
        self.has[attempt.key] = attempt
        if attempt.work.task.kind != "task":
            self._give_to_ray(attempt)
            return
        shape = attempt.work.shape
        ahead = attempt.order.ahead
        given = (
            self._slots.wait(attempt.key, shape, overlap=ahead == "overlap")
            if ahead
            else self._slots.hold(attempt.key, shape)
        )
        for key in given:
            self._give_to_ray(self.has[key])

    def start(self, key: Key) -> None:
        """There is a place for one that was sent ahead."""
        for one in self._slots.start(key):
            self._give_to_ray(self.has[one])

    def take_back(self, key: Key) -> bool:
        """True if it had not begun, was not with Ray, and is over now."""
        attempt = self.has.get(key)
        if attempt is None or not self._slots.take_back(key):
            return False
        del self.has[key]
        attempt.over = True
        self.taken_back += 1
        self._tell(AttemptFinished(*key, "cancelled", code="RECALLED"), False)
        return True

    def cancel(self, key: Key) -> None:
        """End it, wherever it is; nothing happens if it is over."""
        attempt = self.has.get(key)
        if attempt is not None:
            attempt.asked_to_end = True
            self._end(attempt, "cancelled")

    def end_all(self, how: str, *, jobs: bool) -> None:
        """Nothing of ours runs there any more, and nobody tells of it. ``jobs``: those, too."""
        for attempt in list(self.has.values()):
            if jobs or attempt.work.task.kind != "job":
                self._drop(attempt, how)
        self._slots = Slots()
        self._look()

    def lose_nodes(self) -> None:
        """The whole cluster is gone."""
        for node in self.room.nodes:
            node.alive = False
        self.room.changes += 1
        self._watcher.nodes(self.name, self.room)

    def get_nodes(self) -> None:
        """All of it is back; what was broken in it, too."""
        for node in self.room.nodes:
            node.alive = True
        self.room.changes += 1
        self._watcher.nodes(self.name, self.room)
        self._look()

    def node_died(self, number: int) -> None:
        """What ran there crashed."""
        node = self.room.nodes[number - 1]
        node.alive = False
        self.room.changes += 1
        self._watcher.nodes(self.name, self.room)
        for attempt in list(self.has.values()):
            if any(part is node for part, _ in attempt.parts or ()):
                self._end(attempt, "crashed")

    def node_came(self, number: int) -> None:
        self.room.nodes[number - 1].alive = True
        self.room.changes += 1
        self._watcher.nodes(self.name, self.room)
        self._look()

    def others_want(self, number: int, share: float) -> None:
        """Other people want this share of a node."""
        node = self.room.nodes[number]
        if node.wanted != share:
            self.room.others_want(node, share)
            self._look()

    # ---- Ray

    def _give_to_ray(self, attempt: Attempt) -> None:
        if self._with_ray or not self._begins(attempt):
            self._with_ray[attempt.key] = attempt
            self._look()

    def _look(self) -> None:
        """Room was freed: whoever fits begins, the oldest first."""
        if self._with_ray:
            for attempt in list(self._with_ray.values()):
                if self._begins(attempt):
                    del self._with_ray[attempt.key]

    def _begins(self, attempt: Attempt) -> bool:
        parts = self.room.take(attempt.work.task)
        if parts is None:
            return False
        clock, work = self._clock, attempt.work
        attempt.parts, attempt.began_at = parts, clock.now
        self._watcher.began(self.name, attempt)
        run_s = work.run_s / self.spec.speed
        how = "failed" if attempt.order.attempt <= work.fails else "succeeded"
        if self.spec.crashes_per_hour:
            crash_s = self._chance.expovariate(self.spec.crashes_per_hour / 3600.0)
            if crash_s < run_s:
                run_s, how = crash_s, "crashed"
        if run_s > TOLD_TOGETHER_S or work.task.kind != "task":
            nodes = None if work.task.kind == "job" else " ".join(node.name for node, _ in parts) or None
            self._tell(Started(*attempt.key, clock.now, nodes), work.task.kind == "job")
        clock.after(run_s, self._ran, (attempt, how))
        return True

    def _ran(self, what: tuple[Attempt, str]) -> None:
        attempt, how = what
        if not attempt.over:
            self._end(attempt, how)

    def _end(self, attempt: Attempt, how: str) -> None:
        """It is over, and its end is told; who waits for its place has it."""
        parts, began_at = attempt.parts, attempt.began_at
        self._drop(attempt, how)
        heir: Key | None = None
        given: list[Key] = []
        if attempt.work.task.kind == "task":
            heir, given = self._slots.ended(attempt.key, None if began_at is None else self._clock.now - began_at)
        if heir is not None:
            self._tell(PlaceMoved(attempt.key, heir), False)
        self._tell(self._answer(attempt, how, began_at), attempt.work.task.kind == "job")
        for key in given:
            self._give_to_ray(self.has[key])
        if parts:
            self._look()

    def _drop(self, attempt: Attempt, how: str) -> None:
        attempt.over = True
        del self.has[attempt.key]
        self._with_ray.pop(attempt.key, None)
        if attempt.parts:
            self.room.give_back(attempt.parts)
        self._watcher.over(self.name, attempt, how)

    def _answer(self, attempt: Attempt, how: str, began_at: float | None) -> AttemptFinished:
        task_id, number = attempt.key
        if how == "cancelled":
            code = "JOB_STOPPED" if attempt.work.task.kind == "job" else ""
            return AttemptFinished(task_id, number, "cancelled", code=code)
        took = None if began_at is None else self._clock.now - began_at
        together = took is not None and took <= TOLD_TOGETHER_S and attempt.work.task.kind == "task"
        at = began_at if together else None
        node = " ".join(node.name for node, _ in attempt.parts or ()) or None if together else None
        if how == "succeeded":
            return AttemptFinished(task_id, number, "succeeded", took=took, started_at=at, node_id=node)
        user = how == "failed"
        return AttemptFinished(
            task_id,
            number,
            "failed",
            FailureClass.USER if user else FailureClass.CRASH,
            "SimulatedError" if user else "WorkerCrashedError",
            "",
            "its code raised" if user else "its worker died",
            took,
            at,
            node,
        )
