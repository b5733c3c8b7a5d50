"""One cluster of a faulty run: its nodes, the attempts that Ray runs or queues on them, and the gateway's queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from ray_multicluster_scheduler.common.model import (
    FailureClass,
    NodeSnapshot,
    Resources,
    ResourceSnapshot,
    TaskDescription,
)
from ray_multicluster_scheduler.common.model.resources import fits, minus, plus
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.events import Event
from ray_multicluster_scheduler.simulation.history import AttemptBegan, AttemptEnded, EndKind, NodesChanged, Parts

if TYPE_CHECKING:
    from ray_multicluster_scheduler.simulation.faulty.faulty_executor import FaultyExecutor

Key: TypeAlias = tuple[str, int]
"""Task id and attempt number."""
_SHORT = (0.002, 0.004, 0.008, 0.02)
_STALE_S = 5.0
"""How old the copy may be that a dashboard answers with."""


@dataclass(frozen=True, slots=True)
class PlannedOutcome:
    """The end of an attempt if nothing interferes."""

    run_s: float
    how: EndKind
    failure: FailureClass | None
    ignores_cancel: bool
    """A cancel does not end it; it has to be killed."""


@dataclass(slots=True)
class Attempt:
    """A dispatched attempt and its true state on the cluster."""

    task: TaskDescription
    number: int
    fence: int
    cluster: str
    rng: Random
    outcome: PlannedOutcome
    ahead: str = ""
    short: bool = False
    planned_parts: Parts = field(default_factory=dict)
    arrived: bool = False
    submitted_at: float = 0.0
    """When it was submitted to Ray."""
    overlapping: bool = False
    """It has no slot yet, but waits in Ray itself."""
    began: bool = False
    ended: bool = False
    start_reported: bool = False
    started_at: float | None = None
    parts: Parts = field(default_factory=dict)
    cancel_on_arrival: bool = False
    recall_on_arrival: bool = False
    recalled: bool = False
    preempted: bool = False
    """It was asked to save its state and stop."""
    saves: int = 0
    has_slot: bool = False
    final_event: Event | None = None
    """Its end or refusal, once the cluster knows it."""
    moved_event: Event | None = None
    """The event that it took over the slot of another attempt."""

    @property
    def key(self) -> Key:
        return self.task.id, self.number

    @property
    def is_job(self) -> bool:
        return self.task.kind == "job"


def draw_outcome(task: TaskDescription, rng: Random) -> PlannedOutcome:
    """Draw how an attempt ends; most succeed.

    A function digest may fix it: ``fails`` raises soon, ``runs 2.5`` succeeds after 2.5 s.
    """
    code = task.function_digest or ""
    dice = 1.0 if code.startswith("runs") else 0.0 if code.startswith("fails") else rng.random()
    if dice < 0.06:
        end: tuple[EndKind, FailureClass | None] = ("failed", FailureClass.USER)
    elif dice < 0.09:
        end = ("crashed", FailureClass.CRASH)
    elif dice < 0.095:
        end = ("failed", FailureClass.PERMANENT)
    else:
        end = ("succeeded", None)
    return PlannedOutcome(_run_time(task, code, rng), *end, rng.random() < 0.2)


def _run_time(task: TaskDescription, code: str, rng: Random) -> float:
    if code.startswith("runs"):
        return float(code.split()[1])
    if code.startswith("fails"):
        return 0.1
    if code.startswith("short"):
        return rng.choice(_SHORT) if rng.random() < 0.97 else 3.0
    if task.runs_actors:
        return rng.choice([5.0, 30.0])
    return rng.choice([0.1, 1.0, 2.0, 5.0, 10.0, 20.0])


class FaultyCluster:
    """The truth of one cluster. Ray starts only what fits and queues the rest; ``session`` counts its restarts."""

    def __init__(self, name: str, nodes: Mapping[str, Resources], executor: FaultyExecutor) -> None:
        self.name, self._executor, self._driver = name, executor, executor.driver
        self.configured_nodes = {node: dict(total) for node, total in nodes.items()}
        self.nodes: dict[str, dict[str, float]] = {}
        self.other_usage: dict[str, float] = {}
        """By node, the share of it that other users hold."""
        self.session = 0
        self.head_silent_since: float | None = None
        self.running: dict[Key, Attempt] = {}
        self.ray_queue: list[Attempt] = []
        self.gateway_queue: list[Attempt] = []
        self._previous_snapshot: tuple[float, tuple[NodeSnapshot, ...]] | None = None

    @property
    def alive(self) -> bool:
        return bool(self.nodes)

    # ---- nodes

    def boot(self) -> None:
        """Start a new session; its nodes have other ids than before."""
        self.session += 1
        self.head_silent_since = None
        self.nodes = {self.node_id(node): dict(total) for node, total in self.configured_nodes.items()}
        self._record_nodes()

    def node_id(self, node: str) -> str:
        """The id of a configured node in the current session."""
        return node if self.session == 1 else f"{node}s{self.session}"

    def halt(self) -> list[Attempt]:
        """Stop the cluster and drop what was queued. Returns the running attempts, which the caller has to end."""
        self.nodes, self.other_usage = {}, {}
        running = list(self.running.values())
        for attempt in (*self.ray_queue, *self.gateway_queue):
            attempt.ended = True
        self.ray_queue, self.gateway_queue = [], []
        self._record_nodes()
        return running

    def drop_node(self, node: str) -> None:
        """Remove a node with all that runs there; the last node stays."""
        if len(self.nodes) > 1 and self.nodes.pop(node, None) is not None:
            self._record_nodes()
            for attempt in [attempt for attempt in self.running.values() if node in attempt.parts]:
                self.end(attempt, "died")

    def add_node(self, node: str, total: Resources) -> None:
        if self.alive and node not in self.nodes:
            self.nodes[node] = dict(total)
            self._record_nodes()
            self.start_queued()

    def _record_nodes(self) -> None:
        nodes = {node: dict(total) for node, total in self.nodes.items()}
        self._driver.record(NodesChanged(self._driver.now, self.name, nodes))

    def free(self) -> dict[str, dict[str, float]]:
        """Free amounts by node, without what other users and our attempts hold."""
        free = {
            node: {name: amount * (1 - self.other_usage.get(node, 0.0)) for name, amount in total.items()}
            for node, total in self.nodes.items()
        }
        for attempt in self.running.values():
            for node, part in attempt.parts.items():
                if node in free:
                    free[node] = minus(free[node], part)
        return free

    def snapshot(self, *, http: bool, stale: bool = False) -> ResourceSnapshot:
        """The current state; with ``stale``, a dashboard may answer with a copy of a few seconds ago."""
        free = self.free()
        nodes = tuple(NodeSnapshot(node, dict(self.nodes[node]), free[node]) for node in self.nodes)
        previous, now = self._previous_snapshot, self._driver.now
        if stale and http and previous is not None and now - previous[0] < _STALE_S:
            nodes = previous[1]
        else:
            self._previous_snapshot = now, nodes
        return ResourceSnapshot(self.name, now, nodes, "http" if http else "agent", f"s{self.session}")

    # ---- attempts

    def submit(self, attempt: Attempt) -> None:
        """Submit to Ray: it starts when there is room."""
        attempt.submitted_at = self._driver.now
        self.ray_queue.append(attempt)
        self.start_queued()

    def start_queued(self) -> None:
        """Start what fits, in the order of arrival; nothing while the head is silent."""
        if self.head_silent_since is not None:
            return
        for attempt in list(self.ray_queue):
            if attempt.ended or attempt.began:
                self.ray_queue.remove(attempt)
                continue
            parts = self._place(attempt)
            if parts is not None:
                self.ray_queue.remove(attempt)
                self._begin(attempt, parts)

    def _place(self, attempt: Attempt) -> Parts | None:
        free = self.free()
        planned = {node: part for node, part in attempt.planned_parts.items() if node in self.nodes}
        if not attempt.task.requirements:
            return {}
        if attempt.is_job:  # the job's own tasks take what they find
            fitting = all(fits(part, free[node]) for node, part in planned.items())
            return planned if fitting else {}
        if planned and len(planned) == len(attempt.planned_parts) and not self._executor.picks_other_node(attempt):
            needs = dict.fromkeys(planned, attempt.task.placement) if attempt.task.gang is None else planned
            if all(fits(part, free[node]) for node, part in needs.items()):
                return {node: _held_amounts(attempt.task, part) for node, part in needs.items()}
        if attempt.task.gang is not None:
            return _pack_gang(attempt.task, free)
        need = attempt.task.placement
        node = _first_fit(need, free)
        return None if node is None else {node: _held_amounts(attempt.task, need)}

    def _begin(self, attempt: Attempt, parts: Parts) -> None:
        attempt.began, attempt.parts, attempt.started_at = True, parts, self._driver.now
        self.running[attempt.key] = attempt
        began = AttemptBegan(self._driver.now, self.name, *attempt.key, attempt.fence, parts, attempt.task.kind)
        self._driver.record(began)
        self._executor.on_began(attempt, self)

    def end(self, attempt: Attempt, how: EndKind) -> None:
        """End an attempt; its slot goes to the next one of its size that was sent ahead."""
        if attempt.ended:
            return
        attempt.ended = True
        if attempt.began:
            self._driver.record(AttemptEnded(self._driver.now, self.name, *attempt.key, how))
            self.running.pop(attempt.key, None)
        self._executor.on_ended(attempt, self, how)
        self.start_queued()

    def hand_over_slot(self, attempt: Attempt) -> None:
        """Give its slot to the oldest arrived attempt of its size that was sent ahead."""
        if not attempt.has_slot or attempt.task.kind != "task":
            return
        overlapping = [one for one in (*self.running.values(), *self.ray_queue) if one.overlapping and not one.has_slot]
        candidates = (one for one in (*overlapping, *self.gateway_queue) if _can_inherit(attempt, one))
        successor = next(candidates, None)
        if successor is not None:
            successor.moved_event = events.PlaceMoved(attempt.key, successor.key)
            self._executor.report(self, successor, successor.moved_event)
            self.start(successor, attempt.parts)

    def start(self, attempt: Attempt, planned_parts: Parts) -> None:
        """Give an attempt a slot; if it waits in the gateway, it goes to Ray."""
        if attempt.has_slot or attempt.ended:
            return
        attempt.has_slot, attempt.planned_parts = True, planned_parts
        if attempt in self.gateway_queue:
            self.gateway_queue.remove(attempt)
            self.submit(attempt)


def _can_inherit(attempt: Attempt, other: Attempt) -> bool:
    same = other.task.requirements == attempt.task.requirements
    return same and not other.ended and not other.has_slot and other.arrived


def _held_amounts(task: TaskDescription, part: Resources) -> Resources:
    """The resources that it holds once it runs: an actor holds less than what had to be free to place it."""
    return dict(task.requirements) if task.actor is not None else dict(part)


def _first_fit(need: Resources, free: Mapping[str, Resources]) -> str | None:
    return next((node for node in sorted(free) if fits(need, free[node])), None)


def _pack_gang(task: TaskDescription, free: dict[str, dict[str, float]]) -> Parts | None:
    """Place all members or none. Of Ray's strategies only STRICT_PACK is honoured: the others do not matter here."""
    assert task.gang is not None
    if task.gang.strategy == "STRICT_PACK":
        node = _first_fit(task.requirements, free)
        return None if node is None else {node: dict(task.requirements)}
    parts: dict[str, Resources] = {}
    for member in task.gang.members:
        node = _first_fit(member.requirements, free)
        if node is None:
            return None
        free[node] = minus(free[node], member.requirements)
        parts[node] = plus(parts.get(node, {}), member.requirements)
    return parts
