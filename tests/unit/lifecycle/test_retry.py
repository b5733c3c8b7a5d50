"""Retries: three classes of failure, three budgets, back-off with jitter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.control_plane.config.settings import RetryBackoff
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete, SetTimer
from ray_multicluster_scheduler.scheduler.lifecycle.retry import backoff_s, wants_retry
from tests.unit.lifecycle.driver import Driver, job, ready, task

BUDGETS = {"user": "retries", "crash": "crash_retries", "cluster": "lost_retries"}
NOTHING = {"retries": 0, "crash_retries": 0, "lost_retries": 0}


def again(driver: Driver, task_id: str) -> None:
    """Let the back-off pass."""
    assert driver.state(task_id) is TaskState.RETRYING
    driver.fire(f"retry:{task_id}")


@pytest.mark.parametrize("failure", BUDGETS)
def test_each_class_uses_its_own_budget(failure: str) -> None:
    driver = ready(4, retry_backoff={"base_s": 0}, breaker_failures=100)
    driver.submit(task("t", **{**NOTHING, BUDGETS[failure]: 2}))
    for attempt in (1, 2):
        assert driver.attempt("t") == attempt
        driver.fail("t", failure)
        again(driver, "t")
    driver.fail("t", failure)
    end = driver.end("t")
    assert end.attempt == 3
    assert end.state is TaskState.FAILED
    assert "after 3 attempts" in end.message
    assert driver.machine.view("a", driver.now).in_flight == 0


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("user", None),
        ("crash", "WorkerCrashedError"),
        ("cluster", "ClusterLostError"),
        ("permanent", "TaskSubmissionError"),
    ],
)
def test_the_error_names_the_origin_of_the_fault(failure: str, error: str | None) -> None:
    driver = ready(4)
    driver.submit(task("t", **NOTHING))
    driver.fail("t", failure)
    end = driver.end("t")
    assert end.error == error
    assert "task t" in end.message
    assert "on a after 1 attempt:" in end.message
    assert bool(end.next_step) == (error is not None)


def test_budgets_do_not_mix() -> None:
    driver = ready(4, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=1, crash_retries=1, lost_retries=1))
    for failure in ("user", "crash", "cluster"):
        driver.fail("t", failure)
        again(driver, "t")
    assert driver.attempt("t") == 4
    driver.fail("t", "crash")
    assert driver.end("t").error == "WorkerCrashedError"


@pytest.mark.parametrize("error", ["ImportError", "ModuleNotFoundError"])
def test_an_import_error_is_retried_only_by_name(error: str) -> None:
    driver = ready(4, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=3))
    driver.fail("t", "user", error)
    assert driver.end("t").attempt == 1
    driver.submit(task("named", retries=1, retry_on=(error,)))
    driver.fail("named", "user", error)
    again(driver, "named")
    driver.fail("named", "user", error)
    assert driver.end("named").attempt == 2


def test_what_cannot_succeed_is_never_tried_again() -> None:
    driver = ready(4)
    driver.submit(task("t", retries=9, crash_retries=9, lost_retries=9))
    driver.fail("t", "permanent")
    assert driver.end("t").attempt == 1


@pytest.mark.parametrize(
    ("lists", "error_type", "expected"),
    [
        ({}, "ValueError", True),
        ({"retry_on": ("ValueError",)}, "ValueError", True),
        ({"retry_on": ("ValueError",)}, "KeyError", False),
        ({"retry_on": ()}, "ValueError", False),
        ({"no_retry_on": ("ValueError",)}, "ValueError", False),
        ({"no_retry_on": ("ValueError",)}, "KeyError", True),
        ({"retry_on": ("ValueError",), "no_retry_on": ("ValueError",)}, "ValueError", False),
    ],
)
def test_lists_of_class_names(lists: dict[str, Any], error_type: str, expected: bool) -> None:
    item = task("t", retries=1, **lists)
    assert wants_retry(item, FailureClass.USER, error_type, {FailureClass.USER: 1}, ran=True) is expected
    assert wants_retry(item, FailureClass.CRASH, error_type, {FailureClass.CRASH: 1}, ran=True)


def test_a_lost_job_is_retried_only_with_retry_lost() -> None:
    driver = ready(4)
    driver.submit(job("careful"))
    driver.submit(job("bold", retry_lost=True))
    driver.fail("careful", "cluster")
    driver.fail("bold", "cluster")
    assert driver.end("careful").error == "ClusterLostError"
    assert "retry_lost=True" in driver.end("careful").next_step
    assert driver.state("bold") is TaskState.RETRYING


def test_a_refused_job_did_not_run_so_it_is_sent_again() -> None:
    driver = ready(4)
    driver.submit(job("j", lost_retries=1))
    driver.refuse("j")
    driver.dashboard("a")
    again(driver, "j")
    driver.refuse("j")
    end = driver.end("j")
    assert end.error == "ClusterConnectionError"
    assert "it said no" in end.message


def test_a_permanent_refusal_fails_at_once() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.refuse("t", "permanent")
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "TaskSubmissionError")
    assert driver.machine.view("a", driver.now).free == {"CPU": 4}


def test_the_next_attempt_may_go_elsewhere() -> None:
    driver = ready(4, 2, breaker_failures=1, retry_backoff={"base_s": 0})
    driver.submit(task("t"))
    assert driver.sent_to() == {"t": "a"}
    driver.fail("t", "cluster")
    again(driver, "t")
    assert driver.sent_to() == {"t": "b"}
    assert driver.states("t")[-3:] == ["RETRYING", "QUEUED", "DISPATCHING"]


def test_the_timer_is_set_to_the_back_off() -> None:
    driver = ready(4, retry_backoff={"base_s": 10, "jitter": 0})
    driver.submit(task("t", retries=5))
    for expected in (10, 20, 40, 60):
        driver.fail("t")
        assert SetTimer("retry:t", driver.now + expected) in driver.issued(SetTimer)
        assert driver.issued(Complete) == []
        driver.fire("retry:t", after=expected)


@given(
    st.text(max_size=20), st.integers(1, 10**6), st.integers(1, 10**6),
    st.floats(0, 1e6), st.floats(1, 1e12), st.floats(0, 1e6), st.floats(0, 1),
)  # fmt: skip
def test_back_off_stays_within_its_bounds_and_is_the_same_each_time(
    task_id: str, attempt: int, failures: int, base: float, factor: float, cap: float, jitter: float
) -> None:
    settings = RetryBackoff(base_s=base, factor=factor, max_s=cap, jitter=jitter)
    delay = backoff_s(settings, task_id, attempt, min(failures, 100))
    assert delay == backoff_s(settings, task_id, attempt, min(failures, 100))
    assert 0 <= delay <= cap * (1 + jitter) * 1.000001


def test_jitter_differs_between_items_and_between_attempts() -> None:
    settings = RetryBackoff()
    delays = {backoff_s(settings, f"t{item}", attempt, 1) for item in range(10) for attempt in range(1, 4)}
    assert len(delays) == 30
    assert all(0.8 <= delay <= 1.2 for delay in delays)
