"""Nothing starves: a wide item that has waited long gets room kept for it, and others only fill gaps."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, snapshot, task


def crowded(cpus: int = 4, **settings: object) -> Driver:
    """One cluster full of small items, and a wide one that waits for all of it."""
    driver = ready(cpus, **settings)
    for number in range(cpus):
        driver.submit(task(f"s{number}", submitted_at=driver.now))
    driver.submit(task("wide", cpus=cpus, submitted_at=driver.now))
    return driver


def wait_for_the_pin(driver: Driver, after: float = 300.0) -> None:
    driver.fire("keep", after=after)


def test_small_items_do_not_starve_a_wide_one() -> None:
    driver = crowded()
    number = 4
    for _ in range(100):  # a stream of small ones takes every place that is freed
        driver.submit(task(f"s{number}", submitted_at=driver.now), after=4)
        driver.succeed(f"s{number - 4}")
        number += 1
        if "keep" in driver.machine.timers and driver.now >= 1000.0 + 300:
            break
    assert driver.state("wide") is TaskState.QUEUED
    wait_for_the_pin(driver, after=0)
    for _ in range(4):
        driver.submit(task(f"s{number}", submitted_at=driver.now))
        driver.succeed(f"s{number - 4}")
        number += 1
    assert driver.state("wide") is TaskState.DISPATCHING


def test_no_capacity_is_reserved_before_reserve_after_s() -> None:
    driver = crowded()
    driver.succeed("s0")
    driver.submit(task("late", submitted_at=driver.now), after=299)
    assert driver.state("late") is TaskState.DISPATCHING


def test_a_reservation_is_reported() -> None:
    driver = crowded()
    wait_for_the_pin(driver)
    driver.succeed("s0")
    late = driver.submit(task("late", submitted_at=driver.now))
    assert (late.state, late.code) == (TaskState.QUEUED, "NO_CAPACITY")
    assert "room is kept for a wide item" in late.sentence
    assert driver.machine.view("a", driver.now).reserved_for == "wide"


def test_a_more_urgent_item_is_not_kept_away() -> None:
    driver = crowded()
    wait_for_the_pin(driver)
    driver.succeed("s0")
    assert driver.submit(task("urgent", priority=1, submitted_at=driver.now)).state is TaskState.DISPATCHING


def test_one_that_will_be_over_in_time_may_fill_the_gap() -> None:
    driver = ready(2)
    for name, took in (("quick", 5.0), ("slow", 400.0)):
        for number in range(2):
            driver.submit(task(f"{name}{number}", function_digest=name))
            driver.succeed(f"{name}{number}", took)
    driver.submit(task("s0", function_digest="slow"))
    driver.submit(task("s1", function_digest="slow"))
    driver.submit(task("wide", cpus=2, submitted_at=driver.now))
    wait_for_the_pin(driver)  # both are expected to end 100 s from now
    driver.succeed("s0", 300.0)
    assert driver.submit(task("long", function_digest="slow", submitted_at=driver.now)).state is TaskState.QUEUED
    assert driver.submit(task("new", function_digest="new", submitted_at=driver.now)).state is TaskState.QUEUED
    gap = task("gap", function_digest="quick", tags=("another shape",), submitted_at=driver.now)
    assert driver.submit(gap).state is TaskState.DISPATCHING


def test_other_nodes_and_other_resources_stay_open() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", {"CPU": 2, "GPU": 1}, {"CPU": 2})
    for number in range(4):
        driver.submit(task(f"s{number}"))
    driver.submit(task("wide", requirements={"CPU": 2.0, "GPU": 1.0}, submitted_at=driver.now))
    wait_for_the_pin(driver)
    on = {
        one: next(iter(reservation.parts))
        for one, reservation in driver.machine.registry.state("a").ledger.reservations.items()
    }
    first = next(one for one, node in on.items() if node == "n1")
    second = next(one for one, node in on.items() if node == "n2")
    driver.succeed(first)
    assert driver.submit(task("late", submitted_at=driver.now)).state is TaskState.QUEUED
    driver.succeed(second)
    assert driver.sent_to(ever=False) == {"late": "a"}


def test_it_is_kept_where_it_can_start_soonest() -> None:
    driver = ready(2, 2)
    for name, took in (("short", 50.0), ("long", 9000.0)):
        for number in range(2):
            driver.submit(task(f"{name}{number}", function_digest=name))
            driver.succeed(f"{name}{number}", took)
    for number, (name, where) in enumerate([("long", "a"), ("long", "a"), ("short", "b"), ("short", "b")]):
        driver.submit(task(f"r{number}", function_digest=name, preferred_cluster=where, fallback="wait"))
    driver.submit(task("wide", cpus=2, submitted_at=driver.now))
    wait_for_the_pin(driver)
    assert driver.machine.view("b", driver.now).reserved_for == "wide"
    assert driver.machine.view("a", driver.now).reserved_for is None


def test_it_may_start_elsewhere_all_the_same() -> None:
    driver = ready(2, 2)
    for number in range(4):
        driver.submit(task(f"s{number}"))
    driver.submit(task("wide", cpus=2, submitted_at=driver.now))
    wait_for_the_pin(driver)
    kept = next(name for name in ("a", "b") if driver.machine.view(name, driver.now).reserved_for)
    other = "b" if kept == "a" else "a"
    for one, where in driver.sent_to().items():
        if where == other:
            driver.succeed(one)
    assert driver.sent_to(ever=False) == {"wide": other}
    assert driver.machine.view(kept, driver.now).reserved_for is None


@pytest.mark.parametrize("end", ["cancel", "timeout", "removed", "cordoned", "smaller"])
def test_what_was_kept_is_for_everybody_when_it_is_of_no_use(end: str) -> None:
    driver = ready(4, 4)
    for number in range(8):
        driver.submit(task(f"s{number}"))
    driver.submit(
        task("wide", cpus=4, queue_timeout=400.0, preferred_cluster="a", fallback="wait", submitted_at=driver.now)
    )
    wait_for_the_pin(driver)
    on_a = next(one for one, where in driver.sent_to().items() if where == "a")
    driver.succeed(on_a)
    driver.submit(task("late", preferred_cluster="a", submitted_at=driver.now))
    assert driver.state("late") is TaskState.QUEUED
    if end == "cancel":
        driver.cancel("wide")
    elif end == "timeout":
        driver.fire("queue:wide", after=100)
    elif end == "removed":
        driver.send(events.ClusterChanged("a", None))
    elif end == "cordoned":
        driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    else:
        driver.send(events.SnapshotTaken(snapshot("a", driver.now + 1, 3)), after=1)
    state = driver.machine.registry.find("a")
    assert state is None or state.wide_reservation is None
    assert not driver.machine._state.wide_reservations
    assert driver.state("late") is (
        TaskState.QUEUED if end in ("removed", "cordoned", "smaller") else TaskState.DISPATCHING
    )


def test_a_small_item_of_a_long_queue_is_not_wide() -> None:
    """It gets the next place by its order: nothing has to be kept for it, and fair share goes on."""
    driver = ready(2)
    for number in range(10):
        driver.submit(task(f"s{number}", owner="many", submitted_at=driver.now))
    wait_for_the_pin(driver)
    assert driver.machine.view("a", driver.now).reserved_for is None
    driver.submit(task("other", owner="few", submitted_at=driver.now))
    driver.succeed("s0")
    assert driver.sent_to(ever=False) == {"other": "a"}


def test_room_is_kept_for_a_wide_job_over_nodes() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 2, 2)
    for number in range(4):
        driver.submit(task(f"s{number}"))
    driver.submit(job("wide", cpus=4, submitted_at=driver.now))
    wait_for_the_pin(driver)
    driver.succeed("s0")
    driver.succeed("s1")
    assert driver.submit(task("late", submitted_at=driver.now)).state is TaskState.QUEUED
    driver.succeed("s2")
    driver.succeed("s3")
    assert driver.sent_to(ever=False) == {"wide": "a"}


def test_what_was_sent_ahead_is_taken_back_and_no_more_is_sent() -> None:
    driver = ready(2)
    for number in range(2):
        driver.submit(task(f"before{number}", function_digest="f"))
        driver.succeed(f"before{number}", 0.001)
    driver.submit(task("wide0", cpus=2))
    driver.submit(task("wide", cpus=2, submitted_at=driver.now))
    driver.succeed("wide0")
    driver.submit(task("wide2", cpus=2, submitted_at=driver.now))
    driver.succeed("wide")
    driver.succeed("wide2")
    for number in range(4):
        driver.submit(task(f"t{number}", function_digest="f", submitted_at=driver.now))
    driver.submit(task("widest", cpus=2, submitted_at=driver.now))
    wait_for_the_pin(driver)
    assert {one.task_id for one in driver.issued(RecallAttempt)} == {"t2", "t3"}
    driver.submit(task("t4", function_digest="f", submitted_at=driver.now))
    assert driver.state("t4") is TaskState.QUEUED


def test_reserve_after_zero_keeps_at_once_and_no_timer_stays() -> None:
    driver = crowded(2, reserve_after_s=0)
    driver.fire("keep")
    assert driver.machine.view("a", driver.now).reserved_for == "wide"
    driver.succeed("s0")
    driver.succeed("s1")
    driver.succeed("wide")
    assert driver.machine.timers == frozenset()


def test_shapes_that_come_and_go_leave_nothing_behind() -> None:
    driver = ready(64)
    for number in range(2000):
        driver.submit(task(f"t{number}", cpus=1 + number / 10_000))
        driver.succeed(f"t{number}")
    kept = driver.machine._scheduling._reservations
    assert not kept._deadlines
    assert not kept._watched
    driver.submit(task("wait", cpus=64))
    driver.submit(task("waits", cpus=64))
    for number in range(2000):
        driver.submit(task(f"x{number}", cpus=60 + number / 10_000))
        driver.cancel(f"x{number}")
    assert len(kept._deadlines) < 200


def test_a_bounded_number_is_checked_in_one_call() -> None:
    driver = ready(64)
    driver.submit(task("runs", cpus=64))
    for number in range(50):
        driver.submit(task(f"t{number}", cpus=1 + number / 100))
    calls = 0
    driver.fire("keep", after=300)
    while min(entry[0] for entry in driver.machine._scheduling._reservations._deadlines) <= driver.now:
        driver.fire("keep")
        calls += 1
    assert calls >= 4
