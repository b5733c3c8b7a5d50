"""What people and lists ask the machine for, beside what it decides."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.control_plane.config.settings import OwnerLimits
from ray_multicluster_scheduler.scheduler.lifecycle import events, retry
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import StartEstimate
from tests.unit.lifecycle.driver import ready, task


def test_limits_of_the_settings_and_those_set_since() -> None:
    driver = ready(8, owners={"ann": {"max_running": 3}, "bob": {"max_running": 4}})
    driver.send(events.OwnerLimitsChanged("bob", OwnerLimits(max_running=1)))
    driver.send(events.OwnerLimitsChanged("eve", OwnerLimits(max_running=2)))
    limits = driver.machine.limits()
    assert {owner: one.max_running for owner, one in limits.items()} == {"ann": 3, "bob": 1, "eve": 2}


def test_in_how_many_seconds_the_next_attempt_goes() -> None:
    driver = ready(8, retry_backoff={"base_s": 10, "jitter": 0})
    driver.submit(task("t", retries=1))
    assert driver.machine.retry_delay_left("t", driver.now) is None
    driver.fail("t")
    assert driver.machine.retry_delay_left("t", driver.now) == 10.0
    assert driver.machine.retry_delay_left("t", driver.now + 4) == 6.0
    assert driver.machine.retry_delay_left("t", driver.now + 40) == 0.0


def test_positions_of_those_that_wait() -> None:
    driver = ready(1)
    for name in ("t0", "t1", "t2"):
        driver.submit(task(name))
    assert driver.machine.queue_positions(["t2", "t0", "t1", "nobody"], driver.now) == {"t1": 1, "t2": 2}
    assert driver.machine.first_positions(5, driver.now) == {"t1": 1, "t2": 2}
    assert driver.machine.first_positions(5, driver.now, "nobody") == {}


def test_views_for_people_are_of_now() -> None:
    driver = ready(8)
    (view,) = driver.machine.fresh_views(driver.now + 2)
    assert (view.name, view.at) == ("a", driver.now + 2)


@pytest.mark.parametrize(
    ("output", "now"),
    [
        ("it broke; tried again in 10.0 s", "it broke; tried again in 4.0 s"),
        ("gone; tried again in 60.0 s (node_grace_s), when …", "gone; tried again in 4.0 s (node_grace_s), when …"),
        ("it broke; tried again in a moment", "it broke; tried again in a moment"),
        ("it broke", "it broke"),
    ],
)
def test_the_sentence_of_a_back_off_with_the_remaining_time(output: str, now: str) -> None:
    assert retry.as_of_now(output, 4.0) == now


def test_a_time_too_short_to_display_is_a_moment() -> None:
    assert StartEstimate(0.0, 0.01, 0.02).text == "in a moment"
    assert StartEstimate(0.0, 0.0, 0.0).text == "at once"


def test_a_cluster_that_is_gone_is_not_filled_up() -> None:
    driver = ready(1)
    for name in ("t0", "t1"):
        driver.submit(task(name))
    ahead = driver.machine._prefetch
    ahead._needs_more = {"gone"}
    ahead.dispatch_more(driver.now)
    assert ahead._needs_more == set()
