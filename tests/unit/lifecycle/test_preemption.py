"""Preemption in the machine: items give way, the room is kept for the newcomer, and they resume in front."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Dispatch,
    PreemptAttempt,
    SetTimer,
)
from ray_multicluster_scheduler.scheduler.pools.pool import Pool
from tests.unit.lifecycle.driver import Driver, actor, ready, task
from tests.unit.lifecycle.test_restore import reborn, timer

AT_ONCE: dict[str, Any] = {"preemption": {"min_runtime_s": 0, "cool_down_s": 0, "grace_s": 10}}


def running(driver: Driver, *ids: str, **values: Any) -> None:
    for one in ids:
        driver.submit(task(one, **{"preemptible": True, **values}))
        driver.start(one)


def plans(driver: Driver) -> list[str]:
    """Let the timer of plans fire; returns the ids of the items that are asked to stop."""
    driver.fire(timers.PREEMPT)
    return [one.task_id for one in driver.issued(PreemptAttempt)]


def leave(driver: Driver, task_id: str, saved: bool = True) -> None:
    if saved:
        driver.send(events.StateSaved(task_id, driver.attempt(task_id), f"state of {task_id}"))
    driver.send(events.AttemptFinished(task_id, driver.attempt(task_id), "cancelled", code="PREEMPTED"))


def full(**settings: Any) -> Driver:
    """A cluster of 2 CPUs with two preemptible items, and an urgent one that waits."""
    driver = ready(2, **{**AT_ONCE, **settings})
    running(driver, "low1", "low2")
    driver.submit(task("urgent", priority=5))
    return driver


class TestGivingWay:
    def test_the_youngest_of_the_lowest_priority_gives_way(self) -> None:
        driver = full()
        driver.now += 5
        (victim,) = plans(driver)
        assert driver.state(victim) is TaskState.PREEMPTING
        assert driver.machine.record(victim).sentence == "gives way to a more urgent item of its pool"
        assert driver.machine.record("urgent").code == "FREES_ROOM"
        leave(driver, victim)
        assert [one.task_id for one in driver.issued(Dispatch)] == ["urgent"]
        assert driver.states(victim) == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "PREEMPTING", "QUEUED"]

    def test_the_victim_resumes_with_its_state_and_uses_no_retry(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        leave(driver, victim)
        driver.succeed("urgent")
        (again,) = driver.issued(Dispatch)
        assert (again.task_id, again.attempt, again.saved) == (victim, 2, f"state of {victim}")
        assert not driver.machine.record(victim).failures

    def test_the_victim_goes_before_older_items_of_its_priority(self) -> None:
        driver = ready(1, **AT_ONCE)
        running(driver, "low")
        driver.submit(task("other", preemptible=True))
        driver.submit(task("urgent", priority=5))
        assert plans(driver) == ["low"]
        leave(driver, "low")
        driver.succeed("urgent")
        assert list(driver.sent_to(ever=False)) == ["low"]

    def test_nobody_else_gets_the_room(self) -> None:
        driver = ready(2, **AT_ONCE)
        running(driver, "low1", "low2")
        driver.submit(task("wide", 2, priority=5))
        assert sorted(plans(driver)) == ["low1", "low2"]
        driver.submit(task("small", priority=9))
        leave(driver, "low1")
        assert not driver.sent_to(ever=False)
        leave(driver, "low2")
        assert list(driver.sent_to(ever=False)) == ["wide"]

    def test_it_waits_for_the_end_of_the_minimum_run_time_and_no_longer(self) -> None:
        driver = full(preemption={"min_runtime_s": 20})
        began = driver.now
        while not (victims := plans(driver)):
            driver.now = next(
                one.at for one in reversed(driver.issued(SetTimer, ever=True)) if one.key == timers.PREEMPT
            )
            assert driver.now <= began + 20
        assert len(victims) == 1
        assert driver.now == began + 20

    def test_what_is_not_preemptible_stays(self) -> None:
        driver = ready(1, **AT_ONCE)
        running(driver, "low", preemptible=None)
        driver.submit(task("urgent", priority=5))
        assert timers.PREEMPT not in driver.machine.timers

    def test_one_that_ends_in_the_grace_has_succeeded(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        driver.succeed(victim)
        assert driver.state(victim) is TaskState.SUCCEEDED
        assert list(driver.sent_to(ever=False)) == ["urgent"]

    def test_one_that_does_not_leave_is_killed_after_the_grace(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        driver.fire(timers.grace_key(victim, 1), after=15)
        assert driver.issued(CancelAttempt) == [CancelAttempt(victim, 1, "a", force=True)]

    def test_if_the_newcomer_is_cancelled_the_room_goes_back(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        driver.cancel("urgent")
        leave(driver, victim)
        assert list(driver.sent_to(ever=False)) == [victim]
        assert not driver.machine._state.rooms

    def test_a_newcomer_that_starts_elsewhere_gives_the_room_back(self) -> None:
        driver = Driver(*ready(2).machine.registry.list(), **AT_ONCE)
        driver.link_up("a", 1)
        running(driver, "low")
        driver.submit(task("urgent", priority=5))
        assert plans(driver) == ["low"]
        driver.snapshot("a", 1, 1)
        assert list(driver.sent_to(ever=False)) == ["urgent"]
        leave(driver, "low")
        assert list(driver.sent_to(ever=False)) == ["low"]

    def test_a_cancelled_victim_is_cancelled(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        driver.cancel(victim)
        driver.stopped(victim)
        assert driver.state(victim) is TaskState.CANCELLED
        assert list(driver.sent_to(ever=False)) == ["urgent"]


class TestLookingForRoom:
    def test_without_a_plan_it_is_tried_again_later_and_less_and_less_often(self) -> None:
        driver = full(preemption={"min_runtime_s": 3, "cool_down_s": 0, "grace_s": 10})
        assert plans(driver) == []
        assert timer(driver, timers.PREEMPT) == driver.now + 1
        driver.now += 1
        assert plans(driver) == []
        assert timer(driver, timers.PREEMPT) == driver.now + 2
        driver.now += 2
        assert len(plans(driver)) == 1

    def test_nothing_is_tried_once_nothing_could_leave(self) -> None:
        driver = full()
        for one in ("low1", "low2"):
            driver.send(events.PriorityChanged(one, 9))
        assert plans(driver) == []
        assert timers.PREEMPT not in driver.machine.timers

    def test_what_starts_no_work_displaces_nothing(self) -> None:
        preemption = full().machine._preemption
        connects = actor("one", 0, priority=9)
        assert connects.actor is not None
        connects = replace(connects, requirements={}, actor=replace(connects.actor, adopt=True, placement={}))
        assert preemption._may_preempt(task("one", priority=9))
        assert not preemption._may_preempt(connects)

    def test_the_candidates_are_listed_with_their_reasons(self) -> None:
        driver = full()
        found = driver.machine._preemption.candidates(task("one", priority=5), "a", driver.now)
        assert {one.id for one in found} == {"low1", "low2"}

    def test_what_runs_on_a_removed_cluster_is_no_victim(self) -> None:
        driver = full()
        driver.send(events.ClusterChanged("a", None))
        assert list(driver.machine._preemption.running_items()) == []


class TestQuota:
    def test_lent_quota_is_reclaimed(self) -> None:
        pools = [
            Pool(name="p", quota={"CPU": 1}, cohort="c", preemptible=True),
            Pool(name="q", quota={"CPU": 1}, cohort="c", reclaim="any"),
        ]
        driver = ready(4, pools=pools, **AT_ONCE)
        for one in ("1", "2"):
            driver.submit(task(one, pool="p"))
            driver.start(one)
        driver.submit(task("theirs", pool="q"))
        assert driver.machine.record("theirs").code == "POOL_FULL"
        (victim,) = plans(driver)
        assert driver.machine.record(victim).sentence == "gives way to pool q, which takes back what it lent"
        leave(driver, victim)
        assert list(driver.sent_to(ever=False)) == ["theirs"]
        assert driver.machine.record(victim).code == "POOL_FULL"

    def test_nothing_is_stopped_while_a_lost_item_holds_the_quota(self) -> None:
        driver = ready(1, 2, pools=[Pool(name="p", quota={"CPU": 2}, preemptible=True)], **AT_ONCE)
        for one, name in (("lost", "a"), ("runs", "b")):
            driver.submit(task(one, pool="p", allow_clusters=(name,)))
            driver.start(one)
        driver.send(events.LinkDown("a", "no heartbeat"))
        while driver.state("lost") is not TaskState.LOST:
            driver.fire("lost:a", after=60)
        driver.submit(task("urgent", 2, pool="p", priority=5))
        assert plans(driver) == []


class TestRestart:
    def test_the_victim_is_asked_again_and_the_room_is_still_kept(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        after = reborn(driver, **AT_ONCE)
        assert [one.task_id for one in after.issued(PreemptAttempt)] == [victim]
        after.link_up("a", 2)
        after.submit(task("other", priority=9))
        assert not after.sent_to(ever=False)
        leave(after, victim)
        assert list(after.sent_to(ever=False)) == ["urgent"]

    def test_after_the_victim_has_left(self) -> None:
        driver = ready(2, **AT_ONCE)
        running(driver, "low1", "low2")
        driver.submit(task("wide", 2, priority=5))
        plans(driver)
        leave(driver, "low1")
        after = reborn(driver, **AT_ONCE)
        after.link_up("a", 2)
        leave(after, "low2")
        assert list(after.sent_to(ever=False)) == ["wide"]
        after.succeed("wide")
        assert sorted(after.sent_to(ever=False)) == ["low1", "low2"]

    def test_a_dispatch_that_is_sent_again_carries_the_saved_state(self) -> None:
        driver = full()
        (victim,) = plans(driver)
        leave(driver, victim)
        driver.succeed("urgent")
        (again,) = reborn(driver, **AT_ONCE).issued(Dispatch)
        assert (again.task_id, again.saved) == (victim, f"state of {victim}")


class TestChanges:
    def test_a_pool_that_is_no_longer_preemptible(self) -> None:
        pool = Pool(name="p", quota={"CPU": 9}, preemptible=True)
        driver = ready(1, pools=[pool], **AT_ONCE)
        running(driver, "low", preemptible=None, pool="p")
        driver.submit(task("urgent", priority=5))
        driver.send(events.PoolChanged(replace(pool, preemptible=False)))
        assert plans(driver) == []

    def test_a_pool_that_becomes_preemptible(self) -> None:
        pool = Pool(name="p", quota={"CPU": 9})
        driver = ready(1, pools=[pool], **AT_ONCE)
        running(driver, "low", preemptible=None, pool="p")
        driver.submit(task("urgent", priority=5))
        driver.send(events.PoolChanged(replace(pool, preemptible=True)))
        assert plans(driver) == ["low"]

    def test_a_running_item_whose_priority_was_lowered(self) -> None:
        driver = ready(1, **AT_ONCE)
        running(driver, "low", priority=9)
        driver.send(events.PriorityChanged("low", 0))
        driver.submit(task("urgent", priority=5))
        assert plans(driver) == ["low"]

    def test_if_the_cluster_is_removed_the_room_is_given_back(self) -> None:
        driver = ready(2, 1, **AT_ONCE)
        running(driver, "low1", "low2", "low3")
        driver.submit(task("urgent", priority=5))
        (victim,) = plans(driver)
        state = driver.machine.registry.state(driver.machine.record(victim).cluster or "")
        driver.send(events.ClusterChanged(state.name, None))
        assert driver.machine.record("urgent").code != "FREES_ROOM"
        assert not driver.machine._state.rooms


class TestRoom:
    def test_the_newcomer_starts_where_its_room_was_booked_instead(self) -> None:
        """Ray started an item on the node whose room is freed, so the room was booked on the other node."""
        driver = ready(2, **AT_ONCE)
        driver.snapshot("a", 2, 2)
        driver.submit(task("low", preemptible=True))
        driver.start("low", "n1")
        driver.submit(task("other"))
        driver.submit(task("moves"))
        driver.succeed("other")
        driver.submit(task("urgent", 2, priority=5))
        assert plans(driver) == ["low"]
        driver.start("moves", "n1")
        leave(driver, "low")
        assert "urgent" in driver.sent_to(ever=False)
        assert list(driver.machine.registry.state("a").ledger.reservations["urgent"].parts) == ["n2"]

    def test_the_time_to_start_is_counted_once(self) -> None:
        """An item that left, resumed elsewhere and ended there does not extend it."""
        driver = full()
        (victim,) = plans(driver)
        driver.send(events.CordonChanged("a", cordoned=True))
        leave(driver, victim)
        first = timer(driver, timers.room_key("urgent"))
        driver.now += 5
        driver.machine._state.has_left.add(victim)
        driver.snapshot("a", 2)
        assert timer(driver, timers.room_key("urgent")) == first
        driver.fire(timers.room_key("urgent"), after=20)
        assert driver.machine.record("urgent").room is None
