"""Planted bugs, at least one per guarantee: machines and hands with one fault, and runs in which it matters."""

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
from ray_multicluster_scheduler.scheduler.lifecycle.placement.reservation import KeptRoom
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import SchedulingPass
from ray_multicluster_scheduler.scheduler.policy.filters.in_flight import InFlightFilter
from ray_multicluster_scheduler.scheduler.queue.shape_group import Head, ShapeGroup
from ray_multicluster_scheduler.simulation.faulty.faulty_cluster import Attempt, FarCluster
from ray_multicluster_scheduler.simulation.faulty.faulty_executor import Hands
from ray_multicluster_scheduler.simulation.faulty.scenario import Script
from tests.unit.guarantees.scripts import deed, item, script, submit
from tests.unit.lifecycle.gangs import gang

Answer = list[out.Instruction]


@dataclass(frozen=True)
class Planted:
    """``bug`` is in force while the run is played."""

    property: str
    what: str
    play: Script
    make: Callable[..., SchedulerMachine] = SchedulerMachine
    hands: type[Hands] = Hands
    bug: Callable[[], AbstractContextManager[Any]] = nullcontext


# ---- machines that answer wrongly


class SaysItTwice(SchedulerMachine):
    """An item that was cancelled is completed twice."""

    def handle(self, event: events.Event, now: float) -> Answer:
        answer = super().handle(event, now)
        again = [one for one in answer if isinstance(one, out.Complete) and one.state is TaskState.CANCELLED]
        return [*answer, *again]


class UsesOldFences(SchedulerMachine):
    """A retry carries the fence of the attempt before."""

    def handle(self, event: events.Event, now: float) -> Answer:
        return [
            replace(one, fence=one.fence - 1) if isinstance(one, out.Dispatch) and one.attempt > 1 else one
            for one in super().handle(event, now)
        ]


class ActsBeforeItWrites(SchedulerMachine):
    """What is sent is persisted a moment later."""

    def handle(self, event: events.Event, now: float) -> Answer:
        answer = super().handle(event, now)
        return sorted(answer, key=lambda one: not isinstance(one, out.Dispatch))


class SleepsThroughSnapshots(SchedulerMachine):
    """EventPublisher of what is free is noted, but nobody who waits is looked at until something else happens."""

    def handle(self, event: events.Event, now: float) -> Answer:
        if isinstance(event, events.SnapshotTaken):
            with patch.object(SchedulingPass, "run", lambda *_: None):
                return super().handle(event, now)
        return super().handle(event, now)


class RemembersNothing(SchedulerMachine):
    """What changes of an item without a step is never made durable."""

    def handle(self, event: events.Event, now: float) -> Answer:
        return [one for one in super().handle(event, now) if not isinstance(one, out.Remember)]


# ---- hands that do the wrong thing


class SaysNoAndDoesIt(Hands):
    """A dispatch is carried out, and said to be refused."""

    def arrive(self, one: Attempt, cluster: FarCluster) -> None:
        super().arrive(one, cluster)
        if one.number == 1:
            refusal = events.DispatchRefused(*one.key, FailureClass.CLUSTER, "NO", "it was not taken")
            self.desk.after(0.1, self.desk.feed, refusal)


# ---- parts that do the wrong thing


def _newest_first(group: ShapeGroup) -> Head:
    return max(group.entries())


def _half(reserve: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Ledger, task_id: str, parts: Any, now: float, **given: Any) -> None:
        halves = {node: {name: amount / 2 for name, amount in part.items()} for node, part in parts.items()}
        reserve(self, task_id, halves, now, **given)

    return wrong


def _wrong_reason(why: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(self: SchedulingPass, record: Any, now: float, views: Any = None) -> Any:
        decision = why(self, record, now, views)
        return decision if decision is None else replace(decision, code="CORDONED", sentence="a: it is cordoned")

    return wrong


def _keeps_empty(drop: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Ledger, task_id: str, now: float) -> None:
        reservation = self.reservations.get(task_id)
        if reservation is None or reservation.parts:
            drop(self, task_id, now)

    return wrong


def _blames_the_cluster(judge: Callable[..., None]) -> Callable[..., None]:
    def wrong(self: Attempts, record: Any, failure: FailureClass | None, *more: Any) -> None:
        judge(self, record, FailureClass.CLUSTER if failure is FailureClass.USER else failure, *more)

    return wrong


# ---- runs in which it matters

SIX_NODES = {"a": {f"a{number}": {"CPU": 4.0} for number in range(6)}}


def _stream(seconds: int) -> list[Any]:
    """Small tasks without end, and two wide items behind the first of them."""
    small = [one for at in range(seconds) for one in submit(at + 0.5, *(item(f"s{at}.{k}", 2, 4.0) for k in range(2)))]
    wide = submit(4.9, item("wide", 8, 1.0), gang("gang", 4, 4, strategy="PACK"))
    return [*small, *wide]


STREAM = script(_stream(120), reserve_after_s=5)

PLANTED = [
    Planted(
        "every_accepted_task_reaches_exactly_one_terminal_state",
        "the owner of a cancelled item is told twice",
        script(submit(1, item("t1"), item("t2")), [deed(1.1, "cancel", "t2", False)]),
        make=SaysItTwice,
    ),
    Planted(
        "at_most_one_live_attempt",
        "what may still run on the nodes of a cluster that restarted is not waited for",
        script(
            submit(1, *(item(f"t{number}", 4, 60.0) for number in range(6))),
            [deed(5, "die", "a", 0.5)],
            SIX_NODES,
            breaker_failures=100,
        ),
        bug=lambda: patch.object(Attempts, "_grace_s", lambda *_: 0.0),
    ),
    Planted(
        "at_most_one_live_attempt",
        "hands carry out what they say they refused",
        script(submit(1, item("t1", 1, 9.0))),
        hands=SaysNoAndDoesIt,
    ),
    Planted(
        "fences_only_grow",
        "a retry carries an old fence",
        script(submit(1, item("t1", function_digest="fails", retries=2))),
        make=UsesOldFences,
    ),
    Planted(
        "reservations_never_exceed_capacity",
        "half of what is taken is booked",
        script(submit(1, *(item(f"t{number}", 4, 5.0) for number in range(4)))),
        bug=lambda: patch.object(Ledger, "reserve", _half(Ledger.reserve)),
    ),
    Planted(
        "rules_never_broken",
        "max_in_flight is not looked at",
        script(submit(1, *(item(f"t{number}") for number in range(5))), clusters={"a": {"max_in_flight": 2}}),
        bug=lambda: patch.object(InFlightFilter, "check", lambda *_: None),
    ),
    Planted(
        "order",
        "the last one comes first",
        script(submit(1, *(item(f"t{number}", 8) for number in range(4)))),
        bug=lambda: patch.object(ShapeGroup, "head", _newest_first),
    ),
    Planted(
        "no_starvation",
        "no room is ever kept",
        STREAM,
        bug=lambda: patch.object(KeptRoom, "_pin", lambda *_: None),
    ),
    Planted(
        "every_waiting_task_has_a_true_reason",
        "whoever waits is told of a cordon",
        script(submit(1, *(item(f"t{number}", 8, 9.0) for number in range(3))), [deed(5, "look")]),
        bug=lambda: patch.object(SchedulingPass, "why", _wrong_reason(SchedulingPass.why)),
    ),
    Planted(
        "idle_fleet_starts_at_once",
        "who waits is not looked at when a snapshot comes",
        script(submit(1, item("t1"))),
        make=SleepsThroughSnapshots,
    ),
    Planted(
        "rebuild_equals_live",
        "an attempt is sent before that is durable",
        script(submit(1, item("t1"))),
        make=ActsBeforeItWrites,
    ),
    Planted(
        "rebuild_equals_live",
        "a change of priority is not remembered",
        script(submit(1, item("t1", 8, 9.0), item("t2", 8)), [deed(3, "prioritise", "t1", 5), deed(4, "look")]),
        make=RemembersNothing,
    ),
    Planted(
        "nothing_is_left",
        "a reservation of nothing is never released",
        script(submit(1, item("t1", 0))),
        bug=lambda: patch.object(Ledger, "_drop", _keeps_empty(Ledger._drop)),
    ),
    Planted(
        "cancelled_work_does_not_go_on",
        "what runs is not asked to end",
        script(submit(1, item("t1", 1, 9.0)), [deed(5, "cancel", "t1", False)]),
        bug=lambda: patch.object(Admission, "_cancel_attempt", lambda *_: None),
    ),
    Planted(
        "user_errors_never_open_a_breaker",
        "exceptions of user code count as failures of the cluster",
        script(
            submit(1, item("t1", function_digest="fails"), item("t2", function_digest="fails")),
            [deed(6, "look")],
            breaker_failures=2,
        ),
        bug=lambda: patch.object(Attempts, "_judge_cluster", _blames_the_cluster(Attempts._judge_cluster)),
    ),
]
