"""Carries out the machine's instructions over links on which messages are lost, late, repeated and out of order.

It keeps the promise of the real executor (connection/links/cluster_link.py): every dispatched attempt gets a final
event, and only after it has stopped running. Everything else may go wrong. Created by `run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import RECALL_AFTER_S
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FaultyCluster, Key, draw_outcome
from ray_multicluster_scheduler.simulation.faulty.faulty_link import FaultyLink
from ray_multicluster_scheduler.simulation.faulty.machine_driver import MachineDriver
from ray_multicluster_scheduler.simulation.history import EndKind, Parts

KILL_AFTER_S = 3.0
"""Time after which an attempt that ignores its cancel is killed."""


class FaultyExecutor:
    """Executor for all clusters. ``describe`` finds the task of an id, ``plan`` the machine's reservation for it."""

    def __init__(
        self,
        driver: MachineDriver,
        seed: int,
        describe: Callable[[str], TaskDescription],
        plan: Callable[[str, str], Parts],
    ) -> None:
        self.driver, self._seed, self._describe, self.plan = driver, seed, describe, plan
        self.clusters: dict[str, FaultyCluster] = {}
        self.links: dict[str, FaultyLink] = {}
        self.unanswered: dict[Key, Attempt] = {}
        """Attempts whose final event the machine has not received."""
        self.dispatched: dict[Key, Attempt] = {}
        """All attempts that were ever dispatched."""
        self.refusing: set[str] = set()
        """Clusters that refuse every dispatch."""
        driver.execute = self.execute

    def random_stream(self, name: str) -> Random:
        return Random(f"{self._seed} {name}")  # nosec B311 # reproducible on purpose

    def add(self, cluster: FaultyCluster, link: FaultyLink) -> None:
        self.clusters[cluster.name], self.links[cluster.name] = cluster, link

    def unanswered_on(self, cluster: str, *, jobs: bool) -> list[Attempt]:
        return [one for one in self.unanswered.values() if one.cluster == cluster and one.is_job == jobs]

    # ---- instructions

    def execute(self, instruction: out.Instruction) -> None:
        match instruction:
            case out.Dispatch(again=True) | out.AdoptAttempt():
                self._adopt(instruction)
            case out.Dispatch():
                self._dispatch(instruction)
            case out.StartAttempt():
                self._order(instruction, self.start)
            case out.RecallAttempt():
                self._order(instruction, self._recall)
            case out.CancelAttempt():
                self._order(instruction, self._kill if instruction.force else self._cancel)
            case out.PreemptAttempt():
                self._order(instruction, partial(self._preempt, grace_s=instruction.grace_s))
            case out.RefreshSnapshot():
                self.links[instruction.cluster].refresh()
            case out.CheckDashboard():
                self.links[instruction.cluster].check_dashboard()
            case _:
                pass

    def _dispatch(self, dispatch: out.Dispatch) -> None:
        task = self._describe(dispatch.task_id)
        rng = self.random_stream(f"{dispatch.task_id}/{dispatch.attempt}")
        outcome = draw_outcome(task, rng)
        attempt = Attempt(task, dispatch.attempt, dispatch.fence, dispatch.cluster, rng, outcome, dispatch.ahead)
        attempt.short, attempt.has_slot = dispatch.short, not dispatch.ahead
        attempt.planned_parts = self.plan(task.id, dispatch.cluster)
        self.unanswered[attempt.key] = self.dispatched[attempt.key] = attempt
        if dispatch.cluster in self.refusing or self.driver.draw_fault(rng, 0.015):
            self.driver.record_fault(f"the dispatch of {task.id}, attempt {attempt.number}, was refused")
            failure = FailureClass.CLUSTER if rng.random() < 0.8 else FailureClass.PERMANENT
            self.refuse(attempt, failure, "REFUSED", "it was not taken", rng.uniform(0, 0.3))
        elif attempt.is_job:
            self.links[dispatch.cluster].submit_job(attempt)
        else:
            self.links[dispatch.cluster].submit(attempt)

    def _adopt(self, instruction: out.Dispatch | out.AdoptAttempt) -> None:
        """Adopt an attempt for a restarted control plane: its known events are reported again."""
        key = instruction.task_id, instruction.attempt
        attempt = self.dispatched.get(key)
        if attempt is None and isinstance(instruction, out.Dispatch):
            self._dispatch(instruction)  # the control plane crashed before it sent the dispatch
        elif attempt is None:
            lost = events.AttemptFinished(*key, "failed", FailureClass.CLUSTER, None, "UNKNOWN", "no cluster knows it")
            self.driver.after(0.1, self.driver.feed, lost)
        elif isinstance(attempt.final_event, events.DispatchRefused):
            self.driver.after(0.1, self.driver.feed, attempt.final_event)
        else:
            self.unanswered[key] = attempt
            self.links[attempt.cluster].send(attempt, self._report_again)

    def _report_again(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if not attempt.arrived:
            return  # it is still on its way
        if attempt.moved_event is not None:
            self.report(cluster, attempt, attempt.moved_event)
        if attempt.final_event is not None:
            self.report(cluster, attempt, attempt.final_event)
            return
        self.report(cluster, attempt, events.DispatchAccepted(*attempt.key))
        if attempt.began and not attempt.short:
            attempt.start_reported = False
            self._report_started(attempt, cluster)

    def refuse(self, attempt: Attempt, failure: FailureClass, code: str, sentence: str, delay: float = 0.0) -> None:
        """Refuse a dispatch: it did not and will not run. The event follows after the delay."""
        attempt.ended = True
        attempt.final_event = events.DispatchRefused(*attempt.key, failure, code, sentence)
        self.driver.after(delay, self._feed_refusal, attempt, attempt.final_event, self.driver.epoch)

    def _feed_refusal(self, attempt: Attempt, refusal: events.DispatchRefused, epoch: int) -> None:
        if epoch == self.driver.epoch and self.unanswered.pop(attempt.key, None) is not None:
            self.driver.feed(refusal)

    def _order(
        self,
        order: out.StartAttempt | out.RecallAttempt | out.CancelAttempt | out.PreemptAttempt,
        action: Callable[[Attempt, FaultyCluster], None],
    ) -> None:
        """Send an order as a call; the link keeps it until it arrives."""
        attempt = self.unanswered.get((order.task_id, order.attempt))
        if attempt is not None:
            self.links[attempt.cluster].send(attempt, action)

    def start(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        cluster.start(attempt, self.plan(attempt.task.id, cluster.name))

    def _recall(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if not attempt.arrived:
            attempt.recall_on_arrival = True
        elif attempt in cluster.gateway_queue:
            cluster.gateway_queue.remove(attempt)
            cluster.end(attempt, "cancelled")
        elif attempt in cluster.ray_queue:
            left_s = attempt.submitted_at + RECALL_AFTER_S - self.driver.now
            self.driver.after(max(0.0, left_s), self._recall_from_ray, attempt, cluster)

    def _recall_from_ray(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        """The agent takes it back unless it has begun by now. If Ray runs it later, its worker asks, and skips it."""
        if attempt in cluster.ray_queue and not attempt.began:
            attempt.recalled = True
            cluster.end(attempt, "cancelled")

    def _cancel(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if attempt.began and attempt.outcome.ignores_cancel:
            self.driver.after(KILL_AFTER_S, self._kill, attempt, cluster)
        else:
            self._kill(attempt, cluster)

    def _preempt(self, attempt: Attempt, cluster: FaultyCluster, grace_s: float) -> None:
        """Its code saves its state and stops within the grace, or too late, or never; a worker that was asked twice is
        not asked again."""
        if not attempt.began or attempt.preempted:
            self._cancel(attempt, cluster)
            return
        attempt.preempted = True
        if not attempt.outcome.ignores_cancel:
            delay = attempt.rng.uniform(0.1, 1.5 * grace_s) if attempt.rng.random() < 0.5 else 0.1
            self.driver.after(delay, self._save_and_stop, attempt, cluster)

    def _save_and_stop(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if attempt.rng.random() < 0.8:
            self.save(attempt, cluster)
        cluster.end(attempt, "cancelled")

    def save(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        """Its code saves its state."""
        if not attempt.ended:
            attempt.saves += 1
            digest = f"{attempt.task.id}/{attempt.number}/{attempt.saves}"
            self.report(cluster, attempt, events.StateSaved(*attempt.key, digest))

    def _kill(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if not attempt.arrived:
            attempt.cancel_on_arrival = True
        else:
            cluster.end(attempt, "cancelled")

    # ---- reports of the clusters

    def on_arrival(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        """The gateway or the dashboard received a dispatch."""
        if attempt.ended or attempt.arrived:
            return
        attempt.arrived = True
        if attempt.cancel_on_arrival or (attempt.recall_on_arrival and not attempt.has_slot):
            cluster.end(attempt, "cancelled")
            return
        if self.driver.draw_fault(attempt.rng, 0.05):
            self.driver.record_fault(f"DispatchAccepted of {attempt.task.id}, attempt {attempt.number}, is not sent")
        else:
            self.report(cluster, attempt, events.DispatchAccepted(*attempt.key))
        if not attempt.has_slot and not (attempt.ahead == "overlap" and attempt.rng.random() < 0.4):
            cluster.gateway_queue.append(attempt)
            return
        attempt.overlapping = not attempt.has_slot
        cluster.submit(attempt)
        if attempt.recall_on_arrival:
            self._recall(attempt, cluster)

    def picks_other_node(self, attempt: Attempt) -> bool:
        """Does Ray choose another node than the machine reserved?"""
        return self.driver.draw_fault(attempt.rng, 0.1)

    def on_began(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        """Report the start, unless that report is lost, and schedule the end."""
        if not attempt.short and not self.driver.draw_fault(attempt.rng, 0.04):
            ready = attempt.rng.uniform(0.05, 1.0) if attempt.task.runs_actors else 0.0
            self.driver.after(ready, self._report_started, attempt, cluster)
        self.driver.after(attempt.outcome.run_s, cluster.end, attempt, attempt.outcome.how)
        if attempt.task.preemptible and attempt.rng.random() < 0.5:
            self.driver.after(attempt.rng.uniform(0, attempt.outcome.run_s), self.save, attempt, cluster)

    def _report_started(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        if not attempt.ended and not attempt.start_reported:
            attempt.start_reported = True
            self.report(cluster, attempt, events.Started(*attempt.key, self.driver.now, _node_id(attempt)))

    def on_ended(self, attempt: Attempt, cluster: FaultyCluster, how: EndKind) -> None:
        """Hand the slot over, then report the end; the end by a lease is not reported."""
        for queue in (cluster.gateway_queue, cluster.ray_queue):
            if attempt in queue:
                queue.remove(attempt)
        if how == "lease":
            return
        cluster.hand_over_slot(attempt)
        attempt.final_event = _final_event(attempt, how)
        self.report(cluster, attempt, attempt.final_event)

    def report(self, cluster: FaultyCluster, attempt: Attempt, event: events.Event) -> None:
        self.links[cluster.name].report(attempt, event)

    def mark_answered(self, event: events.AttemptFinished) -> bool:
        """Note a final event; False if the attempt had one before."""
        return self.unanswered.pop((event.task_id, event.attempt), None) is not None

    def fail_lost(self, attempts: Iterable[Attempt], sentence: str, code: str) -> None:
        """Feed the final events of attempts that no longer run and that no cluster will report."""
        for attempt in attempts:
            if self.unanswered.pop(attempt.key, None) is not None:
                attempt.ended = True
                cancelled = attempt.cancel_on_arrival and not attempt.arrived
                self.driver.feed(
                    events.AttemptFinished(*attempt.key, "cancelled")
                    if cancelled
                    else events.AttemptFinished(*attempt.key, "failed", FailureClass.CLUSTER, None, code, sentence)
                )


def _final_event(attempt: Attempt, how: EndKind) -> events.AttemptFinished:
    began_at = None if attempt.start_reported else attempt.started_at
    if how == "succeeded":
        return events.AttemptFinished(*attempt.key, "succeeded", took=attempt.outcome.run_s, started_at=began_at)
    if how == "cancelled":
        if attempt.preempted:
            return events.AttemptFinished(*attempt.key, "cancelled", code=codes.PREEMPTED, started_at=began_at)
        code = codes.KILLED if attempt.began else codes.RECALLED if attempt.recalled else ""
        return events.AttemptFinished(*attempt.key, "cancelled", code=code)
    failure, error, sentence = FailureClass.CRASH, None, f"its worker {how}"
    if how == "failed":
        failure, error, sentence = attempt.outcome.failure or FailureClass.USER, "ValueError", "it raised"
    return events.AttemptFinished(*attempt.key, "failed", failure, error, "", sentence, started_at=began_at)


def _node_id(attempt: Attempt) -> str | None:
    """The node that an attempt runs on; for a gang, one node per member, in their order."""
    if attempt.task.gang is None or not attempt.parts:
        return next(iter(attempt.parts), None)
    size = attempt.task.gang.members[0].requirements["CPU"]
    return " ".join(node for node, part in attempt.parts.items() for _ in range(round(part["CPU"] / size)))
