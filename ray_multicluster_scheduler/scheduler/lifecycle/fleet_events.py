"""FleetEvents: handles events about clusters and what they mean for the items there."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.attempts import Attempts
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    ClusterChanged,
    ClusterChecked,
    ClusterDeclaredDead,
    CordonChanged,
    DashboardChecked,
    HeadSilent,
    LinkClosed,
    LinkDown,
    LinkFailed,
    LinkUp,
    ProcessesDead,
    SnapshotFailed,
    SnapshotTaken,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Remember, RememberFleet
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.policy import reasons


class FleetEvents:
    """Handlers for cluster events. Events of a removed cluster are ignored; items there end by their own events."""

    def __init__(
        self, machine: MachineState, scheduling: SchedulingPass, prefetch: Prefetch, attempts: Attempts
    ) -> None:
        self._machine = machine
        self._attempts = attempts
        self._scheduling = scheduling
        self._prefetch = prefetch

    def snapshot_taken(self, event: SnapshotTaken, now: float) -> None:
        state = self._machine.registry.find(event.snapshot.cluster)
        if state is None:
            return
        before = _capacity_signature(state, now)
        was_dead = state.dead is not None
        state.record_snapshot(event.snapshot, now)
        self._persist_revival(state, was_dead=was_dead)
        if state.dashboard_failure is None:
            self._mark_recovered(state, now, jobs=True)
        self._machine.clusters_to_refresh.add(state.name)
        if before is not None and before == _capacity_signature(state, now):
            self._machine.freed_clusters.add(state.name)  # at most, capacity was freed
        else:
            self._scheduling.request_full_scan()

    def snapshot_failed(self, event: SnapshotFailed, now: float) -> None:
        state = self._find_and_reschedule(event.cluster)
        if state is None:
            return
        state.record_snapshot_failure(
            event.sentence, permanent=event.permanent, now=now, awaited=event.awaited, requested=event.requested
        )
        # Jobs have no link that reports a loss: their cluster is lost when it does not answer for this time.
        if state.silent_since is not None and now - state.silent_since >= self._machine.settings.lost_after_s:
            self._mark_lost(state, now, jobs=True, sentence=event.sentence)
        elif state.last_contact_at is not None and now - state.last_contact_at > state.stale_after_s:
            self._notify_jobs(state, f"has not answered for {now - state.last_contact_at:.0f} s", now)

    def dashboard_checked(self, event: DashboardChecked, now: float) -> None:
        """Concerns jobs only: what uses the link does not need the dashboard."""
        state = self._machine.registry.find(event.cluster)
        if state is None:
            return
        self._machine.clusters_to_refresh.add(state.name)
        state.checking_dashboard, state.dashboard_checked_at = False, now
        if event.sentence is not None:
            silent_for = now - state.record_dashboard_failure(event.sentence, now)
            if silent_for >= self._machine.settings.lost_after_s:
                self._mark_lost(state, now, jobs=True, sentence=event.sentence)
            elif silent_for > state.stale_after_s:
                self._notify_jobs(state, f"has a dashboard that has not answered for {silent_for:.0f} s", now)
        elif state.dashboard_failure is not None:
            state.dashboard_failure = None
            self._mark_recovered(state, now, jobs=True)
            self._scheduling.request_full_scan()

    def head_silent(self, event: HeadSilent, now: float) -> None:
        """The state of the cluster becomes stale although its link is up: no new work goes there, and what has not
        begun is recalled. A detached actor is not: its process does not depend on the agent that would refuse it."""
        state = self._machine.registry.find(event.cluster)
        if state is None:
            return
        if state.head_silent_since is None:
            state.head_silent_since = now - event.silent_s
            self._machine.clusters_to_refresh.add(state.name)
            self._scheduling.request_full_scan()
        silence = f"has a head that has not answered for {event.silent_s:.0f} s"
        self._notify_jobs(state, silence, now, may_be_lost=False)
        for record in self._records_on(state, jobs=False):
            if record.task.actor is None or not record.task.actor.detached:
                self._prefetch.recall(
                    record, f"its head (GCS or raylet) has not answered for {event.silent_s:.0f} s", now
                )

    def link_up(self, event: LinkUp, now: float) -> None:
        state = self._find_and_reschedule(event.cluster)
        if state is not None:
            was_dead = state.dead is not None
            state.link_up(event.python_version, event.ray_version, now)
            self._persist_revival(state, was_dead=was_dead)
            self._machine.output.clear_timer(timers.lost_key(state.name))
            self._mark_recovered(state, now, jobs=False)

    def link_down(self, event: LinkDown, now: float) -> None:
        state = self._find_and_reschedule(event.cluster)
        if state is not None and state.link != "down":
            state.link_down(now, event.silent_s)
            if state.slots.held or state.slots.prefetched:
                notice_at = min(now + timers.NOTICE_AFTER_S, max(now, state.link_lost_at))
                self._machine.output.set_timer(timers.lost_key(state.name), notice_at)

    def still_silent(self, cluster: str, now: float) -> None:
        """The link has been down since its timer was set; contact would have cleared it."""
        state, lost_after_s = self._machine.registry.state(cluster), self._machine.settings.lost_after_s
        if now >= state.link_lost_at:
            sentence = f"no contact with {cluster} for lost_after_s ({lost_after_s:g} s)"
            self._mark_lost(state, now, jobs=False, sentence=sentence)
            return
        self._machine.output.set_timer(timers.lost_key(cluster), state.link_lost_at)
        sentence = f"{cluster} has been silent for {state.link_silent_s(now):.0f} s; {state.lease_wait(now)}"
        for record in self._records_on(state, jobs=False):
            self._machine.transition(record, record.state, reasons.CLUSTER_SUSPECT, sentence, now)

    def processes_dead(self, event: ProcessesDead, now: float) -> None:
        """Before the ends of its attempts, so that none of them is repeated there before it answers."""
        state = self._find_and_reschedule(event.cluster)
        if state is not None:
            state.mark_dead(event.sentence, now)
            self._machine.output.add(RememberFleet())

    def link_closed(self, event: LinkClosed, now: float) -> None:
        state = self._find_and_reschedule(event.cluster)
        if state is not None:
            state.link_closed()
            self._machine.output.clear_timer(timers.lost_key(state.name))

    def link_failed(self, event: LinkFailed, now: float) -> None:
        """Send it before the refusals of what waited for the link, so that those do not count for the breaker again."""
        state = self._find_and_reschedule(event.cluster)
        if state is not None:
            state.record_link_failure(event.sentence, permanent=event.permanent, now=now)
            self._machine.output.clear_timer(timers.lost_key(state.name))

    def cluster_changed(self, event: ClusterChanged, now: float) -> None:
        self._scheduling.request_full_scan()
        if event.metadata is None:
            if self._machine.registry.find(event.cluster) is not None:
                self._machine.output.add(RememberFleet())
                self._remove(event.cluster, now)
            return
        self._machine.output.add(RememberFleet())
        is_new = self._machine.clusters.register(event.metadata)
        state = self._machine.registry.state(event.metadata.name)
        if event.cordoned is not None:
            self._cordon(state, event.cordoned, now)
        self._machine.clusters_to_refresh.add(state.name)
        if is_new:
            self._restore_bookings(state, now)

    def cordon_changed(self, event: CordonChanged, now: float) -> None:
        state = self._find_and_reschedule(event.cluster)
        if state is not None:
            self._machine.output.add(RememberFleet())
            self._cordon(state, event.cordoned, now, event.reason)

    def declared_dead(self, event: ClusterDeclaredDead, now: float) -> None:
        """Settle all items there at once, jobs too."""
        state = self._find_and_reschedule(event.cluster)
        if state is None:
            return
        self._machine.clusters.declare_dead(state.name, event.reason, now)
        self._machine.output.add(RememberFleet())
        sentence = f"an operator declared {state.name} dead{f': {event.reason}' if event.reason else ''}"
        for task_id in (*state.slots.prefetched, *state.slots.held):  # prefetched first: they must not get a freed slot
            self._attempts.abandon(self._machine.records[task_id], codes.DECLARED_DEAD, sentence, now)

    def checked(self, event: ClusterChecked, now: float) -> None:
        """Close the breaker: work goes there again at once."""
        known = self._machine.registry.find(event.cluster) is not None
        if known and self._machine.clusters.close_breaker(event.cluster, now):
            self._machine.clusters_to_refresh.add(event.cluster)
            self._scheduling.request_full_scan()

    def _persist_revival(self, state: ClusterState, *, was_dead: bool) -> None:
        """Persist that a cluster that was declared dead has answered."""
        if was_dead and state.dead is None:
            self._machine.output.add(RememberFleet())

    def _cordon(self, state: ClusterState, cordoned: bool, now: float, reason: str = "") -> None:
        if not cordoned:
            self._machine.clusters.uncordon(state.name)
        else:
            self._machine.clusters.cordon(state.name, reason)
            self._prefetch.recall_cluster(state, "it is cordoned", now)

    def _find_and_reschedule(self, cluster: str) -> ClusterState | None:
        """The cluster, if it is configured; requests a full scan, since the event may unblock or fail waiting items."""
        state = self._machine.registry.find(cluster)
        if state is not None:
            self._machine.clusters_to_refresh.add(cluster)
            self._scheduling.request_full_scan()
        return state

    def _mark_lost(self, state: ClusterState, now: float, *, jobs: bool, sentence: str) -> None:
        for record in self._records_on(state, jobs=jobs):
            if record.state is not TaskState.LOST:
                self._machine.transition(record, TaskState.LOST, codes.CONTACT_LOST, sentence, now)
                if jobs and record.task.retry_lost and record.ending is None:
                    self._attempts.abandon(record, codes.CONTACT_LOST, sentence, now)

    def _notify_jobs(self, state: ClusterState, silence: str, now: float, *, may_be_lost: bool = True) -> None:
        """Report once to the jobs of a silent cluster what happens to them. It is not lost while its agent answers."""
        for record in self._records_on(state, jobs=True):
            if record.state is not TaskState.LOST and record.code != reasons.CLUSTER_SUSPECT:
                sentence = (
                    f"{state.name} {silence}; {state.job_wait(retry_lost=may_be_lost and record.task.retry_lost)}"
                )
                self._machine.transition(record, record.state, reasons.CLUSTER_SUSPECT, sentence, now)

    def _mark_recovered(self, state: ClusterState, now: float, *, jobs: bool) -> None:
        for record in self._records_on(state, jobs=jobs):
            if record.state is TaskState.LOST or record.code == reasons.CLUSTER_SUSPECT:
                back = TaskState.DISPATCHING if record.started_at is None else TaskState.RUNNING
                if record.ending is not None and record.ending.kind == "preempt":
                    back = TaskState.PREEMPTING
                self._machine.transition(record, back, codes.CONTACT_AGAIN, f"{state.name} answers again", now)

    def _records_on(self, state: ClusterState, *, jobs: bool) -> list[TaskRecord]:
        held = [task_id for task_id, place in state.slots.held.items() if (place.kind == "job") == jobs]
        ahead = [] if jobs else list(state.slots.prefetched)
        return [self._machine.records[task_id] for task_id in (*held, *ahead)]

    def _remove(self, cluster: str, now: float) -> None:
        machine = self._machine
        self._prefetch.recall_cluster(machine.registry.state(cluster), "it was removed", now)
        for task_id in [one for one, room in machine.rooms.items() if room.cluster == cluster]:
            machine.release_room(machine.records[task_id])
            sentence = f"{cluster}, where room was freed for it, was removed"
            machine.transition(machine.records[task_id], TaskState.QUEUED, codes.QUEUED, sentence, now)
        machine.clusters.remove(cluster)
        machine.submissions.forget(cluster)
        for key in (timers.refresh_key(cluster), timers.lost_key(cluster), timers.ahead_key(cluster)):
            machine.output.clear_timer(key)
        for task_id in machine.queue.waiting_only_for(cluster):
            self._fail_for_removed_cluster(machine.records[task_id], now)

    def _fail_for_removed_cluster(self, record: TaskRecord, now: float) -> None:
        """Fail an item that could only run on the removed cluster."""
        name = record.wanted.preferred_cluster
        message = f"{record.task.kind} {record.task.id} waited for {name} and no other cluster, which was removed."
        step = 'submit it with another preferred_cluster or fallback="any"'
        self._machine.fail(record, codes.CLUSTER_REMOVED, now, "ConfigurationError", message, step)

    def _restore_bookings(self, state: ClusterState, now: float) -> None:
        """A removed cluster was added again: book what still runs there."""
        for record in self._machine.records.values():
            if record.live and record.cluster == state.name:
                state.assign(record.task, now, begun=record.started_at is not None)
                self._machine.output.add(Remember(record.task.id))


def _capacity_signature(state: ClusterState, now: float) -> tuple[object, ...] | None:
    """The state of a healthy cluster that placement reads, except its free capacity; None if it is not healthy."""
    newest = state.ledger.latest_snapshot
    if newest is None or state.problem(now) is not None:
        return None
    return (*((node.node_id, node.total) for node in newest.nodes), state.python_version)
