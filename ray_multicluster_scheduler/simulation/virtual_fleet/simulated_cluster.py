"""The inside of a simulated cluster: its nodes, their allocations, and the attempts that it runs.

It behaves as Ray and our gateway would: an attempt that does not fit waits, and one that was sent ahead inherits the
slot of one that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from random import Random
from typing import Protocol, TypeAlias

from ray_multicluster_scheduler.common.model import FailureClass, NodeSnapshot, Resources, TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import Strategy
from ray_multicluster_scheduler.common.model.resources import ResourceShape, fits, plus, shape_of
from ray_multicluster_scheduler.scheduler.cluster.packing import pack
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.slot_allocator import SlotAllocator
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import RECALL_AFTER_S
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, Event, PlaceMoved, Started
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch
from ray_multicluster_scheduler.simulation.simulated_fleet import SimulatedCluster
from ray_multicluster_scheduler.simulation.virtual_fleet.virtual_clock import VirtualClock
from ray_multicluster_scheduler.simulation.workloads.workload import Outcome

_NOISE = 1e-9
_DIGITS = 6
SINGLE_REPORT_S = 0.05
"""Start and end of a task that runs no longer than this are reported in one event."""


class Node:
    """One node. ``other_share`` is the share that other users want, ``other_usage`` the amounts that they have."""

    __slots__ = ("alive", "free", "name", "other_share", "other_usage", "total")

    def __init__(self, name: str, total: Resources) -> None:
        self.name, self.total = name, total
        self.alive = True
        self.other_share = 0.0
        self.other_usage: dict[str, float] = {}
        self.free = dict(total)


Parts: TypeAlias = Sequence[tuple[Node, Resources]]
"""The amounts that an attempt holds on each node."""
Key: TypeAlias = tuple[str, int]
"""Task id and attempt number."""


class NodeAllocation:
    """Allocated resources per item on the nodes of one cluster. ``used`` sums our amounts; ``version`` grows with every
    change."""

    __slots__ = ("nodes", "used", "version")

    def __init__(self, cluster: str, sizes: Iterable[Resources]) -> None:
        self.nodes = [Node(f"{cluster}-n{number}", size) for number, size in enumerate(sizes, start=1)]
        self.used: dict[str, float] = {}
        self.version = 0

    def allocate(self, task: TaskDescription) -> Parts | None:
        """Allocate resources for a task; None if it does not fit now. One node is chosen by best fit, as Ray does."""
        parts = self._find_placement(task)
        if parts is not None:
            for node, amounts in parts:
                self._add(node, amounts, -1.0)
            self.version += 1
        return parts

    def release(self, parts: Parts) -> None:
        """Release an allocation; other users then get what they still want."""
        for node, amounts in parts:
            self._add(node, amounts, 1.0)
            if node.other_share:
                self._grow_other_usage(node)
        self.version += 1

    def set_other_share(self, node: Node, share: float) -> None:
        """From now on other users want this share of the node."""
        node.other_share = share
        self._grow_other_usage(node)
        self.version += 1

    def snapshot(self) -> tuple[NodeSnapshot, ...]:
        """The living nodes, as a resource snapshot shows them."""
        return tuple(
            NodeSnapshot(node.name, node.total, {name: round(left, _DIGITS) for name, left in node.free.items()})
            for node in self.nodes
            if node.alive
        )

    def totals(self) -> dict[str, Resources]:
        """The size of each living node."""
        return {node.name: node.total for node in self.nodes if node.alive}

    def total(self) -> dict[str, float]:
        """The size of all living nodes together."""
        return reduce(plus, self.totals().values(), {})

    def _find_placement(self, task: TaskDescription) -> Parts | None:
        if task.gang is not None:
            return self._pack_gang([member.requirements for member in task.gang.members], task.gang.strategy)
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

    def _pack_gang(self, bundles: Sequence[Resources], strategy: Strategy) -> Parts | None:
        alive = [node for node in self.nodes if node.alive]
        chosen = pack(bundles, strategy, [node.free for node in alive])
        return None if chosen is None else [(alive[at], need) for at, need in zip(chosen, bundles, strict=True)]

    def _spread(self, need: Resources) -> Parts | None:
        """Spread a job over the nodes: its own tasks run wherever there is room."""
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

    def _grow_other_usage(self, node: Node) -> None:
        for name, total in node.total.items():
            has = node.other_usage.get(name, 0.0)
            wanted = total * node.other_share if name == "memory" else round(total * node.other_share)
            more = min(wanted - has, node.free[name])
            node.other_usage[name] = has + more
            node.free[name] -= more


class SimulatedItem:
    """An item in a run: its description, its run time at speed 1, how many of its attempts raise, and how the next
    one ends."""

    __slots__ = ("fails", "first_began_at", "lost_attempts", "outcome", "run_s", "shape", "task")

    def __init__(self, task: TaskDescription, run_s: float, fails: int = 0, outcome: Outcome = "succeeded") -> None:
        self.task, self.run_s, self.fails, self.outcome = task, run_s, fails, outcome
        self.shape: ResourceShape = shape_of(task.requirements)
        self.first_began_at: float | None = None
        """When user code of it first started."""
        self.lost_attempts = 0
        """Attempts that ended by a crash or with their cluster."""


class Attempt:
    """One attempt of an item, as the cluster that has it knows it. ``ended`` is the truth of the cluster."""

    __slots__ = ("began_at", "cancel_requested", "dispatch", "ended", "item", "key", "parts", "recalled")

    def __init__(self, dispatch: Dispatch, item: SimulatedItem) -> None:
        self.dispatch, self.item = dispatch, item
        self.key: Key = (dispatch.task_id, dispatch.attempt)
        self.parts: Parts | None = None
        self.began_at: float | None = None
        self.cancel_requested = self.recalled = False
        self.ended = False

    @property
    def is_job(self) -> bool:
        return self.item.task.kind == "job"

    @property
    def node_names(self) -> str | None:
        return " ".join(node.name for node, _ in self.parts or ()) or None


class RunObserver(Protocol):
    """Receives the truth of a run: what really starts and ends on the clusters."""

    def attempt_began(self, cluster: str, attempt: Attempt) -> None: ...

    def attempt_ended(self, cluster: str, attempt: Attempt, how: str) -> None: ...

    def nodes_changed(self, cluster: str, allocation: NodeAllocation) -> None: ...

    def fault_injected(self, what: str) -> None: ...


class SimulatedClusterRun:
    """A simulated cluster during a run. ``report`` takes its events, and whether each is about a job."""

    def __init__(
        self,
        spec: SimulatedCluster,
        clock: VirtualClock,
        rng: Random,
        report: Callable[[Event, bool], None],
        observer: RunObserver,
    ) -> None:
        self.spec, self.name = spec, spec.name
        self.allocation = NodeAllocation(spec.name, spec.nodes)
        self.attempts: dict[Key, Attempt] = {}
        """All attempts that arrived and have not ended."""
        self.recalled = 0
        self._clock, self._rng, self._report, self._observer = clock, rng, report, observer
        self._slots = SlotAllocator()
        self._ray_queue: dict[Key, Attempt] = {}
        """Submitted to Ray, which has no room for them yet."""

    def accept(self, attempt: Attempt) -> None:
        """Take an attempt that arrived: run it, queue it in Ray, or let it wait for a slot in the gateway."""
        self.attempts[attempt.key] = attempt
        if attempt.item.task.kind != "task":
            self._submit_to_ray(attempt)
            return
        shape = attempt.item.shape
        ahead = attempt.dispatch.ahead
        ready = (
            self._slots.wait(attempt.key, shape, overlap=ahead == "overlap")
            if ahead
            else self._slots.hold(attempt.key, shape)
        )
        for key in ready:
            self._submit_to_ray(self.attempts[key])

    def start(self, key: Key) -> None:
        """Give a slot to an attempt that was sent ahead."""
        for ready in self._slots.start(key):
            self._submit_to_ray(self.attempts[ready])

    def recall(self, key: Key) -> None:
        """End an attempt that has not begun: at once if it waits in the gateway, later if it waits in Ray."""
        attempt = self.attempts.get(key)
        if attempt is not None and self._slots.recall(key):
            del self.attempts[key]
            attempt.ended = True
            self.recalled += 1
            self._report(AttemptFinished(*key, "cancelled", code="RECALLED"), False)
        elif key in self._ray_queue:
            self._clock.after(RECALL_AFTER_S, self._recall_from_ray, self._ray_queue[key])

    def _recall_from_ray(self, attempt: Attempt) -> None:
        if not attempt.ended and attempt.key in self._ray_queue:
            self.recalled += 1
            attempt.recalled = True
            self._end_and_report(attempt, "cancelled")

    def cancel(self, key: Key) -> None:
        """End an attempt, wherever it is; does nothing if it has ended."""
        attempt = self.attempts.get(key)
        if attempt is not None:
            attempt.cancel_requested = True
            self._end_and_report(attempt, "cancelled")

    def end_all(self, how: str, *, jobs: bool) -> None:
        """End all attempts without a report; jobs only if ``jobs``."""
        for attempt in list(self.attempts.values()):
            if jobs or not attempt.is_job:
                self._drop(attempt, how)
        self._slots = SlotAllocator()
        self._start_waiting()

    def remove_nodes(self) -> None:
        """The whole cluster goes down."""
        self._set_alive(self.allocation.nodes, alive=False)

    def restore_nodes(self) -> None:
        """The whole cluster comes back, also nodes that had died before."""
        self._set_alive(self.allocation.nodes, alive=True)
        self._start_waiting()

    def kill_node(self, number: int) -> None:
        """A node dies; what ran there crashes."""
        node = self.allocation.nodes[number - 1]
        self._set_alive([node], alive=False)
        for attempt in list(self.attempts.values()):
            if any(part is node for part, _ in attempt.parts or ()):
                self._end_and_report(attempt, "crashed")

    def restore_node(self, number: int) -> None:
        self._set_alive([self.allocation.nodes[number - 1]], alive=True)
        self._start_waiting()

    def set_other_share(self, number: int, share: float) -> None:
        """Other users want this share of a node from now on."""
        node = self.allocation.nodes[number]
        if node.other_share != share:
            self.allocation.set_other_share(node, share)
            self._start_waiting()

    def _set_alive(self, nodes: Iterable[Node], *, alive: bool) -> None:
        for node in nodes:
            node.alive = alive
        self.allocation.version += 1
        self._observer.nodes_changed(self.name, self.allocation)

    # ---- Ray

    def _submit_to_ray(self, attempt: Attempt) -> None:
        if self._ray_queue or not self._try_start(attempt):
            self._ray_queue[attempt.key] = attempt
            self._start_waiting()

    def _start_waiting(self) -> None:
        """Start what fits, the oldest first."""
        if self._ray_queue:
            for attempt in list(self._ray_queue.values()):
                if self._try_start(attempt):
                    del self._ray_queue[attempt.key]

    def _try_start(self, attempt: Attempt) -> bool:
        parts = self.allocation.allocate(attempt.item.task)
        if parts is None:
            return False
        clock, item = self._clock, attempt.item
        attempt.parts, attempt.began_at = parts, clock.now
        self._observer.attempt_began(self.name, attempt)
        run_s = item.run_s / self.spec.speed
        how: str = "failed" if attempt.dispatch.attempt <= item.fails else item.outcome
        if self.spec.crashes_per_hour:
            crash_s = self._rng.expovariate(self.spec.crashes_per_hour / 3600.0)
            if crash_s < run_s:
                run_s, how = crash_s, "crashed"
        if run_s > SINGLE_REPORT_S or item.task.kind != "task":
            nodes = None if attempt.is_job else attempt.node_names
            self._report(Started(*attempt.key, clock.now, nodes), attempt.is_job)
        clock.after(run_s, self._on_run_over, (attempt, how))
        return True

    def _on_run_over(self, what: tuple[Attempt, str]) -> None:
        attempt, how = what
        if not attempt.ended:
            self._end_and_report(attempt, how)

    def _end_and_report(self, attempt: Attempt, how: str) -> None:
        """End an attempt, report it, and hand its slot to the next one."""
        parts, began_at = attempt.parts, attempt.began_at
        self._drop(attempt, how)
        successor: Key | None = None
        ready: list[Key] = []
        if attempt.item.task.kind == "task":
            successor, ready = self._slots.ended(attempt.key, None if began_at is None else self._clock.now - began_at)
        if successor is not None:
            self._report(PlaceMoved(attempt.key, successor), False)
        self._report(self._final_event(attempt, how, began_at), attempt.is_job)
        for key in ready:
            self._submit_to_ray(self.attempts[key])
        if parts:
            self._start_waiting()

    def _drop(self, attempt: Attempt, how: str) -> None:
        attempt.ended = True
        del self.attempts[attempt.key]
        self._ray_queue.pop(attempt.key, None)
        if attempt.parts:
            self.allocation.release(attempt.parts)
        self._observer.attempt_ended(self.name, attempt, how)

    def _final_event(self, attempt: Attempt, how: str, began_at: float | None) -> AttemptFinished:
        task_id, number = attempt.key
        if how == "cancelled":
            code = "JOB_STOPPED" if attempt.is_job else "RECALLED" if attempt.recalled else ""
            return AttemptFinished(task_id, number, "cancelled", code=code)
        took = None if began_at is None else self._clock.now - began_at
        together = took is not None and took <= SINGLE_REPORT_S and attempt.item.task.kind == "task"
        at, node = (began_at, attempt.node_names) if together else (None, None)
        if how == "succeeded":
            return AttemptFinished(task_id, number, "succeeded", took=took, started_at=at, node_id=node)
        failure, error_type, sentence = (
            (FailureClass.USER, "SimulatedError", "its code raised")
            if how == "failed"
            else (FailureClass.CRASH, "WorkerCrashedError", "its worker died")
        )
        return AttemptFinished(task_id, number, "failed", failure, error_type, "", sentence, took, at, node)
