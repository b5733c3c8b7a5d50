"""Each property accepts a valid history and rejects the histories that break it, and no other property does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ray_multicluster_scheduler.common.model import ClusterMetadata, FailureClass, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle import instructions as out
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from ray_multicluster_scheduler.simulation.checker import PROPERTIES, judge
from ray_multicluster_scheduler.simulation.history import AttemptBegan, AttemptEnded, EventHandled, StateDump
from tests.unit.guarantees.history_builder import HistoryBuilder
from tests.unit.lifecycle.driver import job, task

CANCELLED, FAILED = TaskState.CANCELLED, TaskState.FAILED


def one_pending(**settings: object) -> HistoryBuilder:
    """One task is pending, and nothing is known of the cluster yet."""
    return HistoryBuilder(**settings).submit(task("t1"), "CLUSTER_UNKNOWN")


def valid_history() -> HistoryBuilder:
    """A valid history with every kind of line."""
    history = HistoryBuilder(breaker_failures=2).healthy().submit(task("t1", 4)).run("t1", cpus=4.0)
    history.submit(task("t2", 4, priority=1)).submit(task("t3", 4)).dispatch("t2").dispatch("t3")
    history.advance(1).submit(task("t4", 8)).add(StateDump(history.at, {"t4": ("NO_CAPACITY", "no room")}))
    history.begin("t2", cpus=4.0).begin("t3", cpus=4.0)
    history.issue(out.SetTimer("run:t2:1", 500.0))
    history.handle(events.CancelRequested("t2", "enough")).issue(out.CancelAttempt("t2", 1, "a", force=False))
    history.add(AttemptEnded(history.at, "a", "t2", 1, "cancelled")).handle(
        events.AttemptFinished("t2", 1, "cancelled")
    )
    history.transition("t2", CANCELLED, 1, "a")
    history.issue(out.ClearTimer("run:t2:1"), out.Complete("t2", CANCELLED, 1, "a"))
    history.advance(1).end("t3").dispatch("t4").advance(1).begin("t4", cpus=8.0).advance(1)
    for _ in range(2):
        history.handle(events.SnapshotFailed("a", "TIMEOUT", "no answer"))
    history.add(StateDump(history.at, {}, ("a",)))
    return history.end("t4").add(StateDump(history.at))


# ---- invalid histories, by the property that they break


def never_ends() -> HistoryBuilder:
    return (
        one_pending()
        .healthy()
        .dispatch("t1")
        .advance(1)
        .begin("t1")
        .add(AttemptEnded(103.0, "a", "t1", 1, "succeeded"))
    )


def completed_twice() -> HistoryBuilder:
    history = one_pending().healthy().run("t1")
    return history.issue(out.Complete("t1", TaskState.SUCCEEDED, 1, "a"))


def queued_after_its_end() -> HistoryBuilder:
    history = one_pending().healthy().run("t1").advance(1).handle(events.TimerFired("retry:t1"))
    history.transition("t1", TaskState.QUEUED)
    return history.transition("t1", FAILED)


def never_completed() -> HistoryBuilder:
    history = one_pending().handle(events.CancelRequested("t1", "enough"))
    history.transition("t1", CANCELLED).issue(out.Complete("t1", CANCELLED, 0, None))
    return history.submit(task("t2")).handle(events.TimerFired("queue:t2")).transition("t2", FAILED)


def completed_with_another_state() -> HistoryBuilder:
    history = one_pending().handle(events.TimerFired("queue:t1")).transition("t1", FAILED)
    return history.issue(out.Complete("t1", TaskState.SUCCEEDED, 0, None))


def two_live_attempts() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1).begin("t1").advance(1)
    history.handle(events.AttemptFinished("t1", 1, "failed", FailureClass.CLUSTER)).transition(
        "t1", TaskState.RETRYING, 1, "a"
    )
    history.handle(events.TimerFired("retry:t1")).transition("t1", TaskState.QUEUED, 1, code="CLUSTER_SUSPECT")
    history.dispatch("t1", 2).advance(1).begin("t1", 2)
    history.add(AttemptEnded(history.at, "a", "t1", 1, "lease"))
    return history.advance(1).end("t1", 2)


def reused_fence() -> HistoryBuilder:
    history = one_pending().healthy().run("t1")
    return history.submit(task("t2"), "MAX_IN_FLIGHT").dispatch("t2", fence=1).advance(1).begin("t2").end("t2")


def skipped_attempt_number() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1", 2)
    return history.advance(1).begin("t1", 2).advance(1).end("t1", 2)


def dispatched_beyond_capacity() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1).begin("t1")
    history.submit(task("t2", 8)).dispatch("t2").advance(1).end("t1").advance(1).begin("t2", cpus=8.0)
    return history.advance(1).end("t2")


def running_beyond_capacity() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1)
    history.add(AttemptBegan(history.at, "a", "t1", 1, 1, {"a0": {"CPU": 9.0}}))
    history.handle(events.Started("t1", 1, history.at, "a0")).transition("t1", TaskState.RUNNING, 1, "a")
    return history.advance(1).end("t1")


def within_submission_interval() -> HistoryBuilder:
    kinds = ["task"]
    history = one_pending(submission_interval_s=10, submission_interval_kinds=kinds).healthy().run("t1")
    return history.submit(task("t2"), "SUBMISSION_INTERVAL").run("t2")


def two_in_serial_mode() -> HistoryBuilder:
    history = one_pending(execution_mode="serial").healthy().dispatch("t1")
    history.submit(task("t2"), "SERIAL").dispatch("t2").advance(1)
    return history.begin("t1").begin("t2").advance(1).end("t1").end("t2")


def above_the_threshold() -> HistoryBuilder:
    history = HistoryBuilder(resource_threshold=0.5).healthy().submit(task("t1", 5)).dispatch("t1")
    history.submit(task("t2", 1), "ABOVE_THRESHOLD").dispatch("t2").advance(1)
    return history.begin("t1", cpus=5.0).begin("t2").advance(1).end("t1").end("t2")


def too_many_jobs() -> HistoryBuilder:
    clusters = [ClusterMetadata("a", dashboard="http://a:8265", max_running_jobs=1)]
    history = (
        HistoryBuilder(clusters)
        .healthy()
        .submit(job("j1"))
        .dispatch("j1")
        .submit(job("j2"), "MAX_RUNNING_JOBS")
        .dispatch("j2")
    )
    return history.advance(1).begin("j1").begin("j2").advance(1).end("j1").end("j2")


def into_a_paused_queue() -> HistoryBuilder:
    history = one_pending().handle(events.QueuePaused("cluster", "a")).healthy()
    return history.run("t1")


def beyond_an_owner_limit() -> HistoryBuilder:
    history = (
        HistoryBuilder(owners={"ann": {"max_running": 1}}).healthy().submit(task("t1", owner="ann")).dispatch("t1")
    )
    history.submit(task("t2", owner="ann"), "OWNER_LIMIT").dispatch("t2").advance(1)
    return history.begin("t1").begin("t2").advance(1).end("t1").end("t2")


def beyond_a_lowered_owner_limit() -> HistoryBuilder:
    history = (
        HistoryBuilder(owners={"ann": {"max_running": 9}}).healthy().submit(task("t1", owner="ann")).dispatch("t1")
    )
    history.handle(events.OwnerLimitsChanged("ann", OwnerLimits(max_running=1)))
    history.submit(task("t2", owner="ann"), "OWNER_LIMIT").dispatch("t2").advance(1)
    return history.begin("t1").begin("t2").advance(1).end("t1").end("t2")


def beyond_a_quota(*pools: Pool) -> HistoryBuilder:
    history = HistoryBuilder().healthy()
    for pool in pools or (Pool(name="p", quota={"CPU": 1.0}),):
        history.handle(events.PoolChanged(pool))
    history.submit(task("t1", pool="p")).dispatch("t1").submit(task("t2", pool="p"), "POOL_FULL").dispatch("t2")
    return history.advance(1).begin("t1").begin("t2").advance(1).end("t1").end("t2")


def beyond_a_cohort() -> HistoryBuilder:
    pools = [Pool(name=name, quota={"CPU": amount}, cohort="c") for name, amount in (("p", 1.0), ("q", 0.5))]
    return beyond_a_quota(*pools)


def beyond_the_quota_of_a_cluster() -> HistoryBuilder:
    return beyond_a_quota(Pool(name="p", place_quota={"a": {"CPU": 1.0}, "b": {"CPU": 9.0}}))


def preempting(victim: TaskDescription, **settings: object) -> HistoryBuilder:
    """An item runs for 100 s, and gives way to a newcomer."""
    given = {"preemption": {"min_runtime_s": 10}, **settings}
    history = HistoryBuilder(**given).healthy().submit(victim).dispatch(victim.id).advance(1)
    history.begin(victim.id, cpus=8.0).advance(100).submit(task("new", 8))
    history.handle(events.TimerFired("preempt")).frees_room("new", "a")
    return history.transition(victim.id, TaskState.PREEMPTING, 1, "a", "PREEMPTED")


def left(history: HistoryBuilder, task_id: str, state: TaskState = TaskState.QUEUED) -> HistoryBuilder:
    """The victim has stopped."""
    history.advance(1).add(AttemptEnded(history.at, "a", task_id, 1, "cancelled"))
    history.handle(events.AttemptFinished(task_id, 1, "cancelled", code="PREEMPTED"))
    return history.transition(task_id, state, 1, code="PREEMPTED")


def preempted(victim: TaskDescription, **settings: object) -> HistoryBuilder:
    """The victim leaves, the newcomer runs, and the victim runs again."""
    history = left(preempting(victim, **settings), victim.id).run("new", cpus=8.0)
    return history.run(victim.id, 2, cpus=8.0)


VICTIM = task("victim", 8, preemptible=True)


def preempted_although_not_preemptible() -> HistoryBuilder:
    return preempted(task("victim", 8))


def preempted_too_soon() -> HistoryBuilder:
    return preempted(VICTIM, preemption={"min_runtime_s": 200})


def preempted_sooner_than_it_said() -> HistoryBuilder:
    return preempted(task("victim", 8, preemptible=True, min_runtime_s=200))


def preempted_in_a_protected_pool() -> HistoryBuilder:
    history = HistoryBuilder(preemption={"min_runtime_s": 0}).healthy()
    history.handle(events.PoolChanged(Pool(name="p", quota={"CPU": 8.0}, protected=True)))
    history.submit(task("victim", 8, preemptible=True, pool="p")).dispatch("victim").advance(1)
    history.begin("victim", cpus=8.0).submit(task("new", 8)).handle(events.TimerFired("preempt"))
    history.frees_room("new", "a").transition("victim", TaskState.PREEMPTING, 1, "a", "PREEMPTED")
    return left(history, "victim").run("new", cpus=8.0).run("victim", 2, cpus=8.0)


def preempted_for_nobody() -> HistoryBuilder:
    history = HistoryBuilder(preemption={"min_runtime_s": 0}).healthy().submit(VICTIM).dispatch("victim").advance(1)
    history.begin("victim", cpus=8.0).advance(100).handle(events.TimerFired("preempt"))
    history.transition("victim", TaskState.PREEMPTING, 1, "a", "PREEMPTED")
    return left(history, "victim").run("victim", 2, cpus=8.0)


def room_kept_for_ever() -> HistoryBuilder:
    history = left(preempting(VICTIM), "victim").handle(events.CordonChanged("a", cordoned=True))
    history.advance(100).handle(events.CordonChanged("a", cordoned=False)).run("new", cpus=8.0)
    return history.run("victim", 2, cpus=8.0)


def freed_room_taken() -> HistoryBuilder:
    history = left(preempting(VICTIM), "victim").submit(task("thief", 1, priority=1)).run("thief")
    return history.run("new", cpus=8.0).run("victim", 2, cpus=8.0)


def victim_uses_a_retry() -> HistoryBuilder:
    history = left(preempting(VICTIM), "victim", TaskState.RETRYING).run("new", cpus=8.0)
    history.handle(events.TimerFired("retry:victim")).transition("victim", TaskState.QUEUED, 1, code="NO_CAPACITY")
    return history.run("victim", 2, cpus=8.0)


def saved_state_is_lost() -> HistoryBuilder:
    history = preempting(VICTIM).handle(events.StateSaved("victim", 1, "digest")).issue(out.Remember("victim"))
    return left(history, "victim").run("new", cpus=8.0).run("victim", 2, cpus=8.0)


def newest_first() -> HistoryBuilder:
    history = one_pending().submit(task("t2"), "CLUSTER_UNKNOWN").healthy().run("t2")
    return history.run("t1")


def low_priority_first() -> HistoryBuilder:
    history = one_pending().submit(task("t2", priority=5), "CLUSTER_UNKNOWN").healthy().run("t1")
    return history.run("t2")


def larger_share_first() -> HistoryBuilder:
    history = (
        HistoryBuilder()
        .submit(task("t1", owner="ann"), "CLUSTER_UNKNOWN")
        .submit(task("t2", owner="ann"), "CLUSTER_UNKNOWN")
    )
    history.submit(task("t3", owner="bob"), "CLUSTER_UNKNOWN").healthy().dispatch("t1").dispatch("t2").dispatch("t3")
    history.advance(1).begin("t1").begin("t2").begin("t3")
    return history.advance(1).end("t1").end("t2").end("t3")


def starved(owner: str = "", cpus: float = 2.0, priority: int = 0, **settings: object) -> HistoryBuilder:
    """A wide item waits while items like these overtake it."""
    history = (
        HistoryBuilder(reserve_after_s=5, **settings)
        .healthy()
        .submit(task("other0", cpus))
        .dispatch("other0")
        .advance(1)
    )
    history.begin("other0", cpus=cpus).submit(task("wide", 8, owner="ann"))
    for number in range(1, 40):
        history.submit(task(f"other{number}", cpus, owner=owner, priority=priority))
        history.advance(1).end(f"other{number - 1}").dispatch(f"other{number}").begin(f"other{number}", cpus=cpus)
    history.advance(1).end("other39")
    return history.dispatch("wide").advance(1).begin("wide", cpus=8.0).advance(1).end("wide")


def starved_by_same_owner() -> HistoryBuilder:
    """All items are of one owner and equally wide: fair shares do not apply."""
    return starved(owner="ann", cpus=8.0, order="fair")


def starved_by_other_owner_fifo() -> HistoryBuilder:
    return starved(owner="bob", cpus=8.0, order="fifo")


def starved_by_small_items_of_other_owner() -> HistoryBuilder:
    return starved(owner="bob", order="fair")


def false_reason() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").submit(task("t2"), "NO_CAPACITY")
    history.add(StateDump(history.at, {"t2": ("CORDONED", "a: it is cordoned")}))
    history.advance(1).begin("t1").advance(1).end("t1")
    return history.run("t2")


def no_capacity_although_free() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").submit(task("t2"), "NO_CAPACITY")
    history.add(StateDump(history.at, {"t2": ("NO_CAPACITY", "a: 1 CPU is not free")}))
    history.advance(1).begin("t1").advance(1).end("t1")
    return history.run("t2")


def missing_reason() -> HistoryBuilder:
    history = one_pending().add(StateDump(100.0, {}))
    return history.healthy().run("t1")


def waits_for_idle_cluster() -> HistoryBuilder:
    history = HistoryBuilder().healthy().submit(task("t1"), "NO_CAPACITY").handle(events.Continued())
    return history.run("t1")


def persisted_after_dispatch() -> HistoryBuilder:
    history = one_pending().healthy().issue(out.Dispatch("t1", 1, 1, "a"))
    history.transition("t1", TaskState.DISPATCHING, 1, "a", "PLACED")
    return history.advance(1).begin("t1").advance(1).end("t1")


def rebuilt_machine_differs() -> HistoryBuilder:
    history = one_pending().healthy().run("t1")
    return history.add(StateDump(history.at, unequal=("the next fence is 1, not 2",)))


def timer_left() -> HistoryBuilder:
    history = one_pending().healthy().run("t1")
    return history.issue(out.SetTimer("run:t1:1", 500.0))


def attempt_left_running() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1).begin("t1").advance(1)
    return history.finish("t1")


def reservation_left() -> HistoryBuilder:
    history = one_pending().healthy().run("t1")
    return history.add(StateDump(history.at, left=("reservation of t1 on a",)))


def dispatched_after_cancel() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1).begin("t1")
    history.handle(events.CancelRequested("t1", "enough")).issue(out.CancelAttempt("t1", 1, "a", force=False))
    history.add(AttemptEnded(history.at, "a", "t1", 1, "crashed"))
    history.handle(events.AttemptFinished("t1", 1, "failed", FailureClass.CRASH)).transition(
        "t1", TaskState.RETRYING, 1, "a"
    )
    history.handle(events.TimerFired("retry:t1")).transition("t1", TaskState.QUEUED, 1, code="MAX_IN_FLIGHT")
    return history.run("t1", 2)


def cancel_ignored() -> HistoryBuilder:
    history = (
        one_pending().healthy().dispatch("t1").advance(1).begin("t1").handle(events.CancelRequested("t1", "enough"))
    )
    return history.advance(1).end("t1")


def completed_before_its_end() -> HistoryBuilder:
    history = one_pending().healthy().dispatch("t1").advance(1).begin("t1")
    history.handle(events.CancelRequested("t1", "enough")).issue(out.CancelAttempt("t1", 1, "a", force=False))
    history.handle(events.AttemptFinished("t1", 1, "cancelled")).transition("t1", CANCELLED, 1, "a")
    history.issue(out.Complete("t1", CANCELLED, 1, "a")).advance(1)
    return history.add(AttemptEnded(history.at, "a", "t1", 1, "succeeded"))


def dispatch_in_flight_to_dead_cluster() -> HistoryBuilder:
    """The item was cancelled and its cluster declared dead by mistake, while the dispatch was on its way there."""
    history = one_pending().healthy().dispatch("t1").advance(1)
    history.handle(events.CancelRequested("t1", "enough")).issue(out.CancelAttempt("t1", 1, "a", force=False))
    history.handle(events.ClusterDeclaredDead("a", "it burnt")).transition("t1", CANCELLED, 1, "a")
    history.issue(out.Complete("t1", CANCELLED, 1, "a")).advance(1)
    return history.add(AttemptBegan(history.at, "a", "t1", 1, 1, {"n1": {"CPU": 1.0}}, "task"))


def starts_on_dead_cluster_and_runs() -> HistoryBuilder:
    history = dispatch_in_flight_to_dead_cluster().advance(30)
    return history.add(AttemptEnded(history.at, "a", "t1", 1, "cancelled"))


def breaker_opened_by_user_errors() -> HistoryBuilder:
    history = one_pending(breaker_failures=1).healthy().dispatch("t1").advance(1).begin("t1").advance(1)
    history.add(AttemptEnded(history.at, "a", "t1", 1, "failed"))
    history.handle(events.AttemptFinished("t1", 1, "failed", FailureClass.USER)).transition("t1", FAILED, 1, "a")
    history.issue(out.Complete("t1", FAILED, 1, "a"))
    return history.add(StateDump(history.at, open_breakers=("a",)))


INVALID_HISTORIES: dict[str, list[Callable[[], HistoryBuilder]]] = {
    "every_accepted_task_reaches_exactly_one_terminal_state": [
        never_ends,
        completed_twice,
        queued_after_its_end,
        never_completed,
        completed_with_another_state,
    ],
    "at_most_one_live_attempt": [two_live_attempts],
    "fences_only_grow": [reused_fence, skipped_attempt_number],
    "reservations_never_exceed_capacity": [dispatched_beyond_capacity, running_beyond_capacity],
    "rules_never_broken": [
        within_submission_interval,
        two_in_serial_mode,
        above_the_threshold,
        too_many_jobs,
        into_a_paused_queue,
        beyond_an_owner_limit,
        beyond_a_lowered_owner_limit,
    ],
    "quota_never_exceeded": [beyond_a_quota, beyond_a_cohort, beyond_the_quota_of_a_cluster],
    "only_preemptible_items_give_way": [
        preempted_although_not_preemptible,
        preempted_too_soon,
        preempted_sooner_than_it_said,
        preempted_in_a_protected_pool,
    ],
    "nothing_is_stopped_for_nobody": [preempted_for_nobody, room_kept_for_ever],
    "freed_room_is_kept": [freed_room_taken],
    "a_preemption_uses_no_retry": [victim_uses_a_retry],
    "saved_state_arrives": [saved_state_is_lost],
    "order": [newest_first, low_priority_first, larger_share_first],
    "no_starvation": [
        starved,
        starved_by_small_items_of_other_owner,
    ],
    "every_waiting_task_has_a_true_reason": [false_reason, no_capacity_although_free, missing_reason],
    "idle_fleet_starts_at_once": [waits_for_idle_cluster],
    "rebuild_equals_live": [persisted_after_dispatch, rebuilt_machine_differs],
    "nothing_is_left": [timer_left, attempt_left_running, reservation_left],
    "cancelled_work_does_not_go_on": [
        dispatched_after_cancel,
        cancel_ignored,
        completed_before_its_end,
        starts_on_dead_cluster_and_runs,
    ],
    "user_errors_never_open_a_breaker": [breaker_opened_by_user_errors],
}
CASES = [(name, invalid) for name, all_invalid in INVALID_HISTORIES.items() for invalid in all_invalid]


def test_every_property_has_an_invalid_history() -> None:
    assert sorted(INVALID_HISTORIES) == sorted(PROPERTIES)


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_valid_history_is_accepted(name: str) -> None:
    assert PROPERTIES[name]().judge(valid_history().lines) == []


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_valid_preemption_is_accepted(name: str) -> None:
    assert PROPERTIES[name]().judge(preempted(VICTIM).lines) == []


@pytest.mark.parametrize(("name", "invalid"), CASES, ids=[invalid.__name__ for _, invalid in CASES])
def test_an_invalid_history_is_rejected_by_its_property_only(name: str, invalid: Callable[[], HistoryBuilder]) -> None:
    lines = invalid().lines
    assert {found.property for found in judge(lines)} == {name}, [str(found) for found in judge(lines)]
    found = PROPERTIES[name]().judge(lines)
    assert [one_pending.property for one_pending in found] == [name] * len(found)
    assert found


def waits_for_silent_head(*events_before: events.Event) -> HistoryBuilder:
    """A state dump says that the task waits because the head of its only cluster is silent."""
    history = one_pending().healthy()
    for event in events_before:
        history.handle(event)
    return history.add(StateDump(history.at, waiting={"t1": ("HEAD_SILENT", "its head does not answer")}))


def test_a_silent_head_is_a_reason_only_while_it_is_silent() -> None:
    reasons = PROPERTIES["every_waiting_task_has_a_true_reason"]
    silent, over = events.HeadSilent("a", 16.0), waits_for_silent_head().healthy().lines[-1]
    assert isinstance(over, EventHandled)
    assert reasons().judge(waits_for_silent_head(silent).lines) == []
    assert reasons().judge(waits_for_silent_head().lines)
    assert reasons().judge(waits_for_silent_head(silent, over.event).lines)
    assert reasons().judge(waits_for_silent_head(events.HeadSilent("another", 16.0)).lines)


def test_dispatch_in_flight_to_dead_cluster_may_begin_and_end() -> None:
    history = dispatch_in_flight_to_dead_cluster()
    history.add(AttemptEnded(history.at, "a", "t1", 1, "cancelled"))
    assert PROPERTIES["cancelled_work_does_not_go_on"]().judge(history.lines) == []


@pytest.mark.parametrize(
    "invalid",
    [starved_by_same_owner, starved_by_other_owner_fifo],
)
def test_equally_wide_items_may_not_overtake_for_ever_either(invalid: Callable[[], HistoryBuilder]) -> None:
    """(It breaks the order as well.)"""
    assert PROPERTIES["no_starvation"]().judge(invalid().lines)


def after_more_urgent_items(seconds: int) -> HistoryBuilder:
    """More urgent items delay a wide item for long; after these seconds, a small item starts before it."""
    history = (
        HistoryBuilder(reserve_after_s=5).healthy().submit(task("first", 2, priority=1)).dispatch("first").advance(1)
    )
    history.begin("first", cpus=2.0).submit(task("wide", 8)).advance(1).end("first")
    for number in range(20):
        history.submit(task(f"urgent{number}", 2, priority=1)).run(f"urgent{number}", cpus=2.0)
    history.advance(seconds)
    return history.submit(task("small", 2)).run("small", cpus=2.0)


def test_more_urgent_items_may_overtake_a_starving_one() -> None:
    assert PROPERTIES["no_starvation"]().judge(after_more_urgent_items(1).lines) == []
    assert PROPERTIES["no_starvation"]().judge(after_more_urgent_items(100).lines)


def test_equally_wide_items_of_another_owner_may_overtake_by_fair_share() -> None:
    lines = starved(owner="bob", cpus=8.0, order="fair").lines
    assert PROPERTIES["no_starvation"]().judge(lines) == []
