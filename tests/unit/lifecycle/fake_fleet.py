"""FakeFleet: clusters that carry out instructions in virtual time, badly if chance says so.

It knows the truth (which attempts are alive, what each node holds) and judges the machine by it after every call.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    FailureClass,
    NodeSnapshot,
    ResourceSnapshot,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.common.model.resources import fits, minus
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LEGAL

NODE = {"CPU": 8.0}
NODES = ("n1", "n2")


@dataclass
class Live:
    """An attempt that the cluster has."""

    task: TaskDescription
    attempt: int
    cluster: str
    node: str | None
    accepted: bool = False
    started: bool = False
    ahead: bool = False
    with_ray: bool = False
    """It has no place yet, but waits in Ray itself: it cannot be taken back, and may even run too early."""


@dataclass
class FakeFleet:
    """Everything random comes from ``chance``; the same seed gives the same run."""

    machine: SchedulerMachine
    chance: Random
    now: float = 1000.0
    live: dict[tuple[str, int], Live] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    waiting: set[str] = field(default_factory=set)
    incomplete: list[str] = field(default_factory=list)
    timers: dict[str, float] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    mail: list[tuple[float, int, events.Event]] = field(default_factory=list)
    old_mail: list[events.Event] = field(default_factory=list)
    tasks: dict[str, TaskDescription] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    last_state: dict[str, TaskState] = field(default_factory=dict)
    fences: list[int] = field(default_factory=list)
    lines: int = 0
    chance_of_a_look: Random = field(default_factory=lambda: Random(1))
    """Its own, so that looking changes nothing."""
    met: Counter[str] = field(default_factory=Counter)
    """How often some rare things happened, so that a test can tell that they do."""

    # ---- carrying out instructions

    def feed(self, event: events.Event) -> None:
        """Give the machine one event, do what it says, and judge it."""
        if isinstance(event, events.SnapshotTaken):
            self.waiting.discard(event.snapshot.cluster)  # a pushed one is as good as the answer
        elif isinstance(event, events.SnapshotFailed):
            self.waiting.discard(event.cluster)
        more = self._carry_out(self.machine.handle(event, self.now))
        while more:
            more = self._carry_out(self.machine.handle(events.Continued(), self.now))
        self.judge()

    def _carry_out(self, instructions: list[out.Instruction]) -> bool:
        durable = [isinstance(one, (out.Persist, out.Remember, out.RememberFleet)) for one in instructions]
        assert durable == sorted(durable, reverse=True), "a Persist came after an outward effect"
        for one in instructions:
            match one:
                case out.Persist(step):
                    self._check_step(step)
                case out.Dispatch():
                    self._dispatch(one)
                case out.RefreshSnapshot(cluster):
                    assert cluster not in self.waiting, "a second question before anything was heard"
                    self.waiting.add(cluster)
                    self.asked.append(cluster)
                case out.CheckDashboard(cluster):
                    sentence = self.chance.choice([None, None, None, "connection refused"])
                    self.post(events.DashboardChecked(cluster, sentence))
                case out.SetTimer(key, at):
                    assert at >= self.now
                    self.timers[key] = at
                case out.ClearTimer(key):
                    self.timers.pop(key, None)
                case out.Complete():
                    self.ends[one.task_id] += 1
                    alive = [key for key in self.live if key[0] == one.task_id]
                    assert not alive or self.tasks[one.task_id].retry_lost, "over, but an attempt is alive"
                case out.StartAttempt():
                    self._start_ahead(one)
                case out.RecallAttempt():
                    self._recall(one)
                case out.CancelAttempt():
                    record = self.machine.record(one.task_id)
                    assert record.attempt == one.attempt or (one.attempt, one.cluster) in record.given_up
        return bool(instructions) and isinstance(instructions[-1], out.Continue)

    def _check_step(self, step: out.Transition) -> None:
        before = self.last_state.get(step.task_id)
        assert step.state is TaskState.PENDING if before is None else step.state in LEGAL[before]
        self.last_state[step.task_id] = step.state

    def _dispatch(self, one: out.Dispatch) -> None:
        alive = [key for key in self.live if key[0] == one.task_id]
        assert not alive or self.tasks[one.task_id].retry_lost, "two live attempts of one item"
        assert not self.fences or one.fence > self.fences[-1], "fences only grow"
        self.fences.append(one.fence)
        record = self.machine.record(one.task_id)
        assert record.placed is not None
        row = next(row for row in record.placed.candidates if row.cluster == one.cluster)
        assert row.feasible != bool(one.ahead)
        self.met["sent ahead"] += bool(one.ahead)
        live = Live(record.task, one.attempt, one.cluster, row.node_id, ahead=bool(one.ahead))
        self.live[one.task_id, one.attempt] = live

    def _start_ahead(self, one: out.StartAttempt) -> None:
        """There is a place for it, where the machine has reserved it."""
        live = self.live.get((one.task_id, one.attempt))
        if live is not None and live.ahead:
            reservation = self.machine.registry.state(one.cluster).ledger.reservations[one.task_id]
            live.ahead, live.node = False, next(iter(reservation.parts), None)

    def _recall(self, one: out.RecallAttempt) -> None:
        live = self.live.get((one.task_id, one.attempt))
        if live is not None and live.ahead and not live.with_ray:
            self.met["taken back"] += 1
            self._end(live, "cancelled", None)
        else:
            self.met["taken back in vain"] += 1

    def _end(self, one: Live, status: Any, failure: FailureClass | None) -> None:
        """It is over; the oldest of its class that was sent ahead and has arrived takes over its place."""
        key = (one.task.id, one.attempt)
        del self.live[key]
        if not one.ahead:
            heir = next((other for other in self.live.values() if self._inherits(one, other)), None)
            if heir is not None:
                self.met["place taken over"] += 1
                self.met["place taken over by one that runs"] += heir.started
                heir.ahead, heir.node = False, one.node
                self.post(events.PlaceMoved(key, (heir.task.id, heir.attempt)), delay=0)
        took = self.chance.choice([0.0, 0.004, 0.02]) if status != "cancelled" else None
        self.post(events.AttemptFinished(key[0], key[1], status, failure, "ValueError", took=took))

    def _inherits(self, one: Live, other: Live) -> bool:
        same = (other.cluster, other.task.requirements) == (one.cluster, one.task.requirements)
        return same and other.ahead and other.accepted and one.task.kind == "task"

    # ---- the truth

    def holds(self, cluster: str, node: str) -> dict[str, float]:
        """What runs on a node takes."""
        mine = (one for one in self.live.values() if (one.cluster, one.node) == (cluster, node) and one.started)
        return {"CPU": sum(one.task.requirements.get("CPU", 0.0) for one in mine if one.task.kind != "job")}

    def snapshot(self, cluster: str) -> ResourceSnapshot:
        nodes = tuple(NodeSnapshot(name, NODE, minus(NODE, self.holds(cluster, name))) for name in NODES)
        source: Any = self.chance.choice(["agent", "http"])
        return ResourceSnapshot(cluster, self.now, nodes, source, "s1")

    def _judge_who_waits(self) -> None:
        """Each waiting item is evaluated afresh, by all clusters: nobody may wait who could go."""
        core = self.machine._state
        for group in core.queue.groups():
            why = self.machine.explain_wait(group.head().task_id, self.now)
            assert why is not None
            assert why.cluster is None, f"{group.head().task_id} waits, and {why.cluster} would take it: {why.sentence}"
            assert not group.parked

    def judge(self) -> None:
        """What must hold after every single call."""
        self.met["room kept"] += bool(self.machine._state.wide_reservations)
        if self.chance_of_a_look.random() < 0.2:
            self._judge_who_waits()
        assert all(count == 1 for count in self.ends.values()), "more than one Complete"
        assert set(self.timers) == self.machine.timers
        for metadata in self.machine.registry.list():
            state = self.machine.registry.state(metadata.name)
            assert set(state.ledger.reservations) == set(state.slots.held)
            assert not set(state.slots.held) & set(state.slots.prefetched)
            assert len(state.slots.held) + len(state.slots.prefetched) <= metadata.max_in_flight
            for node in state.ledger.nodes():
                assert fits(node.reserved, node.total), "more reserved than there is"
                assert not any((node.external or {}).values()), "our own work was taken for that of others"
            for task_id in (*state.slots.held, *state.slots.prefetched):
                assert self.machine.record(task_id).live
        for task_id, count in self.ends.items():
            assert self.machine.record(task_id).state.terminal == bool(count)

    # ---- events in flight

    def post(self, event: events.Event, *, delay: float | None = None) -> None:
        """It arrives some time later, maybe after things that happened later."""
        wait = self.chance.choice([0.0, 0.0, 0.05, 0.2]) if delay is None else delay
        self.lines += 1
        heapq.heappush(self.mail, (self.now + wait, self.lines, event))

    def advance(self, seconds: float) -> None:
        """Let time pass; mail and timers come when they are due."""
        until = self.now + seconds
        while True:
            due = min(self.timers.items(), key=lambda item: (item[1], item[0]), default=("", until + 1))
            letter = self.mail[0][0] if self.mail else until + 1
            at = min(due[1], letter)
            if at > until:
                break
            self.now = max(self.now, at)
            if letter <= due[1]:
                event = heapq.heappop(self.mail)[2]
                self.old_mail.append(event)
                self.feed(event)
            else:
                del self.timers[due[0]]
                self.feed(events.TimerFired(due[0]))
        self.now = until

    # ---- what clusters do

    def submit(self, task: TaskDescription, waits_for: str = "") -> None:
        self.tasks[task.id] = task
        self.feed(events.Submitted(task, waits_for))
        if waits_for:
            self.incomplete.append(task.id)

    def arguments(self, task_id: str, *, well: bool, pinned: str | None = None) -> None:
        """What it waited for is there, or never will be."""
        self.incomplete.remove(task_id)
        ready = events.ArgumentsReady(task_id, pinned)
        self.feed(ready if well else events.ArgumentsFailed(task_id, "its argument failed", "TaskCancelledError"))

    def answer(self, cluster: str, *, well: bool) -> None:
        self.asked.remove(cluster)
        taken = events.SnapshotTaken(self.snapshot(cluster))
        failed = events.SnapshotFailed(cluster, "TIMEOUT", "no answer")
        # At once: an answer on its way would look like a question that was never answered.
        self.feed(taken if well else failed)

    def step(self, one: Live, status: str, failure: str | None = None) -> None:
        """The next thing in the life of an attempt."""
        key = (one.task.id, one.attempt)
        if status == "accepted" and not one.accepted:
            one.accepted = True
            one.with_ray = one.ahead and self.chance.random() < 0.5
            self.post(events.DispatchAccepted(*key))
        elif status == "started" and not one.started and (one.with_ray or not one.ahead):
            one.accepted = one.started = True
            self.met["started before its turn"] += one.ahead
            self.post(events.Started(*key, self.now, one.node))
        elif status == "refused" and not one.accepted:
            del self.live[key]
            self.post(events.DispatchRefused(*key, FailureClass(failure or "cluster"), "NO", "not taken"))
        elif status in ("succeeded", "failed", "cancelled") and (one.started or status != "succeeded"):
            self._end(one, status, FailureClass(failure or "user") if status == "failed" else None)

    def link(self, cluster: str, what: str) -> None:
        self.links[cluster] = what
        match what:
            case "up":
                self.post(events.LinkUp(cluster, "3.11.2", "2.60.0", "s1"), delay=0)
                self.post(events.SnapshotTaken(self.snapshot(cluster)))
            case "down":
                self.post(events.LinkDown(cluster, "silent"), delay=0)
            case "closed":
                self.post(events.LinkClosed(cluster, "over"), delay=0)
            case "failed":
                self.post(events.LinkFailed(cluster, "NO", "no way"), delay=0)

    def declare_dead(self, cluster: str) -> None:
        """Nothing runs there any more, and an operator declares it; what was on its way from there may still arrive."""
        state = self.machine.registry.find(cluster)
        if state is None:
            return
        for key in [key for key, one in self.live.items() if one.cluster == cluster]:
            del self.live[key]
            self.met["died and was declared dead"] += 1
        self.feed(events.ClusterDeclaredDead(cluster))
        assert state.problem(self.now) is not None
        assert (state.slots.held, state.slots.prefetched) == ({}, {})

    def check_all_ended(self) -> None:
        """Every item has ended, and nothing waits for anything."""
        assert set(self.ends) == set(self.tasks)
        assert self.live == {}
        assert self.machine.timers == frozenset()
        assert self.machine.queue_depths() == {}

    def settle(self) -> None:
        """All goes well from here on; returns when nothing is left to do."""
        for owner in ("", "ann", "bob"):
            self.feed(events.QueueResumed("owner", owner))
            self.feed(events.OwnerLimitsChanged(owner, None))
        for task_id in list(self.tasks):
            self.feed(events.ReleaseRequested(task_id))
        for metadata in self.machine.registry.list():
            self.feed(events.QueueResumed("cluster", metadata.name))
        for metadata in self.machine.registry.list():
            self.feed(events.ClusterChanged(metadata.name, metadata, cordoned=False))
            self.link(metadata.name, "up")
        for task_id in list(self.incomplete):
            self.arguments(task_id, well=True)
        for _ in range(2000):
            for cluster in list(self.asked):
                self.answer(cluster, well=True)
            for one in list(self.live.values()):
                record = self.machine.record(one.task.id)
                self.step(one, "started")
                self.step(one, "cancelled" if record.ending is not None else "succeeded")
            self.advance(1.0)
            if not self.machine.has_unfinished() and not self.mail and not self.asked and not self.timers:
                return
        raise AssertionError(f"never at rest: {[(r.task.id, r.state, r.code) for r in self.machine.records()]}")


def fleet_of(*names: str) -> list[ClusterMetadata]:
    return [ClusterMetadata(name, dashboard=f"http://{name}:8265", max_in_flight=6) for name in names]
