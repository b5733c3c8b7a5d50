"""The scheduling pass: who of those that wait goes where.

After a pass, nobody waits who could go anywhere. So when room gets free on a cluster, only that cluster is looked at,
and only by those whom the room suffices for; a new shape is looked at once; and when anything else changes, everybody
is looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import CandidateReport, SchedulingDecision, TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import Core
from ray_multicluster_scheduler.scheduler.lifecycle.placement.dispatching import Sending
from ray_multicluster_scheduler.scheduler.lifecycle.placement.free_slots import BARE, Openings
from ray_multicluster_scheduler.scheduler.lifecycle.placement.infeasible import fail_without_place
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import SendingAhead
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import KeptRoom
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.refresher import Refresher
from ray_multicluster_scheduler.scheduler.policy.reasons import unblocked_by
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, never_fits, verdict
from ray_multicluster_scheduler.scheduler.queue.shape import Shape
from ray_multicluster_scheduler.scheduler.queue.shape_group import ShapeGroup

MAX_CHECKS = 400
"""Clusters that are looked at in one call; the rest goes on with Continued, so that other events get their turn."""

KEPT_SHAPES = 10_000
"""Shapes of which is remembered that waiting is worth while."""


@dataclass(slots=True)
class _Walk:
    """One look at those that wait, in order: at everybody, only for what got free on the ``freed`` clusters, or only
    at the ``fresh`` groups, the most urgent last."""

    freed: frozenset[str] | None = None
    fresh: list[ShapeGroup] | None = None
    done: list[ShapeGroup] = field(default_factory=list)


class SchedulingPass:
    """A walk may take several calls. What changes meanwhile is seen by the next walk."""

    def __init__(self, core: Core, refresher: Refresher, ahead: SendingAhead, kept: KeptRoom, sending: Sending) -> None:
        self._core, self._refresher, self._ahead, self._kept, self._sending = core, refresher, ahead, kept, sending
        self._walk: _Walk | None = None
        self._everybody = False
        self._missed: set[str] = set()  # owners who could start nothing when all, or some of theirs, were looked at
        self._known: dict[Shape, SchedulingDecision] = {}
        self._wake_unknown = False
        self._wake_at: float | None = None

    # ---- who is to be looked at

    def request(self) -> None:
        """Something changed that may unblock, or doom, anyone: look at the whole queue again."""
        self._everybody = self._wake_unknown = True

    def keep_room(self, now: float) -> None:
        """Somebody has waited long: where room is kept for a wide item, nothing more is sent ahead."""
        for cluster in self._kept.patience_over(now):
            self._ahead.leave(self._core.registry.state(cluster), "room is kept for a wide item", now)

    def look_at_owner(self, owner: str) -> None:
        """What kept this owner's items from being looked at is gone: they may use what got free meanwhile, or hear what
        everybody else has heard."""
        if owner in self._missed:
            self._missed.discard(owner)
            self._core.fresh.update(dict.fromkeys(self._core.queue.groups_of(owner)))
        self._core.freed.update(self._core.registry.names())

    def owner_paused(self, owner: str, now: float) -> None:
        """Whatever those of this owner waited for, they wait for its queue to be resumed."""
        self._missed.add(owner)
        for task_id in [one for one in self._core.pins if self._core.records[one].task.owner == owner]:
            self._core.let_go(task_id)
        for group in self._core.queue.groups_of(owner):
            self._wait_for_owner(group, now)

    def owner_resumed(self, owner: str, now: float) -> None:
        """The opposite. Who still may not start, for another reason, says so."""
        for group in self._core.queue.groups_of(owner):
            if self._core.queue.refusal(group) is not None:
                self._wait_for_owner(group, now)
        self.look_at_owner(owner)

    def owner_limited(self, owner: str, now: float) -> None:
        """Its limits are others: each of its shapes is looked at anew, or says that it may not start."""
        self._missed.add(owner)
        self.owner_resumed(owner, now)

    def _wait_for_owner(self, group: ShapeGroup, now: float) -> None:
        refusal = self._core.queue.refusal(group)
        assert refusal is not None, "nothing of its owner's keeps it from starting"
        head = self._core.records[group.head().task_id]
        self._wait(head, group, self._refused(head.task.id, refusal, (), now), now)

    def enqueue(self, record: TaskRecord, code: str, sentence: str, now: float) -> None:
        """Let it wait for a place. If its shape is known to be blocked, that holds for it too."""
        if record.held is not None:
            self._core.keep_held(record, now)
            return
        group = self._core.enqueue(record, code, sentence, now)
        self._kept.watch(group, now, now)
        refusal = self._core.queue.refusal(group)
        if refusal is not None and record.code != refusal[0]:
            self._core.transition(record, TaskState.QUEUED, *refusal, now)
        if group.decision is None:
            self._core.fresh[group] = None
            return
        if self._core.pins and group.head().task_id == record.task.id:
            self._core.fresh[group] = None  # it is older than they are, and may use room that is kept from them
        self._ahead.wanted_by(record, behind_others=len(group) > 1)
        if code != codes.QUEUED:
            self._core.transition(record, TaskState.QUEUED, group.decision.code, group.decision.sentence, now)
        self._ahead.make_way(group, now)

    def wait_again(self, record: TaskRecord, now: float) -> None:
        """It waited for a place when the process before ours ended, and keeps its place in the queue."""
        if record.held is not None:
            self._core.held.add(record.task.id)
            return
        group = self._core.wait_in_queue(record, now)
        self._kept.watch(group, record.queued_at or now, now)
        self._core.fresh[group] = None

    def why(
        self, record: TaskRecord, now: float, views: tuple[ClusterView, ...] | None = None
    ) -> SchedulingDecision | None:
        """Why it waits for a place, as of now; None if it does not. ``views``: the fleet as of now, if it is known."""
        if record.task.id in self._core.held:
            unblocked = "somebody releases it"
            return SchedulingDecision(record.task.id, now, None, codes.HELD, record.sentence, (), unblocked)
        if record.group is None:
            return None
        head = self._core.records[record.group.head().task_id]  # who is first decides for all of them
        views = self._kept.views_for(head, self._core.fresh_views(now) if views is None else views, now)
        refusal = self._core.queue.refusal(record.group)
        if refusal is None:
            decision = self._core.engine.schedule(record.wanted, views, now, retry=record.retry)
            return replace(decision, task_id=record.task.id)
        table = self._core.engine.table(record.wanted, views, retry=record.retry)
        return self._refused(record.task.id, refusal, table, now)

    def plan(self, task: TaskDescription, now: float) -> SchedulingDecision:
        """What would be decided of it if it came now. Where no cluster can ever take it, that is all: whatever else it
        would wait for before, is in vain."""
        views = self._kept.views_for_new(task, self._core.fresh_views(now), now)
        decision = self._core.engine.schedule(task, views, now)
        refusal = self._core.queue.refusal_of(task.owner, task.placement.get("GPU", 0.0))
        if refusal is None or verdict(decision) not in (Verdict.PLACED, Verdict.WAIT):
            return decision
        return self._refused(task.id, refusal, decision.candidates, now)

    @staticmethod
    def _refused(
        task_id: str, refusal: tuple[str, str], table: Sequence[CandidateReport], now: float
    ) -> SchedulingDecision:
        return SchedulingDecision(task_id, now, None, *refusal, table, unblocked_by(refusal[0], ""))

    # ---- the pass

    def run(self, now: float) -> None:
        """One pass, top to bottom."""
        if self._wake_at is not None and now >= self._wake_at:
            self.request()
        if self._core.queue.lifted:
            for owner in sorted(self._core.queue.lifted):
                self.look_at_owner(owner)
            self._core.queue.lifted.clear()
        if self._core.pins:
            if self._core.run_times.news:  # who is short may use room that is kept
                self._core.freed.update(self._core.pins.values())
            if self._everybody or self._core.freed:
                self._kept.look_again(now)
        self._core.run_times.news = False
        left = MAX_CHECKS
        while left > 0:
            # 1. whom to look at: everybody, those who may use room that got free, or those who are new
            walk = self._walk = self._walk or self._next_walk()
            if walk is None:
                break
            # 2. the first in order of them; equal items are looked at once
            group = self._next(walk, now)
            if group is None:
                self._end(walk)
                continue
            # 3. decide, by what those before it have left; place it, let it wait, or end it
            left -= self._look(walk, group, now)
        # 4. what is short may wait beside a place that is soon free
        if self._walk is None:
            self._ahead.fill_up(now)
        if not self._core.queue:
            self._kept.rest()
        self._core.queue.tidy_up()
        # 5. who was sent ahead has left its turn, and a place that was kept for it elsewhere, to others
        if self._walk is not None or self._ahead.unfinished or self._core.freed or self._core.fresh:
            self._core.out.ask_for_more()
        self._set_wake(now)

    def _next_walk(self) -> _Walk | None:
        if self._everybody:
            self._everybody = False
            self._core.freed.clear()
            self._core.fresh.clear()
            self._known.clear()
            self._missed |= self._core.queue.owners_who_wait_for_themselves()
            self._core.fleet.has_other_nodes()
            return _Walk() if self._core.queue else None
        if self._core.freed:
            freed = frozenset(self._core.freed)
            self._core.freed.clear()
            if self._core.queue:
                return _Walk(freed=freed)
        if self._core.fresh:
            waiting = [group for group in self._core.fresh if group]
            self._core.fresh.clear()
            if waiting:
                return _Walk(fresh=sorted(waiting, key=self._core.queue.urgency, reverse=True))
        return None

    def _next(self, walk: _Walk, now: float) -> ShapeGroup | None:
        queue = self._core.queue
        if walk.freed is None and walk.fresh is None:
            return queue.first_of_all(now)
        if walk.freed is not None:
            openings = Openings(self._core.engine, self._views_of(walk.freed, now))
            return queue.first(openings.rooms, now)
        while walk.fresh:
            group = walk.fresh[-1]
            if group and not group.parked:
                if queue.refusal(group) is None:
                    return group
                self._missed.add(group.shape.owner)
            walk.fresh.pop()
        return None

    def _end(self, walk: _Walk) -> None:
        self._walk = None
        for group in walk.done:
            self._core.queue.unpark(group)

    def _done_with(self, walk: _Walk, group: ShapeGroup) -> None:
        """It has to wait: whoever comes next has a turn."""
        self._core.queue.park(group)
        walk.done.append(group)

    def _look(self, walk: _Walk, group: ShapeGroup, now: float) -> int:
        """Decide about the head of a group; returns how many clusters were looked at."""
        record = self._core.records[group.head().task_id]
        views = self._kept.views_for(record, self._core.fleet.views(now), now)
        opened = self._opened(record, group, views, walk)
        decision = self._decide(record, opened, views, now, freed=walk.freed is not None)
        if decision is None:
            if record.group is group:  # else its policy failed, and it is over
                self._done_with(walk, group)
        elif decision.cluster is not None:
            self._place(record, decision, decision.cluster, views, now)
        elif group.shape in self._known or self._is_worth_waiting(record, group, decision, now):
            self._wait(record, group, decision, now)
            self._done_with(walk, group)
        else:
            fail_without_place(self._core, record, decision, verdict(decision), now)
        told = decision is not None and decision.cluster is None and decision.at == now
        return max(1, len(opened)) + (len(views) if told else 0)

    def _opened(
        self, record: TaskRecord, group: ShapeGroup, views: tuple[ClusterView, ...], walk: _Walk
    ) -> Sequence[ClusterView]:
        """Clusters that may take it, by a coarse sieve; in a walk for freed room, only where that is."""
        some: Sequence[ClusterView] = views
        if walk.freed is not None:
            some = [view for view in views if view.name in walk.freed]
            if len(some) == 1:
                return some
        return self._core.engine.open_for(BARE.get(group.shape.kind), some, retry=record.retry)

    def _is_worth_waiting(
        self, record: TaskRecord, group: ShapeGroup, decision: SchedulingDecision, now: float
    ) -> bool:
        """Does any cluster not reject it for good? That, and why it waits, holds for the shape until the fleet changes:
        :meth:`why` tells it as of now."""
        outcome = verdict(decision)
        # Clusters that do not answer yet may have done so before the restart. Nobody's work ends by that.
        if outcome is Verdict.WAIT or (outcome is Verdict.UNHEALTHY and record.restored):
            if len(self._known) >= KEPT_SHAPES:
                self._known.clear()
            self._known[group.shape] = decision
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
        """None: it waits on, for what it waited for, or its policy failed and it is over."""
        engine, task = self._core.engine, record.wanted
        try:
            placed = engine.place(task, opened, views, now, retry=record.retry)
            if placed is not None or freed:
                return placed
            known = None if record.group is None else self._known.get(record.group.shape)
            return known or engine.reject(task, views, now, retry=record.retry)
        except PolicyEvaluationError as error:
            self._core.complete(
                record,
                TaskState.FAILED,
                codes.POLICY_FAILED,
                now,
                error.message,
                error="PolicyEvaluationError",
                next_step=error.next_step or "",
            )
            return None

    def _place(
        self, record: TaskRecord, decision: SchedulingDecision, cluster: str, views: Sequence[ClusterView], now: float
    ) -> None:
        core, task = self._core, record.task
        seen = views if core.pins else (core.fleet.by_name[cluster],)
        nodes = next(view.nodes for view in seen if view.name == cluster)
        core.leave_queue(record)
        short = self._ahead.is_short(record)
        core.registry.state(cluster).take(task, now, short=short, nodes=nodes)
        if short:
            self._ahead.placed(record, cluster)
        core.submissions.record(task, cluster, now, retry=record.retry)
        core.touched.add(cluster)
        self._sending.dispatch(record, decision, cluster, now, short=short)

    def _wait(self, record: TaskRecord, group: ShapeGroup, decision: SchedulingDecision, now: float) -> None:
        """All of the shape wait for this. Only the head's history is told, and only of another reason."""
        before, group.decision = group.decision, decision
        if before is None or before.code != decision.code:
            self._core.transition(record, TaskState.QUEUED, decision.code, decision.sentence, now)
        self._ahead.wanted_by(record)
        self._ahead.make_way(group, now)

    def _may_still_answer(self, record: TaskRecord, decision: SchedulingDecision, now: float) -> bool:
        """Ask clusters again whose failure is older than the item; it fails only by fresh news."""
        suspects = [row.cluster for row in decision.candidates if not never_fits(row)]
        asked = [self._refresher.ask_anew(name, record.queued_at or now, now) for name in suspects]
        return any(asked)

    def _views_of(self, names: frozenset[str], now: float) -> list[ClusterView]:
        return [view for view in self._core.fleet.views(now) if view.name in names]

    def _set_wake(self, now: float) -> None:
        """Be called when something that blocks by time alone is over."""
        overdue = self._wake_at is not None and self._wake_at <= now
        if not self._core.queue:
            self._wake_at, self._wake_unknown = None, True
        elif self._wake_unknown or overdue or self._core.submissions.news:
            self._wake_unknown = False
            times = [self._core.submissions.next_at(name) for name in self._core.registry.names()]
            times += [state.link_failed.until for state in self._core.registry if state.link_failed]
            soonest = min((at for at in times if at is not None and at > now), default=inf)
            self._wake_at = soonest if soonest < inf else None
        self._core.submissions.news = False
        if self._wake_at is not None:
            self._core.out.set_timer(timers.WAKE, self._wake_at)
        else:
            self._core.out.clear_timer(timers.WAKE)
