"""Items spread over equal clusters, also those that hold nothing; a restart does not change whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.rows import SentRow
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task
from tests.unit.lifecycle.test_restore import reborn

GIB = 1024.0**3


def nearly_equal() -> Driver:
    """Two idle clusters that differ by 13 MB of memory: load scores 4.2434 and 4.2422."""
    driver = Driver(cluster("a"), cluster("b"))
    driver.link_up("a", {"CPU": 4.0, "memory": 2.422 * GIB})
    driver.link_up("b", {"CPU": 4.0, "memory": 2.434 * GIB})
    return driver


def nothing_held(task_id: str) -> TaskDescription:
    return task(task_id, cpus=0)


@pytest.mark.parametrize("item", [job, nothing_held, actor])
def test_items_that_hold_nothing_spread_while_they_run(item: type) -> None:
    driver = nearly_equal()
    for number in range(6):
        driver.submit(item(f"i{number}"))
        driver.start(f"i{number}")
    assert Counter(driver.sent_to().values()) == {"a": 3, "b": 3}


def test_they_spread_over_what_declared_work_leaves_free() -> None:
    driver = ready(4, 4)
    driver.submit(task("t", cpus=2))
    for number in range(4):
        driver.submit(job(f"j{number}"))
    assert Counter(driver.sent_to().values()) == {"a": 2, "b": 3}


def test_items_that_end_before_the_next_one_take_turns() -> None:
    driver = nearly_equal()
    for number in range(4):
        driver.submit(job(f"j{number}"))
        driver.succeed(f"j{number}")
    assert list(driver.sent_to().values()) == ["a", "b", "a", "b"]


def test_what_has_ended_is_no_load_any_more() -> None:
    driver = ready(4, 4)
    for number in range(3):
        driver.submit(job(f"j{number}"))
    driver.succeed("j1")  # the only one on b
    driver.submit(job("next"))
    assert driver.machine.record("next").cluster == "b"


@pytest.mark.parametrize("before", range(1, 5))
def test_after_a_restart_the_same_cluster_is_next(before: int) -> None:
    driver = ready(8, 8, 8)
    for number in range(before):
        driver.submit(job(f"j{number}"))
    after = reborn(driver)
    for name in "abc":
        after.link_up(name, 8)
    for one in (driver, after):
        one.submit(job("next"))
    assert after.machine.record("next").cluster == driver.machine.record("next").cluster


def test_what_ended_before_the_restart_had_its_turn() -> None:
    driver = Driver()
    driver.send(events.Restored((), sent=(SentRow("job", "a", 20.0), SentRow("task", "b", 10.0))))
    for name in "ab":
        driver.link_up(name, 8)
    driver.submit(job("next"))
    assert driver.machine.record("next").cluster == "b"
