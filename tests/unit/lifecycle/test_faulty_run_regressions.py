"""What faulty runs found, each as small as it gets."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle.events import (
    ClusterChanged,
    HoldRequested,
    LinkDown,
    ReleaseRequested,
    Restored,
    Started,
)
from ray_multicluster_scheduler.scheduler.lifecycle.placement.run_times import RunTimes
from tests.unit.lifecycle.driver import Driver, actor, cluster, ready, task


def test_an_item_that_waits_for_one_silent_cluster_names_it() -> None:
    """Its reason was PREFERRED_ONLY, which is true of a cluster that it never asked for."""
    driver = Driver(cluster("a"), cluster("c"))
    driver.link_up("a", 8)
    driver.submit(task("t0"))
    driver.no_answer("c")
    record = driver.submit(task("t1", preferred_cluster="c", fallback="wait"), after=10)
    assert record.state is TaskState.QUEUED  # c is asked anew, for it
    assert record.code == "CLUSTER_UNREACHABLE"


def test_dependents_of_an_item_that_ends_in_the_pass_are_notified_at_once() -> None:
    """It was reported at the next event, which may never come."""
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.submit(task("t2", after=("t1",)))
    driver.no_answer("a")
    assert driver.state("t1") is TaskState.FAILED  # nobody who could run it answers
    assert driver.state("t2") is TaskState.FAILED
    assert driver.end("t2").error == "TaskSubmissionError"


def test_one_behind_another_of_its_shape_does_not_hear_that_it_could_go() -> None:
    """Room is kept for a wide item. The second in line is short and might use it, but the first is not."""
    driver = ready(8, reserve_after_s=5, prefetch_ms=0)
    for number in range(3):
        driver.submit(task(f"seen{number}", 2, function_digest="quick"))
        driver.start(f"seen{number}")
        driver.now += 1.0
        driver.succeed(f"seen{number}", took=1.0)
        driver.submit(task(f"slow{number}", 2, function_digest="slow"))
        driver.start(f"slow{number}")
        driver.now += 100.0
        driver.succeed(f"slow{number}", took=100.0)
    for number in range(4):
        driver.submit(task(f"runs{number}", 2, function_digest="slow"))
        driver.start(f"runs{number}")
    driver.submit(task("wide", 8))
    driver.fire("keep", after=5)
    first = driver.submit(task("first", 2, function_digest="new"))
    second = driver.submit(task("second", 2, function_digest="quick"))
    driver.succeed("runs0", took=5.0)
    for record in (first, second):
        assert record.state is TaskState.QUEUED
        why = driver.machine.explain_wait(record.task.id, driver.now)
        assert why is not None
        assert (why.cluster, why.code) == (None, "NO_CAPACITY")


def test_the_timer_of_a_silent_link_goes_with_the_last_one_that_was_sent_ahead() -> None:
    """It was cleared only by one that had a place."""
    driver = ready(1, prefetch_ms=50)
    for number in range(3):
        driver.submit(task(f"seen{number}", function_digest="quick"))
        driver.succeed(f"seen{number}", took=0.001)
    driver.submit(task("first", function_digest="quick"))
    driver.start("first")
    driver.submit(task("ahead", function_digest="quick"))
    assert driver.machine.record("ahead").decision is not None
    assert "ahead" in driver.machine.registry.state("a").slots.prefetched
    driver.cancel("ahead")
    driver.send(LinkDown("a", "silent"))
    driver.succeed("first", took=0.001)
    driver.stopped("ahead")
    assert driver.machine.timers == frozenset()


def test_what_ran_before_a_restart_does_not_make_way_for_others() -> None:
    """It was taken for one that has not begun, and booked on another node than it runs on."""
    before = Driver(cluster("a"))
    before.link_up("a", 4, 4)
    before.submit(task("runs", 2))
    before.start("runs", "n1")
    driver = Driver(cluster("a"))
    driver.send(Restored((before.machine.row("runs"),)))
    driver.link_up("a", 4, 4)
    driver.submit(task("beside", 2))
    driver.submit(task("elsewhere", 2))
    books = driver.machine.registry.state("a").ledger.reservations
    assert [list(books[name].parts) for name in ("runs", "beside", "elsewhere")] == [["n1"], ["n1"], ["n2"]]
    driver.send(Started("elsewhere", 1, driver.now, "n1"))
    assert [list(books[name].parts) for name in ("runs", "beside", "elsewhere")] == [["n1"], ["n2"], ["n1"]]


@pytest.mark.parametrize(
    "rule",
    [
        {"submission_interval_s": 3, "submission_interval_kinds": ["task"]},
        {"max_in_flight": 2},
    ],
    ids=["interval", "max_in_flight"],
)
def test_room_is_kept_for_a_wide_item_also_where_small_ones_use_up_a_rule(rule: dict[str, Any]) -> None:
    """It was kept only while nothing but room was missing, which may be never: it starved."""
    described = {name: value for name, value in rule.items() if name == "max_in_flight"}
    settings = {name: value for name, value in rule.items() if name not in described}
    driver = Driver(cluster("a", **described), reserve_after_s=5, **settings)
    driver.link_up("a", 8)
    driver.submit(task("small1", 4))
    driver.submit(task("small2", 4), after=3)
    driver.submit(task("wide", 8))
    driver.submit(task("small3", 4), after=1)
    driver.now += 2
    driver.succeed("small1")
    assert driver.state("small3") is TaskState.DISPATCHING  # nobody has waited long yet
    driver.fire("keep", after=2)
    driver.submit(task("small4", 4))
    driver.now += 2
    driver.succeed("small2")
    assert driver.state("small4") is TaskState.QUEUED, "it would take what the wide one needs"
    driver.succeed("small3")
    assert driver.state("wide") is TaskState.DISPATCHING


def test_released_item_may_use_reserved_capacity() -> None:
    """Its reason named what those wait for; it was not evaluated."""
    driver = ready(8, reserve_after_s=5)
    for number in range(4):
        driver.submit(task(f"runs{number}", 2))
    old = driver.submit(task("old", 2, submitted_at=driver.now))
    driver.send(HoldRequested("old"))
    driver.submit(task("wide", 8, submitted_at=driver.now + 1), after=1)
    driver.submit(task("young", 2, submitted_at=driver.now + 1), after=1)
    driver.fire("keep", after=5)
    driver.succeed("runs0")
    assert driver.state("young") is TaskState.QUEUED  # what is free is kept for the wide one
    driver.send(ReleaseRequested("old"))
    assert old.state is TaskState.DISPATCHING
    assert driver.state("young") is TaskState.QUEUED


def test_one_small_item_is_enough_to_keep_room_for_one_that_needs_the_whole_node() -> None:
    """Its end would have made room, had others not joined it: whether two ran at the check was chance."""
    driver = ready(8, reserve_after_s=5)
    driver.submit(task("small1", 1))
    driver.submit(task("wide", 8, submitted_at=driver.now))
    driver.fire("keep", after=5)
    driver.submit(task("small2", 1, submitted_at=driver.now))
    assert driver.state("small2") is TaskState.QUEUED, "it would outlive the other, and a third would outlive it"
    driver.succeed("small1")
    assert driver.state("wide") is TaskState.DISPATCHING


def test_room_is_not_kept_for_one_that_any_place_of_ours_makes_room_for() -> None:
    driver = ready(6, reserve_after_s=5)
    driver.submit(task("runs", 4))
    driver.submit(task("next", 4, submitted_at=driver.now))
    driver.fire("keep", after=5)
    assert driver.submit(task("beside", 2, submitted_at=driver.now)).state is TaskState.DISPATCHING
    driver.succeed("runs")
    assert driver.state("next") is TaskState.DISPATCHING


def test_an_actor_that_is_ready_is_so_too_when_its_cluster_is_configured_again() -> None:
    """It was booked with what it had needed to start, for good, and in serial mode nothing else went there."""
    driver = ready(4, execution_mode="serial")
    driver.submit(actor("serves", placement={"CPU": 4.0}))
    driver.start("serves")
    driver.send(ClusterChanged("a", None))
    driver.send(ClusterChanged("a", cluster("a")))
    driver.link_up("a", 4)
    view = driver.machine.view("a", driver.now)
    assert (view.in_flight, view.ready_actors) == (1, 1)
    assert driver.submit(task("beside", 4, submitted_at=driver.now)).state is TaskState.DISPATCHING


def test_room_is_kept_for_the_more_urgent_of_two() -> None:
    """The first arrival had it reserved until it started, which small ones more urgent than it prevented for ever."""
    driver = ready(8, reserve_after_s=5)
    for number in range(4):
        driver.submit(task(f"runs{number}", 2))
    driver.submit(task("low", 4, priority=-1, submitted_at=driver.now))
    driver.fire("keep", after=5)
    driver.submit(task("wide", 8, submitted_at=driver.now))
    driver.fire("keep", after=5)
    driver.submit(task("small", 2, submitted_at=driver.now))
    driver.succeed("runs0")
    assert driver.state("small") is TaskState.QUEUED, "it is more urgent than one of them, but not than the other"
    for number in range(1, 4):
        driver.succeed(f"runs{number}")
    assert driver.state("wide") is TaskState.DISPATCHING
    assert driver.state("low") is TaskState.QUEUED


def test_what_is_learnt_to_be_short_may_use_kept_room_at_once() -> None:
    """It was learnt by an end on another cluster, and only that one was looked at."""
    driver = ready(8, 2, reserve_after_s=5, prefetch_ms=0)
    for number in range(2):
        driver.submit(task(f"slow{number}", 8, function_digest="slow"))
        driver.start(f"slow{number}")
        driver.succeed(f"slow{number}", took=100.0)
    for name in ("runs", "beside"):
        driver.submit(task(name, 4, preferred_cluster="a", function_digest="slow"))
        driver.start(name)
    driver.submit(task("wide", 8))
    for number in range(2):
        driver.submit(task(f"seen{number}", 1, preferred_cluster="b", function_digest="quick"))
    driver.submit(task("fills", 1, preferred_cluster="b", fallback="wait"))
    driver.fire("keep", after=5)
    driver.succeed("runs")
    record = driver.submit(task("quick", 2, function_digest="quick"))
    driver.succeed("seen0", took=1.0)
    assert record.state is TaskState.QUEUED  # for all that is known it might keep the wide one waiting
    driver.succeed("seen1", took=1.0)
    assert record.state is TaskState.DISPATCHING
    assert record.cluster == "a"


def test_a_shorter_expected_time_counts_as_a_change() -> None:
    times, reported = RunTimes(), []
    for took in (1.0, 9.0, *[1.0] * 8, 2.0, 1.0):
        times.observe("code", took)
        reported.append(times.changed)
        times.changed = False
    assert [number for number, changes in enumerate(reported, start=1) if changes] == [
        2,
        10,
    ]  # twice seen; 9 s are long ago


@pytest.mark.parametrize("how", ["cancelled", "held", "placed"])
def test_short_item_at_head_may_use_reserved_capacity(how: str) -> None:
    """Who was first decides for all of them; when it left, nobody looked at the next one."""
    driver = ready(8, 2, reserve_after_s=5, prefetch_ms=0)
    for digest, took in (("slow", 100.0), ("slow", 100.0), ("quick", 1.0), ("quick", 1.0)):
        record = driver.submit(task(f"{digest}{driver.now}", 2, function_digest=digest))
        driver.start(record.task.id)
        driver.succeed(record.task.id, took=took)
        driver.now += 1
    for number in range(2):
        driver.submit(task(f"runs{number}", 4, preferred_cluster="a", function_digest="slow"))
        driver.start(f"runs{number}")
    driver.submit(task("fills", 2, preferred_cluster="b"))
    driver.submit(task("wide", 8))
    driver.fire("keep", after=5)
    driver.succeed("runs0")
    driver.submit(task("first", 2, function_digest="new"))
    second = driver.submit(task("second", 2, function_digest="quick"))
    assert second.state is TaskState.QUEUED
    if how == "placed":
        driver.succeed("fills")
        assert driver.machine.record("first").cluster == "b"
    elif how == "held":
        driver.send(HoldRequested("first"))
    else:
        driver.cancel("first")
    assert second.state is TaskState.DISPATCHING
    assert second.cluster == "a"


def test_only_items_that_end_in_time_overtake_a_wide_item() -> None:
    """What was expected when a place was first kept for it held on, whatever was learnt: so long it was overtaken."""
    driver = ready(8, 2, reserve_after_s=5, prefetch_ms=0)
    for number in range(2):
        driver.submit(task(f"slow{number}", 4, function_digest="code"))
        driver.start(f"slow{number}")
        driver.succeed(f"slow{number}", took=100.0)
    for number in range(2):
        driver.submit(task(f"runs{number}", 4, function_digest="code"))
        driver.start(f"runs{number}")
    driver.submit(task("wide", 8))
    driver.fire("keep", after=5)
    driver.fire("keep", after=1)
    for number in range(8):
        driver.submit(task(f"quick{number}", 2, preferred_cluster="b", function_digest="code"))
        driver.start(f"quick{number}")
        driver.succeed(f"quick{number}", took=1.0)
    driver.succeed("runs0", took=1.0)
    assert driver.submit(task("in time", 2, preferred_cluster="a", function_digest="code")).cluster == "a"
    driver.start("in time")
    driver.fire("keep", after=1)
    late = driver.submit(task("late", 2, preferred_cluster="a", fallback="wait", function_digest="code"))
    assert late.state is TaskState.QUEUED
    driver.succeed("in time", took=1.0)
    driver.succeed("runs1", took=1.0)
    assert driver.state("wide") is TaskState.DISPATCHING
