"""Sending ahead: what is known to be short waits beside the place that it will get."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Dispatch,
    RecallAttempt,
    StartAttempt,
)
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import Prefetch
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from tests.unit.lifecycle.driver import FREE, Driver, cluster, job, ready, snapshot, task

SHORT_S = 0.01


def work(task_id: str, **values: Any) -> Any:
    return task(task_id, **{"function_digest": "f", **values})


def knowing(*sizes: float, took: float = SHORT_S, **settings: Any) -> Driver:
    """Clusters that have run the function ``f`` twice."""
    driver = ready(*sizes, **settings)
    for number in range(2):
        driver.submit(work(f"before{number}"))
        driver.succeed(f"before{number}", took)
    return driver


def ahead(driver: Driver, *, ever: bool = False) -> list[str]:
    return [one.task_id for one in driver.issued(Dispatch, ever=ever) if one.ahead]


def taken_back(driver: Driver) -> list[str]:
    return [one.task_id for one in driver.issued(RecallAttempt, ever=True)]


def test_as_much_is_sent_as_keeps_the_places_busy_for_prefetch_ms() -> None:
    driver = knowing(2, prefetch_ms=50)
    for number in range(30):
        driver.submit(work(f"t{number}"))
    # 10 ms each and 1 ms for Ray: 4 of them cover 50 ms behind each of the 2 places.
    assert ahead(driver, ever=True) == [f"t{number}" for number in range(2, 10)]
    assert driver.machine.view("a", driver.now).prefetched == 8
    assert driver.machine.view("a", driver.now).in_flight == 2


def test_items_behind_others_are_not_checked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    fill = Prefetch._fill

    def counted(*values: Any) -> int:
        nonlocal looks
        looks += 1
        return fill(*values)

    driver = knowing(2, prefetch_ms=50)
    monkeypatch.setattr(Prefetch, "_fill", counted)
    for number in range(200):
        driver.submit(work(f"t{number}"))
    assert len(ahead(driver, ever=True)) == 8
    assert looks < 20, "the other 190 find it full, as those before them did"


def test_a_prefetched_task_holds_no_capacity_and_has_a_reason() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    record = driver.submit(work("t1"))
    assert record.state is TaskState.DISPATCHING
    assert record.code == "SENT_AHEAD"
    assert "prefetched" in record.sentence
    ledger = driver.machine.registry.state("a").ledger
    assert "t0" in ledger.reservations
    assert "t1" not in ledger.reservations


@pytest.mark.parametrize(
    ("took", "settings", "values"),
    [
        (0.2, {}, {}),  # long
        (SHORT_S, {"prefetch_ms": 0}, {}),  # turned off
        (SHORT_S, {"execution_mode": "serial"}, {}),
        (SHORT_S, {}, {"function_digest": "g"}),  # unknown
    ],
)
def test_none_for_long_or_unknown_work_nor_in_serial_mode(took: float, settings: Any, values: Any) -> None:
    driver = knowing(1, took=took, **settings)
    for number in range(5):
        driver.submit(work(f"t{number}", **values))
    assert ahead(driver, ever=True) == []


def test_one_run_is_not_enough_and_the_slowest_recent_run_counts() -> None:
    driver = ready(1)
    driver.submit(work("first"))
    driver.succeed("first", SHORT_S)
    driver.submit(work("second"))
    driver.submit(work("third"))
    assert ahead(driver, ever=True) == []
    driver.succeed("second", 0.3)
    driver.submit(work("fourth"))
    assert ahead(driver, ever=True) == []


def test_nothing_is_prefetched_behind_long_work() -> None:
    driver = knowing(1)
    driver.submit(task("long", function_digest="unknown"))
    driver.submit(work("t"))
    assert ahead(driver, ever=True) == []


def test_the_slot_is_handed_over_when_the_gateway_reports_it() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.move("t0", "t1")
    ledger = driver.machine.registry.state("a").ledger
    assert set(ledger.reservations) == {"t1"}
    driver.succeed("t0", SHORT_S)
    assert driver.state("t0") is TaskState.SUCCEEDED
    assert set(ledger.reservations) == {"t1"}
    driver.start("t1", "n1")
    driver.succeed("t1", SHORT_S)
    assert not ledger.reservations
    assert driver.machine.view("a", driver.now).in_flight == 0
    assert driver.states("t1") == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]


def test_an_attempt_too_late_for_the_slot_gets_a_start_instruction() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.submit(work("t2"))
    driver.succeed("t0", SHORT_S)
    assert [one.task_id for one in driver.issued(StartAttempt)] == ["t1"]
    assert set(driver.machine.registry.state("a").ledger.reservations) == {"t1"}
    # Meanwhile the gateway gave it another one's place: that one frees its own when it ends.
    driver.send(events.PlaceMoved(("t0", 1), ("t1", 1)))
    assert set(driver.machine.registry.state("a").ledger.reservations) == {"t1"}


def test_more_is_sent_when_half_of_it_is_gone() -> None:
    driver = knowing(1)  # 4 behind the one place
    for number in range(20):
        driver.submit(work(f"t{number}"))
    assert ahead(driver, ever=True) == ["t1", "t2", "t3", "t4"]
    for number in range(2):
        driver.move(f"t{number}", f"t{number + 1}")
        driver.succeed(f"t{number}", SHORT_S)
        assert ahead(driver) == []
    driver.move("t2", "t3")
    driver.succeed("t2", SHORT_S)
    assert ahead(driver) == ["t5", "t6", "t7"]


def test_work_of_another_size_waits() -> None:
    driver = knowing(2)
    driver.submit(work("t0", requirements={"CPU": 2.0}))
    driver.submit(work("t1"))
    assert ahead(driver, ever=True) == []


def test_while_room_is_left_that_is_not_ours_none_waits_in_ray() -> None:
    driver = knowing(10, resource_threshold=0.05)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    assert [one.ahead for one in driver.issued(Dispatch)] == ["queue"]
    full = knowing(1)
    full.submit(work("t0"))
    full.submit(work("t1"))
    assert [one.ahead for one in full.issued(Dispatch)] == ["overlap"]


def test_the_cluster_with_the_most_room_ahead_gets_it() -> None:
    driver = knowing(1, 2)
    for number in range(3):
        driver.submit(work(f"t{number}"))
    driver.submit(work("t3"))
    assert [one.cluster for one in driver.issued(Dispatch)] == ["b"]


def test_max_in_flight_counts_what_was_sent_ahead() -> None:
    driver = Driver(cluster("a", max_in_flight=3))
    driver.link_up("a", 1)
    for number in range(2):
        driver.submit(work(f"before{number}"))
        driver.succeed(f"before{number}", SHORT_S)
    for number in range(6):
        driver.submit(work(f"t{number}"))
    assert ahead(driver, ever=True) == ["t1", "t2"]


def test_a_more_urgent_item_that_waits_gets_the_next_place() -> None:
    driver = knowing(1)
    for number in range(3):
        driver.submit(work(f"t{number}"))
    urgent = driver.submit(work("urgent", function_digest="unknown", priority=5))
    assert urgent.state is TaskState.QUEUED
    assert taken_back(driver) == ["t1", "t2"]
    for task_id in ("t1", "t2"):
        driver.send(events.AttemptFinished(task_id, 1, "cancelled", code="RECALLED"))
        assert driver.state(task_id) is TaskState.QUEUED
    driver.succeed("t0", SHORT_S)
    assert driver.state("urgent") is TaskState.DISPATCHING
    assert ahead(driver) == []
    driver.submit(work("t3"))
    assert ahead(driver) == []  # behind work that nobody knows
    driver.succeed("urgent")
    assert driver.state("t1") is TaskState.DISPATCHING


def test_one_that_had_begun_when_it_was_called_back_goes_on() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.submit(work("urgent", function_digest="unknown", priority=5))
    assert taken_back(driver) == ["t1"]
    driver.move("t0", "t1")
    driver.succeed("t0", SHORT_S)
    assert driver.state("urgent") is TaskState.QUEUED
    driver.succeed("t1", SHORT_S)
    assert driver.state("t1") is TaskState.SUCCEEDED
    assert driver.state("urgent") is TaskState.DISPATCHING


def test_less_urgent_work_is_not_sent_while_more_urgent_work_waits() -> None:
    driver = knowing(1)
    driver.submit(task("long", function_digest="unknown"))
    driver.submit(work("urgent", function_digest="unknown", priority=5, requirements={"CPU": 0.5}))
    driver.succeed("long")
    driver.submit(work("t0", requirements={"CPU": 0.5}))
    assert driver.state("urgent") is TaskState.DISPATCHING
    driver.submit(work("more", priority=5, function_digest="unknown"))
    driver.submit(work("t1", requirements={"CPU": 0.5}))
    assert ahead(driver, ever=True) == []


def test_what_waits_too_long_is_taken_back_and_its_function_not_trusted_any_more() -> None:
    driver = knowing(1, 1)
    for name in ("x", "y", "t0", "t1"):
        driver.submit(work(name))
    assert ahead(driver, ever=True) == ["t0", "t1"]
    where = driver.sent_to()["t0"]
    driver.fire(f"ahead:{where}", after=1.0)
    assert "t0" in taken_back(driver)
    driver.send(events.AttemptFinished("t0", 1, "cancelled", code="RECALLED"))
    assert driver.state("t0") is TaskState.QUEUED
    assert driver.machine.record("t0").failures == {}


def test_a_cordoned_or_removed_cluster_gives_back_what_was_sent_ahead() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    assert taken_back(driver) == ["t1"]
    other = knowing(1)
    other.submit(work("t0"))
    other.submit(work("t1"))
    other.send(events.ClusterChanged("a", None))
    assert taken_back(other) == ["t1"]


def test_cancel_ends_one_that_was_sent_ahead() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.cancel("t1")
    driver.stopped("t1")
    assert driver.state("t1") is TaskState.CANCELLED
    assert driver.machine.view("a", driver.now).prefetched == 0


def test_prefetched_attempts_of_a_lost_link_are_placed_again() -> None:
    driver = knowing(1, 1)
    for name in ("x", "y", "t0"):
        driver.submit(work(name))
    where = driver.sent_to()["t0"]
    driver.send(events.LinkDown(where, "silent"))
    driver.fire(f"lost:{where}", after=60)
    assert driver.state("t0") is TaskState.LOST
    driver.fail("t0", "cluster", "ClusterLostError")
    assert driver.state("t0") is TaskState.RETRYING
    assert driver.machine.view(where, driver.now).prefetched == 0


def test_at_equal_priority_no_item_overtakes_one_that_waits_for_such_a_slot() -> None:
    driver = knowing(1)
    driver.submit(work("w0"))
    driver.submit(work("w1"))
    driver.submit(work("other", function_digest="unknown", owner="somebody else"))
    for number in range(2, 9):
        driver.submit(work(f"w{number}"))
    assert ahead(driver, ever=True) == ["w1"]
    driver.move("w0", "w1")
    driver.succeed("w0", SHORT_S)
    driver.succeed("w1", SHORT_S)
    assert driver.state("other") is TaskState.DISPATCHING
    driver.succeed("other")
    assert driver.state("w2") is TaskState.DISPATCHING


def test_an_item_that_cannot_use_the_slot_delays_no_other() -> None:
    driver = knowing(1)
    driver.submit(work("w0"))
    driver.submit(work("wide", requirements={"CPU": 1.0, "GPU": 1.0}, allow_clusters=("a",)))
    driver.submit(work("w1"))
    assert ahead(driver, ever=True) == ["w1"]


class Picky:
    """Keeps some items away from everywhere."""

    name = "picky"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        return Rejection("PICKY", "not this one") if "GO" not in task.tags else None


def test_an_item_that_a_users_filter_rejects_delays_no_other() -> None:
    catalog = PolicyCatalog()
    catalog.register_filter("picky", Picky())
    settings = Settings(**FREE)
    driver = Driver(cluster("a"))
    driver.machine = SchedulerMachine(settings, [cluster("a")], policy=PolicyEngine(settings, catalog=catalog))
    driver.link_up("a", 1)
    for number in range(2):
        driver.submit(work(f"before{number}", tags=("GO",)))
        driver.succeed(f"before{number}", SHORT_S)
    driver.submit(work("w0", tags=("GO",)))
    driver.submit(work("kept away"))
    driver.submit(work("w1", tags=("GO",)))
    assert ahead(driver, ever=True) == ["w1"]


def test_a_more_urgent_item_that_waits_for_another_cluster_is_no_reason_to_wait() -> None:
    driver = knowing(1, 1)
    driver.send(events.LinkDown("b", "silent"))
    driver.submit(work("w0"))
    driver.submit(work("stuck", priority=9, preferred_cluster="b", fallback="wait"))
    driver.submit(work("w1"))
    assert ahead(driver, ever=True) == ["w1"]


def test_groups_take_turns_in_the_order_of_submission() -> None:
    driver = knowing(1)
    for number in range(6):
        driver.submit(work(f"w{number}", owner="ab"[number % 2]))
    assert ahead(driver, ever=True) == ["w1", "w2", "w3", "w4"]


def test_the_threshold_holds_for_what_is_sent_ahead() -> None:
    driver = knowing(10, resource_threshold=0.5)
    driver.submit(work("t0"))
    node = {"CPU": 10.0}
    busy = snapshot("a", driver.now, node)
    others = replace(busy, nodes=(replace(busy.nodes[0], free={"CPU": 1.0}),))
    driver.now += 5
    driver.send(events.SnapshotTaken(replace(others, taken_at=driver.now)))
    driver.submit(work("t1"))
    assert ahead(driver, ever=True) == [], "others use 80 %: our place must stay free when t0 has ended"
    driver.now += 5
    driver.send(events.SnapshotTaken(replace(busy, taken_at=driver.now)))
    for number in range(2, 9):
        driver.submit(work(f"t{number}"))
    assert ahead(driver, ever=True), "only ours are in the way, and each goes in the place of another"


def test_tasks_with_large_payloads_are_not_prefetched() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("heavy", arguments_bytes=10_000_000))
    driver.send(events.Submitted(work("fed"), "", 10_000_000))
    assert ahead(driver, ever=True) == []


def test_a_recall_in_vain_does_not_switch_off_the_limits() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("t1", run_timeout=5))
    driver.accept("t1")
    driver.fire("ahead:a", after=1.0)
    assert taken_back(driver) == ["t1"]
    driver.start("t1", "n1")  # Ray had it already and ran it
    assert driver.machine.record("t1").ending is None
    driver.fire("run:t1:1", after=5)
    assert [(one.task_id, one.force) for one in driver.issued(CancelAttempt)] == [("t1", True)]
    other = knowing(1)
    other.submit(work("t0"))
    other.submit(work("t1"))
    other.accept("t1")
    other.fire("ahead:a", after=1.0)
    other.fire("starts", after=60)
    assert [one.task_id for one in other.issued(CancelAttempt)] == ["t1"]


def test_one_that_ray_has_started_before_its_turn_is_left_alone() -> None:
    driver = knowing(1)
    driver.submit(work("t0"))
    driver.submit(work("early"))
    driver.accept("early")
    driver.start("early", "n1")  # another user left a CPU to Ray
    driver.fire("ahead:a", after=1.0)
    assert taken_back(driver) == []
    assert "ahead:a" not in driver.machine.timers  # it would fire at once, again and again
    driver.submit(work("t2"))
    driver.fire("ahead:a", after=1.0)
    assert taken_back(driver) == ["t2"]
    driver.move("t0", "early")
    driver.succeed("t0", SHORT_S)
    assert list(driver.machine.registry.state("a").slots.held) == ["early"]


def test_the_place_of_a_job_goes_to_no_task_that_was_sent_ahead() -> None:
    driver = Driver(cluster("a", max_running_jobs=1))
    driver.link_up("a", 2)
    for number in range(2):
        driver.submit(work(f"before{number}"))
        driver.succeed(f"before{number}", SHORT_S)
    driver.submit(job("j1", cpus=1))
    driver.submit(work("t0"))
    driver.submit(work("t1"))
    driver.submit(job("j2", cpus=1))
    assert ahead(driver, ever=True) == ["t1"]
    driver.succeed("j1")
    assert driver.state("j2") is TaskState.DISPATCHING


def test_history_has_the_reason_of_a_recall() -> None:
    driver = knowing(1)
    driver.submit(work("runs"))
    driver.submit(work("waits"))
    driver.send(events.CordonChanged("a", True))
    assert taken_back(driver) == ["waits"]
    last = driver.machine.record("waits").history[-1]
    assert (last.code, last.state) == ("TAKEN_BACK", TaskState.DISPATCHING)
    assert "was recalled from a" in last.sentence
