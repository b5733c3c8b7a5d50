"""Forged histories: each judge accepts a good one and rejects its forgeries, by its own name only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ray_multicluster_scheduler.common.model import ClusterMetadata, FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.simulation.checker import PROPERTIES, judge
from ray_multicluster_scheduler.simulation.history import AttemptBegan, AttemptEnded, EventHandled, StateDump
from tests.unit.guarantees.forge import Forge
from tests.unit.lifecycle.driver import job, task

CANCELLED, FAILED = TaskState.CANCELLED, TaskState.FAILED


def one(**settings: object) -> Forge:
    """One task was submitted, while nothing was known of the cluster."""
    return Forge(**settings).submit(task("t1"), "CLUSTER_UNKNOWN")


def good() -> Forge:
    """Everything that may happen, as it should."""
    forge = Forge(breaker_failures=2).healthy().submit(task("t1", 4)).run("t1", cpus=4.0)
    forge.submit(task("t2", 4, priority=1)).submit(task("t3", 4)).send("t2").send("t3")
    forge.later(1).submit(task("t4", 8)).line(StateDump(forge.at, {"t4": ("NO_CAPACITY", "no room")}))
    forge.begin("t2", cpus=4.0).begin("t3", cpus=4.0)
    forge.told(out.SetTimer("run:t2:1", 500.0))
    forge.fed(events.CancelRequested("t2", "enough")).told(out.CancelAttempt("t2", 1, "a", force=False))
    forge.line(AttemptEnded(forge.at, "a", "t2", 1, "cancelled")).fed(events.AttemptFinished("t2", 1, "cancelled"))
    forge.step("t2", CANCELLED, 1, "a")
    forge.told(out.ClearTimer("run:t2:1"), out.Complete("t2", CANCELLED, 1, "a"))
    forge.later(1).end("t3").send("t4").later(1).begin("t4", cpus=8.0).later(1)
    for _ in range(2):
        forge.fed(events.SnapshotFailed("a", "TIMEOUT", "no answer"))
    forge.line(StateDump(forge.at, {}, ("a",)))
    return forge.end("t4").line(StateDump(forge.at))


# ---- forgeries, by the property that they break


def never_over() -> Forge:
    return one().healthy().send("t1").later(1).begin("t1").line(AttemptEnded(103.0, "a", "t1", 1, "succeeded"))


def told_twice() -> Forge:
    forge = one().healthy().run("t1")
    return forge.told(out.Complete("t1", TaskState.SUCCEEDED, 1, "a"))


def over_and_queued_again() -> Forge:
    forge = one().healthy().run("t1").later(1).fed(events.TimerFired("retry:t1"))
    forge.step("t1", TaskState.QUEUED)
    return forge.step("t1", FAILED)


def never_told() -> Forge:
    forge = one().fed(events.CancelRequested("t1", "enough"))
    forge.step("t1", CANCELLED).told(out.Complete("t1", CANCELLED, 0, None))
    return forge.submit(task("t2")).fed(events.TimerFired("queue:t2")).step("t2", FAILED)


def told_another_end() -> Forge:
    forge = one().fed(events.TimerFired("queue:t1")).step("t1", FAILED)
    return forge.told(out.Complete("t1", TaskState.SUCCEEDED, 0, None))


def twice_at_once() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1").later(1)
    forge.fed(events.AttemptFinished("t1", 1, "failed", FailureClass.CLUSTER)).step("t1", TaskState.RETRYING, 1, "a")
    forge.fed(events.TimerFired("retry:t1")).step("t1", TaskState.QUEUED, 1, code="CLUSTER_SUSPECT")
    forge.send("t1", 2).later(1).begin("t1", 2)
    forge.line(AttemptEnded(forge.at, "a", "t1", 1, "lease"))
    return forge.later(1).end("t1", 2)


def same_fence() -> Forge:
    forge = one().healthy().run("t1")
    return forge.submit(task("t2"), "MAX_IN_FLIGHT").send("t2", fence=1).later(1).begin("t2").end("t2")


def an_attempt_left_out() -> Forge:
    forge = one().healthy().send("t1", 2)
    return forge.later(1).begin("t1", 2).later(1).end("t1", 2)


def too_much_is_sent() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1")
    forge.submit(task("t2", 8)).send("t2").later(1).end("t1").later(1).begin("t2", cpus=8.0)
    return forge.later(1).end("t2")


def too_much_runs() -> Forge:
    forge = one().healthy().send("t1").later(1)
    forge.line(AttemptBegan(forge.at, "a", "t1", 1, 1, {"a0": {"CPU": 9.0}}))
    forge.fed(events.Started("t1", 1, forge.at, "a0")).step("t1", TaskState.RUNNING, 1, "a")
    return forge.later(1).end("t1")


def before_the_interval() -> Forge:
    kinds = ["task"]
    forge = one(submission_interval_s=10, submission_interval_kinds=kinds).healthy().run("t1")
    return forge.submit(task("t2"), "SUBMISSION_INTERVAL").run("t2")


def two_in_serial_mode() -> Forge:
    forge = one(execution_mode="serial").healthy().send("t1")
    forge.submit(task("t2"), "SERIAL").send("t2").later(1)
    return forge.begin("t1").begin("t2").later(1).end("t1").end("t2")


def above_the_threshold() -> Forge:
    forge = Forge(resource_threshold=0.5).healthy().submit(task("t1", 5)).send("t1")
    forge.submit(task("t2", 1), "ABOVE_THRESHOLD").send("t2").later(1)
    return forge.begin("t1", cpus=5.0).begin("t2").later(1).end("t1").end("t2")


def too_many_jobs() -> Forge:
    clusters = [ClusterMetadata("a", dashboard="http://a:8265", max_running_jobs=1)]
    forge = Forge(clusters).healthy().submit(job("j1")).send("j1").submit(job("j2"), "MAX_RUNNING_JOBS").send("j2")
    return forge.later(1).begin("j1").begin("j2").later(1).end("j1").end("j2")


def into_a_paused_queue() -> Forge:
    forge = one().fed(events.QueuePaused("cluster", "a")).healthy()
    return forge.run("t1")


def of_an_owner_at_its_limit() -> Forge:
    forge = Forge(owners={"ann": {"max_running": 1}}).healthy().submit(task("t1", owner="ann")).send("t1")
    forge.submit(task("t2", owner="ann"), "OWNER_LIMIT").send("t2").later(1)
    return forge.begin("t1").begin("t2").later(1).end("t1").end("t2")


def of_an_owner_whose_limit_was_lowered() -> Forge:
    forge = Forge(owners={"ann": {"max_running": 9}}).healthy().submit(task("t1", owner="ann")).send("t1")
    forge.fed(events.OwnerLimitsChanged("ann", OwnerLimits(max_running=1)))
    forge.submit(task("t2", owner="ann"), "OWNER_LIMIT").send("t2").later(1)
    return forge.begin("t1").begin("t2").later(1).end("t1").end("t2")


def last_come_first() -> Forge:
    forge = one().submit(task("t2"), "CLUSTER_UNKNOWN").healthy().run("t2")
    return forge.run("t1")


def low_priority_first() -> Forge:
    forge = one().submit(task("t2", priority=5), "CLUSTER_UNKNOWN").healthy().run("t1")
    return forge.run("t2")


def who_holds_more_first() -> Forge:
    forge = (
        Forge().submit(task("t1", owner="ann"), "CLUSTER_UNKNOWN").submit(task("t2", owner="ann"), "CLUSTER_UNKNOWN")
    )
    forge.submit(task("t3", owner="bob"), "CLUSTER_UNKNOWN").healthy().send("t1").send("t2").send("t3")
    forge.later(1).begin("t1").begin("t2").begin("t3")
    return forge.later(1).end("t1").end("t2").end("t3")


def overtaken_for_ever(owner: str = "", cpus: float = 2.0, priority: int = 0, **settings: object) -> Forge:
    """By such as these."""
    forge = Forge(reserve_after_s=5, **settings).healthy().submit(task("other0", cpus)).send("other0").later(1)
    forge.begin("other0", cpus=cpus).submit(task("wide", 8, owner="ann"))
    for number in range(1, 40):
        forge.submit(task(f"other{number}", cpus, owner=owner, priority=priority))
        forge.later(1).end(f"other{number - 1}").send(f"other{number}").begin(f"other{number}", cpus=cpus)
    forge.later(1).end("other39")
    return forge.send("wide").later(1).begin("wide", cpus=8.0).later(1).end("wide")


def overtaken_by_its_like() -> Forge:
    """Of one owner, and wide as well: shares have nothing to say."""
    return overtaken_for_ever(owner="ann", cpus=8.0, order="fair")


def overtaken_by_others_where_shares_do_not_count() -> Forge:
    return overtaken_for_ever(owner="bob", cpus=8.0, order="fifo")


def overtaken_by_small_ones_of_another_owner() -> Forge:
    return overtaken_for_ever(owner="bob", order="fair")


def a_false_reason() -> Forge:
    forge = one().healthy().send("t1").submit(task("t2"), "NO_CAPACITY")
    forge.line(StateDump(forge.at, {"t2": ("CORDONED", "a: it is cordoned")}))
    forge.later(1).begin("t1").later(1).end("t1")
    return forge.run("t2")


def no_room_where_there_is() -> Forge:
    forge = one().healthy().send("t1").submit(task("t2"), "NO_CAPACITY")
    forge.line(StateDump(forge.at, {"t2": ("NO_CAPACITY", "a: 1 CPU is not free")}))
    forge.later(1).begin("t1").later(1).end("t1")
    return forge.run("t2")


def no_reason() -> Forge:
    forge = one().line(StateDump(100.0, {}))
    return forge.healthy().run("t1")


def waits_beside_an_idle_cluster() -> Forge:
    forge = Forge().healthy().submit(task("t1"), "NO_CAPACITY").fed(events.Continued())
    return forge.run("t1")


def written_too_late() -> Forge:
    forge = one().healthy().told(out.Dispatch("t1", 1, 1, "a"))
    forge.step("t1", TaskState.DISPATCHING, 1, "a", "PLACED")
    return forge.later(1).begin("t1").later(1).end("t1")


def another_machine() -> Forge:
    forge = one().healthy().run("t1")
    return forge.line(StateDump(forge.at, unequal=("the next fence is 1, not 2",)))


def a_timer_is_left() -> Forge:
    forge = one().healthy().run("t1")
    return forge.told(out.SetTimer("run:t1:1", 500.0))


def it_runs_on() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1").later(1)
    return forge.finish("t1")


def something_is_held() -> Forge:
    forge = one().healthy().run("t1")
    return forge.line(StateDump(forge.at, left=("reservation of t1 on a",)))


def sent_after_its_cancel() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1")
    forge.fed(events.CancelRequested("t1", "enough")).told(out.CancelAttempt("t1", 1, "a", force=False))
    forge.line(AttemptEnded(forge.at, "a", "t1", 1, "crashed"))
    forge.fed(events.AttemptFinished("t1", 1, "failed", FailureClass.CRASH)).step("t1", TaskState.RETRYING, 1, "a")
    forge.fed(events.TimerFired("retry:t1")).step("t1", TaskState.QUEUED, 1, code="MAX_IN_FLIGHT")
    return forge.run("t1", 2)


def nothing_is_done() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1").fed(events.CancelRequested("t1", "enough"))
    return forge.later(1).end("t1")


def cancelled_and_runs() -> Forge:
    forge = one().healthy().send("t1").later(1).begin("t1")
    forge.fed(events.CancelRequested("t1", "enough")).told(out.CancelAttempt("t1", 1, "a", force=False))
    forge.fed(events.AttemptFinished("t1", 1, "cancelled")).step("t1", CANCELLED, 1, "a")
    forge.told(out.Complete("t1", CANCELLED, 1, "a")).later(1)
    return forge.line(AttemptEnded(forge.at, "a", "t1", 1, "succeeded"))


def declared_dead_with_it_on_its_way() -> Forge:
    """Somebody wanted its end, and somebody knew that its cluster was dead; it was not."""
    forge = one().healthy().send("t1").later(1)
    forge.fed(events.CancelRequested("t1", "enough")).told(out.CancelAttempt("t1", 1, "a", force=False))
    forge.fed(events.ClusterDeclaredDead("a", "it burnt")).step("t1", CANCELLED, 1, "a")
    forge.told(out.Complete("t1", CANCELLED, 1, "a")).later(1)
    return forge.line(AttemptBegan(forge.at, "a", "t1", 1, 1, {"n1": {"CPU": 1.0}}, "task"))


def begins_there_and_goes_on() -> Forge:
    forge = declared_dead_with_it_on_its_way().later(30)
    return forge.line(AttemptEnded(forge.at, "a", "t1", 1, "cancelled"))


def open_for_user_errors() -> Forge:
    forge = one(breaker_failures=1).healthy().send("t1").later(1).begin("t1").later(1)
    forge.line(AttemptEnded(forge.at, "a", "t1", 1, "failed"))
    forge.fed(events.AttemptFinished("t1", 1, "failed", FailureClass.USER)).step("t1", FAILED, 1, "a")
    forge.told(out.Complete("t1", FAILED, 1, "a"))
    return forge.line(StateDump(forge.at, open_breakers=("a",)))


FORGERIES: dict[str, list[Callable[[], Forge]]] = {
    "every_accepted_task_reaches_exactly_one_terminal_state": [
        never_over,
        told_twice,
        over_and_queued_again,
        never_told,
        told_another_end,
    ],
    "at_most_one_live_attempt": [twice_at_once],
    "fences_only_grow": [same_fence, an_attempt_left_out],
    "reservations_never_exceed_capacity": [too_much_is_sent, too_much_runs],
    "rules_never_broken": [
        before_the_interval,
        two_in_serial_mode,
        above_the_threshold,
        too_many_jobs,
        into_a_paused_queue,
        of_an_owner_at_its_limit,
        of_an_owner_whose_limit_was_lowered,
    ],
    "order": [last_come_first, low_priority_first, who_holds_more_first],
    "no_starvation": [
        overtaken_for_ever,
        overtaken_by_small_ones_of_another_owner,
    ],
    "every_waiting_task_has_a_true_reason": [a_false_reason, no_room_where_there_is, no_reason],
    "idle_fleet_starts_at_once": [waits_beside_an_idle_cluster],
    "rebuild_equals_live": [written_too_late, another_machine],
    "nothing_is_left": [a_timer_is_left, it_runs_on, something_is_held],
    "cancelled_work_does_not_go_on": [
        sent_after_its_cancel,
        nothing_is_done,
        cancelled_and_runs,
        begins_there_and_goes_on,
    ],
    "user_errors_never_open_a_breaker": [open_for_user_errors],
}
CASES = [(name, forgery) for name, forgeries in FORGERIES.items() for forgery in forgeries]


def test_every_judge_has_a_forgery() -> None:
    assert sorted(FORGERIES) == sorted(PROPERTIES)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_good_history_is_accepted(name: str) -> None:
    assert PROPERTIES[name]().judge(good().lines) == []


@pytest.mark.parametrize(("name", "forgery"), CASES, ids=[forgery.__name__ for _, forgery in CASES])
def test_a_forgery_is_rejected_by_its_judge_and_no_other(name: str, forgery: Callable[[], Forge]) -> None:
    lines = forgery().lines
    assert {found.property for found in judge(lines)} == {name}, [str(found) for found in judge(lines)]
    found = PROPERTIES[name]().judge(lines)
    assert [one.property for one in found] == [name] * len(found)
    assert found


def waits_for_the_head(*news: events.Event) -> Forge:
    """It is said to wait because the head of its only cluster is silent."""
    forge = one().healthy()
    for event in news:
        forge.fed(event)
    return forge.line(StateDump(forge.at, waiting={"t1": ("HEAD_SILENT", "its head does not answer")}))


def test_a_silent_head_is_a_reason_only_while_it_is_silent() -> None:
    reasons = PROPERTIES["every_waiting_task_has_a_true_reason"]
    silent, over = events.HeadSilent("a", 16.0), waits_for_the_head().healthy().lines[-1]
    assert isinstance(over, EventHandled)
    assert reasons().judge(waits_for_the_head(silent).lines) == []
    assert reasons().judge(waits_for_the_head().lines)
    assert reasons().judge(waits_for_the_head(silent, over.event).lines)
    assert reasons().judge(waits_for_the_head(events.HeadSilent("another", 16.0)).lines)


def test_what_arrives_at_a_cluster_that_was_declared_dead_may_begin_if_it_is_ended_at_once() -> None:
    forge = declared_dead_with_it_on_its_way()
    forge.line(AttemptEnded(forge.at, "a", "t1", 1, "cancelled"))
    assert PROPERTIES["cancelled_work_does_not_go_on"]().judge(forge.lines) == []


@pytest.mark.parametrize(
    "forgery",
    [overtaken_by_its_like, overtaken_by_others_where_shares_do_not_count],
)
def test_who_is_as_wide_may_not_overtake_for_ever_either(forgery: Callable[[], Forge]) -> None:
    """That is against the order, too."""
    assert PROPERTIES["no_starvation"]().judge(forgery().lines)


def after_those_who_go_by_right(seconds: int) -> Forge:
    """More urgent ones kept a wide item from starting for long; so much later, small ones go."""
    forge = Forge(reserve_after_s=5).healthy().submit(task("first", 2, priority=1)).send("first").later(1)
    forge.begin("first", cpus=2.0).submit(task("wide", 8)).later(1).end("first")
    for number in range(20):
        forge.submit(task(f"urgent{number}", 2, priority=1)).run(f"urgent{number}", cpus=2.0)
    forge.later(seconds)
    return forge.submit(task("small", 2)).run("small", cpus=2.0)


def test_more_urgent_ones_go_before_one_that_has_waited_long() -> None:
    assert PROPERTIES["no_starvation"]().judge(after_those_who_go_by_right(1).lines) == []
    assert PROPERTIES["no_starvation"]().judge(after_those_who_go_by_right(100).lines)


def test_those_of_another_owner_who_are_as_wide_go_before_one_by_their_shares() -> None:
    lines = overtaken_for_ever(owner="bob", cpus=8.0, order="fair").lines
    assert PROPERTIES["no_starvation"]().judge(lines) == []
