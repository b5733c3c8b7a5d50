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
    from ray_multicluster_scheduler.simulation.faulty.faulty_executor import Hands


Key: TypeAlias = tuple[str, int]
_SHORT = (0.002, 0.004, 0.008, 0.02)


@dataclass(frozen=True, slots=True)
class Fate:
    """What will become of an attempt if nobody interferes."""

    runs_s: float
    how: EndKind
    failure: FailureClass | None
    is_stubborn: bool
    """It does not end when it is politely asked to, and has to be killed."""


@dataclass(slots=True)
class Attempt:
    """It was dispatched; where on its way it is, only the cluster knows."""

    task: TaskDescription
    number: int
    fence: int
    cluster: str
    chance: Random
    fate: Fate
    ahead: str = ""
    short: bool = False
    planned: Parts = field(default_factory=dict)
    arrived: bool = False
    early: bool = False
    """It has no place yet, but waits in Ray itself: it cannot be taken back."""
    begun: bool = False
    over: bool = False
    told_start: bool = False
    started_at: float | None = None
    parts: Parts = field(default_factory=dict)
    to_cancel: bool = False
    to_recall: bool = False
    has_place: bool = False
    answer: Event | None = None
    """How it ended, or why it was not taken, once that is known over there."""
    moved: Event | None = None
    """That it took over the place of another one."""

    @property
    def key(self) -> Key:
        return self.task.id, self.number

    @property
    def is_job(self) -> bool:
        return self.task.kind == "job"


def fate_of(task: TaskDescription, chance: Random) -> Fate:
    """Most go well. The name of a function may say what it does: ``fails`` raises soon, ``runs 2.5`` takes 2.5 s."""
    code = task.function_digest or ""
    dice = 1.0 if code.startswith("runs") else 0.0 if code.startswith("fails") else chance.random()
    if dice < 0.06:
        end: tuple[EndKind, FailureClass | None] = ("failed", FailureClass.USER)
    elif dice < 0.09:
        end = ("crashed", FailureClass.CRASH)
    elif dice < 0.095:
        end = ("failed", FailureClass.PERMANENT)
    else:
        end = ("succeeded", None)
    return Fate(_run_time(task, code, chance), *end, chance.random() < 0.2)


def _run_time(task: TaskDescription, code: str, chance: Random) -> float:
    if code.startswith("runs"):
        return float(code.split()[1])
    if code.startswith("fails"):
        return 0.1
    if code.startswith("short"):
        return chance.choice(_SHORT) if chance.random() < 0.97 else 3.0
    if task.serves:
        return chance.choice([5.0, 30.0])
    return chance.choice([0.1, 1.0, 2.0, 5.0, 10.0, 20.0])


class FarCluster:
    """Ray starts nothing that does not fit; what does not, waits in Ray. ``session`` counts its lives."""

    def __init__(self, name: str, nodes: Mapping[str, Resources], hands: Hands) -> None:
        self.name, self._hands, self._desk = name, hands, hands.desk
        self.built = {node: dict(total) for node, total in nodes.items()}
        self.nodes: dict[str, dict[str, float]] = {}
        self.others: dict[str, float] = {}
        self.session = 0
        self.running: dict[Key, Attempt] = {}
        self.in_ray: list[Attempt] = []
        self.at_gateway: list[Attempt] = []
        self._before: tuple[float, tuple[NodeSnapshot, ...]] | None = None

    @property
    def alive(self) -> bool:
        return bool(self.nodes)

    # ---- nodes

    def boot(self) -> None:
        """Another session: its nodes have other ids than before."""
        self.session += 1
        suffix = "" if self.session == 1 else f"s{self.session}"
        self.nodes = {f"{node}{suffix}": dict(total) for node, total in self.built.items()}
        self._say_nodes()

    def halt(self) -> list[Attempt]:
        """It is gone, with all that waited. Returns what ran; what of it goes on elsewhere is for the caller to say."""
        self.nodes, self.others = {}, {}
        ran = list(self.running.values())
        for one in (*self.in_ray, *self.at_gateway):
            one.over = True
        self.in_ray, self.at_gateway = [], []
        self._say_nodes()
        return ran

    def drop_node(self, node: str) -> None:
        """With all that runs there."""
        if len(self.nodes) > 1 and self.nodes.pop(node, None) is not None:
            self._say_nodes()
            for one in [one for one in self.running.values() if node in one.parts]:
                self.end(one, "died")

    def add_node(self, node: str, total: Resources) -> None:
        if self.alive and node not in self.nodes:
            self.nodes[node] = dict(total)
            self._say_nodes()
            self.fill()

    def _say_nodes(self) -> None:
        self._desk.note(
            NodesChanged(self._desk.now, self.name, {node: dict(total) for node, total in self.nodes.items()})
        )

    def free(self) -> dict[str, dict[str, float]]:
        """By node, less what others and ours use."""
        free = {
            node: {name: amount * (1 - self.others.get(node, 0.0)) for name, amount in total.items()}
            for node, total in self.nodes.items()
        }
        for one in self.running.values():
            for node, part in one.parts.items():
                if node in free:
                    free[node] = minus(free[node], part)
        return free

    def snapshot(self, *, http: bool, stale: bool = False) -> ResourceSnapshot:
        """As it is, or, from a dashboard that keeps copies, as it was a few seconds ago."""
        free = self.free()
        nodes = tuple(NodeSnapshot(node, dict(self.nodes[node]), free[node]) for node in self.nodes)
        before, now = self._before, self._desk.now
        if stale and http and before is not None and now - before[0] < 5.0:
            nodes = before[1]
        else:
            self._before = now, nodes
        return ResourceSnapshot(self.name, now, nodes, "http" if http else "agent", f"s{self.session}")

    # ---- what runs

    def submit(self, one: Attempt) -> None:
        """Ray has it: it begins when there is room."""
        self.in_ray.append(one)
        self.fill()

    def fill(self) -> None:
        """Start what fits, in the order of arrival."""
        for one in list(self.in_ray):
            if one.over or one.begun:
                self.in_ray.remove(one)
                continue
            parts = self._place(one)
            if parts is not None:
                self.in_ray.remove(one)
                self._begin(one, parts)

    def _place(self, one: Attempt) -> Parts | None:
        free = self.free()
        planned = {node: part for node, part in one.planned.items() if node in self.nodes}
        if not one.task.requirements:
            return {}
        if one.is_job:  # its own tasks take what they find
            fitting = all(fits(part, free[node]) for node, part in planned.items())
            return planned if fitting else {}
        if planned and len(planned) == len(one.planned) and not self._hands.prefers_another(one):
            needs = dict.fromkeys(planned, one.task.placement) if one.task.gang is None else planned
            if all(fits(part, free[node]) for node, part in needs.items()):
                return {node: _held(one.task, part) for node, part in needs.items()}
        if one.task.gang is not None:
            return _packed(one.task, free)
        need = one.task.placement
        node = next((node for node in sorted(free) if fits(need, free[node])), None)
        return None if node is None else {node: _held(one.task, need)}

    def _begin(self, one: Attempt, parts: Parts) -> None:
        one.begun, one.parts, one.started_at = True, parts, self._desk.now
        self.running[one.key] = one
        self._desk.note(AttemptBegan(self._desk.now, self.name, *one.key, one.fence, parts, one.task.kind))
        self._hands.began(one, self)

    def end(self, one: Attempt, how: EndKind) -> None:
        """It is over here, in whatever way; its place goes to the next one of its size that was sent ahead."""
        if one.over:
            return
        one.over = True
        if one.begun:
            self._desk.note(AttemptEnded(self._desk.now, self.name, *one.key, how))
            self.running.pop(one.key, None)
        self._hands.ended(one, self, how)
        self.fill()

    def pass_on(self, one: Attempt) -> None:
        """The oldest of its size that was sent ahead and has arrived gets its place."""
        if not one.has_place or one.task.kind != "task":
            return
        heirs = (other for other in (*self._early(), *self.at_gateway) if self._inherits(one, other))
        heir = next(heirs, None)
        if heir is not None:
            heir.moved = events.PlaceMoved(one.key, heir.key)
            self._hands.tell(self, heir, heir.moved)
            self.start(heir, one.parts)

    def start(self, one: Attempt, planned: Parts) -> None:
        """There is a place for it now."""
        if one.has_place or one.over:
            return
        one.has_place, one.planned = True, planned
        if one in self.at_gateway:
            self.at_gateway.remove(one)
            self.submit(one)

    def _early(self) -> list[Attempt]:
        return [one for one in (*self.running.values(), *self.in_ray) if one.early and not one.has_place]

    @staticmethod
    def _inherits(one: Attempt, other: Attempt) -> bool:
        same = other.task.requirements == one.task.requirements
        return same and not other.over and not other.has_place and other.arrived


def _held(task: TaskDescription, part: Resources) -> Resources:
    """What it holds once it runs: of an actor, less than what had to be free."""
    return dict(task.requirements) if task.actor is not None else dict(part)


def _packed(task: TaskDescription, free: dict[str, dict[str, float]]) -> Parts | None:
    """Somewhere, all members or none; Ray's own packing is of no matter here, but for what must be on one node."""
    assert task.gang is not None
    members = task.gang.members
    if task.gang.strategy == "STRICT_PACK":
        node = next((node for node in sorted(free) if fits(task.requirements, free[node])), None)
        return None if node is None else {node: dict(task.requirements)}
    parts: dict[str, Resources] = {}
    for member in members:
        node = next((node for node in sorted(free) if fits(member.requirements, free[node])), None)
        if node is None:
            return None
        free[node] = minus(free[node], member.requirements)
        parts[node] = plus(parts.get(node, {}), member.requirements)
    return parts
