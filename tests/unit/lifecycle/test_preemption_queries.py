"""Questions about preemptions: they change nothing."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.preemption import PreemptionCounts
from ray_multicluster_scheduler.scheduler.pools.preemption_plan import NoPlan, PreemptionPlan
from tests.unit.lifecycle.driver import task
from tests.unit.lifecycle.test_preemption import full, leave, plans


def test_the_plan_of_a_waiting_item_and_of_one_that_was_not_submitted() -> None:
    driver = full()
    before = driver.machine.row("urgent")
    for found in (
        driver.machine.preemption_plan("urgent", driver.now),
        driver.machine.preemption_plan_for(task("another", priority=5), driver.now),
    ):
        assert isinstance(found, PreemptionPlan)
        assert (found.place, len(found.victims)) == ("a", 1)
    assert isinstance(driver.machine.preemption_plan_for(task("equal"), driver.now), NoPlan)
    assert driver.machine.preemption_plan("low1", driver.now) is None, "it runs"
    assert driver.machine.row("urgent") == before
    (victim,) = plans(driver)
    assert driver.machine.preemption_plan("urgent", driver.now) is None, "its room is being freed"
    rows = driver.machine.preemption_candidates("urgent", "a", driver.now)
    assert {row.id: row.code == "ALREADY_LEAVING" for row in rows} == {one: one == victim for one in ("low1", "low2")}


def test_counts_and_the_code_of_one_that_runs_again() -> None:
    driver = full()
    assert driver.machine.preemption_counts(driver.now) == PreemptionCounts({}, {}, 0.0)
    driver.now += 5
    (victim,) = plans(driver)
    driver.now += 7
    counts = driver.machine.preemption_counts(driver.now)
    assert counts.victims == {("", "same_pool_priority"): 1}
    assert counts.lost_s[""] >= 5
    assert counts.longest_s == 7
    leave(driver, victim)
    assert driver.machine.preemption_counts(driver.now).longest_s == 0
    driver.start("urgent")
    driver.succeed("urgent")
    driver.start(victim)
    assert driver.machine.record(victim).code == "RESUMED"
