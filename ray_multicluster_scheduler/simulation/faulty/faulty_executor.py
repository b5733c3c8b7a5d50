"""Hands: carry out what the machine says, over ways on which messages are lost, late, repeated and out of order.

What they promise is what the real ones promise (connection/links/cluster_link.py): every attempt that was dispatched is
answered in the end, and not before nothing of it runs. Everything else may go wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from ray_multicluster_scheduler.common.model import FailureClass, TaskDescription
from ray_multicluster_scheduler.scheduler.lifecycle import codes, events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FarCluster, Key, fate_of
from ray_multicluster_scheduler.simulation.faulty.faulty_link import Link
from ray_multicluster_scheduler.simulation.faulty.machine_driver import Desk
from ray_multicluster_scheduler.simulation.history import EndKind, Parts

POLITE_S = 3.0
"""After this, what was politely asked to end is killed."""


class Hands:
    """Of all clusters. ``describe`` finds the item of an id, ``plan`` where the machine's books have an attempt."""

    def __init__(
        self, desk: Desk, seed: int, describe: Callable[[str], TaskDescription], plan: Callable[[str, str], Parts]
    ) -> None:
        self.desk, self._seed, self._describe, self.plan = desk, seed, describe, plan
        self.clusters: dict[str, FarCluster] = {}
        self.links: dict[str, Link] = {}
        self.attempts: dict[Key, Attempt] = {}
        """Those that still have to be answered."""
        self.known: dict[Key, Attempt] = {}
        """All that were ever dispatched."""
        self.refusing: set[str] = set()
        desk.carry_out = self.carry_out

    def stream(self, name: str) -> Random:
        return Random(f"{self._seed} {name}")  # nosec B311 # a seed is to give the same again

    def add(self, cluster: FarCluster, link: Link) -> None:
        self.clusters[cluster.name], self.links[cluster.name] = cluster, link

    def on(self, cluster: str, *, jobs: bool) -> list[Attempt]:
        """What is still to be answered there."""
        return [one for one in self.attempts.values() if one.cluster == cluster and one.is_job == jobs]

    # ---- what the machine says

    def carry_out(self, one: out.Instruction) -> None:
        match one:
            case out.Dispatch(again=True) | out.AdoptAttempt():
                self._ask_again(one)
            case out.Dispatch():
                self._dispatch(one)
            case out.StartAttempt():
                self._at_attempt(one.task_id, one.attempt, self.start)
            case out.RecallAttempt():
                self._at_attempt(one.task_id, one.attempt, self._recall)
            case out.CancelAttempt():
                self._at_attempt(one.task_id, one.attempt, self._kill if one.force else self._cancel)
            case out.RefreshSnapshot():
                self.links[one.cluster].refresh()
            case out.CheckDashboard():
                self.links[one.cluster].check_dashboard()
            case _:
                pass

    def _dispatch(self, order: out.Dispatch) -> None:
        task = self._describe(order.task_id)
        chance = self.stream(f"{order.task_id}/{order.attempt}")
        one = Attempt(task, order.attempt, order.fence, order.cluster, chance, fate_of(task, chance), order.ahead)
        one.short, one.has_place = order.short, not order.ahead
        one.planned = self.plan(task.id, order.cluster)
        self.attempts[one.key] = self.known[one.key] = one
        if order.cluster in self.refusing or self.desk.suffers(chance, 0.015):
            self._refuse(one, chance)
        elif one.is_job:
            self.links[order.cluster].post_job(one)
        else:
            self.links[order.cluster].submit(one)

    def _ask_again(self, order: out.Dispatch | out.AdoptAttempt) -> None:
        """By a control plane that came back: what is known of the attempt, on its way or over there, is told again."""
        key = order.task_id, order.attempt
        one = self.known.get(key)
        if one is None and isinstance(order, out.Dispatch):
            self._dispatch(order)  # the one before died before it sent it
        elif one is None:
            lost = events.AttemptFinished(*key, "failed", FailureClass.CLUSTER, None, "UNKNOWN", "nobody knows it")
            self.desk.after(0.1, self.desk.feed, lost)
        elif isinstance(one.answer, events.DispatchRefused):
            self.desk.after(0.1, self.desk.feed, one.answer)
        else:
            self.attempts[key] = one
            self.links[one.cluster].order(one, self._say_again)

    def _say_again(self, one: Attempt, cluster: FarCluster) -> None:
        if not one.arrived:
            return  # it is still on its way
        if one.moved is not None:
            self.tell(cluster, one, one.moved)
        if one.answer is not None:
            self.tell(cluster, one, one.answer)
            return
        self.tell(cluster, one, events.DispatchAccepted(*one.key))
        if one.begun and not one.short:
            one.told_start = False
            self._say_started(one, cluster)

    def _refuse(self, one: Attempt, chance: Random) -> None:
        self.desk.fault(f"the dispatch of {one.task.id}, attempt {one.number}, was refused")
        failure = FailureClass.CLUSTER if chance.random() < 0.8 else FailureClass.PERMANENT
        self.refuse(one, failure, "REFUSED", "it was not taken", chance.uniform(0, 0.3))

    def refuse(self, one: Attempt, failure: FailureClass, code: str, sentence: str, delay: float = 0.0) -> None:
        """It did not and will not run; that is told after a while."""
        one.over = True
        one.answer = events.DispatchRefused(*one.key, failure, code, sentence)
        self.desk.after(delay, self._say_refused, one, one.answer, self.desk.epoch)

    def _say_refused(self, one: Attempt, refusal: events.DispatchRefused, epoch: int) -> None:
        if epoch == self.desk.epoch and self.attempts.pop(one.key, None) is not None:
            self.desk.feed(refusal)

    def _at_attempt(self, task_id: str, number: int, deed: Callable[[Attempt, FarCluster], None]) -> None:
        """Orders travel as calls do, and are kept until they get there."""
        one = self.attempts.get((task_id, number))
        if one is not None:
            self.links[one.cluster].order(one, deed)

    def start(self, one: Attempt, cluster: FarCluster) -> None:
        cluster.start(one, self.plan(one.task.id, cluster.name))

    def _recall(self, one: Attempt, cluster: FarCluster) -> None:
        if not one.arrived:
            one.to_recall = True
        elif one in cluster.at_gateway:
            cluster.at_gateway.remove(one)
            cluster.end(one, "cancelled")

    def _cancel(self, one: Attempt, cluster: FarCluster) -> None:
        if one.begun and one.fate.is_stubborn:
            self.desk.after(POLITE_S, self._kill, one, cluster)
        else:
            self._kill(one, cluster)

    def _kill(self, one: Attempt, cluster: FarCluster) -> None:
        if not one.arrived:
            one.to_cancel = True
        else:
            cluster.end(one, "cancelled")

    # ---- what clusters say

    def arrive(self, one: Attempt, cluster: FarCluster) -> None:
        """The gateway, or the dashboard, has it."""
        if one.over or one.arrived:
            return
        one.arrived = True
        if one.to_cancel or (one.to_recall and not one.has_place):
            cluster.end(one, "cancelled")
            return
        if self.desk.suffers(one.chance, 0.05):
            self.desk.fault(f"that {one.task.id}, attempt {one.number}, was accepted is not told")
        else:
            self.tell(cluster, one, events.DispatchAccepted(*one.key))
        if not one.has_place and not (one.ahead == "overlap" and one.chance.random() < 0.4):
            cluster.at_gateway.append(one)
            return
        one.early = not one.has_place
        cluster.submit(one)

    def prefers_another(self, one: Attempt) -> bool:
        """Does Ray choose another node than we expected?"""
        return self.desk.suffers(one.chance, 0.1)

    def began(self, one: Attempt, cluster: FarCluster) -> None:
        """Whatever was told of it, it runs and will end."""
        if not one.short and not self.desk.suffers(one.chance, 0.04):
            ready = one.chance.uniform(0.05, 1.0) if one.task.serves else 0.0
            self.desk.after(ready, self._say_started, one, cluster)
        self.desk.after(one.fate.runs_s, self._run_out, one, cluster)

    def _say_started(self, one: Attempt, cluster: FarCluster) -> None:
        if not one.over and not one.told_start:
            one.told_start = True
            self.tell(cluster, one, events.Started(*one.key, self.desk.now, _node_of(one)))

    def _run_out(self, one: Attempt, cluster: FarCluster) -> None:
        cluster.end(one, one.fate.how)

    def ended(self, one: Attempt, cluster: FarCluster, how: EndKind) -> None:
        """Whose place it had is told before its end."""
        if one in cluster.at_gateway:
            cluster.at_gateway.remove(one)
        if one in cluster.in_ray:
            cluster.in_ray.remove(one)
        if how == "lease":
            return  # nobody is there to tell it
        cluster.pass_on(one)
        one.answer = _end_of(one, how)
        self.tell(cluster, one, one.answer)

    def tell(self, cluster: FarCluster, one: Attempt, event: events.Event) -> None:
        self.links[cluster.name].tell(one, event)

    def answered(self, event: events.AttemptFinished) -> bool:
        """Was this the first answer?"""
        return self.attempts.pop((event.task_id, event.attempt), None) is not None

    def declare_dead(self, some: Iterable[Attempt], sentence: str, *, restarted: bool = False) -> None:
        """Nothing of these runs any more, and nobody over there will say so."""
        code = codes.CLUSTER_RESTARTED if restarted else "CLUSTER_LOST"
        for one in some:
            if self.attempts.pop(one.key, None) is not None:
                one.over = True
                cancelled = one.to_cancel and not one.arrived
                self.desk.feed(
                    events.AttemptFinished(*one.key, "cancelled")
                    if cancelled
                    else events.AttemptFinished(
                        *one.key, "failed", FailureClass.CLUSTER, None, code, sentence, started_at=None
                    )
                )


def _end_of(one: Attempt, how: EndKind) -> events.AttemptFinished:
    began = None if one.told_start else one.started_at
    match how:
        case "succeeded":
            return events.AttemptFinished(*one.key, "succeeded", took=one.fate.runs_s, started_at=began)
        case "cancelled":
            return events.AttemptFinished(*one.key, "cancelled", code=codes.KILLED if one.begun else "")
        case "failed":
            failure = one.fate.failure or FailureClass.USER
            return events.AttemptFinished(*one.key, "failed", failure, "ValueError", "", "it raised", started_at=began)
    return events.AttemptFinished(
        *one.key, "failed", FailureClass.CRASH, None, "", f"its worker {how}", started_at=began
    )


def _node_of(one: Attempt) -> str | None:
    """Of a gang, the nodes of its members in their order."""
    if one.task.gang is None or not one.parts:
        return next(iter(one.parts), None)
    size = one.task.gang.members[0].requirements["CPU"]
    return " ".join(node for node, part in one.parts.items() for _ in range(round(part["CPU"] / size)))
