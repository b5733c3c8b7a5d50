"""Other limits for an owner while the machine runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Dispatch,
    Persist,
    RecallAttempt,
    Remember,
    RememberFleet,
)
from ray_multicluster_scheduler.scheduler.lifecycle.rows import OwnerRow
from tests.unit.lifecycle.driver import Driver, prefetched_of_two_owners, ready, task
from tests.unit.lifecycle.test_fair_share import served, submit_all
from tests.unit.lifecycle.test_restore import reborn


def limit(driver: Driver, owner: str, **limits: Any) -> None:
    driver.send(events.OwnerLimitsChanged(owner, OwnerLimits(**limits)))


def codes(driver: Driver, *ids: str) -> list[str]:
    return [driver.machine.record(one).code for one in ids]


def four_of(driver: Driver, owner: str = "x", **values: Any) -> None:
    for number in range(4):
        driver.submit(task(f"{owner}{number}", owner=owner, **values))


class TestRaising:
    def test_what_waited_for_the_limit_starts_in_the_same_pass(self) -> None:
        driver = ready(8, owners={"x": {"max_running": 1}})
        four_of(driver)
        limit(driver, "x", max_running=3)
        assert list(driver.sent_to(ever=False)) == ["x1", "x2"]
        assert codes(driver, "x3") == ["OWNER_LIMIT"]
        why = driver.machine.explain_wait("x3", driver.now)
        assert why is not None
        assert why.sentence == "x: 3 of its items are on clusters; its max_running is 3"

    def test_all_that_is_to_be_durable_comes_before_what_starts(self) -> None:
        driver = ready(8, owners={"x": {"max_running": 1}})
        four_of(driver)
        limit(driver, "x")
        durable = [isinstance(one, Persist | Remember | RememberFleet) for one in driver.last]
        assert driver.last[0] == RememberFleet()
        assert durable == sorted(durable, reverse=True)
        assert len(driver.issued(Dispatch)) == 3

    def test_a_limit_of_gpus(self) -> None:
        driver = ready({"CPU": 8.0, "GPU": 4.0}, owners={"x": {"max_gpus": 1}})
        four_of(driver, requirements={"CPU": 1.0, "GPU": 1.0})
        driver.submit(task("plain", owner="x"))
        assert list(driver.sent_to()) == ["x0", "plain"]
        limit(driver, "x", max_gpus=3)
        assert list(driver.sent_to(ever=False)) == ["x1", "x2"]

    def test_who_may_start_and_has_no_room_waits_for_that(self) -> None:
        driver = ready(1, owners={"x": {"max_running": 1}})
        four_of(driver)
        assert codes(driver, "x1") == ["OWNER_LIMIT"]
        limit(driver, "x", max_running=9)
        assert codes(driver, "x1", "x2") == ["NO_CAPACITY", "NO_CAPACITY"]
        driver.succeed("x0")
        assert list(driver.sent_to(ever=False)) == ["x1"]

    def test_a_paused_owner_stays_paused(self) -> None:
        driver = ready(8, owners={"x": {"max_running": 1}})
        driver.send(events.QueuePaused("owner", "x", "why not"))
        four_of(driver)
        limit(driver, "x", max_running=9)
        assert driver.sent_to() == {}
        assert codes(driver, "x0") == ["OWNER_PAUSED"]
        driver.send(events.QueueResumed("owner", "x"))
        assert len(driver.sent_to()) == 4

    def test_more_may_wait(self) -> None:
        driver = ready(1, owners={"x": {"max_queued": 1}})
        four_of(driver)
        assert driver.state("x2") is TaskState.FAILED
        limit(driver, "x", max_queued=2)
        driver.submit(task("again", owner="x"))
        driver.submit(task("more", owner="x"))
        assert (driver.state("again"), driver.state("more")) == (TaskState.QUEUED, TaskState.FAILED)
        assert "max_queued is 2" in driver.end("more").message


class TestLowering:
    def test_what_runs_goes_on_and_nothing_follows_it(self) -> None:
        driver = ready(3)
        four_of(driver)
        assert codes(driver, "x3") == ["NO_CAPACITY"]
        limit(driver, "x", max_running=1)
        assert (driver.issued(CancelAttempt), driver.issued(RecallAttempt)) == ([], [])
        assert codes(driver, "x3") == ["OWNER_LIMIT"]
        driver.succeed("x0")
        driver.succeed("x1")
        assert driver.state("x3") is TaskState.QUEUED
        driver.succeed("x2")
        assert list(driver.sent_to(ever=False)) == ["x3"]

    def test_whose_limit_is_gone_again_waits_for_what_it_waited_for(self) -> None:
        driver = ready(3)
        four_of(driver)
        limit(driver, "x", max_running=1)
        driver.send(events.OwnerLimitsChanged("x", None))
        assert codes(driver, "x3") == ["NO_CAPACITY"]

    def test_what_only_waits_over_there_comes_back(self) -> None:
        driver = prefetched_of_two_owners()
        limit(driver, "x", max_running=2)
        assert driver.issued(RecallAttempt) == [], "as many as it may have"
        limit(driver, "x", max_running=1)
        assert [one.task_id for one in driver.issued(RecallAttempt)] == ["ours"]
        driver.stopped("ours")
        assert (driver.state("runs"), driver.state("ours")) == (TaskState.DISPATCHING, TaskState.QUEUED)
        driver.succeed("runs")
        driver.succeed("theirs")
        assert driver.state("ours") is TaskState.DISPATCHING

    def test_room_that_was_kept_is_for_others(self) -> None:
        driver = ready(4, reserve_after_s=10)
        driver.submit(task("half", 2))
        driver.submit(task("runs", 1))
        driver.submit(task("wide", 4, owner="x"))
        driver.fire("keep", after=10)
        late = driver.submit(task("late", 1))
        assert late.state is TaskState.QUEUED, "room is kept for the wide one"
        limit(driver, "x", max_running=0)
        assert driver.state("late") is TaskState.DISPATCHING
        assert codes(driver, "wide") == ["OWNER_LIMIT"]

    def test_what_waits_already_is_not_refused_afterwards(self) -> None:
        driver = ready(1)
        four_of(driver)
        limit(driver, "x", max_queued=1)
        assert [driver.state(one) for one in ("x1", "x2", "x3")] == [TaskState.QUEUED] * 3


class TestWeights:
    def test_the_next_one_is_whose_share_is_the_smallest_by_the_new_weights(self) -> None:
        driver = ready(4)
        for name in ("x0", "x1", "y0", "z0", "y1", "x2"):
            driver.submit(task(name, owner=name[0]))
        limit(driver, "x", weight=4)
        driver.succeed("z0")
        assert list(driver.sent_to(ever=False)) == ["x2"]

    def test_another_weight_divides_what_there_is_from_then_on(self) -> None:
        driver = ready(8)
        submit_all(driver, light=1500, heavy=1500)
        served(driver, {"light": 1.0, "heavy": 1.0}, until=50)
        limit(driver, "heavy", weight=3)
        seen = set(driver.sent_to())
        served(driver, {"light": 1.0, "heavy": 1.0}, until=60)
        since = Counter(driver.machine.record(one).task.owner for one in driver.sent_to() if one not in seen)
        assert since["heavy"] / since.total() == pytest.approx(0.75, abs=0.05)

    @pytest.mark.parametrize("weight", [0.01, 100.0])
    def test_a_weight_that_is_as_before_leaves_neither_debt_nor_credit(self, weight: float) -> None:
        driver = ready(1)
        submit_all(driver, x=2000, y=2000)
        served(driver, {"x": 1.0, "y": 1.0}, until=50)
        limit(driver, "x", weight=weight)
        served(driver, {"x": 1.0, "y": 1.0}, until=100)
        driver.send(events.OwnerLimitsChanged("x", None))
        seen = set(driver.sent_to())
        served(driver, {"x": 1.0, "y": 1.0}, until=60)
        since = Counter(driver.machine.record(one).task.owner for one in driver.sent_to() if one not in seen)
        assert since["x"] == pytest.approx(30, abs=4)


class TestWhatHolds:
    def test_these_limits_and_none_of_those_in_the_settings(self) -> None:
        driver = ready(1, owners={"x": {"max_running": 1, "weight": 2, "max_priority": 5}})
        limit(driver, "x", max_gpus=2)
        assert driver.machine.limits_of("x") == OwnerLimits(max_gpus=2)
        assert driver.machine.limits_of("nobody") == OwnerLimits()

    def test_those_in_the_settings_again(self) -> None:
        driver = ready(8, owners={"x": {"max_running": 2}})
        limit(driver, "x", max_running=0)
        four_of(driver)
        assert driver.sent_to() == {}
        assert codes(driver, "x0") == ["OWNER_LIMIT"]
        driver.send(events.OwnerLimitsChanged("x", None))
        assert list(driver.sent_to(ever=False)) == ["x0", "x1"]
        assert driver.machine.owner_rows() == ()

    def test_also_for_an_owner_who_was_away_meanwhile(self) -> None:
        driver = ready(8)
        limit(driver, "x", max_running=1)
        driver.submit(task("only", owner="x"))
        driver.succeed("only")
        four_of(driver)
        assert list(driver.sent_to(ever=True)) == ["only", "x0"]

    def test_unchanged_limits_emit_nothing(self) -> None:
        driver = ready(1)
        assert driver.send(events.OwnerLimitsChanged("x", None)) == []
        limit(driver, "x", weight=2)
        assert driver.send(events.OwnerLimitsChanged("x", OwnerLimits(weight=2))) == []


class TestAfterARestart:
    def test_it_still_holds(self) -> None:
        driver = ready(2, owners={"x": {"max_running": 9}})
        limit(driver, "x", max_running=1, max_queued=3, weight=4)
        driver.send(events.QueuePaused("owner", "y", "later"))
        limit(driver, "z", max_running=0)
        driver.send(events.QueuePaused("owner", "z"))
        four_of(driver)
        rows = driver.machine.owner_rows()
        assert rows == (
            OwnerRow("x", None, OwnerLimits(max_running=1, max_queued=3, weight=4)),
            OwnerRow("y", "later", None),
            OwnerRow("z", "", OwnerLimits(max_running=0)),
        )
        after = reborn(driver, owners={"x": {"max_running": 9}})
        assert after.machine.owner_rows() == rows
        after.link_up("a", 2)
        assert codes(after, "x1") == ["OWNER_LIMIT"]
        after.succeed("x0")
        assert list(after.sent_to(ever=False)) == ["x1"]
        after.send(events.OwnerLimitsChanged("x", None))
        assert after.machine.limits_of("x") == OwnerLimits(max_running=9)
