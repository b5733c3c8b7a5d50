"""One row per attempt: where, when, under which fence, and how it ended."""

from __future__ import annotations

from typing import Any

from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import attempts_of, shown_history
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


def test_a_recall_is_one_step_with_its_cluster_and_no_attempt_of_a_failure() -> None:
    driver = ready(4, 4)
    driver.send(events.CordonChanged("b", True))
    driver.submit(task("t", crash_retries=0))
    driver.send(events.CordonChanged("b", False))
    driver.send(events.HeadSilent("a", 5.0), after=5)
    driver.send(events.AttemptFinished("t", 1, "cancelled", code="RECALLED"))
    driver.start("t")
    record = driver.machine.record("t")
    steps = [(str(step.state), step.code, step.cluster) for step in shown_history(record.history)]
    assert ("QUEUED", "TAKEN_BACK", "a") in steps
    assert [code for _, code, _ in steps].count("TAKEN_BACK") == 1
    driver.fail("t", "crash")
    (end,) = driver.issued(Complete)
    assert "failed on b after 1 attempt:" in end.message
