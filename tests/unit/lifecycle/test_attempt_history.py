"""One row per attempt: where, when, under which fence, and how it ended."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of
from tests.unit.lifecycle.driver import Driver, ready, task


def rows(driver: Driver, task_id: str = "t") -> list[dict[str, Any]]:
    record = driver.machine.record(task_id)
    return [row.to_dict() for row in attempts_of(record.history, record.fences)]


def test_before_it_is_placed_there_is_none() -> None:
    driver = ready(1)
    driver.submit(task("s"))
    driver.submit(task("t"))
    assert rows(driver) == []


def test_one_that_runs_and_succeeds() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.now += 1
    driver.start("t")
    (row,) = rows(driver)
    assert (row["attempt"], row["cluster"], row["fence"]) == (1, "a", 1)
    assert (row["sent_at"], row["started_at"], row["ended_at"], row["ended_as"]) == (1000.0, 1001.0, None, None)
    driver.now += 5
    driver.succeed("t")
    (row,) = rows(driver)
    assert (row["ended_at"], row["ended_as"], row["code"]) == (1006.0, "succeeded", "FINISHED")


def test_retries_are_rows_of_their_own_with_their_own_fences() -> None:
    driver = ready(4)
    driver.submit(task("other"))
    driver.submit(task("t", retries=2))
    driver.start("t")
    driver.fail("t")
    driver.submit(task("another"))
    driver.fire("retry:t", after=5)
    driver.start("t")
    driver.cancel("t")
    driver.stopped("t")
    first, second = rows(driver)
    assert (first["ended_as"], first["code"], first["fence"]) == ("failed", "USER_ERROR", 2)
    assert "ValueError came up" in first["sentence"]
    assert (second["attempt"], second["ended_as"], second["code"], second["fence"]) == (2, "cancelled", "CANCELLED", 4)


def test_one_that_did_not_start_was_called_back() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.accept("t")
    driver.fire("starts", after=61)
    driver.stopped("t")
    first = rows(driver)[0]
    assert (first["ended_as"], first["code"]) == ("recalled", "NOT_STARTED")


def test_a_cluster_that_is_lost_and_returns_ends_nothing() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.start("t")
    driver.send(events.LinkDown("a", "silent"))
    (row,) = rows(driver)
    assert row["ended_as"] is None
