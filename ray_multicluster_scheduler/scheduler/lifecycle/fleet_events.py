"""FleetEvents: what happens to clusters, and what that means for the items on them."""

from __future__ import annotations

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
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
    SnapshotFailed,
    SnapshotTaken,
)
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Remember, RememberFleet
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import Core
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import SendingAhead
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord


class FleetEvents:
    """EventPublisher of a cluster that is not ours any more is ignored; items there end by their own events."""

    def __init__(self, core: Core, scheduling: SchedulingPass, ahead: SendingAhead, attempts: Attempts) -> None:
        self._core = core
        self._attempts = attempts
        self._scheduling = scheduling
        self._ahead = ahead

    def snapshot_taken(self, event: SnapshotTaken, now: float) -> None:
        state = self._core.registry.find(event.snapshot.cluster)
        if state is None:
            return
        before = _face(state, now)
        was_dead = state.dead is not None
        state.heard_snapshot(event.snapshot, now)
        self._rises(state, was_dead=was_dead)
        if state.dashboard_silence is None:
            self._found_again(state, now, jobs=True)
        self._core.touched.add(state.name)
        if before is not None and before == _face(state, now):
            self._core.freed.add(state.name)  # at the most, something got free
        else:
            self._scheduling.request()

    def snapshot_failed(self, event: SnapshotFailed, now: float) -> None:
        state = self._news(event.cluster)
        if state is None:
            return
        state.heard_nothing(event.sentence, permanent=event.permanent, now=now, awaited=event.awaited)
        # Jobs have no link that could tell: their cluster is lost when it does not answer for so long.
        if state.silent_since is not None and now - state.silent_since >= self._core.settings.lost_after_s:
            self._lost(state, now, jobs=True, sentence=event.sentence)

    def dashboard_checked(self, event: DashboardChecked, now: float) -> None:
        """It concerns jobs only: what goes over the link does not need the dashboard."""
        state = self._core.registry.find(event.cluster)
        if state is None:
            return
        self._core.touched.add(state.name)
        state.checking, state.checked_at = False, now
        if event.sentence is not None:
            silent_for = now - state.dashboard_failed(event.sentence, now)
            if silent_for >= self._core.settings.lost_after_s:
                self._lost(state, now, jobs=True, sentence=event.sentence)
        elif state.dashboard_silence is not None:
            state.dashboard_silence = None
            self._found_again(state, now, jobs=True)
            self._scheduling.request()

    def head_silent(self, event: HeadSilent, now: float) -> None:
        """What is known of the cluster grows old, though its link is up: nothing new goes there."""
        state = self._core.registry.find(event.cluster)
        if state is not None and state.head_silent_since is None:
            state.head_silent_since = now - event.silent_s
            self._core.touched.add(state.name)
            self._scheduling.request()

    def link_up(self, event: LinkUp, now: float) -> None:
        state = self._news(event.cluster)
        if state is not None:
            was_dead = state.dead is not None
            state.link_up(event.python_version, event.ray_version, now)
            self._rises(state, was_dead=was_dead)
            self._core.out.clear_timer(timers.lost_key(state.name))
            self._found_again(state, now, jobs=False)

    def link_down(self, event: LinkDown, now: float) -> None:
        state = self._news(event.cluster)
        if state is not None and state.link != "down":
            state.link_down(now)
            if state.places.held or state.places.ahead:
                self._core.out.set_timer(timers.lost_key(state.name), now + self._core.settings.lost_after_s)

    def link_silent_for_long(self, cluster: str, now: float) -> None:
        """The timer of this is cleared by whatever ends the silence."""
        sentence = f"no contact with {cluster} for lost_after_s ({self._core.settings.lost_after_s:g} s)"
        self._lost(self._core.registry.state(cluster), now, jobs=False, sentence=sentence)

    def link_closed(self, event: LinkClosed, now: float) -> None:
        state = self._news(event.cluster)
        if state is not None:
            state.link_gone()
            self._core.out.clear_timer(timers.lost_key(state.name))

    def link_failed(self, event: LinkFailed, now: float) -> None:
        """Feed it before the refusals of what was waiting for the link: they then tell the breaker nothing new."""
        state = self._news(event.cluster)
        if state is not None:
            state.link_refused(event.sentence, permanent=event.permanent, now=now)
            self._core.out.clear_timer(timers.lost_key(state.name))

    def cluster_changed(self, event: ClusterChanged, now: float) -> None:
        self._scheduling.request()
        if event.metadata is None:
            if self._core.registry.find(event.cluster) is not None:
                self._core.out.put(RememberFleet())
                self._remove(event.cluster, now)
            return
        self._core.out.put(RememberFleet())
        is_new = self._core.registry.find(event.cluster) is None
        self._core.registry.register(event.metadata)
        state = self._core.registry.state(event.metadata.name)
        if event.cordoned is not None:
            self._cordon(state, event.cordoned, now)
        self._core.touched.add(state.name)
        if is_new:
            self._take_back(state, now)

    def cordon_changed(self, event: CordonChanged, now: float) -> None:
        state = self._news(event.cluster)
        if state is not None:
            self._core.out.put(RememberFleet())
            self._cordon(state, event.cordoned, now)

    def declared_dead(self, event: ClusterDeclaredDead, now: float) -> None:
        """Somebody knows what we can only wait for: all that was there is settled, jobs too."""
        state = self._news(event.cluster)
        if state is None:
            return
        state.declare_dead(event.reason, now)
        self._core.out.put(RememberFleet())
        sentence = f"an operator declared {state.name} dead{f': {event.reason}' if event.reason else ''}"
        for task_id in (*state.places.ahead, *state.places.held):  # else a place that is freed would be handed over
            self._attempts.give_up(self._core.records[task_id], codes.DECLARED_DEAD, sentence, now)

    def checked(self, event: ClusterChecked, now: float) -> None:
        """It takes work again at once; what was heard of it came with the snapshot."""
        state = self._core.registry.find(event.cluster)
        if state is not None and state.breaker.state(now) is not BreakerState.CLOSED:
            state.breaker.close()
            self._core.touched.add(state.name)
            self._scheduling.request()

    def _rises(self, state: ClusterState, *, was_dead: bool) -> None:
        """It was declared dead, and is heard of again."""
        if was_dead and state.dead is None:
            self._core.out.put(RememberFleet())

    def _cordon(self, state: ClusterState, cordoned: bool, now: float) -> None:
        state.cordoned = cordoned
        if cordoned:
            self._ahead.leave(state, "it is cordoned", now)

    def _news(self, cluster: str) -> ClusterState | None:
        """Anything heard of a cluster may unblock, or doom, what waits."""
        state = self._core.registry.find(cluster)
        if state is not None:
            self._core.touched.add(cluster)
            self._scheduling.request()
        return state

    def _lost(self, state: ClusterState, now: float, *, jobs: bool, sentence: str) -> None:
        for record in self._on(state, jobs=jobs):
            if record.state is not TaskState.LOST:
                self._core.transition(record, TaskState.LOST, codes.CONTACT_LOST, sentence, now)
                if jobs and record.task.retry_lost and record.ending is None:
                    self._attempts.give_up(record, codes.CONTACT_LOST, sentence, now)

    def _found_again(self, state: ClusterState, now: float, *, jobs: bool) -> None:
        for record in self._on(state, jobs=jobs):
            if record.state is TaskState.LOST:
                back = TaskState.DISPATCHING if record.started_at is None else TaskState.RUNNING
                self._core.transition(record, back, codes.CONTACT_AGAIN, f"{state.name} answers again", now)

    def _on(self, state: ClusterState, *, jobs: bool) -> list[TaskRecord]:
        held = [task_id for task_id, place in state.places.held.items() if (place.kind == "job") == jobs]
        ahead = [] if jobs else list(state.places.ahead)
        return [self._core.records[task_id] for task_id in (*held, *ahead)]

    def _remove(self, cluster: str, now: float) -> None:
        core = self._core
        self._ahead.leave(core.registry.state(cluster), "it was removed", now)
        core.registry.unregister(cluster)
        core.submissions.forget(cluster)
        for key in (timers.refresh_key(cluster), timers.lost_key(cluster), timers.ahead_key(cluster)):
            core.out.clear_timer(key)
        for task_id in core.queue.waiting_for(cluster):
            self._fail_homeless(core.records[task_id], now)

    def _fail_homeless(self, record: TaskRecord, now: float) -> None:
        """It would only go to a cluster that was removed."""
        name = record.wanted.preferred_cluster
        self._core.complete(
            record,
            TaskState.FAILED,
            codes.CLUSTER_REMOVED,
            now,
            f"{record.task.kind} {record.task.id} waited for {name} and no other cluster, which was removed.",
            error="ConfigurationError",
            next_step='submit it with another preferred_cluster or fallback="any"',
        )

    def _take_back(self, state: ClusterState, now: float) -> None:
        """A removed cluster is ours again: what still runs there counts again."""
        for record in self._core.records.values():
            if record.live and record.cluster == state.name:
                state.take(record.task, now, begun=record.started_at is not None)
                self._core.out.put(Remember(record.task.id))


def _face(state: ClusterState, now: float) -> tuple[object, ...] | None:
    """What a healthy cluster is, apart from what is free there just now; None for one that is not healthy."""
    newest = state.ledger.newest
    if newest is None or state.trouble(now) is not None:
        return None
    return (*((node.node_id, node.total) for node in newest.nodes), state.python_version)
