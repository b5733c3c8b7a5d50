"""SchedulingPass: decides which queued items go to which cluster.

After a complete pass no queued item could start anywhere. So when capacity is freed on a cluster, only that cluster and
the items that fit are considered; a new group is considered once; after any other change the whole queue is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision, TaskDescription, TaskState
from ray_multicluster_scheduler.common.tables import reason_lines
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.free_slots import EMPTY_ITEMS, FreeSlots
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import WideItemReservations
from ray_multicluster_scheduler.scheduler.lifecycle.placement.starting_agents import StartingAgents
from ray_multicluster_scheduler.scheduler.lifecycle.preemption import Preemption
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.refresher import SnapshotRefresher
from ray_multicluster_scheduler.scheduler.policy.reasons import PLACED, unblocked_by
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, never_fits, verdict
from ray_multicluster_scheduler.scheduler.queue.shape import Shape
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

MAX_CHECKS = 400
"""Cluster checks per call; the rest continues with Continued, so that other events are handled in between."""

KEPT_SHAPES = 10_000
"""Shapes whose reason to wait is cached."""


@dataclass(slots=True)
class _Scan:
    """One scan of the queue in order: all groups, only those that fit what was freed on the ``freed`` clusters, or only
    the ``fresh`` groups, the most urgent last."""

    freed: frozenset[str] | None = None
    fresh: list[ShapeGroup] | None = None
    done: list[ShapeGroup] = field(default_factory=list)


class SchedulingPass:
    """The scheduling pass. A scan may take several calls; changes in between are seen by the next scan."""

    def __init__(
        self,
        machine: MachineState,
        refresher: SnapshotRefresher,
        prefetch: Prefetch,
        reservations: WideItemReservations,
        preemption: Preemption,
    ) -> None:
        self._machine, self._refresher, self._prefetch = machine, refresher, prefetch
        self._reservations, self._preemption = reservations, preemption
        self._starting_agents = StartingAgents(machine, prefetch)
        self._scan: _Scan | None = None
        self._full_scan = False
        self._skipped_owners: set[str] = set()
        """Owners that could start nothing when their groups were last considered."""
        self._lacking_quota: dict[str, dict[ShapeGroup, None]] = {}
        """Groups that wait for the quota of their pool, by pool: scans leave them out until there is more."""
        self._known_waits: dict[Shape, SchedulingDecision] = {}
        self._connecting: dict[str, None] = {}
        """Queued items that start no work; :meth:`_connect` places them."""
        self._wake_unknown = False
        self._wake_at: float | None = None

    # ---- requests

    def request_full_scan(self) -> None:
        """Consider the whole queue again, after a change that may unblock or fail any item."""
        self._full_scan = self._wake_unknown = True

    def reserve_for_wide_items(self, _: str, now: float) -> None:
        """Reserve capacity for items that waited long, and recall what was prefetched to their clusters."""
        for cluster in self._reservations.reserve_overdue(now):
            self._prefetch.recall_cluster(self._machine.registry.state(cluster), "room is kept for a wide item", now)

    def rescan_owner(self, owner: str) -> None:
        """A limit or pause of this owner ended: consider its groups again."""
        if owner in self._skipped_owners:
            self._skipped_owners.discard(owner)
            self._machine.new_groups.update(dict.fromkeys(self._machine.queue.groups_of(owner)))
        self._machine.freed_clusters.update(self._machine.registry.names())

    def owner_paused(self, owner: str, now: float) -> None:
        """From now on the items of this owner wait for its queue to be resumed."""
        self._skipped_owners.add(owner)
        for task_id in [
            one for one in self._machine.wide_reservations if self._machine.records[one].task.owner == owner
        ]:
            self._machine.release_wide_reservation(task_id)
        for group in self._machine.queue.groups_of(owner):
            self._wait_for_owner(group, now)

    def owner_resumed(self, owner: str, now: float) -> None:
        """Consider the owner's items again; those that still may not start get the other reason."""
        for group in self._machine.queue.groups_of(owner):
            if self._machine.queue.refusal(group) is not None:
                self._wait_for_owner(group, now)
        self.rescan_owner(owner)

    def owner_limited(self, owner: str, now: float) -> None:
        """The owner's limits changed: each of its groups is considered again or gets the limit as its reason."""
        self._skipped_owners.add(owner)
        self.owner_resumed(owner, now)

    def _wait_for_owner(self, group: ShapeGroup, now: float) -> None:
        refusal = self._machine.queue.refusal(group)
        assert refusal is not None, "its owner may start it"
        head = self._machine.records[group.head().task_id]
        self._wait(head, group, self._refusal_decision(head.task.id, refusal, (), now), now)

    def enqueue(self, record: TaskRecord, code: str, sentence: str, now: float) -> None:
        """Queue an item. If its group is known to wait, the reason of the group applies to it too."""
        if record.held is not None:
            self._machine.hold(record, now)
            return
        group = self._machine.enqueue(record, code, sentence, now)
        if record.task.connects_only and self._connect(record, now):
            return
        self._reservations.watch(group, now, now)
        refusal = self._machine.queue.refusal(group)
        if refusal is not None and record.code != refusal[0]:
            self._machine.transition(record, TaskState.QUEUED, *refusal, now)
        if group.decision is None:
            self._machine.new_groups[group] = None
            return
        if self._machine.wide_reservations and group.head().task_id == record.task.id:
            self._machine.new_groups[group] = None  # it is older than the group and may ignore a reservation
        self._prefetch.item_waits(record, behind_others=len(group) > 1)
        if code != codes.QUEUED:
            self._machine.transition(record, TaskState.QUEUED, group.decision.code, group.decision.sentence, now)
        self._prefetch.yield_to(group, now)

    def restore_queued(self, record: TaskRecord, now: float) -> None:
        """Queue an item that was queued before a restart; it keeps its position."""
        if record.held is not None:
            self._machine.held_items.add(record.task.id)
            return
        if record.task.connects_only:
            self._connecting[record.task.id] = None
        group = self._machine.restore_to_queue(record, now)
        self._reservations.watch(group, record.queued_at or now, now)
        self._machine.new_groups[group] = None

    def explain_wait(
        self, record: TaskRecord, now: float, views: tuple[ClusterView, ...] | None = None
    ) -> SchedulingDecision | None:
        """Why a queued item waits, as of now; None if it is not queued. ``views``: current views, if known."""
        if record.task.id in self._machine.held_items:
            unblocked = "an operator releases it"
            return SchedulingDecision(record.task.id, now, None, codes.HELD, record.sentence, (), unblocked)
        if record.group is None:
            return None
        if record.room is not None:
            table = self._machine.engine.table(record.wanted, self._machine.fresh_views(now), retry=record.retry)
            until = "the items that give way to it have left"
            return SchedulingDecision(record.task.id, now, None, codes.FREES_ROOM, record.sentence, table, until)
        head = self._machine.records[record.group.head().task_id]  # the head decides for its group
        views = self._reservations.views_for(head, self._machine.fresh_views(now) if views is None else views, now)
        refusal = self._machine.refusal(record.group)
        if refusal is None:
            decision = self._machine.engine.schedule(record.wanted, views, now, retry=record.retry)
            return replace(decision, task_id=record.task.id)
        table = self._machine.engine.table(record.wanted, views, retry=record.retry)
        return self._refusal_decision(record.task.id, refusal, table, now)

    def plan(self, task: TaskDescription, now: float) -> SchedulingDecision:
        """The decision for the item if it were submitted now. If no cluster can ever run it, that is the
        answer, whatever else it would wait for."""
        views = self._reservations.views_for_new(task, self._machine.fresh_views(now), now)
        decision = self._machine.engine.schedule(task, views, now)
        queue, pools = self._machine.queue, self._machine.pools
        refusal = queue.refusal_of(task.owner, task.placement.get("GPU", 0.0)) or pools.refusal(task)
        if refusal is None or verdict(decision) not in (Verdict.PLACED, Verdict.WAIT):
            return decision
        return self._refusal_decision(task.id, refusal, decision.candidates, now)

    @staticmethod
    def _refusal_decision(
        task_id: str, refusal: tuple[str, str], table: Sequence[CandidateReport], now: float
    ) -> SchedulingDecision:
        return SchedulingDecision(task_id, now, None, *refusal, table, unblocked_by(refusal[0], ""))

    # ---- the pass

    def run(self, now: float) -> None:
        """One pass, top to bottom."""
        if self._wake_at is not None and now >= self._wake_at:
            self.request_full_scan()
        if self._machine.queue.unblocked_owners:
            for owner in sorted(self._machine.queue.unblocked_owners):
                self.rescan_owner(owner)
            self._machine.queue.unblocked_owners.clear()
        self._preemption.run(now)
        self._recheck_quota()
        self._refresh_reservations(now)
        for task_id in list(self._connecting):
            self._connect(self._machine.records[task_id], now)
        left = MAX_CHECKS
        while left > 0:
            # 1. choose a scan: all groups, those that fit freed capacity, or new ones
            scan = self._scan = self._scan or self._next_scan()
            if scan is None:
                break
            # 2. its first group; equal items are decided once
            group = self._next_group(scan, now)
            if group is None:
                self._end_scan(scan)
                continue
            # 3. decide by what is left: place it, let it wait, or fail it
            left -= self._decide_group(scan, group, now)
        # 4. prefetch short tasks to slots that are free soon
        if self._scan is None:
            self._prefetch.dispatch_more(now)
        if not self._machine.queue:
            self._reservations.clear()
            self._starting_agents.take_back_one(now)
        self._machine.queue.drop_idle_accounts()
        # 5. continue if work is left, also for capacity that prefetched items gave up elsewhere
        if (
            self._scan is not None
            or self._prefetch.has_more
            or self._machine.freed_clusters
            or self._machine.new_groups
        ):
            self._machine.output.request_continue()
        self._set_wake_timer(now)

    def _recheck_quota(self) -> None:
        """Consider the groups again that waited for quota, if any was freed in their pool or its cohort."""
        pools = self._machine.pools
        if self._lacking_quota:
            for name in pools.with_more_quota():
                for group in self._lacking_quota.pop(name, ()):
                    self._machine.queue.unpark(group)
                    self._machine.new_groups[group] = None
        pools.freed.clear()

    def _refresh_reservations(self, now: float) -> None:
        if self._machine.wide_reservations:
            if self._machine.run_times.changed:  # short items may backfill reserved capacity
                self._machine.freed_clusters.update(self._machine.wide_reservations.values())
            if self._full_scan or self._machine.freed_clusters:
                self._reservations.drop_useless(now)
        self._machine.run_times.changed = False

    def _next_scan(self) -> _Scan | None:
        if self._full_scan:
            self._full_scan = False
            self._machine.freed_clusters.clear()
            self._machine.new_groups.clear()
            self._known_waits.clear()
            self._skipped_owners |= self._machine.queue.blocked_owners()
            self._machine.fleet.invalidate_total()
            return _Scan() if self._machine.queue else None
        if self._machine.freed_clusters:
            freed = frozenset(self._machine.freed_clusters)
            self._machine.freed_clusters.clear()
            if self._machine.queue:
                return _Scan(freed=freed)
        if self._machine.new_groups:
            waiting = [group for group in self._machine.new_groups if group]
            self._machine.new_groups.clear()
            if waiting:
                return _Scan(fresh=sorted(waiting, key=self._machine.queue.urgency, reverse=True))
        return None

    def _next_group(self, scan: _Scan, now: float) -> ShapeGroup | None:
        queue = self._machine.queue
        if scan.freed is None and scan.fresh is None:
            return queue.next_in_iteration(now)
        if scan.freed is not None:
            free_slots = FreeSlots(self._machine.engine, self._views_of(scan.freed, now))
            return queue.first(free_slots.amounts, now)
        while scan.fresh:
            group = scan.fresh[-1]
            if group and not group.parked:
                if queue.refusal(group) is None:
                    return group
                self._skipped_owners.add(group.shape.owner)
            scan.fresh.pop()
        return None

    def _end_scan(self, scan: _Scan) -> None:
        self._scan = None
        for group in scan.done:
            self._machine.queue.unpark(group)

    def _park(self, scan: _Scan, group: ShapeGroup) -> None:
        """The group has to wait: leave it out for the rest of this scan."""
        self._machine.queue.park(group)
        scan.done.append(group)

    def _decide_group(self, scan: _Scan, group: ShapeGroup, now: float) -> int:
        """Decide for the head of a group; returns how many clusters were checked."""
        record = self._machine.records[group.head().task_id]
        lacking = self._machine.pools.refusal(record.wanted)
        if lacking is not None:
            self._wait(record, group, self._refusal_decision(record.task.id, lacking, (), now), now)
            self._machine.queue.park(group)
            self._lacking_quota.setdefault(record.wanted.pool or "", {})[group] = None
            return 1
        views = self._reservations.views_for(record, self._machine.fleet.views(now), now)
        views = self._preemption.views_for(record, views)
        opened = self._prefiltered(record, group, views, scan)
        decision = self._decide(record, opened, views, now, freed=scan.freed is not None)
        if decision is None:
            if record.group is group:  # else its policy failed and it has ended
                self._park(scan, group)
        elif decision.cluster is not None:
            self._place(record, decision, decision.cluster, views, now)
        elif group.shape in self._known_waits or self._may_wait(record, group, decision, now):
            self._wait(record, group, decision, now)
            self._park(scan, group)
        else:
            _fail_unplaceable(self._machine, record, decision, verdict(decision), now)
        is_new = decision is not None and decision.cluster is None and decision.at == now
        return max(1, len(opened)) + (len(views) if is_new else 0)

    def connection_target(self, task: TaskDescription, now: float) -> ClusterView | None:
        """The cluster where an item that starts no work belongs, if that is reachable."""
        views = self._machine.fleet.views(now) if task.connects_only else ()
        view = next((one for one in views if one.name == task.preferred_cluster), None)
        return view if view is not None and self._machine.engine.is_reachable(task, view) else None

    def _connect(self, record: TaskRecord, now: float) -> bool:
        """Place a queued item that starts no work, past the queue, limits and thresholds; False if it has to wait for
        its cluster."""
        self._connecting.pop(record.task.id, None)
        if record.group is None:  # it has ended, or is held
            return False
        view = self.connection_target(record.wanted, now)
        if view is None:
            self._connecting[record.task.id] = None
            return False
        sentence = f"{view.name}: the actor that it reaches is there"
        decision = SchedulingDecision(record.task.id, now, view.name, PLACED, sentence)
        self._place(record, decision, view.name, (view,), now)
        return True

    def _prefiltered(
        self, record: TaskRecord, group: ShapeGroup, views: tuple[ClusterView, ...], scan: _Scan
    ) -> Sequence[ClusterView]:
        """Clusters that may accept the item, by the coarse filter; in a scan for freed capacity, only the freed
        ones."""
        some: Sequence[ClusterView] = views
        if scan.freed is not None:
            some = [view for view in views if view.name in scan.freed]
            if len(some) == 1:
                return some
        return self._machine.engine.prefilter(EMPTY_ITEMS.get(group.shape.kind), some, retry=record.retry)

    def _may_wait(self, record: TaskRecord, group: ShapeGroup, decision: SchedulingDecision, now: float) -> bool:
        """Is there a cluster that does not reject it permanently? The reason holds for the shape until the fleet
        changes."""
        outcome = verdict(decision)
        # Clusters that do not answer yet may have answered before the restart: restored items do not fail by that.
        if outcome is Verdict.WAIT or (outcome is Verdict.UNHEALTHY and record.restored):
            if len(self._known_waits) >= KEPT_SHAPES:
                self._known_waits.clear()
            self._known_waits[group.shape] = decision
            return True
        return self._may_still_answer(record, decision, now)

    def _decide(
        self,
        record: TaskRecord,
        opened: Sequence[ClusterView],
        views: tuple[ClusterView, ...],
        now: float,
        *,
        freed: bool,
    ) -> SchedulingDecision | None:
        """None: the item waits on with its reason, or its policy failed and it has ended."""
        engine, task = self._machine.engine, record.wanted
        try:
            up = self._starting_agents.alternatives(task, opened, views)
            placed = engine.place(task, up, views, now, retry=record.retry) if up else None
            if placed is not None:
                return replace(placed, sentence=f"{placed.sentence}; elsewhere an agent is still starting")
            placed = engine.place(task, opened, views, now, retry=record.retry)
            if placed is not None or freed:
                return placed
            known = None if record.group is None else self._known_waits.get(record.group.shape)
            return known or engine.reject(task, views, now, retry=record.retry)
        except PolicyEvaluationError as error:
            self._machine.fail(
                record, codes.POLICY_FAILED, now, "PolicyEvaluationError", error.message, error.next_step or ""
            )
            return None

    def _place(
        self, record: TaskRecord, decision: SchedulingDecision, cluster: str, views: Sequence[ClusterView], now: float
    ) -> None:
        machine, task = self._machine, record.task
        own_view = bool(machine.wide_reservations) or record.room is not None
        seen = views if own_view else (machine.fleet.by_name[cluster],)
        nodes = next(view.nodes for view in seen if view.name == cluster)
        machine.leave_queue(record)
        short = self._prefetch.is_short(record)
        machine.registry.state(cluster).assign(task, now, short=short, nodes=nodes)
        if short:
            self._prefetch.slot_assigned(record, cluster)
        machine.submissions.record(task, cluster, now, retry=record.retry)
        machine.clusters_to_refresh.add(cluster)
        self._machine.dispatch(record, decision, cluster, now, short=short)
        self._starting_agents.sent(task, machine.registry.state(cluster))

    def _wait(self, record: TaskRecord, group: ShapeGroup, decision: SchedulingDecision, now: float) -> None:
        """The whole group waits for this. Only the head's history records it, and only when the reason changes."""
        before, group.decision = group.decision, decision
        if (before is None or before.code != decision.code) and record.room is None:
            self._machine.transition(record, TaskState.QUEUED, decision.code, decision.sentence, now)
        self._prefetch.item_waits(record)
        self._prefetch.yield_to(group, now)
        if self._machine.preemptible:
            self._preemption.group_waits(group, now)

    def _may_still_answer(self, record: TaskRecord, decision: SchedulingDecision, now: float) -> bool:
        """Retry clusters whose failure is older than the item; the item fails only by a newer failure."""
        suspects = [row.cluster for row in decision.candidates if not never_fits(row)]
        requested = [self._refresher.request_newer(name, record.queued_at or now, now) for name in suspects]
        return any(requested)

    def _views_of(self, names: frozenset[str], now: float) -> list[ClusterView]:
        return [view for view in self._machine.fleet.views(now) if view.name in names]

    def _set_wake_timer(self, now: float) -> None:
        """Wake up when something that blocks by time alone has passed."""
        overdue = self._wake_at is not None and self._wake_at <= now
        if not self._machine.queue:
            self._wake_at, self._wake_unknown = None, True
        elif self._wake_unknown or overdue or self._machine.submissions.changed:
            self._wake_unknown = False
            times = [self._machine.submissions.next_at(name) for name in self._machine.registry.names()]
            times += [state.link_failure.retry_at for state in self._machine.registry if state.link_failure]
            soonest = min((at for at in times if at is not None and at > now), default=inf)
            self._wake_at = soonest if soonest < inf else None
        self._machine.submissions.changed = False
        if self._wake_at is not None:
            self._machine.output.set_timer(timers.WAKE, self._wake_at)
        else:
            self._machine.output.clear_timer(timers.WAKE)


def _fail_unplaceable(
    machine: MachineState, record: TaskRecord, decision: SchedulingDecision, outcome: Verdict, now: float
) -> None:
    """End an item that no cluster can run, now or ever, with the table of clusters and reasons in the error."""
    task, reasons = record.task, reason_lines(decision.candidates)
    if outcome is Verdict.INFEASIBLE:
        code, error = codes.NO_FEASIBLE_CLUSTER, "NoFeasibleClusterError"
        message = f"No cluster can ever run {task.kind} {task.id} ({task.name}):\n{reasons}"
        step = "request less, relax its tags or cluster lists, or add a cluster that can run it"
    elif decision.candidates:
        code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
        message = f"No cluster that could run {task.kind} {task.id} ({task.name}) can be used:\n{reasons}"
        step = "correct what the lines name, check with `rmcs clusters`, then submit it again"
    else:
        code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
        message = f"{task.kind} {task.id} ({task.name}) has nowhere to go: no cluster is configured."
        step = "add a cluster to clusters.yaml, or start a local fleet with `rmcs fleet up`"
    record.placed = decision
    machine.fail(record, code, now, error, message, step)
