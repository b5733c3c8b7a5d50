"""The state of items and clusters that a reader can derive from a history, updated line by line.

It shares nothing with the scheduler's own state. Where the lines do not tell, it claims less than is true rather than
more: a property that relies on it may miss a violation, but does not report a wrong one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ray_multicluster_scheduler.common.model import (
    ClusterMetadata,
    FailureClass,
    ResourceSnapshot,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.simulation.history import ControlPlaneRestarted, FaultInjected

WINDOW_S = 8.0
"""So old may be what a snapshot shows, and a little more."""


@dataclass(slots=True)
class Item:
    """One item, as the lines so far tell of it."""

    task: TaskDescription
    number: int
    waits_for: bool = False
    state: TaskState | None = None
    code: str = ""
    code_since: float = -inf
    priority: int = 0
    pinned: str | None = None
    held: bool = False
    attempt: int = 0
    cluster: str = ""
    live: bool = False
    ahead: bool = False
    started: bool = False
    queued_at: float = inf
    node: str | None = None
    """Where it was seen to begin."""
    certain: bool = False
    """Is it surely expected where there was room for it? Once something began, or nodes changed, it may make way."""

    @property
    def waits(self) -> bool:
        """In the queue, and nobody holds it."""
        return self.state is TaskState.QUEUED and self.code != "HELD"

    @property
    def takes(self) -> Mapping[str, float]:
        """What it holds while it is on a cluster."""
        return self.task.requirements if self.started or self.task.actor is None else self.task.placement

    @property
    def only(self) -> str | None:
        """The one cluster that it may go to, if there is but one."""
        if self.pinned is not None:
            return self.pinned
        return self.task.preferred_cluster if self.task.fallback == "wait" else None

    @property
    def shape(self) -> tuple[Any, ...]:
        """All that placement looks at, but for its owner and priority."""
        task = self.task
        return (
            task.kind,
            self.pinned or task.preferred_cluster,
            "wait" if self.pinned is not None else task.fallback,
            tuple(sorted(task.placement.items())),
            task.tags,
            task.require_tags,
            task.allow_clusters,
            task.deny_clusters,
            self.attempt > 0,
            task.bundles,
        )


@dataclass(slots=True)
class Cluster:
    """One cluster, as the lines so far tell of it."""

    metadata: ClusterMetadata
    cordoned: bool = False
    paused: bool = False
    link: str = "none"
    link_up_at: float = 0.0
    link_failed_at: float = -inf
    newest: ResourceSnapshot | None = None
    heard_at: float = -inf
    failed_asking: bool = False
    dashboard_ok: bool = True
    head_ok: bool = True
    dead_since: float | None = None
    """An operator said so, and nothing was heard of it since."""
    failures: int = 0
    """In a row, at the most."""
    may_be_open: bool = False
    last_submission: float = -inf
    seen: deque[tuple[float, dict[str, dict[str, float]]]] = field(default_factory=deque)
    """What was in use by node, by the snapshots of the last while."""
    live: dict[str, Item] = field(default_factory=dict)
    left_at: float = -inf
    """When something of ours was last there."""

    @property
    def name(self) -> str:
        return self.metadata.name

    def totals(self) -> dict[str, Mapping[str, float]]:
        return {} if self.newest is None else {node.node_id: node.total for node in self.newest.nodes}

    def pushed(self) -> bool:
        return self.link == "up" and self.heard_at >= self.link_up_at

    def most_used(self, at: float) -> dict[str, dict[str, float]]:
        """By node and resource, the most that any snapshot of the last while showed in use."""
        most: dict[str, dict[str, float]] = {}
        recent = [one for when, one in self.seen if when >= at - WINDOW_S] or [one for _, one in list(self.seen)[-1:]]
        for seen in recent:
            for node, used in seen.items():
                mine = most.setdefault(node, {})
                for name, amount in used.items():
                    mine[name] = max(mine.get(name, 0.0), amount)
        return most

    def surely_used(self, name: str) -> float:
        """How much of this resource is ours at the least, on nodes that are there."""
        there = [one for one in self.live.values() if not one.ahead]
        used = sum(one.takes.get(name, 0.0) for one in there if one.certain)
        for node, total in self.totals().items():
            seen = sum(one.takes.get(name, 0.0) for one in there if one.node == node)
            used += min(seen, total.get(name, 0.0))  # more is not there, but has ended, or is on another node
        return used

    def takes_kind(self, item: Item) -> bool:
        """May it go there at all?"""
        task = item.task
        allowed = task.allow_clusters is None or self.name in task.allow_clusters
        tagged = set(task.require_tags) <= set(self.metadata.tags)
        return allowed and tagged and self.name not in task.deny_clusters and item.only in (None, self.name)


LIVE = frozenset({TaskState.DISPATCHING, TaskState.RUNNING, TaskState.LOST})


class Book:
    """Updated line by line. A judge looks at it before a line is entered."""

    def __init__(self, settings: Settings, clusters: Iterable[ClusterMetadata]) -> None:
        self.settings = settings
        self.clusters = {one.name: Cluster(one) for one in clusters}
        self.items: dict[str, Item] = {}
        self.waiting: dict[str, Item] = {}
        self.paused_owners: set[str] = set()
        self._limits = dict(settings.owners)
        self._of_owner: dict[str, dict[str, Item]] = {}
        self.calm_since = 0.0
        """Since then nothing went wrong, and nobody interfered."""
        self._takers: dict[type, Any] = {
            events.Submitted: self._submitted,
            events.ArgumentsReady: self._arguments,
            events.ArgumentsFailed: self._arguments,
            events.CancelRequested: self._disturbed,
            events.HoldRequested: self._held,
            events.ReleaseRequested: self._released,
            events.PriorityChanged: self._priority,
            events.QueuePaused: self._paused,
            events.QueueResumed: self._paused,
            events.OwnerLimitsChanged: self._limited,
            events.ClusterChanged: self._changed,
            events.CordonChanged: self._cordoned,
            events.ClusterDeclaredDead: self._dead,
            events.SnapshotTaken: self._snapshot,
            events.SnapshotFailed: self._silent,
            events.DashboardChecked: self._dashboard,
            events.HeadSilent: self._head_silent,
            events.LinkUp: self._link_up,
            events.LinkDown: self._link_down,
            events.LinkClosed: self._link_closed,
            events.LinkFailed: self._link_failed,
            events.Started: self._started,
            events.PlaceMoved: self._moved,
            events.AttemptFinished: self._finished,
            events.DispatchRefused: self._refused,
            out.Persist: self._persist,
            out.StartAttempt: self._start_attempt,
            FaultInjected: self._disturbed,
            ControlPlaneRestarted: self._restarted,
        }

    def enter(self, at: float, what: Any) -> None:
        taker = self._takers.get(type(what))
        if taker is not None:
            taker(at, what)

    def held_by(self, owner: str) -> list[Item]:
        """What of this owner's is on clusters."""
        return list(self._of_owner.get(owner, {}).values())

    def may_start(self, item: Item) -> bool:
        """Does neither a pause nor a limit of its owner keep it from starting?"""
        owner = item.task.owner
        if owner in self.paused_owners:
            return False
        limits = self._limits.get(owner)
        if limits is None:
            return True
        there = self.held_by(owner)
        if limits.max_running is not None and len(there) >= limits.max_running:
            return False
        gpus = sum(one.task.placement.get("GPU", 0.0) for one in there)
        return limits.max_gpus is None or gpus + item.task.placement.get("GPU", 0.0) <= limits.max_gpus + 1e-4

    def room_may_be_kept(self, at: float) -> bool:
        """Has anybody waited so long that a place may be kept for it?"""
        patience = self.settings.reserve_after_s
        return any(at - item.queued_at >= patience for item in self.waiting.values())

    # ---- people

    def _submitted(self, at: float, event: events.Submitted) -> None:
        if event.task.id not in self.items:
            item = Item(event.task, len(self.items), bool(event.waits_for), priority=event.task.priority)
            self.items[event.task.id] = item

    def _arguments(self, at: float, event: events.ArgumentsReady | events.ArgumentsFailed) -> None:
        item = self.items.get(event.task_id)
        if item is not None and item.waits_for:
            item.waits_for = False
            if isinstance(event, events.ArgumentsReady) and event.pinned is not None:
                item.pinned = event.pinned

    def _disturbed(self, at: float, event: Any) -> None:
        self.calm_since = at

    def _held(self, at: float, event: events.HoldRequested) -> None:
        self.calm_since = at
        item = self.items.get(event.task_id)
        if item is not None:
            item.held = True

    def _released(self, at: float, event: events.ReleaseRequested) -> None:
        item = self.items.get(event.task_id)
        if item is not None and item.held:
            self.calm_since = at
            item.held = False

    def _priority(self, at: float, event: events.PriorityChanged) -> None:
        self.calm_since = at
        item = self.items.get(event.task_id)
        if item is not None and item.state is not None and not item.state.terminal:
            item.priority = event.priority

    def _paused(self, at: float, event: events.QueuePaused | events.QueueResumed) -> None:
        paused = isinstance(event, events.QueuePaused)
        self.calm_since = at
        if event.what == "cluster":
            cluster = self.clusters.get(event.name)
            if cluster is not None:
                cluster.paused = paused
        elif paused:
            self.paused_owners.add(event.name)
        else:
            self.paused_owners.discard(event.name)

    def _limited(self, at: float, event: events.OwnerLimitsChanged) -> None:
        self.calm_since = at
        limits = event.limits or self.settings.owners.get(event.owner)
        if limits is None:
            self._limits.pop(event.owner, None)
        else:
            self._limits[event.owner] = limits

    def _changed(self, at: float, event: events.ClusterChanged) -> None:
        self.calm_since = at
        if event.metadata is None:
            self.clusters.pop(event.cluster, None)
            return
        cluster = self.clusters.get(event.cluster)
        if cluster is None:
            cluster = self.clusters[event.cluster] = Cluster(event.metadata)
            for item in self.items.values():
                if item.live and item.cluster == event.cluster:
                    item.ahead = False
                    item.node, item.certain = None, False
                    cluster.live[item.task.id] = item
        if event.cordoned is not None:
            cluster.cordoned = event.cordoned
        if event.metadata != cluster.metadata:  # old troubles say nothing about the new entry
            cluster.metadata = event.metadata
            cluster.failures, cluster.may_be_open, cluster.link_failed_at = 0, False, -inf
            cluster.dashboard_ok, cluster.failed_asking, cluster.head_ok = True, False, True

    def _cordoned(self, at: float, event: events.CordonChanged) -> None:
        self.calm_since = at
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.cordoned = event.cordoned

    def _dead(self, at: float, event: events.ClusterDeclaredDead) -> None:
        self.calm_since = at
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.dead_since = at

    def _restarted(self, at: float, line: ControlPlaneRestarted) -> None:
        """What was learnt of clusters is learnt again."""
        self.calm_since = at
        for cluster in self.clusters.values():
            cluster.link, cluster.link_failed_at = "none", -inf
            cluster.newest, cluster.heard_at, cluster.failed_asking = None, -inf, False
            cluster.failures, cluster.may_be_open, cluster.dashboard_ok = 0, False, True
            cluster.head_ok = True
            cluster.seen.clear()
            _shake(cluster)

    # ---- clusters

    def _snapshot(self, at: float, event: events.SnapshotTaken) -> None:
        snapshot = event.snapshot
        cluster = self.clusters.get(snapshot.cluster)
        if cluster is None:
            return
        cluster.heard_at, cluster.failed_asking, cluster.head_ok = at, False, True
        if cluster.dead_since is not None and snapshot.taken_at > cluster.dead_since:
            cluster.dead_since = None
        if snapshot.source == "http":
            cluster.dashboard_ok = True
        newest = cluster.newest
        if newest is None or snapshot.taken_at >= newest.taken_at:
            if newest is not None and newest.session_id != snapshot.session_id:
                cluster.seen.clear()
            if newest is not None and cluster.totals() != {node.node_id: node.total for node in snapshot.nodes}:
                _shake(cluster)
            cluster.newest = snapshot
        used = {
            node.node_id: {name: total - (node.free or {}).get(name, 0.0) for name, total in node.total.items()}
            for node in snapshot.nodes
        }
        cluster.seen.append((at, used))
        ours = sum(one.task.placement.get("CPU", 0.0) for one in cluster.live.values())
        if sum(node.get("CPU", 0.0) for node in used.values()) > ours + 1e-3:
            self.calm_since = at  # others are there
        while cluster.seen and cluster.seen[0][0] < at - 2 * WINDOW_S:
            cluster.seen.popleft()

    def _silent(self, at: float, event: events.SnapshotFailed) -> None:
        self.calm_since = at
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.failed_asking = True
            self._failure(cluster)

    def _dashboard(self, at: float, event: events.DashboardChecked) -> None:
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.dashboard_ok = event.sentence is None

    def _head_silent(self, at: float, event: events.HeadSilent) -> None:
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.head_ok = False

    def _link_up(self, at: float, event: events.LinkUp) -> None:
        cluster = self.clusters.get(event.cluster)
        if cluster is not None:
            cluster.link, cluster.link_up_at, cluster.link_failed_at = "up", at, -inf
            cluster.dead_since = None

    def _link_down(self, at: float, event: events.LinkDown) -> None:
        self._link(at, event.cluster, "down")

    def _link_closed(self, at: float, event: events.LinkClosed) -> None:
        self._link(at, event.cluster, "none")

    def _link_failed(self, at: float, event: events.LinkFailed) -> None:
        cluster = self._link(at, event.cluster, "none")
        if cluster is not None:
            cluster.link_failed_at = at

    def _link(self, at: float, name: str, state: str) -> Cluster | None:
        self.calm_since = at
        cluster = self.clusters.get(name)
        if cluster is not None:
            cluster.link = state
        return cluster

    def _failure(self, cluster: Cluster) -> None:
        cluster.failures += 1
        if cluster.failures >= self.settings.breaker_failures:
            cluster.may_be_open = True

    # ---- attempts

    def live(self, task_id: str, attempt: int) -> Item | None:
        """The item, if this is its live attempt."""
        item = self.items.get(task_id)
        return item if item is not None and item.live and item.attempt == attempt else None

    def _started(self, at: float, event: events.Started) -> None:
        item = self.live(event.task_id, event.attempt)
        if item is not None and not item.started:
            self._begin(item, event.node_id)

    def _begin(self, item: Item, node_id: str | None) -> None:
        item.started = True
        if node_id is not None and item.task.kind != "job":
            item.node, item.certain = node_id, False
        cluster = self.clusters.get(item.cluster)
        if cluster is not None:
            _shake(cluster)
        if item.task.actor is not None and not item.task.actor.restart_elsewhere and item.cluster in self.clusters:
            item.pinned = item.cluster

    def _moved(self, at: float, event: events.PlaceMoved) -> None:
        item = self.live(*event.begun)
        if item is not None and item.ahead:
            before = self.live(*event.ended)
            item.ahead = False
            if before is not None and before.cluster == item.cluster and item.cluster in self.clusters:
                self.clusters[item.cluster].live.pop(
                    before.task.id, None
                )  # it is over there; its end is still to be told

    def _start_attempt(self, at: float, order: out.StartAttempt) -> None:
        item = self.live(order.task_id, order.attempt)
        if item is not None and item.ahead:
            item.ahead = False

    def _finished(self, at: float, event: events.AttemptFinished) -> None:
        if event.status != "succeeded":
            self.calm_since = at
        item = self.live(event.task_id, event.attempt)
        if item is None:
            return
        if event.started_at is not None and not item.started:
            self._begin(item, event.node_id)
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and event.status != "cancelled":
            if event.failure is FailureClass.CLUSTER:
                self._failure(cluster)
            else:
                cluster.failures = 0
        self._leave(item, at)

    def _refused(self, at: float, event: events.DispatchRefused) -> None:
        self.calm_since = at
        item = self.live(event.task_id, event.attempt)
        if item is None:
            return
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and event.failure is FailureClass.CLUSTER:
            cluster.dashboard_ok = cluster.dashboard_ok and item.task.kind != "job"
            self._failure(cluster)
        self._leave(item, at)

    def _leave(self, item: Item, at: float) -> None:
        item.live = False
        self._of_owner[item.task.owner].pop(item.task.id, None)
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and cluster.live.pop(item.task.id, None) is not None:
            cluster.left_at = at

    def _persist(self, at: float, entry: out.Persist) -> None:
        step = entry.transition
        item = self.items[step.task_id]
        if step.code != item.code:
            item.code_since = at
        before, item.state, item.code = item.state, step.state, step.code
        if step.attempt > item.attempt:
            self._placed(item, step, at)
        elif item.live and step.state not in LIVE:
            self._leave(item, at)
        if item.waits:
            if before is not TaskState.QUEUED or step.task_id not in self.waiting:
                item.queued_at = at
            self.waiting[step.task_id] = item
        else:
            self.waiting.pop(step.task_id, None)

    def _placed(self, item: Item, step: out.Transition, at: float) -> None:
        first = item.attempt == 0
        item.attempt, item.cluster, item.live = step.attempt, step.cluster or "", True
        item.ahead, item.started = step.code == "SENT_AHEAD", False
        item.node, item.certain = None, not item.ahead
        self._of_owner.setdefault(item.task.owner, {})[item.task.id] = item
        cluster = self.clusters.get(item.cluster)
        if cluster is not None:
            cluster.live[item.task.id] = item
            if first and item.task.ruled_as in self.settings.submission_interval_kinds:
                cluster.last_submission = at


def _shake(cluster: Cluster) -> None:
    """What was not seen to begin may be expected on another node from now on."""
    for item in cluster.live.values():
        item.certain = False
