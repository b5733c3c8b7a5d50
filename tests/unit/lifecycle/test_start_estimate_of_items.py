"""When the machine expects a waiting item to start, by what it has seen and what runs now."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.model import NodeSnapshot, ResourceSnapshot, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.placement.start_estimate import StartEstimate
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task
from tests.unit.lifecycle.gangs import gang


def outlook(driver: Driver, task_id: str, position: int = 1) -> StartEstimate:
    decision = driver.machine.record(task_id).decision
    forecast = driver.machine.estimate_start(task_id, position, decision, driver.now)
    assert forecast is not None
    return forecast


def seen(driver: Driver, *seconds: float, function: str = "f") -> None:
    """Tasks of this function ran so long."""
    for number, took in enumerate(seconds):
        name = f"seen-{function}-{number}"
        driver.submit(task(name, function_digest=function))
        driver.start(name)
        driver.now += took
        driver.succeed(name, took=took)


def one_runs_and_one_waits() -> Driver:
    """Two calls of the function took 12 s and 30 s; a third one runs now, and t waits for its room."""
    driver = ready(1)
    seen(driver, 12, 30)
    driver.submit(task("runs", function_digest="f"))
    driver.start("runs")
    driver.submit(task("t", function_digest="f"))
    return driver


def test_one_that_waits_for_room_starts_when_something_like_what_was_seen_ends() -> None:
    driver = one_runs_and_one_waits()
    driver.now += 5
    assert outlook(driver, "t") == StartEstimate(pytest.approx(8 - 5), 21 - 5, 45 - 5)
    assert outlook(driver, "t", position=2) == StartEstimate(pytest.approx(2 * 8 - 5), 2 * 21 - 5, 2 * 45 - 5)


def test_what_runs_for_longer_than_was_seen_is_not_expected_to_end_all_the_time() -> None:
    driver = one_runs_and_one_waits()
    driver.now += 200
    assert outlook(driver, "t").text == "in about 100 s (between 0 s and 3 min)"


def four_run_and_one_waits(driver: Driver) -> None:
    """Four calls have run for 20 s, much longer than earlier ones; t waits."""
    seen(driver, 0.001, 0.002, 0.001)
    for name in ("r1", "r2", "r3", "r4"):
        driver.submit(task(name, function_digest="f"))
        driver.start(name)
    driver.submit(task("t", function_digest="f"))
    driver.now += 20


def test_those_ahead_are_expected_to_run_as_long_as_others_like_them_already_do() -> None:
    driver = ready(4, prefetch_ms=0)
    four_run_and_one_waits(driver)
    assert outlook(driver, "t").text == "in about 10 s (between 0 and 20 s)"
    assert outlook(driver, "t", position=5).text == "in about 40 s (between 0 and 60 s)"


def test_what_is_free_above_the_threshold_is_not_given_away_before_something_ends() -> None:
    driver = ready(3, 3, resource_threshold=0.6, prefetch_ms=0)
    four_run_and_one_waits(driver)
    assert driver.machine.record("t").code == "ABOVE_THRESHOLD"
    assert outlook(driver, "t").text == "in about 10 s (between 0 and 20 s)"
    assert outlook(driver, "t", position=4).text == "in about 10 s (between 0 and 20 s)"
    assert outlook(driver, "t", position=5).text == "in about 40 s (between 0 and 60 s)", "two on each, not three"


def test_above_the_threshold_each_end_lets_one_start_as_is_then_seen() -> None:
    driver = ready(10, resource_threshold=0.5, prefetch_ms=0)
    seen(driver, *[100.0] * 8)
    begun = driver.now
    for number in range(6):
        driver.submit(task(f"r{number}", function_digest="f"))
        driver.start(f"r{number}")
        driver.now += 10
    waiting = [f"q{number}" for number in range(8)]
    for name in waiting:
        driver.submit(task(name, function_digest="f"))
    reported, asked_at = [outlook(driver, name, at).likely for at, name in enumerate(waiting, start=1)], driver.now
    started: dict[str, float] = {}
    for name in [f"r{number}" for number in range(6)] + waiting[:2]:
        driver.now = max(driver.now, started.get(name, begun + 10 * int(name[1:])) + 100)
        driver.succeed(name, took=100.0)
        for one in waiting:
            if one not in started and driver.state(one) is TaskState.DISPATCHING:
                driver.start(one)
                started[one] = driver.now
    assert reported == [started[name] - asked_at for name in waiting] == [40, 50, 60, 70, 80, 90, 140, 150]


def taken_by_others(driver: Driver, cpus: float, others: float, **values: object) -> None:
    """A snapshot shows so many CPUs, and so many of them in use by others, whatever is ours."""
    driver.now += 20
    ours = sum(one.parts["n1"]["CPU"] for one in driver.machine.registry.state("a").ledger.reservations.values())
    node = NodeSnapshot("n1", {"CPU": cpus}, {"CPU": cpus - others - ours})
    driver.send(events.SnapshotTaken(ResourceSnapshot("a", driver.now, (node,), **{"source": "agent", **values})))


def test_nothing_is_known_where_others_keep_a_cluster_above_its_threshold() -> None:
    driver = ready(10, resource_threshold=0.5, prefetch_ms=0)
    seen(driver, *[100.0] * 8)
    driver.submit(task("r", function_digest="f"))
    driver.start("r")
    taken_by_others(driver, 10, 7)
    taken_by_others(driver, 10, 7)
    driver.submit(task("q", function_digest="f"))
    assert driver.machine.record("q").code == "ABOVE_THRESHOLD"
    assert outlook(driver, "q").text == "unknown: the attempts of known run time do not bring use down to the threshold"


def test_those_ahead_of_it_may_bring_a_cluster_above_its_threshold() -> None:
    driver = Driver(cluster("a"), resource_threshold=0.6, prefetch_ms=0)
    driver.link_up("a", 5, 5)
    seen(driver, *[100.0] * 8)
    for name in ("r1", "r2"):
        driver.submit(task(name, cpus=3, function_digest="f"))
        driver.start(name)
        driver.now += 10
    driver.submit(task("t", cpus=2.5, function_digest="f"))
    assert driver.machine.record("t").code == "NO_CAPACITY"
    reported = [outlook(driver, "t", position).likely for position in (1, 2, 3, 4)]
    assert reported == [80, 80, 90, 180], "with three of them 75 % are in use, and what is free is kept free"


@pytest.mark.parametrize("basis", ["observed", "max"])
def test_when_observed_use_falls_is_unknown(basis: str) -> None:
    driver = ready(10, resource_threshold=0.5, threshold_on=basis, prefetch_ms=0)
    seen(driver, *[100.0] * 8)
    driver.submit(task("r", function_digest="f"))
    driver.start("r")
    taken_by_others(driver, 10, 0, observed={"cpu": 0.9})
    driver.submit(task("q", function_digest="f"))
    assert driver.machine.record("q").code == "ABOVE_THRESHOLD"
    assert outlook(driver, "q").text == "unknown: it is unknown when the observed use falls to the threshold"


def test_nothing_is_known_where_only_an_actor_keeps_a_cluster_above_its_threshold() -> None:
    driver = ready(3, resource_threshold=0.6)
    driver.submit(actor("x", cpus=2))
    driver.start("x")
    driver.submit(task("t"))
    assert driver.machine.record("t").code == "ABOVE_THRESHOLD"
    assert outlook(driver, "t").text == "unknown: the run time of what it waits for is unknown"


def test_nothing_is_known_of_what_never_ran_nor_of_actors() -> None:
    driver = ready(1)
    driver.submit(actor("x", cpus=1))
    driver.start("x")
    driver.submit(task("t"))
    assert outlook(driver, "t").text == "unknown: the run time of what it waits for is unknown"


def test_serial_mode_waits_for_the_end_of_what_runs() -> None:
    driver = ready(4, execution_mode="serial")
    seen(driver, 10)
    driver.submit(task("runs", function_digest="f"))
    driver.start("runs")
    driver.submit(task("t"))
    assert outlook(driver, "t") == StartEstimate(5, 10, 20)


def test_the_submission_interval_is_a_time() -> None:
    driver = ready(4, submission_interval_s=40)
    driver.submit(job("j1"))
    driver.submit(job("j2"))
    driver.now += 10
    assert outlook(driver, "j2").text == "not before 30 s from now"
    assert outlook(driver, "j2", position=3) == StartEstimate(30 + 2 * 40)


def test_it_may_go_at_once_as_far_as_is_known() -> None:
    driver = ready(1)
    driver.submit(task("a"))
    driver.submit(task("t"))
    fresh = driver.machine.plan(task("t", cpus=0), driver.now)
    assert fresh.cluster == "a"
    assert driver.machine.estimate_start("t", 1, fresh, driver.now) == StartEstimate(0, 0, 0)


def test_a_gang_is_more_than_the_sum_of_its_members() -> None:
    driver = ready(2)
    driver.submit(task("a"))
    driver.submit(gang("g", 1, 1))
    assert outlook(driver, "g").text == "unknown: a gang needs room for all its members at once"


def test_a_removed_cluster_does_not_contribute() -> None:
    driver = ready(1, 1)
    seen(driver, 10)
    for name in ("x", "y"):
        driver.submit(task(name, function_digest="f"))
        driver.start(name)
    driver.submit(task("t"))
    old = driver.machine.record("t").decision
    assert old is not None
    assert {row.cluster for row in old.candidates} == {"a", "b"}
    driver.send(events.ClusterChanged("a", None))
    assert driver.machine.estimate_start("t", 1, old, driver.now) == StartEstimate(5, 10, 20)


def test_before_the_queue() -> None:
    driver = ready(1)
    driver.submit(task("a"))
    driver.submit(task("late", start_after=driver.now + 90))
    driver.submit(task("behind", after=("a",), start_after=driver.now + 90))
    driver.send(events.Submitted(task("argument"), "waits for its argument a"))
    assert outlook(driver, "late").text == "not before 90 s from now"
    assert outlook(driver, "behind").text.startswith("unknown: waits for a to succeed; may start from ")
    assert outlook(driver, "argument").text == "unknown: waits for its argument a"


def test_between_two_attempts() -> None:
    driver = ready(1, retry_backoff={"base_s": 20, "jitter": 0})
    driver.submit(task("t", retries=1))
    driver.start("t")
    driver.fail("t")
    driver.now += 5
    assert outlook(driver, "t").text == "not before 15 s from now"


def test_a_held_item_waits_for_an_operator() -> None:
    driver = ready(1)
    driver.submit(task("a"))
    driver.submit(task("t"))
    driver.send(events.HoldRequested("t", "not yet"))
    assert driver.machine.estimate_start("t", None, None, driver.now) == StartEstimate(why="is held: not yet")


def test_a_cluster_that_does_not_answer_does_not_contribute() -> None:
    driver = ready(1)
    driver.send(events.LinkDown("a", "silent"))
    driver.submit(task("t"))
    assert outlook(driver, "t").text.startswith("unknown: a: ")


def test_no_estimate_for_running_or_finished_items() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    assert driver.machine.estimate_start("t", None, None, driver.now) is None
    driver.start("t")
    driver.succeed("t")
    assert driver.machine.estimate_start("t", None, None, driver.now) is None
