"""ClusterState: everything recorded of one cluster, and how it becomes a ClusterView. WideItemReservation: capacity
that is reserved there for one wide item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState, CircuitBreaker
from ray_multicluster_scheduler.common.model import ClusterMetadata, Resources, ResourceSnapshot, TaskDescription
from ray_multicluster_scheduler.common.model.resources import minus
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_problems import (
    LinkFailure,
    SnapshotFailure,
    breaker_problem,
    link_problem,
    silent_head,
    silent_link,
    unreachable,
)
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import (
    NEW_NODE,
    ClusterProblem,
    ClusterView,
    LinkState,
    NewNode,
    NodeView,
)
from ray_multicluster_scheduler.scheduler.cluster.fit import find_placement, may_spread
from ray_multicluster_scheduler.scheduler.cluster.ledger import Ledger
from ray_multicluster_scheduler.scheduler.cluster.slot_assignments import SlotAssignments
from ray_multicluster_scheduler.scheduler.policy import reasons


@dataclass(frozen=True, slots=True)
class WideItemReservation:
    """Capacity reserved for one wide item. ``parts``: what it will take of which node. ``start_at``: when that is
    expected to be free; None if unknown. ``urgency`` is that of the item: more urgent items may ignore the
    reservation."""

    task_id: str
    parts: Mapping[str, Resources]
    urgency: float
    start_at: float | None


def without_reserved(nodes: Iterable[NodeView], pin: WideItemReservation) -> tuple[NodeView, ...]:
    """The nodes as other items see them: reserved capacity is not free."""
    return tuple(
        replace(node, free={name: minus(node.free, pin.parts[node.node_id])[name] for name in node.free})
        if node.free is not None and node.node_id in pin.parts
        else node
        for node in nodes
    )


STALE_AFTER_INTERVALS = 3
_ANSWER_S = 3.0
"""A busy head may normally take this long for an answer."""
_NOT_IN_VIEW = frozenset(
    {
        "refresh_requested_at",
        "dashboard_checked_at",
        "checking_dashboard",
        "ended_by_restart",
        "refreshing",
        "silence_counted_at",
        "silent_since",
        "view_until",
    }
    | {"last_contact_at", "snapshot_received_at"}  # not after the first contact, and while the link pushes changes
)
_NOT_SET = object()


class ClusterState:
    """Mutable state of one cluster; changed only by the machine's event handlers and ClusterManager.

    A view is cached until something changes: every attribute that gets another value, and every change of the ledger,
    calls ``on_change``; some things change by time alone. When only bookings change, or only what a snapshot shows of
    the nodes, most of the view is reused.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        settings: Settings,
        on_change: Callable[[str], object] = str,
        on_rebooked: Callable[[str], object] = str,
    ) -> None:
        self._on_change = on_change
        self._view: ClusterView | None = None
        self._view_before: ClusterView | None = None  # outdated only in bookings and nodes
        self._view_of: ResourceSnapshot | None = None
        self.view_until = inf
        """When the last view expires although nothing happens."""
        self.metadata = metadata
        self.settings = settings
        self.cordoned, self.cordon_reason = False, ""
        self.paused: str | None = None
        self.dead: ClusterProblem | None = None  # declared by an operator, or known because its processes are dead
        self.wide_reservation: WideItemReservation | None = None
        self.ledger = Ledger(self._ledger_changed, on_rebooked)
        self.breaker = CircuitBreaker(settings.breaker_failures, settings.breaker_recovery_s, self._changed)
        self.slots = SlotAssignments(self._slots_changed)
        self._watched = False  # there is work of ours
        self.link: LinkState = "none"
        self.link_up_at = self.link_down_at = self.link_lost_at = 0.0
        self.link_failure: LinkFailure | None = None
        self.refresh_failure: SnapshotFailure | None = None
        self.refreshing = False
        self.refresh_requested_at: float | None = None
        self.dashboard_failure: SnapshotFailure | None = None
        self.head_silent_since: float | None = None  # reported by its agent
        self.ended_by_restart: frozenset[tuple[str, int]] = frozenset()  # attempts there when it restarted
        self.checking_dashboard = False
        self.dashboard_checked_at: float | None = None
        self.last_contact_at: float | None = None  # in any way
        self.snapshot_received_at: float | None = None
        self.silent_since: float | None = None
        self.silence_counted_at: float | None = None
        self.python_version: str | None = None
        self.ray_version: str | None = None

    def __setattr__(self, name: str, value: object) -> None:
        before = self.__dict__.get(name, _NOT_SET)
        object.__setattr__(self, name, value)
        if name not in _NOT_IN_VIEW and not name.startswith("_view") and name != "_on_change" and before != value:
            self._changed()

    def _changed(self) -> None:
        fields = self.__dict__
        fields["_view_before"] = None
        if fields["_view"] is not None:
            fields["_view"] = None
            self._on_change(self.metadata.name)

    def _ledger_changed(self) -> None:
        fields = self.__dict__
        if fields["_view"] is not None:
            fields["_view"] = None
            self._on_change(self.metadata.name)

    def _slots_changed(self) -> None:
        if self._watched != bool(self.slots.held):  # on which depends how soon a snapshot is stale
            self.__dict__["_watched"] = not self._watched
            self._changed()
        self._ledger_changed()

    @property
    def name(self) -> str:
        return self.metadata.name

    # ---- our work there

    @property
    def at_in_flight_limit(self) -> bool:
        """Is ``max_in_flight`` reached?"""
        return len(self.slots.held) + len(self.slots.prefetched) >= self.metadata.max_in_flight

    def assign(
        self,
        task: TaskDescription,
        now: float,
        *,
        short: bool = False,
        nodes: Sequence[NodeView] | None = None,
        begun: bool = False,
    ) -> None:
        """Reserve capacity for an item on the ``nodes`` that the decision saw, and give it a slot. An item that has
        ``begun`` does not wait for a new node, and is ready if it serves."""
        new_node = None if begun else self._new_node()
        parts = find_placement(task, self.ledger.nodes() if nodes is None else nodes, new_node) or {}
        self.ledger.reserve(task.id, parts, now, spreads=may_spread(task))
        self.slots.assign(task, short=short and NEW_NODE not in parts)  # its place is not soon free
        if begun and task.runs_actors:
            self.actor_ready(task, now)

    def release(self, task_id: str, now: float) -> None:
        """The attempt has ended, or never started."""
        self.ledger.release(task_id, now)
        self.slots.release(task_id)

    def hand_over(self, ended_id: str, begun: TaskDescription, now: float) -> None:
        """A prefetched attempt started in the slot of one that ended, if that still has it."""
        self.slots.remove_prefetched(begun.id)
        if self.slots.release(ended_id) is not None and self.ledger.hand_over(ended_id, begun.id):
            self.slots.assign(begun, short=True)
        else:
            self.assign(begun, now, short=True)

    def actor_ready(self, task: TaskDescription, now: float) -> None:
        """The actor is ready: from now on it holds only its requirements, which may be less than its placement."""
        self.slots.actor_ready(task.id)
        if task.placement != task.requirements:
            self.ledger.shrink(task.id, task.requirements, now)

    # ---- events about it

    def record_snapshot(self, snapshot: ResourceSnapshot, now: float) -> None:
        had_updates = self.receives_updates()
        self.ledger.observe(snapshot)
        self._view_of = None
        self.snapshot_received_at = now
        if not had_updates:
            self._changed()
        if self.dead is not None and snapshot.taken_at > self.dead.at:  # else it was taken before
            self.dead = None
        self.python_version = snapshot.python_version or self.python_version
        self.ray_version = snapshot.ray_version or self.ray_version
        self.refreshing = False
        self.breaker.record_answer()
        self.head_silent_since = None  # a snapshot comes from the head
        if snapshot.source == "http":
            self.dashboard_failure = None
        self._record_contact(now)

    def record_dashboard_failure(self, sentence: str, now: float) -> float:
        """The dashboard did not answer; the link is not affected. Returns since when it fails."""
        since = self.dashboard_failure.at if self.dashboard_failure else now
        self.dashboard_failure = SnapshotFailure(since, sentence, permanent=False)
        return since

    def record_snapshot_failure(
        self, sentence: str, *, permanent: bool, now: float, awaited: bool = False, requested: bool = True
    ) -> None:
        """A snapshot failed. ``awaited``: it could not be requested because the link is down, which is known
        already. Only what the scheduler ``requested`` counts for the breaker, not how often people look."""
        self.refreshing = self.refreshing and not requested
        self.refresh_failure = SnapshotFailure(now, sentence, permanent, awaited)
        self.silent_since = now if self.silent_since is None else self.silent_since
        if requested and not awaited and self._counts_as_failure(now):
            self.silence_counted_at = now
            self.breaker.record_failure(now, f"the snapshot request failed: {sentence}", silence=True)

    def _counts_as_failure(self, now: float) -> bool:
        """Count at most one failure per ``snapshot_interval_s``, and each failed probe of the breaker."""
        due = -inf if self.silence_counted_at is None else self.silence_counted_at + self.settings.snapshot_interval_s
        return now >= due or self.breaker.state(now) is BreakerState.HALF_OPEN

    def link_up(self, python_version: str, ray_version: str, now: float) -> None:
        self.link, self.link_up_at = "up", now
        self.link_failure = self.dead = None
        self.python_version, self.ray_version = python_version, ray_version
        self._record_contact(now)

    def link_down(self, now: float, silent_s: float = 0.0) -> None:
        self.link, self.link_down_at = "down", now
        self.link_lost_at = now - silent_s + self.settings.lost_after_s

    def link_closed(self) -> None:
        self.link = "none"
        self.head_silent_since = None

    def record_link_failure(self, sentence: str, *, permanent: bool, now: float) -> None:
        self.link = "none"
        problem = ClusterProblem(reasons.LINK_FAILED, sentence, permanent=permanent, at=now)
        self.link_failure = LinkFailure(now + self.settings.breaker_recovery_s, problem)

    def mark_dead(self, why: str, now: float) -> None:
        """It accepts no work until it answers again."""
        self.dead = ClusterProblem(reasons.CLUSTER_DEAD, f"{why}; it takes no work before it answers again", at=now)

    def evidence_of_life(self, now: float) -> str | None:
        """Evidence that the cluster lives; None without a recent one."""
        if self.link == "up":
            return "its link is up"
        silent_since = self.link_down_at if self.link == "down" else -inf
        if self.last_contact_at is None or self.refresh_failure is not None or self.last_contact_at <= silent_since:
            return None
        age = now - self.last_contact_at
        fresh = age <= STALE_AFTER_INTERVALS * self.settings.snapshot_interval_s
        return f"it answered {age:.0f} s ago" if fresh else None

    def reconfigure(self, metadata: ClusterMetadata) -> None:
        """Its entry changed: earlier problems do not apply to the new one."""
        moved = (metadata.head_address, metadata.dashboard) != (self.metadata.head_address, self.metadata.dashboard)
        self.metadata = metadata
        self.refresh_failure = self.link_failure = self.refresh_requested_at = None
        self.dashboard_failure = self.dashboard_checked_at = self.head_silent_since = self.silence_counted_at = None
        self.breaker = CircuitBreaker(self.settings.breaker_failures, self.settings.breaker_recovery_s, self._changed)
        self.ledger.forget_node_sizes()
        if moved:
            self.last_contact_at = self.snapshot_received_at = self.silent_since = self.dead = None
            self.python_version = self.ray_version = None

    def _record_contact(self, now: float) -> None:
        if self.last_contact_at is None:
            self._changed()
        self.last_contact_at = now
        self.refresh_failure = self.silent_since = self.silence_counted_at = None
        self.breaker.record_probe(now)

    # ---- what a decision sees

    def view(self, now: float, next_submission_at: float | None = None) -> ClusterView:
        """The cluster at this moment; the same object as long as nothing changes."""
        view = self._view
        if view is not None and now < self.view_until and view.next_submission_at == next_submission_at:
            return view
        fields, before = self.__dict__, self._view_before
        if before is not None and now < self.view_until and before.next_submission_at == next_submission_at:
            fresh = {} if self.ledger.latest_snapshot is self._view_of else self._snapshot_fields()
            view = before.with_changes(at=now, **self._load_fields(), **fresh)
        else:
            view = self.fresh_view(now, next_submission_at)
            fields["view_until"] = self._valid_until(view)
        fields["_view"], fields["_view_of"] = view, self.ledger.latest_snapshot
        fields["_view_before"] = view if view.without_reservation is None else None
        return view

    def fresh_view(self, now: float, next_submission_at: float | None = None) -> ClusterView:
        """A new view with current sentences."""
        plain = self._view_without_reservation(now, next_submission_at)
        if self.wide_reservation is None:
            return plain
        return replace(
            plain,
            nodes=without_reserved(plain.nodes, self.wide_reservation),
            reserved_for=self.wide_reservation.task_id,
            without_reservation=plain,
            cache={},
        )

    def _valid_until(self, view: ClusterView) -> float:
        """The time until which a view is valid if nothing happens. Its sentences contain seconds, so they may be one
        second old."""
        times = [
            view.next_submission_at,
            self.link_failure.retry_at if self.link_failure else None,
            self.breaker.half_open_at,
            self.link_lost_at if self.link == "down" else None,
        ]
        ahead = [at for at in times if at is not None and at > view.at]
        if self.snapshot_received_at is not None and not self.receives_updates():
            stale = self.snapshot_received_at + self.stale_after_s
            ahead += [stale] if stale >= view.at else []  # at that very moment it is not stale yet
        if ahead or view.problem is not None:
            ahead.append(view.at + 1.0)
        return min(ahead, default=inf)

    def _view_without_reservation(self, now: float, next_submission_at: float | None) -> ClusterView:
        return ClusterView(
            metadata=self.metadata,
            at=now,
            problem=self.problem(now),
            link_problem=self.link_problem(now),
            job_problem=self.job_problem(),
            link=self.link,
            cordoned=self.cordoned,
            cordon_reason=self.cordon_reason,
            next_submission_at=next_submission_at,
            python_version=self.python_version,
            ray_version=self.ray_version,
            paused=self.paused,
            **self._load_fields(),
            **self._snapshot_fields(),
        )

    def _snapshot_fields(self) -> dict[str, Any]:
        """The fields that a snapshot changes, apart from the nodes."""
        newest = self.ledger.latest_snapshot if self.snapshot_received_at is not None else None
        return {
            "past_node_sizes": self.ledger.past_node_sizes,
            "largest_node_set": self.ledger.largest_node_set,
            "observed": newest.observed if newest else None,
            "snapshot_at": newest.taken_at if newest else None,
        }

    def _load_fields(self) -> dict[str, Any]:
        """The fields that our own work changes; the rest of the view is reused."""
        places = self.slots
        return {
            "nodes": self.ledger.nodes() if self.snapshot_received_at is not None else (),
            "in_flight": len(places.held),
            "ready_actors": places.ready_actors,
            "prefetched": len(places.prefetched),
            "running_jobs": places.running_jobs,
            "undeclared": places.undeclared,
            "new_node": self._new_node(),
        }

    def _new_node(self) -> NewNode | None:
        """The node that autoscaling may add: work for it may be sent although nothing is free."""
        if not self.metadata.autoscaling:
            return None
        return NewNode(self.metadata.max_node, self.ledger.pending_on_new_nodes())

    def link_problem(self, now: float) -> ClusterProblem | None:
        return None if self.link_failure is None else link_problem(self.link_failure, now)

    def job_problem(self) -> ClusterProblem | None:
        silence = self.dashboard_failure
        if silence is None:
            return None
        return ClusterProblem(
            reasons.DASHBOARD_SILENT, f"its dashboard does not accept jobs: {silence.sentence}", at=silence.at
        )

    def problem(self, now: float) -> ClusterProblem | None:
        """The most serious reason why it accepts no work at all now; None when it is healthy."""
        if self.dead is not None:
            return self.dead
        failed = self.refresh_failure
        if failed is not None and failed.permanent:
            return ClusterProblem(reasons.CLUSTER_MISCONFIGURED, failed.sentence, permanent=True, at=failed.at)
        if self.last_contact_at is None and failed is not None:
            return unreachable(failed, self.breaker, now)
        if self.link == "down":
            return silent_link(self.link_silent_s(now), now >= self.link_lost_at, self.breaker, now)
        if self.breaker.state(now) is not BreakerState.CLOSED:
            return breaker_problem(self.breaker, now)
        if self.head_silent_since is not None:
            return silent_head(now - self.head_silent_since)
        return self._snapshot_problem(now)

    def _snapshot_problem(self, now: float) -> ClusterProblem | None:
        if self.snapshot_received_at is None:
            sentence = "there is no snapshot of it yet; a request is under way"
            return ClusterProblem(reasons.CLUSTER_UNKNOWN, sentence, being_asked=True)
        if self.receives_updates():
            return None
        age = now - self.snapshot_received_at
        if age <= self.stale_after_s:
            return None
        tail = f": {self.refresh_failure.sentence}" if self.refresh_failure else "; a request is under way"
        sentence = f"its last snapshot is {age:.0f} s old{tail}"
        return ClusterProblem(reasons.STALE_SNAPSHOT, sentence, being_asked=self.refresh_failure is None)

    @property
    def stale_after_s(self) -> float:
        """The age at which a snapshot is stale. A cluster with work of ours is polled: one missing answer is enough."""
        interval_s = self.settings.snapshot_interval_s
        at_most_s = STALE_AFTER_INTERVALS * interval_s
        return min(at_most_s, interval_s + _ANSWER_S) if self._watched else at_most_s

    def job_wait(self, *, retry_lost: bool) -> str:
        """What happens to a job on a cluster that is silent."""
        if retry_lost:
            lost_after_s = self.settings.lost_after_s
            return f"it may still run there; after {lost_after_s:g} s (lost_after_s) it is run elsewhere (retry_lost)"
        command = f"`rmcs clusters declare-dead {self.name}`"
        return f"a job may still run there, so it waits until {self.name} answers or is declared dead ({command})"

    def lease_wait(self, now: float) -> str:
        """Why tasks and actors on a suspect cluster are not repeated elsewhere yet, and when they will be."""
        left_s = max(0.0, self.link_lost_at - now)
        return f"what runs there may be alive, so it goes elsewhere in {left_s:.0f} s (lost_after_s) unless it answers"

    def link_silent_s(self, now: float) -> float:
        """How long a link that is down has been silent."""
        return now - min(self.link_down_at, self.link_lost_at - self.settings.lost_after_s)

    def nodes_are_current(self, now: float) -> bool:
        """Is the state of its nodes current? Otherwise it is that of the last snapshot."""
        silent = self.dead is not None or self.link == "down" or self.head_silent_since is not None
        return not silent and self._snapshot_problem(now) is None

    def receives_updates(self) -> bool:
        """Does the link push every change, and has it sent a first snapshot?"""
        return (
            self.link == "up" and self.snapshot_received_at is not None and self.snapshot_received_at >= self.link_up_at
        )
