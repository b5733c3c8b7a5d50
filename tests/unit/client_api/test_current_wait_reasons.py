"""CurrentWaitReasons: why items wait, as of the query."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.explanation import CurrentWaitReasons
from ray_multicluster_scheduler.scheduler.cluster.cluster_state import ClusterState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import events, retry
from tests.unit.lifecycle.driver import Driver, job, ready, task

Views = tuple[ClusterView, ...] | None


def spaced() -> Driver:
    """One job was sent, and a second one waits for its time."""
    driver = ready(8, submission_interval_s=40)
    driver.submit(job("first"))
    driver.submit(job("second"))
    return driver


def test_seconds_are_counted_down_when_they_are_shown() -> None:
    driver = spaced()
    record = driver.machine.record("second")
    for later, left in ((0, 40), (10, 30), (39, 1)):
        code, sentence = CurrentWaitReasons(driver.machine, driver.now + later).of(record)
        assert (code, sentence) == ("SUBMISSION_INTERVAL", f"a: it takes one job per 40 s; the next in {left} s")
    assert record.sentence.endswith("the next in 40 s")


def test_the_pause_before_the_next_attempt_is_counted_down() -> None:
    driver = ready(8, retry_backoff={"base_s": 10, "jitter": 0})
    record = driver.submit(task("t", retries=1))
    driver.start("t")
    driver.fail("t")
    failed = "attempt 1 on a failed: ValueError came up; tried again in "
    for later, left in ((0, "10.0"), (4, "6.0"), (10, "0.0"), (12, "0.0")):
        assert CurrentWaitReasons(driver.machine, driver.now + later).of(record) == ("USER_ERROR", f"{failed}{left} s")
    driver.fire("retry:t", after=10)
    assert CurrentWaitReasons(driver.machine, driver.now).of(record)[0] == "PLACED"


def test_other_facts_of_the_pause_stay() -> None:
    output = "it broke; tried again in 60.0 s (node_grace_s), when no node of the old session can still run it"
    assert retry.as_of_now(output, 12.34) == output.replace("60.0", "12.3")
    quoted = "he said '; tried again in 5 s'; tried again in 60.0 s"
    assert retry.as_of_now(quoted, 1.0) == quoted.replace("60.0", "1.0")
    assert retry.as_of_now("lost with its cluster", 3.0) == "lost with its cluster"


def test_one_that_is_about_to_go_says_what_it_waited_for() -> None:
    driver = spaced()
    record = driver.machine.record("second")
    assert CurrentWaitReasons(driver.machine, driver.now + 41).of(record) == (record.code, record.sentence)


def test_one_that_does_not_wait_reports_the_answer() -> None:
    driver = spaced()
    record = driver.machine.record("first")
    assert CurrentWaitReasons(driver.machine, driver.now).of(record) == ("PLACED", record.sentence)


def test_prerequisites_and_a_hold_are_shown() -> None:
    driver = spaced()
    driver.submit(task("last", after=("first",)))
    record = driver.machine.record("last")
    assert CurrentWaitReasons(driver.machine, driver.now).of(record) == (record.code, record.sentence)
    driver.send(events.HoldRequested("last", "not today"))
    assert CurrentWaitReasons(driver.machine, driver.now).of(record)[1].endswith("; is held: not today")


def test_each_shape_is_asked_about_once_and_not_too_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ready(1)
    driver.submit(task("all"))
    waiting = [driver.submit(task(f"t{number}", cpus=1 / (1 + number // 2))) for number in range(6)]
    asked: list[str] = []
    ask = driver.machine.explain_wait

    def why(task_id: str, now: float, views: Views) -> SchedulingDecision | None:
        asked.append(task_id)
        return ask(task_id, now, views)

    monkeypatch.setattr(driver.machine, "explain_wait", why)
    monkeypatch.setattr(explanation, "MAX_SHAPES", 2)
    reasons = CurrentWaitReasons(driver.machine, driver.now)
    assert {reasons.of(record)[0] for record in waiting} == {"NO_CAPACITY"}
    assert asked == ["t0", "t2"]


def test_each_cluster_is_looked_at_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ready(1)
    driver.submit(task("all"))
    waiting = [driver.submit(task(f"t{number}", cpus=1 / (1 + number))) for number in range(6)]
    alone = [CurrentWaitReasons(driver.machine, driver.now).of(record) for record in waiting]
    looked_at: list[str] = []
    look = ClusterState.fresh_view

    def fresh_view(state: ClusterState, now: float, next_submission_at: float | None = None) -> ClusterView:
        looked_at.append(state.name)
        return look(state, now, next_submission_at)

    monkeypatch.setattr(ClusterState, "fresh_view", fresh_view)
    reasons = CurrentWaitReasons(driver.machine, driver.now)
    assert [reasons.of(record) for record in waiting] == alone
    assert tuple(looked_at) == driver.machine.registry.names()


def test_a_policy_that_raises_is_reported_by_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = spaced()

    def why(task_id: str, now: float, views: Views) -> SchedulingDecision | None:
        raise PolicyEvaluationError("the filter 'mine' raised")

    monkeypatch.setattr(driver.machine, "explain_wait", why)
    record = driver.machine.record("second")
    assert CurrentWaitReasons(driver.machine, driver.now).of(record) == (record.code, record.sentence)
