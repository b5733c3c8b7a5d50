"""When clusters are asked, beside what their own events show."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.lifecycle.instructions import SetTimer
from tests.unit.lifecycle.driver import Driver, cluster, task


def test_a_cluster_with_a_wrong_entry_is_asked_again_after_the_breakers_time() -> None:
    driver = Driver(cluster("a"), cluster("b"), breaker_recovery_s=70)
    driver.submit(task("t", cpus=8))
    driver.no_answer("a", "wrong token", permanent=True)
    driver.snapshot("b", 8, source="http")
    driver.submit(task("waits", cpus=8))
    assert driver.machine.record("waits").code == "NO_CAPACITY"
    assert SetTimer("refresh:a", driver.now + 70) in driver.said(SetTimer, ever=True)
    driver.fire("refresh:a", after=70)
    assert driver.asked() == ["a"]
