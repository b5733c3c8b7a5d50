"""The state of items and clusters that a reader can derive from a history, updated line by line.

It is independent of the scheduler's own state. Where the lines are ambiguous, it assumes less rather than more: a
property that relies on it may miss a violation, but does not report a false one. Used by `property.py`.
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
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.simulation.history import ControlPlaneRestarted, FaultInjected

WINDOW_S = 8.0
"""The staleness window of snapshots, and a little more."""
LIVE = frozenset({TaskState.DISPATCHING, TaskState.RUNNING, TaskState.PREEMPTING, TaskState.LOST})
_ROUNDING = 1e-3
_DISTURBING = frozenset(
    {
        events.CancelRequested,
        events.HoldRequested,
        events.PriorityChanged,
        events.QueuePaused,
        events.QueueResumed,
        events.OwnerLimitsChanged,
        events.PoolChanged,
        events.PoolDeleted,
        events.ClusterChanged,
        events.CordonChanged,
        events.ClusterDeclaredDead,
        events.ProcessesDead,
        events.SnapshotFailed,
        events.LinkDown,
        events.LinkClosed,
        events.LinkFailed,
        events.DispatchRefused,
        FaultInjected,
        ControlPlaneRestarted,
    }
)
"""Faults and interventions: after them, an item may have to wait longer."""


@dataclass(slots=True)
class ItemState:
    """One item, as the lines so far describe it."""

    task: TaskDescription
    number: int
    lacks_arguments: bool = False
    state: TaskState | None = None
    code: str = ""
    code_since: float = -inf
    priority: float = 0
    pinned: str | None = None
    held: bool = False
    attempt: int = 0
    cluster: str = ""
    live: bool = False
    sent_ahead: bool = False
    started: bool = False
    started_at: float = -inf
    queued_at: float = inf
    node: str | None = None
    """The node on which it was seen to start."""
    resumes: bool = False
    """Does it wait after a preemption, in front of its priority?"""
    certain: bool = False
    """Does it surely hold the resources that it was placed on? Not once nodes changed or another item started."""

    @property
    def is_waiting(self) -> bool:
        """Queued, and not held."""
        return self.state is TaskState.QUEUED and self.code != "HELD"

    @property
    def held_resources(self) -> Mapping[str, float]:
        """The resources that it holds while it is on a cluster."""
        return self.task.requirements if self.started or self.task.actor is None else self.task.placement

    @property
    def only_cluster(self) -> str | None:
        """The single cluster that it may go to, if there is only one."""
        if self.pinned is not None:
            return self.pinned
        return self.task.preferred_cluster if self.task.fallback == "wait" else None

    @property
    def shape(self) -> tuple[Any, ...]:
        """Everything that placement depends on, except owner and priority."""
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
            task.gang_shape,
            task.pool,
        )


@dataclass(slots=True)
class ClusterState:
    """One cluster, as the lines so far describe it."""

    metadata: ClusterMetadata
    cordoned: bool = False
    paused: bool = False
    link: str = "none"
    link_up_at: float = 0.0
    link_failed_at: float = -inf
    latest_snapshot: ResourceSnapshot | None = None
    heard_at: float = -inf
    snapshot_failed: bool = False
    dashboard_ok: bool = True
    head_ok: bool = True
    dead_since: float | None = None
    """When an operator declared it dead, or its processes were found dead; None once it reported again."""
    failures: int = 0
    """Consecutive failures of the cluster, at most."""
    breaker_may_be_open: bool = False
    last_submission: float = -inf
    last_accepted: float = -inf
    """Of what the submission interval concerns; restarts may forget this."""
    recent_usage: deque[tuple[float, dict[str, dict[str, float]]]] = field(default_factory=deque)
    """Time and used amounts by node, from the snapshots of the last two windows."""
    live: dict[str, ItemState] = field(default_factory=dict)
    last_used_at: float = -inf
    """When one of our attempts last ended there."""

    @property
    def name(self) -> str:
        return self.metadata.name

    def totals(self) -> dict[str, Mapping[str, float]]:
        """The size of each node, from the latest snapshot."""
        if self.latest_snapshot is None:
            return {}
        return {node.node_id: node.total for node in self.latest_snapshot.nodes}

    def may_be_spaced(self, at: float, settings: Settings) -> bool:
        """May the submission interval keep items away?"""
        interval_s = settings.submission_interval_s
        return interval_s > 0 and at - max(self.last_submission, self.last_accepted) < interval_s + 1e-6

    def is_fresh(self, at: float, settings: Settings) -> bool:
        """Is its snapshot certainly not stale? With work of ours there it is so earlier."""
        interval_s = settings.snapshot_interval_s
        return self.has_pushed_snapshot() or at - self.heard_at <= min(3 * interval_s, interval_s + 3) - 1e-6

    def has_pushed_snapshot(self) -> bool:
        """Has the agent pushed a snapshot since its link came up?"""
        return self.link == "up" and self.heard_at >= self.link_up_at

    def max_usage(self, at: float) -> dict[str, dict[str, float]]:
        """By node and resource, the largest used amount in the snapshots of the last window."""
        most: dict[str, dict[str, float]] = {}
        recent = [one for when, one in self.recent_usage if when >= at - WINDOW_S]
        for seen in recent or [one for _, one in list(self.recent_usage)[-1:]]:
            for node, used in seen.items():
                mine = most.setdefault(node, {})
                for name, amount in used.items():
                    mine[name] = max(mine.get(name, 0.0), amount)
        return most

    def min_own_usage(self, name: str) -> float:
        """The least amount of this resource that our items hold, on nodes that exist."""
        placed = [one for one in self.live.values() if not one.sent_ahead]
        used = sum(one.held_resources.get(name, 0.0) for one in placed if one.certain)
        for node, total in self.totals().items():
            seen = sum(one.held_resources.get(name, 0.0) for one in placed if one.node == node)
            used += min(seen, total.get(name, 0.0))  # anything above has ended, or is on another node
        return used

    def accepts(self, item: ItemState) -> bool:
        """May the item go there at all, by its lists, tags and pins?"""
        task = item.task
        allowed = task.allow_clusters is None or self.name in task.allow_clusters
        tagged = set(task.require_tags) <= set(self.metadata.tags)
        return allowed and tagged and self.name not in task.deny_clusters and item.only_cluster in (None, self.name)

    def forget_expected_nodes(self) -> None:
        """Items that were not seen to start may be expected on another node from now on."""
        for item in self.live.values():
            item.certain = False

    def clear_problems(self) -> None:
        """Forget past failures, which do not apply to a new or restarted entry."""
        self.failures, self.breaker_may_be_open, self.link_failed_at = 0, False, -inf
        self.dashboard_ok, self.snapshot_failed, self.head_ok = True, False, True


class HistoryState:
    """All items and clusters, updated line by line."""

    def __init__(self, settings: Settings, clusters: Iterable[ClusterMetadata], pools: Iterable[Pool] = ()) -> None:
        self.settings = settings
        self.pools = {pool.name: pool for pool in pools}
        self.clusters = {one.name: ClusterState(one) for one in clusters}
        self.items: dict[str, ItemState] = {}
        self.waiting: dict[str, ItemState] = {}
        self.paused_owners: set[str] = set()
        self.undisturbed_since = 0.0
        """Since when there was no fault and no intervention."""
        self._limits = dict(settings.owners)
        self._draining: set[str] = set()
        self._live_by_owner: dict[str, dict[str, ItemState]] = {}
        self._handlers: dict[type, Any] = {
            events.Submitted: self._submitted,
            events.ArgumentsReady: self._arguments_resolved,
            events.ArgumentsFailed: self._arguments_resolved,
            events.HoldRequested: self._hold_requested,
            events.ReleaseRequested: self._release_requested,
            events.PriorityChanged: self._priority_changed,
            events.QueuePaused: self._queue_paused,
            events.QueueResumed: self._queue_paused,
            events.OwnerLimitsChanged: self._limits_changed,
            events.PoolChanged: self._pool_changed,
            events.PoolDeleted: self._pool_deleted,
            events.ClusterChanged: self._cluster_changed,
            events.SnapshotTaken: self._snapshot_taken,
            events.DispatchAccepted: self._accepted,
            events.Started: self._started,
            events.PlaceMoved: self._place_moved,
            events.AttemptFinished: self._attempt_finished,
            events.DispatchRefused: self._dispatch_refused,
            out.Persist: self._persisted,
            out.StartAttempt: self._attempt_released,
            ControlPlaneRestarted: self._restarted,
        }
        self._cluster_handlers: dict[type, Any] = {
            events.CordonChanged: self._cordon_changed,
            events.ClusterDeclaredDead: self._declared_dead,
            events.ProcessesDead: self._declared_dead,
            events.SnapshotFailed: self._snapshot_failed,
            events.DashboardChecked: self._dashboard_checked,
            events.HeadSilent: self._head_silent,
            events.LinkUp: self._link_up,
            events.LinkDown: self._link_changed,
            events.LinkClosed: self._link_changed,
            events.LinkFailed: self._link_changed,
        }

    def apply(self, at: float, content: Any) -> None:
        """Apply the event, instruction or line."""
        kind = type(content)
        if kind in _DISTURBING:
            self.undisturbed_since = at
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(at, content)
        elif kind in self._cluster_handlers:
            cluster = self.clusters.get(content.cluster)
            if cluster is not None:
                self._cluster_handlers[kind](at, cluster, content)

    def live_items_of(self, owner: str) -> list[ItemState]:
        """The items of this owner that are on clusters."""
        return list(self._live_by_owner.get(owner, {}).values())

    def may_start(self, item: ItemState) -> bool:
        """May its owner start it, and does its pool have quota for it on some cluster?"""
        pooled = item.task.pool is not None
        return self.owner_may_start(item) and not (
            pooled and all(self.exceeded_quota(item, name, claims=True) for name in self.clusters)
        )

    def owner_may_start(self, item: ItemState) -> bool:
        """Is the item free of any pause or limit of its owner?"""
        owner = item.task.owner
        if owner in self.paused_owners:
            return False
        limits = self._limits.get(owner)
        if limits is None:
            return True
        live = self.live_items_of(owner)
        if limits.max_running is not None and len(live) >= limits.max_running:
            return False
        gpus = sum(one.task.placement.get("GPU", 0.0) for one in live)
        return limits.max_gpus is None or gpus + item.task.placement.get("GPU", 0.0) <= limits.max_gpus + 1e-4

    def exceeded_quota(self, item: ItemState, cluster: str, *, claims: bool = False) -> str:
        """Which quota the item would exceed if it started on this cluster; empty if none. With ``claims``, what others
        wait for that give way counts as well."""
        pool = self.pools.get(item.task.pool or "")
        if pool is None:
            return "" if item.task.pool is None else f"there is no pool {item.task.pool}"
        if pool.place_quota and cluster not in pool.place_quota:
            return f"pool {pool.name} has no quota there"
        place = cluster if pool.place_quota else None
        quota = pool.quota if place is None else pool.place_quota[place]
        for name, amount in item.task.placement.items():
            if name not in quota:
                continue
            used = self._used_of(pool, place, name, item if claims else None) + amount
            borrows = pool.cohort is not None and not pool.protected
            most = quota[name] + (pool.borrow_limit.get(name, inf) if borrows else 0.0)
            if used > most + _ROUNDING:
                return f"pool {pool.name} would use {used:g} {name}, and may use {most:g}"
            whole, taken = quota[name], max(used, _kept(pool, quota[name], name))
            for other in self.pools.values():
                theirs = other.quota if place is None else other.place_quota.get(place, {})
                if other is not pool and pool.cohort is not None and other.cohort == pool.cohort and name in theirs:
                    whole += theirs[name]
                    taken += max(
                        self._used_of(other, place, name, item if claims else None), _kept(other, theirs[name], name)
                    )
            beyond = claims or used > _kept(pool, quota[name], name) + _ROUNDING
            if beyond and taken > whole + _ROUNDING:
                return f"the cohort of pool {pool.name} would use {taken:g} {name}, and has {whole:g}"
        return ""

    def _used_of(self, pool: Pool, place: str | None, name: str, claimant: ItemState | None) -> float:
        """What the items of the pool use; with a ``claimant``, also what all others but it claim."""
        live = (one for items in self._live_by_owner.values() for one in items.values())
        used = sum(
            one.held_resources.get(name, 0.0)
            for one in live
            if one.task.pool == pool.name and (place is None or one.cluster == place)
        )
        if claimant is None:
            return used
        newcomers = (one for one in self.waiting.values() if one.code == "FREES_ROOM" and one is not claimant)
        return used + sum(one.task.placement.get(name, 0.0) for one in newcomers if one.task.pool == pool.name)

    def may_hold_reservation(self, at: float) -> bool:
        """Has an item waited so long that nodes may be reserved for it?"""
        patience = self.settings.reserve_after_s
        return any(at - item.queued_at >= patience for item in self.waiting.values())

    # ---- owners and operators

    def _submitted(self, at: float, event: events.Submitted) -> None:
        if event.task.id not in self.items:
            pool = self.pools.get(event.task.pool or "")
            priority = event.task.priority or (0 if pool is None else pool.priority)
            item = ItemState(event.task, len(self.items), bool(event.waits_for), priority=priority)
            self.items[event.task.id] = item

    def _arguments_resolved(self, at: float, event: events.ArgumentsReady | events.ArgumentsFailed) -> None:
        item = self.items.get(event.task_id)
        if item is not None and item.lacks_arguments:
            item.lacks_arguments = False
            if isinstance(event, events.ArgumentsReady) and event.pinned is not None:
                item.pinned = event.pinned

    def _hold_requested(self, at: float, event: events.HoldRequested) -> None:
        item = self.items.get(event.task_id)
        if item is not None:
            item.held = True

    def _release_requested(self, at: float, event: events.ReleaseRequested) -> None:
        item = self.items.get(event.task_id)
        if item is not None and item.held:
            self.undisturbed_since = at
            item.held = False

    def _priority_changed(self, at: float, event: events.PriorityChanged) -> None:
        item = self.items.get(event.task_id)
        if item is not None and item.state is not None and not item.state.terminal:
            item.priority = event.priority

    def _queue_paused(self, at: float, event: events.QueuePaused | events.QueueResumed) -> None:
        paused = isinstance(event, events.QueuePaused)
        if event.what == "cluster":
            cluster = self.clusters.get(event.name)
            if cluster is not None:
                cluster.paused = paused
        elif paused:
            self.paused_owners.add(event.name)
        else:
            self.paused_owners.discard(event.name)

    def _limits_changed(self, at: float, event: events.OwnerLimitsChanged) -> None:
        limits = event.limits or self.settings.owners.get(event.owner)
        if limits is None:
            self._limits.pop(event.owner, None)
        else:
            self._limits[event.owner] = limits

    def _pool_changed(self, at: float, event: events.PoolChanged) -> None:
        self.pools[event.pool.name] = event.pool
        self._draining.discard(event.pool.name)

    def _pool_deleted(self, at: float, event: events.PoolDeleted) -> None:
        """A pool that is used drains: its quota holds for the items that it has."""
        self._draining.add(event.name)
        self._drop_drained(event.name)

    def _drop_drained(self, name: str) -> None:
        unfinished = (one for one in self.items.values() if one.state is None or not one.state.terminal)
        if not any(one.task.pool == name for one in unfinished):
            self.pools.pop(name, None)
            self._draining.discard(name)

    def _cluster_changed(self, at: float, event: events.ClusterChanged) -> None:
        if event.metadata is None:
            self.clusters.pop(event.cluster, None)
            return
        cluster = self.clusters.get(event.cluster)
        if cluster is None:
            cluster = self.clusters[event.cluster] = ClusterState(event.metadata)
            for item in self.items.values():
                if item.live and item.cluster == event.cluster:
                    item.sent_ahead = False
                    item.node, item.certain = None, False
                    cluster.live[item.task.id] = item
        if event.cordoned is not None:
            cluster.cordoned = event.cordoned
        if event.metadata != cluster.metadata:
            cluster.metadata = event.metadata
            cluster.clear_problems()

    def _restarted(self, at: float, line: ControlPlaneRestarted) -> None:
        """The state of all clusters is unknown until they report again."""
        for cluster in self.clusters.values():
            cluster.clear_problems()
            cluster.link, cluster.latest_snapshot, cluster.heard_at = "none", None, -inf
            cluster.recent_usage.clear()
            cluster.forget_expected_nodes()

    # ---- clusters

    def _cordon_changed(self, at: float, cluster: ClusterState, event: events.CordonChanged) -> None:
        cluster.cordoned = event.cordoned

    def _declared_dead(
        self, at: float, cluster: ClusterState, event: events.ClusterDeclaredDead | events.ProcessesDead
    ) -> None:
        cluster.dead_since = at

    def _snapshot_taken(self, at: float, event: events.SnapshotTaken) -> None:
        snapshot = event.snapshot
        cluster = self.clusters.get(snapshot.cluster)
        if cluster is None:
            return
        cluster.heard_at, cluster.snapshot_failed, cluster.head_ok = at, False, True
        if cluster.dead_since is not None and snapshot.taken_at > cluster.dead_since:
            cluster.dead_since = None
        if snapshot.source == "http":
            cluster.dashboard_ok = True
        latest = cluster.latest_snapshot
        if latest is None or snapshot.taken_at >= latest.taken_at:
            if latest is not None and latest.session_id != snapshot.session_id:
                cluster.recent_usage.clear()
            if latest is not None and cluster.totals() != {node.node_id: node.total for node in snapshot.nodes}:
                cluster.forget_expected_nodes()
            cluster.latest_snapshot = snapshot
        used = {
            node.node_id: {name: total - (node.free or {}).get(name, 0.0) for name, total in node.total.items()}
            for node in snapshot.nodes
        }
        cluster.recent_usage.append((at, used))
        ours = sum(one.task.placement.get("CPU", 0.0) for one in cluster.live.values())
        if sum(node.get("CPU", 0.0) for node in used.values()) > ours + _ROUNDING:
            self.undisturbed_since = at  # other users are there
        while cluster.recent_usage and cluster.recent_usage[0][0] < at - 2 * WINDOW_S:
            cluster.recent_usage.popleft()

    def _snapshot_failed(self, at: float, cluster: ClusterState, event: events.SnapshotFailed) -> None:
        cluster.snapshot_failed = True
        if event.requested:
            self._count_failure(cluster)

    def _dashboard_checked(self, at: float, cluster: ClusterState, event: events.DashboardChecked) -> None:
        cluster.dashboard_ok = event.sentence is None

    def _head_silent(self, at: float, cluster: ClusterState, event: events.HeadSilent) -> None:
        cluster.head_ok = False

    def _link_up(self, at: float, cluster: ClusterState, event: events.LinkUp) -> None:
        cluster.link, cluster.link_up_at, cluster.link_failed_at = "up", at, -inf
        cluster.dead_since = None

    def _link_changed(
        self, at: float, cluster: ClusterState, event: events.LinkDown | events.LinkClosed | events.LinkFailed
    ) -> None:
        cluster.link = "down" if isinstance(event, events.LinkDown) else "none"
        if isinstance(event, events.LinkFailed):
            cluster.link_failed_at = at

    def _count_failure(self, cluster: ClusterState) -> None:
        cluster.failures += 1
        if cluster.failures >= self.settings.breaker_failures:
            cluster.breaker_may_be_open = True

    # ---- attempts

    def _live_item(self, task_id: str, attempt: int) -> ItemState | None:
        """The item, if this is its live attempt."""
        item = self.items.get(task_id)
        return item if item is not None and item.live and item.attempt == attempt else None

    def _started(self, at: float, event: events.Started) -> None:
        item = self._live_item(event.task_id, event.attempt)
        if item is not None and not item.started:
            self._note_start(item, event.node_id, event.at)

    def _note_start(self, item: ItemState, node_id: str | None, at: float) -> None:
        item.started, item.started_at = True, at
        if node_id is not None and item.task.kind != "job":
            item.node, item.certain = node_id, False
        cluster = self.clusters.get(item.cluster)
        if cluster is not None:
            cluster.forget_expected_nodes()
            if item.task.actor is not None and not item.task.actor.restart_elsewhere:
                item.pinned = item.cluster

    def _place_moved(self, at: float, event: events.PlaceMoved) -> None:
        item = self._live_item(*event.begun)
        if item is not None and item.sent_ahead:
            before = self._live_item(*event.ended)
            item.sent_ahead = False
            if before is not None and before.cluster == item.cluster and item.cluster in self.clusters:
                # It has ended on the cluster; the event of its end follows.
                self.clusters[item.cluster].live.pop(before.task.id, None)

    def _attempt_released(self, at: float, order: out.StartAttempt) -> None:
        item = self._live_item(order.task_id, order.attempt)
        if item is not None:
            item.sent_ahead = False

    def _attempt_finished(self, at: float, event: events.AttemptFinished) -> None:
        if event.status != "succeeded":
            self.undisturbed_since = at
        item = self._live_item(event.task_id, event.attempt)
        if item is None:
            return
        if event.started_at is not None and not item.started:
            self._note_start(item, event.node_id, event.started_at)
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and event.status != "cancelled":
            if event.failure is FailureClass.CLUSTER:
                self._count_failure(cluster)
            else:
                cluster.failures = 0
        self._end_attempt(item, at)

    def _dispatch_refused(self, at: float, event: events.DispatchRefused) -> None:
        item = self._live_item(event.task_id, event.attempt)
        if item is None:
            return
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and event.failure is FailureClass.CLUSTER:
            cluster.dashboard_ok = cluster.dashboard_ok and item.task.kind != "job"
            self._count_failure(cluster)
        self._end_attempt(item, at)

    def _end_attempt(self, item: ItemState, at: float) -> None:
        item.live = False
        self._live_by_owner[item.task.owner].pop(item.task.id, None)
        cluster = self.clusters.get(item.cluster)
        if cluster is not None and cluster.live.pop(item.task.id, None) is not None:
            cluster.last_used_at = at

    def _persisted(self, at: float, persist: out.Persist) -> None:
        step = persist.transition
        item = self.items[step.task_id]
        if step.code != item.code:
            item.code_since = at
        before, item.state, item.code = item.state, step.state, step.code
        if step.attempt > item.attempt:
            self._begin_attempt(item, step, at)
        elif item.live and step.state not in LIVE:
            self._end_attempt(item, at)
        if step.state.terminal and item.task.pool in self._draining:
            self._drop_drained(item.task.pool)
        if step.state is TaskState.QUEUED and (step.code == "PREEMPTED" or before is TaskState.PREEMPTING):
            item.resumes = True
        if item.is_waiting:
            if before is not TaskState.QUEUED or step.task_id not in self.waiting:
                item.queued_at = at
            self.waiting[step.task_id] = item
        else:
            self.waiting.pop(step.task_id, None)

    def _accepted(self, at: float, event: events.DispatchAccepted) -> None:
        item = self.items.get(event.task_id)
        cluster = None if item is None or event.attempt > 1 else self.clusters.get(item.cluster)
        if item is not None and cluster is not None and self._is_spaced(item):
            cluster.last_accepted = at

    def _is_spaced(self, item: ItemState) -> bool:
        return item.task.base_kind in self.settings.submission_interval_kinds

    def _begin_attempt(self, item: ItemState, step: out.Transition, at: float) -> None:
        first = item.attempt == 0
        item.attempt, item.cluster, item.live = step.attempt, step.cluster or "", True
        item.sent_ahead, item.started = step.code == "SENT_AHEAD", False
        item.node, item.certain, item.resumes = None, not item.sent_ahead, False
        self._live_by_owner.setdefault(item.task.owner, {})[item.task.id] = item
        cluster = self.clusters.get(item.cluster)
        if cluster is not None:
            cluster.live[item.task.id] = item
            if first and self._is_spaced(item):
                cluster.last_submission = at


def _kept(pool: Pool, quota: float, name: str) -> float:
    """The part of the quota that the pool lends to nobody."""
    lent = pool.lend_limit.get(name, inf) if pool.cohort is not None else 0.0
    return max(0.0, quota - lent)
