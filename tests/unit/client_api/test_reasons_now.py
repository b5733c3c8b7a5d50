"""ReasonsNow: why items wait, as of the moment when somebody asks."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.app.client_api.embedded import reasons_now
from ray_multicluster_scheduler.app.client_api.embedded.reasons_now import ReasonsNow
from ray_multicluster_scheduler.common.exception import PolicyEvaluationError
from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, job, ready, task


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
        code, sentence = ReasonsNow(driver.machine, driver.now + later).of(record)
        assert (code, sentence) == ("SUBMISSION_INTERVAL", f"a: it takes one job per 40 s; the next in {left} s")
    assert record.sentence.endswith("the next in 40 s")


def test_one_that_is_about_to_go_says_what_it_waited_for() -> None:
    driver = spaced()
    record = driver.machine.record("second")
    assert ReasonsNow(driver.machine, driver.now + 41).of(record) == (record.code, record.sentence)


def test_one_that_does_not_wait_says_what_it_was_told() -> None:
    driver = spaced()
    record = driver.machine.record("first")
    assert ReasonsNow(driver.machine, driver.now).of(record) == ("PLACED", record.sentence)


def test_what_has_to_come_first_is_said_and_that_it_is_held() -> None:
    driver = spaced()
    driver.submit(task("last", after=("first",)))
    record = driver.machine.record("last")
    assert ReasonsNow(driver.machine, driver.now).of(record) == (record.code, record.sentence)
    driver.send(events.HoldRequested("last", "not today"))
    assert ReasonsNow(driver.machine, driver.now).of(record)[1].endswith("; is held: not today")


def test_each_shape_is_asked_about_once_and_not_too_many_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ready(1)
    driver.submit(task("all"))
    waiting = [driver.submit(task(f"t{number}", cpus=1 / (1 + number // 2))) for number in range(6)]
    asked: list[str] = []
    ask = driver.machine.why

    def why(task_id: str, now: float) -> SchedulingDecision | None:
        asked.append(task_id)
        return ask(task_id, now)

    monkeypatch.setattr(driver.machine, "why", why)
    monkeypatch.setattr(reasons_now, "MOST_SHAPES", 2)
    reasons = ReasonsNow(driver.machine, driver.now)
    assert {reasons.of(record)[0] for record in waiting} == {"NO_CAPACITY"}
    assert asked == ["t0", "t2"]


def test_a_policy_that_raises_is_heard_of_by_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = spaced()

    def why(task_id: str, now: float) -> SchedulingDecision | None:
        raise PolicyEvaluationError("the filter 'mine' raised")

    monkeypatch.setattr(driver.machine, "why", why)
    record = driver.machine.record("second")
    assert ReasonsNow(driver.machine, driver.now).of(record) == (record.code, record.sentence)
