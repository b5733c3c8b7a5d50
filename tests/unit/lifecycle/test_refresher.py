"""When clusters are asked, beside what their own events show."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import SetTimer
from tests.unit.lifecycle.driver import Driver, cluster, task


def test_a_cluster_with_a_wrong_entry_is_asked_again_after_the_breakers_time() -> None:
    driver = Driver(cluster("a"), cluster("b"), breaker_recovery_s=70)
    driver.submit(task("t", cpus=8))
    driver.no_answer("a", "wrong token", permanent=True)
    driver.snapshot("b", 8, source="http")
    driver.submit(task("waits", cpus=8))
    assert driver.machine.record("waits").code == "NO_CAPACITY"
    assert SetTimer("refresh:a", driver.now + 70) in driver.issued(SetTimer, ever=True)
    driver.fire("refresh:a", after=70)
    assert driver.asked() == ["a"]


BUSY = (NodeSnapshot("n1", {"CPU": 8.0}, {"CPU": 0.0}),)
IDLE = (NodeSnapshot("n1", {"CPU": 8.0}, {"CPU": 8.0}),)


def test_what_the_previous_program_used_delays_the_next_one_by_one_report_only() -> None:
    """The dashboard shows for seconds what has ended."""
    driver = Driver(cluster("a"))
    driver.submit(task("t", cpus=1))
    driver.snapshot("a", nodes=BUSY, source="http", reported_at=driver.now - 2.0)
    assert driver.machine.record("t").code == "NO_CAPACITY"
    assert SetTimer("refresh:a", driver.now + 3.5) in driver.last
    driver.fire("refresh:a", after=3.5)
    assert driver.asked() == ["a"]
    driver.snapshot("a", nodes=IDLE, source="http", reported_at=driver.now - 0.5)
    assert driver.machine.record("t").cluster == "a"


@pytest.mark.parametrize(
    ("age", "interval", "wait"),
    [
        (4.9, 5.0, 0.6),
        (5.2, 5.0, 5.0),  # the report is late, or a clock is wrong
        (-1.0, 5.0, 5.0),
        (2.0, 1.0, 1.0),
        (2.0, 20.0, 20.0),  # an operator wants fewer requests
    ],
)
def test_the_next_request_waits_for_the_next_report_at_most_one_interval(
    age: float, interval: float, wait: float
) -> None:
    driver = Driver(cluster("a"), snapshot_interval_s=interval)
    driver.submit(task("t", cpus=1))
    driver.snapshot("a", nodes=BUSY, source="http", reported_at=driver.now - age)
    (timer,) = [one for one in driver.last if isinstance(one, SetTimer) and one.key == "refresh:a"]
    assert timer.at - driver.now == pytest.approx(wait)
