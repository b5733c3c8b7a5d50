"""Owners: fair share at equal priority, weights, and limits."""

from __future__ import annotations

from collections import Counter

import pytest

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def served(driver: Driver, seconds: dict[str, float], until: float) -> Counter[str]:
    """Run what is sent, each for as long as its owner's items take; returns how long each owner's ran in all."""
    spent: Counter[str] = Counter()
    ends: list[tuple[float, str, str]] = []
    seen: set[str] = set()
    begin = driver.now
    while driver.now - begin < until:
        for task_id in driver.sent_to():
            if task_id not in seen:
                seen.add(task_id)
                owner = driver.machine.record(task_id).task.owner
                ends.append((driver.now + seconds[owner], task_id, owner))
                spent[owner] += seconds[owner]  # type: ignore[assignment]
        ends.sort()
        at, task_id, _ = ends.pop(0)
        driver.now = at
        driver.succeed(task_id)
    return spent


def submit_all(driver: Driver, **counts: int) -> None:
    for owner, count in counts.items():
        for number in range(count):
            driver.submit(task(f"{owner}{number}", owner=owner, submitted_at=driver.now))


@pytest.mark.parametrize("cpus", [1, 3, 8])
@pytest.mark.parametrize("seconds", [1.0, 10.0])
def test_two_owners_get_half_each_however_many_items_one_of_them_queues(cpus: int, seconds: float) -> None:
    driver = ready(cpus)
    submit_all(driver, many=2000, few=400)
    spent = served(driver, {"many": 1.0, "few": seconds}, until=300 / cpus)
    assert spent["few"] / spent.total() == pytest.approx(0.5, abs=0.1)


def test_who_comes_later_gets_half_from_then_on() -> None:
    driver = ready(4)
    submit_all(driver, many=1000)
    served(driver, {"many": 1.0}, until=50)
    submit_all(driver, late=400)
    before = Counter(driver.machine.record(one).task.owner for one in driver.sent_to())
    served(driver, {"many": 1.0, "late": 1.0}, until=50)
    after = Counter(driver.machine.record(one).task.owner for one in driver.sent_to())
    assert after["late"] / (after - before).total() == pytest.approx(0.5, abs=0.05)


def test_weights_divide_what_there_is() -> None:
    driver = ready(8, owners={"heavy": {"weight": 3.0}})
    submit_all(driver, light=500, heavy=500)
    spent = served(driver, {"light": 1.0, "heavy": 1.0}, until=60)
    assert spent["heavy"] / spent.total() == pytest.approx(0.75, abs=0.05)


def test_priority_comes_before_fair_share() -> None:
    driver = ready(1)
    driver.submit(task("running", owner="a"))
    driver.submit(task("b0", owner="b"))
    driver.submit(task("a0", owner="a", priority=1))
    driver.succeed("running")
    assert driver.sent_to(ever=False) == {"a0": "a"}


def test_with_order_fifo_owners_do_not_count() -> None:
    driver = ready(2, order="fifo")
    for name in ("a0", "a1", "a2", "b0"):
        driver.submit(task(name, owner=name[0]))
    driver.succeed("a0")
    assert list(driver.sent_to()) == ["a0", "a1", "a2"]


def test_ageing_lets_an_old_item_pass_a_more_urgent_one() -> None:
    driver = ready(1, ageing_s=10)
    driver.submit(task("running"))
    driver.submit(task("old", submitted_at=driver.now))
    driver.submit(task("urgent", priority=1, submitted_at=driver.now + 11), after=11)
    driver.succeed("running")
    assert driver.sent_to(ever=False) == {"old": "a"}


def test_max_running_of_an_owner() -> None:
    driver = ready(8, owners={"a": {"max_running": 2}})
    for number in range(4):
        driver.submit(task(f"a{number}", owner="a"))
    driver.submit(task("b0", owner="b"))
    assert list(driver.sent_to()) == ["a0", "a1", "b0"]
    record = driver.machine.record("a2")
    assert record.code == "OWNER_LIMIT"
    why = driver.machine.explain_wait("a2", driver.now)
    assert why is not None
    assert (why.code, why.candidates[0].feasible) == ("OWNER_LIMIT", True)
    assert why.unblocked_by == "another item of the same owner ends, or its limit is raised"
    driver.succeed("a1")
    assert driver.sent_to(ever=False) == {"a2": "a"}


def test_room_that_got_free_while_an_owner_was_at_its_limit_is_found() -> None:
    driver = ready(4, 2, owners={"x": {"max_running": 1}})
    driver.submit(task("x0", owner="x", cpus=1, preferred_cluster="a"))
    driver.submit(task("y0", owner="y", cpus=2, preferred_cluster="b"))
    driver.submit(task("x1", owner="x", cpus=2, preferred_cluster="b", fallback="wait"))
    driver.succeed("y0")
    assert driver.state("x1") is TaskState.QUEUED  # there is room, and it is not its owner's turn
    driver.succeed("x0")
    assert driver.sent_to(ever=False) == {"x1": "b"}


def test_max_gpus_of_an_owner() -> None:
    driver = Driver(cluster("a"), owners={"x": {"max_gpus": 2}})
    driver.link_up("a", {"CPU": 16, "GPU": 8})
    gpu = {"CPU": 1.0, "GPU": 1.0}
    for number in range(4):
        driver.submit(task(f"x{number}", owner="x", requirements=gpu))
    driver.submit(task("cpu", owner="x"))
    driver.submit(task("y", owner="y", requirements=gpu))
    assert list(driver.sent_to()) == ["x0", "x1", "cpu", "y"]
    driver.succeed("x0")
    assert driver.sent_to(ever=False) == {"x2": "a"}


def test_max_queued_of_an_owner() -> None:
    driver = ready(1, owners={"x": {"max_queued": 2}})
    for number in range(4):
        driver.submit(task(f"x{number}", owner="x"))
    driver.submit(task("y", owner="y"))
    end = driver.end("x3")
    assert (end.state, end.error) == (TaskState.FAILED, "QueueFullError")
    assert "x" in end.message
    assert "max_queued is 2" in end.message
    assert driver.state("x2") is TaskState.QUEUED
    assert driver.state("y") is TaskState.QUEUED


def test_a_job_that_asks_for_nothing_counts_for_its_owner() -> None:
    driver = Driver(cluster("a", max_running_jobs=2), max_queue=10)
    driver.link_up("a", 4)
    for name in ("x0", "x1", "x2", "y0"):
        driver.submit(job(name, owner=name[0]))
    driver.succeed("x0")
    assert list(driver.sent_to()) == ["x0", "x1", "y0"]


def test_an_owner_who_is_over_is_forgotten() -> None:
    driver = ready(1)
    driver.submit(task("x", owner="x"))
    driver.send(events.CancelRequested("x", "enough"))
    driver.stopped("x")
    driver.submit(task("y", owner="y"))
    driver.succeed("y")
    assert not driver.machine._state.queue._accounts


def test_two_programs_that_wait_for_each_result_share_one_place() -> None:
    """Each has one item at a time: what an owner has used is not forgotten when its last one is sent."""
    driver = ready(1)
    driver.submit(task("a0", owner="a", submitted_at=driver.now))
    driver.submit(task("b0", owner="b", submitted_at=driver.now))
    ran: Counter[str] = Counter()
    for number in range(1, 200):
        running = next(one for one in reversed(driver.sent_to()) if driver.state(one) is TaskState.DISPATCHING)
        owner = driver.machine.record(running).task.owner
        seconds = 1.0 if owner == "a" else 4.0
        ran[owner] += int(seconds)
        driver.submit(task(f"{owner}{number}", owner=owner, submitted_at=driver.now), after=seconds)
        driver.succeed(running)
    assert ran["a"] / ran.total() == pytest.approx(0.5, abs=0.05)
