"""Invariants of preemption: who gives way, for whom, and what becomes of the room, the victims and their saved state.
The checker tests them on the history of a simulated run."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.events import AttemptFinished, CancelRequested, StateSaved
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Dispatch, Persist, Remember, Transition
from ray_multicluster_scheduler.simulation.checker.history_state import HistoryState, ItemState
from ray_multicluster_scheduler.simulation.checker.property import Entry, StateProperty, is_new_attempt
from ray_multicluster_scheduler.simulation.history import ControlPlaneRestarted, NodesChanged

_FREES_ROOM, _PREEMPTED = "FREES_ROOM", "PREEMPTED"
_START_WITHIN_S = 25.0
"""Longer than a newcomer may keep the room after the last victim has left."""
_ROUNDING = 1e-3


def _gives_way(step: Transition, state: HistoryState) -> ItemState | None:
    """The running item that is preempted by this transition."""
    item = state.items.get(step.task_id)
    begins = step.state is TaskState.PREEMPTING and step.code == _PREEMPTED
    return item if item is not None and begins and item.state is TaskState.RUNNING else None


class OnlyPreemptibleItemsGiveWay(StateProperty):
    """By the item and its pool, as they are at that moment."""

    name = "only_preemptible_items_give_way"
    sentence = "No item is preempted that is not preemptible, in a protected pool, or has not run its `min_runtime_s`."

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is not Persist:
            return
        item = _gives_way(entry.content.transition, state)
        if item is None:
            return
        task, pool = item.task, state.pools.get(item.task.pool or "")
        least = state.settings.preemption.min_runtime_s if task.min_runtime_s is None else task.min_runtime_s
        preemptible = (pool is not None and pool.preemptible) if task.preemptible is None else task.preemptible
        if pool is not None and pool.protected:
            self.report(entry, f"{task.id} is preempted, and its pool {pool.name} is protected")
        elif not preemptible:
            self.report(entry, f"{task.id} is preempted, and is not preemptible")
        elif entry.at - item.started_at < least - _ROUNDING:
            self.report(entry, f"{task.id} is preempted after {entry.at - item.started_at:g} s of at least {least:g} s")


@dataclass(slots=True)
class _Plan:
    """Room that is freed for a newcomer: what is known of it."""

    place: str
    victims: dict[str, int] = field(default_factory=dict)
    """The victims that have not left, with their attempts."""
    since: float = -inf
    """When the last victim left, or the control plane restarted after that."""
    is_uncertain: bool = False
    """Its nodes changed, or something started there, maybe on another node than the scheduler expected."""


class _PlanProperty(StateProperty):
    """Keeps the plans whose newcomers have neither started nor given the room back."""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[str, _Plan] = {}
        self._newcomer: str | None = None
        """The newcomer for whom the next victims of this answer give way."""

    def _update(self, entry: Entry, state: HistoryState) -> _Plan | None:
        """Apply a line. Returns the plan of a newcomer that no longer waits for its room."""
        content, ended = entry.content, None
        if type(content) is Persist:
            ended = self._apply(entry, content.transition, state)
            if content.transition.state is TaskState.RUNNING:
                self._make_uncertain(content.transition.cluster or "")
        elif type(content) is ControlPlaneRestarted:
            for plan in self._plans.values():
                plan.since = entry.at
        elif type(content) is NodesChanged:
            self._make_uncertain(content.cluster)
        elif type(content).__module__.endswith(".events"):
            self._newcomer = None
        return ended

    def _make_uncertain(self, cluster: str) -> None:
        for plan in self._plans.values():
            plan.is_uncertain |= plan.place == cluster

    def _apply(self, entry: Entry, step: Transition, state: HistoryState) -> _Plan | None:
        ended = self._plans.pop(step.task_id, None)
        if step.code == _FREES_ROOM:
            self._newcomer = step.task_id
            self._plans[step.task_id] = _Plan(step.sentence.split()[-3], since=entry.at)
        if self._newcomer is not None and _gives_way(step, state):
            self._plans[self._newcomer].victims[step.task_id] = step.attempt
        if step.state not in (TaskState.PREEMPTING, TaskState.LOST):
            for plan in self._plans.values():
                if plan.victims.pop(step.task_id, None) is not None:
                    plan.since = entry.at
        return ended


class NothingIsStoppedForNobody(_PlanProperty):
    """A newcomer that cannot start gives the room back in bounded time, counted anew after a restart."""

    name = "nothing_is_stopped_for_nobody"
    sentence = (
        "Nothing is preempted without a newcomer that starts once the victims have left, or gives the room back soon."
    )

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        plan = self._update(entry, state)
        if type(entry.content) is not Persist:
            return
        step = entry.content.transition
        if self._newcomer is None and _gives_way(step, state):
            self.report(entry, f"{step.task_id} is preempted for nobody")
        if plan is not None and not plan.victims and entry.at > plan.since + _START_WITHIN_S:
            self.report(entry, f"{step.task_id} kept its room unused for {entry.at - plan.since:g} s")


class FreedRoomIsKept(_PlanProperty):
    """By the sums over a cluster: what is surely used there, without the victims, and the newcomer. Only while nothing
    has started there since the plan, and its nodes are as they were."""

    name = "freed_room_is_kept"
    sentence = "Until a newcomer starts, no other item is placed on the room that its victims leave."

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        if type(entry.content) is Persist and is_new_attempt(entry.content, state):
            self._check(entry, entry.content.transition, state)
        self._update(entry, state)

    def _check(self, entry: Entry, step: Transition, state: HistoryState) -> None:
        cluster = state.clusters.get(step.cluster or "")
        if cluster is None or step.code == "SENT_AHEAD" or not cluster.totals():
            return
        other = state.items[step.task_id].task.placement
        for newcomer, plan in self._plans.items():
            if plan.place != cluster.name or plan.is_uncertain or newcomer == step.task_id:
                continue
            for name, amount in state.items[newcomer].task.placement.items():
                total = sum(node.get(name, 0.0) for node in cluster.totals().values())
                leaving = [cluster.live[one].held_resources for one in plan.victims if one in cluster.live]
                used = cluster.min_own_usage(name) - sum(held.get(name, 0.0) for held in leaving)
                if other.get(name, 0.0) > 0 and used + amount + other[name] > total + _ROUNDING:
                    self.report(entry, f"{step.task_id} takes {name} on {cluster.name} that is freed for {newcomer}")


class APreemptionUsesNoRetry(StateProperty):
    """By the state that a victim gets when it has stopped, unless it was cancelled."""

    name = "a_preemption_uses_no_retry"
    sentence = "A victim that has stopped waits in the queue again, whatever its retries are, and resumes."

    def __init__(self) -> None:
        super().__init__()
        self._cancelled: set[str] = set()
        self._stopped: set[str] = set()

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        match entry.content:
            case CancelRequested(task_id=task_id):
                self._cancelled.add(task_id)
            case AttemptFinished(task_id=task_id, attempt=attempt, status="cancelled"):
                item = state.items.get(task_id)
                stopping = item is not None and item.live and item.state is TaskState.PREEMPTING
                if item is not None and stopping and item.attempt == attempt and task_id not in self._cancelled:
                    self._stopped.add(task_id)
            case ControlPlaneRestarted():
                self._stopped.clear()
            case Persist(transition=step) if step.task_id in self._stopped:
                self._stopped.discard(step.task_id)
                if step.state is not TaskState.QUEUED:
                    self.report(entry, f"{step.task_id} gave way, and is {step.state} instead of QUEUED")


class SavedStateArrives(StateProperty):
    """By the digests: what an attempt gets is what was saved last, as far as that was persisted before a crash."""

    name = "saved_state_arrives"
    sentence = "Each attempt gets the state that an earlier attempt of its item saved last."

    def __init__(self) -> None:
        super().__init__()
        self._saved: dict[str, str] = {}
        self._new: dict[str, str] = {}
        """What was saved, and is not known to be durable."""

    def before_line(self, entry: Entry, state: HistoryState) -> None:
        match entry.content:
            case StateSaved(task_id=task_id, attempt=attempt, digest=digest):
                item = state.items.get(task_id)
                if item is not None and item.live and item.attempt == attempt:
                    self._new[task_id] = digest
            case Remember(task_id=task_id) if task_id in self._new:
                self._saved[task_id] = self._new.pop(task_id)
            case Dispatch(task_id=task_id, saved=saved):
                if saved != self._saved.get(task_id) and (saved is None or saved != self._new.get(task_id)):
                    expected = self._saved.get(task_id)
                    self.report(entry, f"{task_id} gets the saved state {saved} instead of {expected}")
