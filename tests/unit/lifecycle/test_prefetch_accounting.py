"""What is remembered for sending ahead: whose place is whose, and where short work is."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.placement.prefetch import SLACK
from tests.unit.lifecycle.test_prefetch import SHORT_S, ahead, knowing, work


def test_reports_about_an_ended_attempt_do_not_move_the_slot_of_the_next_one() -> None:
    driver = knowing(1, retry_backoff={"base_s": 0})
    driver.submit(work("t0", priority=1))
    driver.start("t0")
    driver.submit(work("t1", priority=1))
    assert ahead(driver) == ["t1"]
    driver.fail("t0", "crash")  # t1 is given its place by us
    driver.submit(work("t2"))
    driver.fire("retry:t0")
    driver.succeed("t1", SHORT_S)
    assert (driver.attempt("t0"), driver.state("t0")) == (2, TaskState.DISPATCHING)
    driver.submit(work("t3"))
    assert driver.machine.view("a", driver.now).prefetched > 0
    begun = next(iter(driver.machine.registry.state("a").slots.prefetched))
    driver.send(events.PlaceMoved(("t0", 1), (begun, driver.attempt(begun))))
    state = driver.machine.registry.state("a")
    assert {"t0", begun} <= set(state.slots.held)
    assert {"t0", begun} <= set(state.ledger.reservations)


def test_where_short_ones_were_is_forgotten_when_there_are_none() -> None:
    driver = knowing(1000)
    for number in range(300):
        driver.submit(work(f"t{number}", cpus=1 + number / 1000))
        driver.succeed(f"t{number}", SHORT_S)
    assert len(driver.machine._prefetch._short_at) <= 2 * SLACK


def test_where_some_still_wait_is_not_forgotten() -> None:
    driver = knowing(1, 1)
    driver.submit(work("running", preferred_cluster="a"))
    driver.submit(work("there", preferred_cluster="b"))
    driver.submit(work("ahead"))
    at = driver.machine.record("ahead").cluster or ""
    driver.send(events.QueuePaused("cluster", at))
    driver.succeed("running" if at == "a" else "there")  # who is called back gets no place
    sending = driver.machine._prefetch
    sending._drop_stale_shapes()
    assert list(sending._short_at.values()) == [{"a", "b"}]
    driver.stopped("ahead")
    driver.send(events.ClusterChanged("b" if at == "a" else "a", None))
    sending._drop_stale_shapes()
    assert sending._short_at == {}
