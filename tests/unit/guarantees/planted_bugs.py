"""Planted bugs, at least one per guarantee: machines and executors with one defect, and scenarios that expose it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.cluster.ledger import Ledger
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.lifecycle.admission import Admission
from ray_multicluster_scheduler.scheduler.lifecycle.attempts import Attempts
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.machine_state import MachineState
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import WideItemReservations
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.lifecycle.pool_quota import PoolQuota
from ray_multicluster_scheduler.scheduler.lifecycle.preemption import Preemption
from ray_multicluster_scheduler.scheduler.policy.filters.in_flight import InFlightFilter
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger
from ray_multicluster_scheduler.scheduler.queue.shape_group import QueueEntry, ShapeGroup
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FaultyCluster
from ray_multicluster_scheduler.simulation.faulty.faulty_executor import FaultyExecutor
from ray_multicluster_scheduler.simulation.faulty.faulty_link import FaultyLink
from ray_multicluster_scheduler.simulation.faulty.scenario import Scenario
from tests.unit.guarantees.scenarios import action, item, scenario, submit
from tests.unit.lifecycle.gangs import gang

Answer = list[out.Instruction]


@dataclass(frozen=True)
class PlantedBug:
    """``bug`` is a context manager that is active while the scenario is played."""

    property: str
    what: str
    scenario: Scenario
    make: Callable[..., SchedulerMachine] = SchedulerMachine
    executor: type[FaultyExecutor] = FaultyExecutor
    bug: Callable[[], AbstractContextManager[Any]] = nullcontext


# ---- defective machines


class CompletesTwice(SchedulerMachine):
    """An item that was cancelled is completed twice."""

    def handle(self, event: events.Event, now: float) -> Answer:
        answer = super().handle(event, now)
        again = [one for one in answer if isinstance(one, out.Complete) and one.state is TaskState.CANCELLED]
        return [*answer, *again]


class ReusesFences(SchedulerMachine):
    """A retry carries the fence of the attempt before."""

    def handle(self, event: events.Event, now: float) -> Answer:
        return [
            replace(one, fence=one.fence - 1) if isinstance(one, out.Dispatch) and one.attempt > 1 else one
            for one in super().handle(event, now)
        ]


class DispatchesBeforePersist(SchedulerMachine):
    """Dispatches come before the Persist instructions of the same answer."""

    def handle(self, event: events.Event, now: float) -> Answer:
        answer = super().handle(event, now)
        return sorted(answer, key=lambda one: not isinstance(one, out.Dispatch))


class IgnoresSnapshots(SchedulerMachine):
    """A snapshot is stored, but does not start a scheduling pass."""

    def handle(self, event: events.Event, now: float) -> Answer:
        if isinstance(event, events.SnapshotTaken):
            with patch.object(SchedulingPass, "run", lambda *_: None):
                return super().handle(event, now)
        return super().handle(event, now)


class DropsRemember(SchedulerMachine):
    """Changes of an item without a transition are never made durable."""

    def handle(self, event: events.Event, now: float) -> Answer:
        return [one for one in super().handle(event, now) if not isinstance(one, out.Remember)]


# ---- defective executors


class RunsRefusedDispatches(FaultyExecutor):
    """A dispatch is carried out and reported as refused."""

    def on_arrival(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        super().on_arrival(attempt, cluster)
        if attempt.number == 1:
            refusal = events.DispatchRefused(*attempt.key, FailureClass.CLUSTER, "NO", "it was not taken")
            self.driver.after(0.1, self.driver.feed, refusal)


class RunsWhatWasTakenBack(FaultyExecutor):
    """What was taken back from Ray begins when the head answers again: no worker asks the agent."""

    def _recall_from_ray(self, attempt: Attempt, cluster: FaultyCluster) -> None:
        super()._recall_from_ray(attempt, cluster)
        if attempt.recalled:
            attempt.ended = False
            cluster.ray_queue.append(attempt)


# ---- patches of single methods


def _newest_first(group: ShapeGroup) -> QueueEntry:
    return max(group.entries())


def _halve(reserve: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Ledger, task_id: str, parts: Any, now: float, **given: Any) -> None:
        halves = {node: {name: amount / 2 for name, amount in part.items()} for node, part in parts.items()}
        reserve(self, task_id, halves, now, **given)

    return wrong


def _wrong_reason(why: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SchedulingPass, record: Any, now: float, views: Any = None) -> Any:
        decision = why(self, record, now, views)
        return decision if decision is None else replace(decision, code="CORDONED", sentence="a: it is cordoned")

    return wrong


def _keeps_empty_reservations(drop: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Ledger, task_id: str, now: float) -> None:
        reservation = self.reservations.get(task_id)
        if reservation is None or reservation.parts:
            drop(self, task_id, now)

    return wrong


def _counts_user_errors(judge: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Attempts, record: Any, failure: FailureClass | None, *more: Any) -> None:
        judge(self, record, FailureClass.CLUSTER if failure is FailureClass.USER else failure, *more)

    return wrong


def _drops_saved(dispatch: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: MachineState, record: Any, *more: Any, **given: Any) -> None:
        saved, record.saved = record.saved, None
        dispatch(self, record, *more, **given)
        record.saved = saved

    return wrong


def _ignores_min_runtime(running: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: Preemption) -> Any:
        return (replace(one, min_runtime_s=0.0) for one in running(self))

    return wrong


def _does_not_book(self: Preemption, record: Any) -> None:
    self._machine.rooms[record.task.id] = record.room


def _stops_for_nobody(self: Preemption, record: Any, plan: Any, now: float) -> None:
    for victim in plan.victims:
        self.stop(self._machine.records[victim.id], f"gives way to {record.task.id}", now)


def _uses_a_retry(self: Attempts, record: Any, ending: Any, cluster: str, now: float) -> None:
    del cluster
    self._failed(record, FailureClass.CRASH, None, "", ending.sentence, now, refused=False)


# ---- scenarios that expose them

SIX_NODES = {"a": {f"a{number}": {"CPU": 4.0} for number in range(6)}}


def _stream(seconds: int) -> list[Any]:
    """A continuous stream of small tasks, and two wide items shortly after it begins."""
    small = [one for at in range(seconds) for one in submit(at + 0.5, *(item(f"s{at}.{k}", 2, 4.0) for k in range(2)))]
    wide = submit(4.9, item("wide", 8, 1.0), gang("gang", 4, 4, strategy="PACK"))
    return [*small, *wide]


STREAM = scenario(_stream(120), reserve_after_s=5)

GIVES_WAY = scenario(
    submit(1, *(item(f"low{number}", 4, 20.0, preemptible=True, crash_retries=3) for number in range(2)))
    + submit(4, item("urgent", 8, 2.0, priority=9))
    + submit(5, item("small", 4, 2.0, priority=9)),
)
"""Two items give way to a wide one, at different times; later a small one comes."""

PLANTED = [
    PlantedBug(
        "every_accepted_task_reaches_exactly_one_terminal_state",
        "a cancelled item is completed twice",
        scenario(submit(1, item("t1"), item("t2")), [action(1.1, "cancel", "t2", False)]),
        make=CompletesTwice,
    ),
    PlantedBug(
        "at_most_one_live_attempt",
        "a retry does not wait for what may still run on the nodes of a restarted cluster",
        scenario(
            submit(1, *(item(f"t{number}", 4, 60.0) for number in range(6))),
            [action(5, "kill_cluster", "a", 0.5)],
            SIX_NODES,
            breaker_failures=100,
        ),
        bug=lambda: patch.object(Attempts, "_grace_s", lambda *_: 0.0),
    ),
    PlantedBug(
        "at_most_one_live_attempt",
        "processes count as dead as soon as the agent is",
        scenario(
            submit(1, *(item(f"t{number}", 4, 60.0) for number in range(6))),
            [action(12, "kill_cluster", "a", 100.0)],
            {**SIX_NODES, "b": {f"b{number}": {"CPU": 4.0} for number in range(6)}},
            breaker_failures=100,
        ),
        bug=lambda: patch.object(FaultyLink, "workers_are_dead", lambda *_: True),
    ),
    PlantedBug(
        "at_most_one_live_attempt",
        "the executor carries out dispatches that it refuses",
        scenario(submit(1, item("t1", 1, 9.0))),
        executor=RunsRefusedDispatches,
    ),
    PlantedBug(
        "at_most_one_live_attempt",
        "an attempt that was taken back from a silent head begins later",
        scenario(
            submit(1, item("first", preferred_cluster="a")) + submit(6, item("t1", 1, 30.0, preferred_cluster="a")),
            [action(5, "silence_head", "a", 20.0), action(30, "dump_state")],
            {"a": {"a0": {"CPU": 8.0}}, "b": {"b0": {"CPU": 8.0}}},
        ),
        executor=RunsWhatWasTakenBack,
    ),
    PlantedBug(
        "fences_only_grow",
        "a retry carries an old fence",
        scenario(submit(1, item("t1", function_digest="fails", retries=2))),
        make=ReusesFences,
    ),
    PlantedBug(
        "reservations_never_exceed_capacity",
        "half of each reservation is booked",
        scenario(submit(1, *(item(f"t{number}", 4, 5.0) for number in range(4)))),
        bug=lambda: patch.object(Ledger, "reserve", _halve(Ledger.reserve)),
    ),
    PlantedBug(
        "rules_never_broken",
        "max_in_flight is ignored",
        scenario(submit(1, *(item(f"t{number}") for number in range(5))), clusters={"a": {"max_in_flight": 2}}),
        bug=lambda: patch.object(InFlightFilter, "check", lambda *_: None),
    ),
    PlantedBug(
        "quota_never_exceeded",
        "a pool borrows although its cohort has nothing to lend",
        scenario(
            submit(1, *(item(f"t{number}", pool="p") for number in range(5))),
            pools=[Pool(name="p", quota={"CPU": 2.0}, cohort="c"), Pool(name="q", quota={"CPU": 1.0}, cohort="c")],
        ),
        bug=lambda: patch.object(QuotaLedger, "_available", lambda *_: 100_000),
    ),
    PlantedBug(
        "only_preemptible_items_give_way",
        "an item that is not preemptible is a victim",
        scenario(submit(1, item("low", 8, 20.0)) + submit(4, item("urgent", 8, 2.0, priority=9))),
        bug=lambda: patch.object(PoolQuota, "is_preemptible", lambda *_: True),
    ),
    PlantedBug(
        "only_preemptible_items_give_way",
        "the min_runtime_s of items is ignored",
        scenario(
            submit(1, item("low", 8, 20.0, preemptible=True, min_runtime_s=10.0))
            + submit(4, item("urgent", 8, 2.0, priority=9))
        ),
        bug=lambda: patch.object(Preemption, "running_items", _ignores_min_runtime(Preemption.running_items)),
    ),
    PlantedBug(
        "nothing_is_stopped_for_nobody",
        "victims are stopped without a newcomer",
        GIVES_WAY,
        bug=lambda: patch.object(Preemption, "_carry_out", _stops_for_nobody),
    ),
    PlantedBug(
        "nothing_is_stopped_for_nobody",
        "the room is never given back",
        scenario(
            submit(1, item("low", 8, 60.0, preemptible=True)) + submit(4, item("urgent", 8, 2.0, priority=9)),
            [action(4.5, "cordon", "a", 50.0), action(60, "dump_state")],
        ),
        bug=lambda: patch.object(Preemption, "room_unused", lambda *_: None),
    ),
    PlantedBug(
        "freed_room_is_kept",
        "the room is not booked for the newcomer",
        GIVES_WAY,
        bug=lambda: patch.multiple(Preemption, _book=_does_not_book, views_for=lambda _self, _record, views: views),
    ),
    PlantedBug(
        "a_preemption_uses_no_retry",
        "a victim is retried as if it had crashed",
        GIVES_WAY,
        bug=lambda: patch.object(Attempts, "_preempted", _uses_a_retry),
    ),
    PlantedBug(
        "saved_state_arrives",
        "an attempt gets no saved state",
        GIVES_WAY,
        bug=lambda: patch.object(MachineState, "dispatch", _drops_saved(MachineState.dispatch)),
    ),
    PlantedBug(
        "order",
        "the newest item is placed first",
        scenario(submit(1, *(item(f"t{number}", 8) for number in range(4)))),
        bug=lambda: patch.object(ShapeGroup, "head", _newest_first),
    ),
    PlantedBug(
        "no_starvation",
        "no node is ever reserved for a wide item",
        STREAM,
        bug=lambda: patch.object(WideItemReservations, "_reserve", lambda *_: None),
    ),
    PlantedBug(
        "every_waiting_task_has_a_true_reason",
        "every waiting item is explained by a cordon",
        scenario(submit(1, *(item(f"t{number}", 8, 9.0) for number in range(3))), [action(5, "dump_state")]),
        bug=lambda: patch.object(SchedulingPass, "explain_wait", _wrong_reason(SchedulingPass.explain_wait)),
    ),
    PlantedBug(
        "idle_fleet_starts_at_once",
        "a snapshot starts no scheduling pass",
        scenario(submit(1, item("t1"))),
        make=IgnoresSnapshots,
    ),
    PlantedBug(
        "rebuild_equals_live",
        "an attempt is dispatched before it is persisted",
        scenario(submit(1, item("t1"))),
        make=DispatchesBeforePersist,
    ),
    PlantedBug(
        "rebuild_equals_live",
        "a change of priority is not persisted",
        scenario(
            submit(1, item("t1", 8, 9.0), item("t2", 8)), [action(3, "set_priority", "t1", 5), action(4, "dump_state")]
        ),
        make=DropsRemember,
    ),
    PlantedBug(
        "nothing_is_left",
        "an empty reservation is never released",
        scenario(submit(1, item("t1", 0))),
        bug=lambda: patch.object(Ledger, "_drop", _keeps_empty_reservations(Ledger._drop)),
    ),
    PlantedBug(
        "cancelled_work_does_not_go_on",
        "a running attempt is not cancelled",
        scenario(submit(1, item("t1", 1, 9.0)), [action(5, "cancel", "t1", False)]),
        bug=lambda: patch.object(Admission, "_cancel_attempt", lambda *_: None),
    ),
    PlantedBug(
        "user_errors_never_open_a_breaker",
        "exceptions of user code count as failures of the cluster",
        scenario(
            submit(1, item("t1", function_digest="fails"), item("t2", function_digest="fails")),
            [action(6, "dump_state")],
            breaker_failures=2,
        ),
        bug=lambda: patch.object(Attempts, "_update_breaker", _counts_user_errors(Attempts._update_breaker)),
    ),
]
