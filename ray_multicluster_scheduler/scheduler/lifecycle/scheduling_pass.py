"""The scheduling pass: who of those that wait goes where."""

from __future__ import annotations

from dataclasses import replace

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import SchedulingDecision, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import codes, timers
from ray_multicluster_scheduler.scheduler.lifecycle.core import Core
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Ahead, Dispatch
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.refresher import Refresher
from ray_multicluster_scheduler.scheduler.lifecycle.sending_ahead import SendingAhead
from ray_multicluster_scheduler.scheduler.policy.verdict import Verdict, never_fits, table, verdict
from ray_multicluster_scheduler.scheduler.queue.task_queue import ShapeGroup
from ray_multicluster_scheduler.scheduler.queue.walk import QueueWalk

MAX_DECISIONS = 200
"""Decisions in one call; the rest goes on with Continued, so that other events get their turn."""


class SchedulingPass:
    """A walk over the queue that may take several calls. What changes meanwhile is seen by the next walk."""

    def __init__(self, core: Core, refresher: Refresher, ahead: SendingAhead) -> None:
        self._core = core
        self._refresher = refresher
        self._ahead = ahead
        self._walk = QueueWalk()
        self._again = False
        self._wake_at: float | None = None

    def request(self) -> None:
        """Something changed that may unblock anyone: look at the whole queue again."""
        self._again = True

    def enqueue(self, record: TaskRecord, code: str, sentence: str, now: float) -> None:
        """Let it wait for a place. If its shape is known to be blocked, that holds for it too."""
        group = self._core.enqueue(record, code, sentence, now)
        if group.decision is None:
            self._walk.offer(group)
            return
        if group.head()[1] == record.task.id:
            self._send_ahead(group, group.decision, now)
        if record.group is not None and code != codes.QUEUED:
            self._core.transition(record, TaskState.QUEUED, group.decision.code, group.decision.sentence, now)

    def run(self, now: float) -> None:
        """One pass, top to bottom."""
        self._again = self._again or (self._wake_at is not None and now >= self._wake_at)
        if not self._walk and not self._again and self._wake_at is None:
            return  # nothing has changed for anybody
        # 1. the fleet as it is now
        views = self._core.views(now) if self._walk or (self._again and self._core.queue) else {}
        changed: set[str] = set()
        for _ in range(MAX_DECISIONS):
            # 2. the first in order of those not looked at yet; equal items are looked at once
            picked = self._next()
            if picked is None:
                break
            task_id, group = picked
            record = self._core.records[task_id]
            # 3. decide, by what those before it have left
            views |= {name: self._core.view(self._core.registry.state(name), now) for name in changed}
            changed.clear()
            decision = self._decide(record, list(views.values()), now)
            if decision is None:
                self._walk.offer(group)
                continue
            outcome = verdict(decision)
            # 4. place it, and look at the next of the same shape
            if decision.cluster is not None:
                self._place(record, decision, decision.cluster, now)
                changed.add(decision.cluster)
                self._walk.offer(group)
            # 5. or let it wait, with all of its shape, for a reason that can be read
            elif outcome is Verdict.WAIT or self._may_still_answer(record, decision, now):
                self._wait(record, group, decision, now)
                used = self._send_ahead(group, decision, now)
                changed |= used
                if used:
                    self._walk.offer(group)  # its next one may go when those before it have gone
            # 6. or end it, when waiting is pointless
            else:
                self._fail(record, decision, outcome, now)
                self._walk.offer(group)
        if self._walk or self._again:
            self._core.out.ask_for_more()
        self._set_wake(now)

    def _next(self) -> tuple[str, ShapeGroup] | None:
        picked = self._walk.next()
        if picked is None and self._again:
            self._again = False
            self._walk = QueueWalk(self._core.queue.groups())
            picked = self._walk.next()
        return picked

    def _decide(self, record: TaskRecord, views: list[ClusterView], now: float) -> SchedulingDecision | None:
        try:
            return self._core.engine.schedule(record.wanted, views, now, retry=record.retry)
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

    def _place(self, record: TaskRecord, decision: SchedulingDecision, cluster: str, now: float) -> None:
        core, task = self._core, record.task
        core.leave_queue(record)
        short = self._ahead.is_short(record)
        core.registry.state(cluster).take(task, now, short=short)
        core.submissions.record(task, cluster, now, retry=record.retry)
        core.touched.add(cluster)
        self._dispatch(record, decision, cluster, now, short=short)

    def _send_ahead(self, group: ShapeGroup, decision: SchedulingDecision, now: float) -> set[str]:
        """Send those of the group that are known to be short to where they will soon have a place; returns where."""
        used: set[str] = set()
        takers: dict[str, bool] = {}
        decisions: dict[str, SchedulingDecision] = {}
        while group and (target := self._ahead.target(group, decision, now, takers)) is not None:
            cluster, how = target
            record = self._core.records[group.head()[1]]
            if cluster not in decisions:  # one for all of them: record.decision puts each one's id into it
                sentence = f"{cluster}: it is short, and sent ahead to where a place is soon free"
                decisions[cluster] = replace(decision, cluster=cluster, code=codes.SENT_AHEAD, sentence=sentence)
            state = self._core.registry.state(cluster)
            self._core.leave_queue(record)
            state.places.send_ahead(record.task, now)
            self._ahead.watch(state)
            self._dispatch(record, decisions[cluster], cluster, now, how, short=True)
            used.add(cluster)
        if group:
            self._ahead.make_way(group, now)
        return used

    def _dispatch(
        self,
        record: TaskRecord,
        decision: SchedulingDecision,
        cluster: str,
        now: float,
        ahead: Ahead = "",
        *,
        short: bool,
    ) -> None:
        core = self._core
        core.engine.note_placed(cluster)
        record.attempt += 1
        record.cluster, record.placed = cluster, decision
        record.fence, core.next_fence = core.next_fence, core.next_fence + 1
        record.accepted, record.ending, record.started_at = False, None, None
        core.transition(record, TaskState.DISPATCHING, decision.code, decision.sentence, now, decision)
        core.out.put(Dispatch(record.task.id, record.attempt, record.fence, cluster, ahead, short))

    def _wait(self, record: TaskRecord, group: ShapeGroup, decision: SchedulingDecision, now: float) -> None:
        """All of the shape wait for this. Only the head's history is told, and only of another reason."""
        before, group.decision = group.decision, decision
        if before is None or before.code != decision.code:
            self._core.transition(record, TaskState.QUEUED, decision.code, decision.sentence, now)

    def _may_still_answer(self, record: TaskRecord, decision: SchedulingDecision, now: float) -> bool:
        """Ask clusters again whose failure is older than the item; it fails only by fresh news."""
        suspects = [row.cluster for row in decision.candidates if not never_fits(row)]
        asked = [self._refresher.ask_anew(name, record.queued_at or now, now) for name in suspects]
        return any(asked)

    def _fail(self, record: TaskRecord, decision: SchedulingDecision, outcome: Verdict, now: float) -> None:
        task = record.task
        if outcome is Verdict.INFEASIBLE:
            code, error = codes.NO_FEASIBLE_CLUSTER, "NoFeasibleClusterError"
            message = f"No cluster can ever run {task.kind} {task.id} ({task.name}):\n{table(decision)}"
            step = "ask for less, relax its tags or cluster lists, or add a cluster that can run it"
        elif decision.candidates:
            code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
            message = f"No cluster that could run {task.kind} {task.id} ({task.name}) can be used:\n{table(decision)}"
            step = "mend what the lines say, check with `rmcs clusters`, then submit again"
        else:
            code, error = codes.NO_HEALTHY_CLUSTER, "NoHealthyClusterError"
            message = f"{task.kind} {task.id} ({task.name}) has nowhere to go: no cluster is configured."
            step = "add a cluster to clusters.yaml, or start a local fleet with `rmcs fleet up`"
        record.placed = decision
        self._core.complete(record, TaskState.FAILED, code, now, message, error=error, next_step=step)

    def _set_wake(self, now: float) -> None:
        """Be called when something that blocks by time alone is over."""
        times = [self._core.submissions.next_at(name) for name in self._core.registry.names()]
        times += [state.link_failed.until for state in self._core.registry if state.link_failed]
        ahead = [at for at in times if at is not None and at > now]
        self._wake_at = min(ahead) if ahead and self._core.queue else None
        if self._wake_at is not None:
            self._core.out.set_timer(timers.WAKE, self._wake_at)
        else:
            self._core.out.clear_timer(timers.WAKE)
