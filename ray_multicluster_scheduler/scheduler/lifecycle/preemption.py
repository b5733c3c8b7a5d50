"""Preemption: frees room for a waiting item. Items that run give way: they save their state, stop, and resume later.

Who gives way is decided in ``scheduler/pools``. Here the plan is carried out: it is durable before anything is stopped,
the room is booked for the newcomer from then on, so that no other item sees it, and the newcomer is placed there once
the last victim has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import Resources, TaskDescription, TaskState
from ray_multicluster_scheduler.common.model.resources import plus
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, PreemptAttempt, Remember
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.record import Ending, FreedRoom, TaskRecord
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import (
    Candidate,
    Newcomer,
    NoPlan,
    PreemptionPlan,
    RunningItem,
    Victim,
)
from ray_multicluster_scheduler.scheduler.pools.preemption_rules import (
    LABEL_RULE,
    MIN_RUNTIME,
    OTHER_POOL_PRIORITY,
    RECLAIM,
    SAME_POOL_PRIORITY,
    PreemptionRules,
    thresholds,
)
from ray_multicluster_scheduler.scheduler.pools.victim_selection import list_candidates, plan_preemption
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

PAUSE_S, PAUSE_PER_ITEM_S = 0.02, 2e-5
"""The pause between two plans: the more preemptible items run, the longer a plan takes, and plans are to take a small
share of the time only."""
RETRY_S = 1.0
"""A group that got no room is tried again after this time, then after twice as long, up to ``MAX_RETRY_S``; but as soon
as a running item has had its minimum run time."""
MAX_RETRY_S = 30.0
KILL_AFTER_S = 5.0
"""A victim that has not left this long after its grace is killed."""
START_WITHIN_S = 15.0
"""A newcomer that has not started this long after the last victim left gives the room back."""


_GIVES_WAY = {
    SAME_POOL_PRIORITY: "gives way to a more urgent item of its pool",
    OTHER_POOL_PRIORITY: "gives way to a more urgent item of {pool}",
    LABEL_RULE: "gives way to an item of {pool} by a label rule",
    RECLAIM: "gives way to {pool}, which takes back what it lent",
}
"""By the reason. The owner of the victim reads it, so it does not name the newcomer."""


@dataclass(slots=True)
class _Attempt:
    """When to look for room for a group next, and how long to wait if there is none."""

    at: float
    pause_s: float = RETRY_S


@dataclass(frozen=True, slots=True)
class PreemptionCounts:
    """``victims``: by pool and reason; ``lost_s``: work lost, by pool. An item without a pool counts for pool ''.
    ``longest_s``: how long the item that is leaving for the longest time has been asked to."""

    victims: Mapping[tuple[str, str], int]
    lost_s: Mapping[str, float]
    longest_s: float


class Preemption:
    """Makes and carries out plans for items that wait for room or quota."""

    def __init__(self, machine: MachineState, prefetch: Prefetch, rules: PreemptionRules) -> None:
        self._machine, self._prefetch, self._rules = machine, prefetch, rules
        self._tries: dict[ShapeGroup, _Attempt] = {}
        self._victims: Counter[tuple[str, str]] = Counter()
        self._lost_s: dict[str, float] = {}

    # ---- looking for room

    def group_waits(self, group: ShapeGroup, now: float) -> None:
        """The head of this group could not be placed: look for room for it, if it may preempt anything."""
        head = self._machine.records[group.head().task_id]
        if group in self._tries or head.room is not None or not self._may_preempt(head.wanted):
            return
        self._tries[group] = _Attempt(now)
        self._set_timer(now)

    def _may_preempt(self, task: TaskDescription) -> bool:
        """A cheap check: does anything preemptible run that it could displace by some rule?"""
        lowest = min(self._machine.preemptible_priorities, default=None)
        if lowest is None or task.connects_only:
            return False
        pool = self._machine.pools.ledger.pools.get(task.pool or "")
        return task.priority > lowest or (pool is not None and pool.reclaim != "never")

    def make_plan(self, _: str, now: float) -> None:
        """Look for room for the most urgent group that is due."""
        self._tries = {group: attempt for group, attempt in self._tries.items() if group}
        due = [group for group, attempt in self._tries.items() if attempt.at <= now]
        if due:
            self._try(min(due, key=self._machine.queue.urgency), now)
        self._set_timer(now)

    def _try(self, group: ShapeGroup, now: float) -> None:
        attempt = self._tries[group]
        record = self._machine.records[group.head().task_id]
        if record.room is not None or not self._may_preempt(record.wanted) or self._machine.queue.refusal(group):
            del self._tries[group]  # it is tried again when it is found waiting
            return
        plan = self.plan(record.wanted, now, retry=record.retry)
        if isinstance(plan, PreemptionPlan):
            del self._tries[group]
            self._carry_out(record, plan, now)
        else:
            spared = self._spared_until(now) if plan.counts.get(MIN_RUNTIME) else inf
            attempt.at = min(now + attempt.pause_s, spared)
            attempt.pause_s = min(2 * attempt.pause_s, MAX_RETRY_S)

    def _spared_until(self, now: float) -> float:
        """When the next running item will have had its minimum run time."""
        least = self._rules.min_runtime_s
        ends = (
            one.started_at + (least if one.min_runtime_s is None else one.min_runtime_s) for one in self.running_items()
        )
        return min((end for end in ends if end > now), default=inf)

    def _set_timer(self, now: float) -> None:
        soonest = min((one.at for one in self._tries.values()), default=None)
        if soonest is None:
            self._machine.output.clear_timer(timers.PREEMPT)
        else:
            pause_s = PAUSE_S + PAUSE_PER_ITEM_S * len(self._machine.preemptible)
            self._machine.output.set_timer(timers.PREEMPT, max(soonest, now + pause_s))

    def plan(self, task: TaskDescription, now: float, *, retry: bool) -> PreemptionPlan | NoPlan:
        """Which items would leave for this one, or why none would. Changes nothing."""
        engine, views = self._machine.engine, self._machine.fleet.views(now)
        places = [_Place(engine, task, view, retry=retry) for view in views if engine.is_reachable(task, view)]
        return plan_preemption(
            _newcomer(task), places, list(self.running_items()), self._machine.pools.ledger, self._rules, now
        )

    def candidates(self, task: TaskDescription, place: str, now: float) -> list[Candidate]:
        """Every running item, and why it may or may not give way to this one on a cluster."""
        ledger = self._machine.pools.ledger
        return list_candidates(_newcomer(task), list(self.running_items()), ledger, self._rules, now, place)

    def running_items(self) -> Iterator[RunningItem]:
        """The preemptible items that run, and those of them that were asked to end. One on a silent cluster is neither:
        nobody knows when its quota comes back."""
        machine = self._machine
        for task_id in machine.preemptible:
            record = machine.records[task_id]
            state = machine.registry.find(record.cluster)
            held = None if state is None else state.ledger.reservations.get(task_id)
            leaving = record.ending is not None
            if held is None or record.started_at is None or not (leaving or record.state is TaskState.RUNNING):
                continue
            task = record.wanted
            yield RunningItem(
                id=task_id,
                pool=task.pool,
                labels=task.labels,
                priority=task.priority,
                preemptible=True,
                place=record.cluster or "",
                nodes=held.parts,
                started_at=record.started_at,
                saved_at=record.saved_at,
                min_runtime_s=task.min_runtime_s,
                last_preempted_at=record.preempted_at,
                leaving=leaving,
            )

    # ---- carrying out a plan

    def _carry_out(self, record: TaskRecord, plan: PreemptionPlan, now: float) -> None:
        machine, state = self._machine, self._machine.registry.state(plan.place)
        record.room = FreedRoom(plan.place, plan.parts, tuple(one.id for one in plan.victims), now)
        self._book(record)
        many = "1 item leaves" if len(plan.victims) == 1 else f"{len(plan.victims)} items leave"
        machine.transition(record, TaskState.QUEUED, codes.FREES_ROOM, f"{many} {plan.place} for it", now)
        machine.output.add(Remember(record.task.id))
        self._prefetch.recall_cluster(state, "room is freed for another item", now)
        for victim in plan.victims:
            sentence = _GIVES_WAY[victim.reason].format(
                pool=f"pool {record.wanted.pool}" if record.wanted.pool else "no pool"
            )
            self._count(machine.records[victim.id].wanted.pool or "", victim)
            self.stop(machine.records[victim.id], sentence, now, newcomer=record.task.id)

    def _count(self, pool: str, victim: Victim) -> None:
        self._victims[pool, victim.reason] += 1
        self._lost_s[pool] = self._lost_s.get(pool, 0.0) + victim.lost_s

    def counts(self, now: float) -> PreemptionCounts:
        """Since the start, of the pools that there are."""
        pools = {"", *self._machine.pools.ledger.pools}
        victims = {key: count for key, count in self._victims.items() if key[0] in pools}
        lost_s = {pool: seconds for pool, seconds in self._lost_s.items() if pool in pools}
        leaving = (self._machine.records[one] for one in self._machine.preemptible)
        asked = [one.preempted_at or now for one in leaving if one.state is TaskState.PREEMPTING]
        return PreemptionCounts(victims, lost_s, max(0.0, now - min(asked, default=now)))

    def stop(self, record: TaskRecord, sentence: str, now: float, *, newcomer: str | None = None) -> None:
        """Let an attempt save its state and stop; it waits in the queue again afterwards."""
        record.ending, record.preempted_at = Ending("preempt", sentence, force=False, newcomer=newcomer), now
        self._machine.transition(record, TaskState.PREEMPTING, codes.PREEMPTED, sentence, now)
        self.request(record, now)

    def request(self, record: TaskRecord, now: float) -> None:
        """Send the request to stop, and set the timer for the end of the grace; also after a restart."""
        left = max(0.0, (record.preempted_at or now) + self._rules.grace_s - now)
        cluster, output = record.cluster or "", self._machine.output
        output.add(PreemptAttempt(record.task.id, record.attempt, cluster, left))
        output.set_timer(timers.grace_key(record.task.id, record.attempt), now + left + KILL_AFTER_S)

    def grace_over(self, task_id: str, _: float) -> None:
        """The victim has not left in time: kill it."""
        record = self._machine.records[task_id]
        self._machine.output.add(CancelAttempt(task_id, record.attempt, record.cluster or "", force=True))

    def _book(self, record: TaskRecord) -> None:
        """Book the room for the newcomer, beyond what is free: the victims are still there."""
        room, machine = record.room, self._machine
        assert room is not None
        machine.rooms[record.task.id] = room
        state = machine.registry.find(room.cluster)
        if state is not None:
            state.ledger.reserve(record.task.id, room.parts, room.since)
        machine.pools.claim(record, room.cluster)

    def restore(self, record: TaskRecord, now: float) -> None:
        """Go on with a preemption after a restart: book the room again; those that leave are asked again."""
        if record.room is not None:
            self._book(record)
            self._check_room(record, now)

    # ---- the newcomer's turn

    def run(self, now: float) -> None:
        """Items have left: those for whom the last one did are placed, or give the room back later."""
        if self._machine.has_left:
            gone, self._machine.has_left = self._machine.has_left, set()
            for task_id, room in list(self._machine.rooms.items()):
                if gone.intersection(room.leave):
                    self._check_room(self._machine.records[task_id], now)

    def _check_room(self, record: TaskRecord, now: float) -> None:
        room = record.room
        if room is None or record.group is None or any(self._is_leaving(one, record.task.id) for one in room.leave):
            return
        self._machine.queue.unpark(record.group)
        self._machine.new_groups[record.group] = None
        key = timers.room_key(record.task.id)
        if key not in self._machine.output.timers:
            self._machine.output.set_timer(key, now + START_WITHIN_S)

    def _is_leaving(self, victim: str, newcomer: str) -> bool:
        record = self._machine.records.get(victim)
        if record is None or not record.live or record.ending is None:
            return False
        return record.ending.newcomer == newcomer or record.ending.kind != "preempt"

    def room_unused(self, task_id: str, now: float) -> None:
        """The newcomer did not start in time, although all victims have left: the room goes back."""
        record = self._machine.records[task_id]
        if record.room is not None:
            self._machine.release_room(record)
            if record.group is not None:
                self._tries[record.group] = _Attempt(now + MAX_RETRY_S)
                self._set_timer(now)
            sentence = "could not start in the room that was freed for it"
            self._machine.transition(record, TaskState.QUEUED, codes.QUEUED, sentence, now)

    def views_for(self, record: TaskRecord, views: tuple[ClusterView, ...]) -> tuple[ClusterView, ...]:
        """The views as the newcomer sees them: its own room is free, as far as the victims have left."""
        if record.room is None:
            return views
        room = self._machine.current_room(record)
        return tuple(_with_room(view, room.parts) if view.name == room.cluster else view for view in views)


@dataclass(slots=True)
class _Place:
    """A cluster, as the choice of victims sees it."""

    engine: PolicyEngine
    task: TaskDescription
    view: ClusterView
    retry: bool = field(kw_only=True)

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def free(self) -> Mapping[str, Resources]:
        return {node.node_id: node.free for node in self.view.nodes if node.free is not None}

    def accepts(self, freed: Mapping[str, Resources]) -> Mapping[str, Resources] | None:
        """Quota is checked by the caller, so the item is checked as one without a pool."""
        view = _with_room(self.view, freed) if freed else self.view
        item = self.task if self.task.pool is None else replace(self.task, pool=None)
        try:
            if self.engine.first_rejection(item, view, retry=self.retry) is not None:
                return None
        except PolicyEvaluationError:
            return None  # the scheduling pass ends the item with that error
        return find_placement(item, view.nodes)


def _with_room(view: ClusterView, room: Mapping[str, Resources]) -> ClusterView:
    """The view with so much more free on its nodes."""
    return view.with_changes(nodes=tuple(_freed(node, room.get(node.node_id)) for node in view.nodes))


def _freed(node: NodeView, amounts: Resources | None) -> NodeView:
    if node.free is None or not amounts:
        return node
    left = {name: plus(node.free, amounts)[name] - node.overcommitted.get(name, 0.0) for name in node.free}
    over = {name: -amount for name, amount in left.items() if amount < 0}
    free = {name: max(0.0, round(amount, 6)) for name, amount in left.items()}
    reserved = {name: amount - amounts.get(name, 0.0) for name, amount in node.reserved.items()}
    return NodeView(node.node_id, node.total, node.external, reserved, free, over)


def _newcomer(task: TaskDescription) -> Newcomer:
    return Newcomer(
        id=task.id,
        pool=task.pool,
        labels=task.labels,
        priority=task.priority,
        amounts=task.placement,
        need=task.placement if task.kind in ("task", "actor") else None,
    )


def preemption_rules(settings: Settings) -> PreemptionRules:
    """The rules of the settings, in which the loader has replaced ``env:NAME``. Raises ConfigurationError for an
    unknown preset."""
    given = settings.preemption
    label, same_pool = given.label, given.same_pool
    if given.preset is not None:
        label, same_pool = thresholds(given.preset, {})
    return PreemptionRules(
        same_pool=same_pool,
        other_pool=given.other_pool,
        label=label,
        enable_cross_pool=given.enable_cross_pool,
        label_rules=given.label_rules,
        min_runtime_s=given.min_runtime_s,
        cool_down_s=given.cool_down_s,
        grace_s=given.grace_s,
    )
