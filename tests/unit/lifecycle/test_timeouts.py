"""Time limits: in the queue, between sending and starting, and while running."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch, SetTimer
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def test_a_run_timeout_ends_the_attempt_and_then_the_item() -> None:
    driver = ready(4)
    driver.submit(task("t", run_timeout=30, retries=5))
    assert not any(key.startswith("run:") for key in driver.machine.timers)
    driver.start("t")
    assert SetTimer("run:t:1", driver.now + 30) in driver.issued(SetTimer)
    driver.fire("run:t:1", after=30)
    assert driver.issued(CancelAttempt) == [CancelAttempt("t", 1, "a", True)]
    assert driver.state("t") is TaskState.RUNNING
    driver.stopped("t")
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "TaskTimeoutError")
    assert "run_timeout of 30 s on a" in end.message


def test_a_run_that_ends_in_time_leaves_no_timer() -> None:
    driver = ready(4)
    driver.submit(task("t", run_timeout=30))
    driver.start("t")
    driver.succeed("t")
    assert driver.machine.timers == frozenset()
    assert driver.send(events.TimerFired("run:t:1")) == []


def test_each_attempt_has_the_whole_run_timeout() -> None:
    driver = ready(4, retry_backoff={"base_s": 0})
    driver.submit(task("t", run_timeout=30, retries=1))
    driver.start("t")
    driver.fail("t")
    driver.fire("retry:t", after=100)
    driver.start("t")
    assert SetTimer("run:t:2", driver.now + 30) in driver.issued(SetTimer)


def test_a_success_that_was_on_its_way_counts() -> None:
    driver = ready(4)
    driver.submit(task("t", run_timeout=30))
    driver.start("t")
    driver.fire("run:t:1", after=30)
    driver.succeed("t")
    assert driver.end("t").state is TaskState.SUCCEEDED


def test_a_queue_timeout_reports_the_last_reason() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("t", queue_timeout=20))
    driver.fire("queue:t", after=20)
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "TaskTimeoutError")
    assert "queue_timeout of 20 s" in end.message
    assert "NO_CAPACITY" in end.message
    assert "1 CPU is not free" in end.message
    assert driver.machine.queue_depths() == {}


def test_a_queue_timeout_ends_with_placement_and_restarts_with_a_retry() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("t", queue_timeout=20, retries=1))
    assert "queue:t" not in driver.machine.timers
    driver.fail("t")
    driver.submit(task("other"))
    driver.fire("retry:t", after=50)
    assert SetTimer("queue:t", driver.now + 20) in driver.issued(SetTimer)


def test_attempt_that_does_not_start_in_time_is_recalled_and_placed_again() -> None:
    driver = ready(4, 2, start_grace_s=60)
    driver.submit(task("t"))
    driver.accept("t")
    driver.fire("starts", after=60)
    assert driver.issued(CancelAttempt) == [CancelAttempt("t", 1, "a", False)]
    assert driver.state("t") is TaskState.DISPATCHING
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    driver.stopped("t")
    assert driver.issued(Dispatch) == [Dispatch("t", 2, 2, "b")]
    assert driver.states("t")[-3:] == ["DISPATCHING", "QUEUED", "DISPATCHING"]
    assert any(step.code == "NOT_STARTED" for step in driver.machine.record("t").history)


def test_a_start_in_the_last_moment_still_ends_as_asked() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.accept("t")
    driver.fire("starts", after=60)
    driver.succeed("t")
    assert driver.end("t").state is TaskState.SUCCEEDED


def test_one_that_had_begun_when_it_was_called_back_has_crashed_by_that() -> None:
    """Its code ran, so running it again is a matter of its budget: side effects may come twice."""
    driver = ready(4)
    for name, budget in (("once", 0), ("again", 1)):
        driver.submit(task(name, retries=0, crash_retries=budget, lost_retries=0))
        driver.accept(name)
    driver.fire("starts", after=60)
    for name in ("once", "again"):
        driver.start(name)
        driver.stopped(name)
    assert driver.end("once").error == "WorkerCrashedError"
    assert "had begun" in driver.end("once").message
    assert driver.states("again")[-2:] == ["RUNNING", "RETRYING"]


def test_one_that_had_to_be_killed_when_it_was_called_back_may_have_begun() -> None:
    driver = ready(4)
    driver.submit(task("t", retries=0, crash_retries=0, lost_retries=0))
    driver.accept("t")
    driver.fire("starts", after=60)
    assert [order.force for order in driver.issued(CancelAttempt)] == [False]  # what waits in Ray gives way to a word
    driver.send(events.AttemptFinished("t", 1, "cancelled", code="KILLED"))
    assert driver.end("t").error == "WorkerCrashedError"


def test_the_grace_ends_with_the_start_whatever_came_first() -> None:
    driver = ready(4)
    driver.submit(task("t1"))
    driver.accept("t1")
    driver.start("t1")
    driver.submit(task("t2"))
    driver.start("t2")
    driver.accept("t2")
    driver.fire("starts", after=60)
    assert not driver.issued(CancelAttempt, ever=True)
    assert "starts" not in driver.machine.timers


def test_each_has_its_own_grace_and_one_timer_serves_all() -> None:
    driver = ready(4)
    for name, after in (("t1", 0), ("t2", 10), ("t3", 10)):
        driver.submit(task(name), after=after)
        driver.accept(name)
    driver.start("t2")
    driver.fire("starts", after=40)  # 60 s after t1 was accepted
    assert [order.task_id for order in driver.issued(CancelAttempt, ever=True)] == ["t1"]
    driver.fire("starts", after=20)  # t2 has started, so the next one is t3
    assert [order.task_id for order in driver.issued(CancelAttempt, ever=True)] == ["t1", "t3"]


def test_no_grace_is_left_when_all_is_done() -> None:
    driver = ready(4)
    driver.submit(task("t1"))
    driver.accept("t1")
    driver.succeed("t1")
    assert driver.machine.timers == frozenset()


def test_jobs_and_what_was_not_accepted_have_no_grace() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 4)
    driver.submit(job("j"))
    driver.accept("j")
    driver.submit(task("t"))
    assert not any(key.startswith("start") for key in driver.machine.timers)


def test_unusual_ids_do_not_confuse_timers() -> None:
    driver = ready(4)
    driver.submit(task("run:7:x", run_timeout=5))
    driver.start("run:7:x")
    driver.fire("run:run:7:x:1", after=5)
    assert [one.task_id for one in driver.issued(CancelAttempt)] == ["run:7:x"]
