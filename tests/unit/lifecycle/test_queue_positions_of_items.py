"""Whose turn it is where turns could be gamed, lost or taken twice."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt, StartAttempt
from tests.unit.lifecycle.driver import Driver, cluster, ready, task

SHORT_S = 0.001


def run_turns(driver: Driver, count: int, seconds: float = 1.0) -> list[str]:
    """End what runs on the one place, so many times; whose turns came."""
    owners = []
    for _ in range(count):
        running = next(one for one in reversed(driver.sent_to()) if driver.state(one) is TaskState.DISPATCHING)
        driver.now += seconds
        driver.succeed(running)
        sent = driver.sent_to(ever=False)
        owners += [driver.machine.record(one).task.owner for one in sent]
    return owners


def queue_up(driver: Driver, owner: str, count: int, **values: Any) -> None:
    for number in range(count):
        driver.submit(task(f"{owner}-{driver.now:g}-{number}", owner=owner, submitted_at=driver.now, **values))


@pytest.mark.parametrize(("first", "second"), [("big", "new"), ("new", "big")])
def test_who_comes_later_gets_its_share_at_once_whatever_the_weights(first: str, second: str) -> None:
    driver = ready(1, owners={"big": {"weight": 3.0}})
    queue_up(driver, first, 300)
    run_turns(driver, 200)
    queue_up(driver, second, 60)
    turns = run_turns(driver, 40)
    assert turns.count("big") == pytest.approx(30, abs=4)


def test_who_waits_for_a_paused_cluster_saves_no_turns_up() -> None:
    driver = ready(1, 1)
    driver.send(events.QueuePaused("cluster", "b"))
    driver.submit(task("stuck", owner="g", preferred_cluster="b", fallback="wait"))
    queue_up(driver, "c", 400)
    run_turns(driver, 300)
    queue_up(driver, "g", 30)
    queue_up(driver, "n", 30)
    turns = run_turns(driver, 30)
    assert {owner: turns.count(owner) for owner in "gcn"} == {
        "g": pytest.approx(10, abs=3),
        "c": pytest.approx(10, abs=3),
        "n": pytest.approx(10, abs=3),
    }


def test_age_lifts_only_the_one_that_is_old() -> None:
    driver = ready(1, ageing_s=100)
    driver.submit(task("r", owner="x", submitted_at=driver.now))
    driver.submit(task("old", owner="x", submitted_at=driver.now))
    driver.submit(task("y0", owner="y", submitted_at=driver.now))
    driver.now += 690
    queue_up(driver, "y", 3)
    driver.submit(task("hi", owner="z", priority=5, submitted_at=driver.now), after=10)
    driver.succeed("r")
    order = []
    for _ in range(3):
        one = next(iter(driver.sent_to(ever=False)))
        order.append(one)
        driver.succeed(one)
    assert (sorted(order[:2]), order[2]) == (["old", "y0"], "hi")


def test_an_owner_who_may_not_start_gets_no_room_kept() -> None:
    driver = ready(4)
    driver.submit(task("s0", cpus=2))
    driver.submit(task("s1", cpus=2))
    driver.submit(task("w", cpus=4, owner="o", submitted_at=driver.now))
    driver.send(events.QueuePaused("owner", "o"))
    driver.fire("keep", after=300)
    assert driver.machine.view("a", driver.now).reserved_for is None


def test_room_that_was_kept_is_free_again_when_its_owner_is_paused() -> None:
    driver = ready(4)
    driver.submit(task("s0", cpus=2))
    driver.submit(task("s1", cpus=2))
    driver.submit(task("w", cpus=4, owner="o", submitted_at=driver.now))
    driver.fire("keep", after=300)
    assert driver.machine.view("a", driver.now).reserved_for == "w"
    driver.send(events.QueuePaused("owner", "o"))
    driver.succeed("s0")
    assert driver.submit(task("late", submitted_at=driver.now)).state is TaskState.DISPATCHING


def test_room_is_not_kept_in_vain_where_others_took_some_for_good() -> None:
    driver = ready(8)
    for number in range(4):
        driver.submit(task(f"s{number}", cpus=2))
    driver.submit(task("w", cpus=8, submitted_at=driver.now))
    driver.fire("keep", after=300)
    driver.succeed("s0")
    driver.now += 5
    node = NodeSnapshot("n1", {"CPU": 8.0}, {"CPU": 0.0})  # another user took what was freed
    driver.send(events.SnapshotTaken(ResourceSnapshot("a", driver.now, (node,), "agent", session_id="s1")))
    driver.succeed("s1")
    assert driver.submit(task("late", submitted_at=driver.now)).state is TaskState.DISPATCHING


def test_who_would_fit_a_place_that_never_ends_is_not_passed_over_for_ever() -> None:
    driver = ready(8, reserve_after_s=10)
    driver.submit(task("long", cpus=4))
    for number in range(4):
        driver.submit(task(f"s{number}", submitted_at=driver.now))
    driver.submit(task("w", cpus=4, submitted_at=driver.now))
    driver.fire("keep", after=10)
    for number in range(4):
        driver.submit(task(f"later{number}", submitted_at=driver.now))
        driver.succeed(f"s{number}")
    assert driver.state("w") is TaskState.DISPATCHING


@pytest.mark.parametrize("how", ["paused", "limited"])
def test_an_item_that_became_infeasible_while_its_owner_was_blocked_fails(how: str) -> None:
    driver = ready(4, 16, owners={"o": {"max_running": 1}})
    if how == "limited":
        driver.submit(task("one", owner="o"))
    driver.submit(task("full", cpus=16, preferred_cluster="b", fallback="wait"))
    driver.submit(task("t", cpus=16, owner="o"))
    if how == "paused":
        driver.send(events.QueuePaused("owner", "o"))
    driver.send(events.ClusterChanged("b", None))
    if how == "paused":
        driver.send(events.QueueResumed("owner", "o"))
    else:
        driver.succeed("one")
    assert driver.end("t").error == "NoFeasibleClusterError"


def short_work(driver: Driver, count: int, **values: Any) -> None:
    for number in range(2):
        driver.submit(task(f"before{number}", function_digest="f", **values))
        driver.succeed(f"before{number}", SHORT_S)
    for number in range(count):
        driver.submit(task(f"t{number}", function_digest="f", **values))


def test_what_was_sent_ahead_of_an_owner_who_is_paused_is_taken_back() -> None:
    driver = ready(1)
    short_work(driver, 2, owner="o")
    driver.send(events.QueuePaused("owner", "o"))
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["t1"]
    driver.succeed("t0")
    assert driver.issued(StartAttempt) == []


def test_nothing_is_sent_ahead_where_tasks_are_spaced_out() -> None:
    driver = ready(1, submission_interval_s=0.05, submission_interval_kinds=["task"])
    driver.submit(task("t0", function_digest="f"))
    driver.succeed("t0", SHORT_S)
    driver.submit(task("t1", function_digest="f"), after=1)
    driver.succeed("t1", SHORT_S)
    for number in range(2, 6):
        driver.submit(task(f"t{number}", function_digest="f"), after=1 if number == 2 else 0)
    assert list(driver.sent_to()) == ["t0", "t1", "t2"]


def test_one_whose_priority_was_lowered_makes_way_for_a_more_urgent_one() -> None:
    driver = ready(1)
    short_work(driver, 1)
    driver.send(events.QueuePaused("owner", "o"))
    driver.submit(task("q", function_digest="f", priority=10, owner="o"))
    driver.send(events.PriorityChanged("q", 0))
    driver.send(events.QueueResumed("owner", "o"))
    assert driver.machine.record("q").code == "SENT_AHEAD"
    driver.submit(task("u", function_digest="slow", priority=5))
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["q"]


def test_parts_of_gpus_add_up() -> None:
    driver = Driver(cluster("a"), owners={"x": {"max_gpus": 1}, "y": {"max_gpus": 0.3}})
    driver.link_up("a", {"CPU": 16, "GPU": 8})
    for number in range(6):
        driver.submit(task(f"x{number}", owner="x", requirements={"GPU": 0.2}))
    for number in range(4):
        driver.submit(task(f"y{number}", owner="y", requirements={"GPU": 0.1}))
    assert sorted(driver.sent_to()) == ["x0", "x1", "x2", "x3", "x4", "y0", "y1", "y2"]
    driver.succeed("x1")
    assert driver.sent_to(ever=False) == {"x5": "a"}


def test_held_items_count_for_max_queued() -> None:
    driver = ready(1, owners={"x": {"max_queued": 2}})
    driver.submit(task("runs", owner="x"))
    for number in range(3):
        driver.submit(task(f"x{number}", owner="x"))
        driver.send(events.HoldRequested(f"x{number}"))
    assert driver.end("x2").error == "QueueFullError"


def test_one_that_was_refused_for_lack_of_room_may_use_its_key_again() -> None:
    driver = ready(1, max_queue=1)
    for name in ("runs", "waits"):
        driver.submit(task(name))
    driver.submit(task("first", idempotency_key="k"))
    assert driver.end("first").error == "QueueFullError"
    driver.succeed("runs")
    driver.submit(task("second", idempotency_key="k"))
    assert driver.state("second") is TaskState.QUEUED


def test_one_that_was_held_and_released_counts_once_in_the_queue() -> None:
    driver = ready(1)
    for name in ("r", "t0", "t1", "t2"):
        driver.submit(task(name))
    for _ in range(3):
        driver.send(events.HoldRequested("t1"))
        driver.send(events.ReleaseRequested("t1"))
    place = driver.machine.queue_position("t2", driver.now)
    assert place is not None
    assert (place.position, [one for one, _ in place.ahead]) == (3, ["t0", "t1"])


def test_no_prefetch_while_an_urgent_item_waits_for_spread_capacity() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", {"CPU": 2}, {"CPU": 2, "GPU": 1})
    for number in range(2):
        driver.submit(task(f"before{number}", function_digest="f"))
        driver.succeed(f"before{number}", SHORT_S)
    for number in range(4):
        driver.submit(task(f"r{number}", function_digest="f"))
    driver.submit(task("urgent", requirements={"CPU": 2.0, "GPU": 1.0}, priority=5))
    for number in range(4):
        driver.submit(task(f"t{number}", function_digest="f"))
    assert {driver.state(f"t{number}") for number in range(4)} == {TaskState.QUEUED}
