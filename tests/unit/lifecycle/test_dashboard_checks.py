"""A cluster whose link is up may have a silent dashboard: that concerns jobs, and nothing else."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import SetTimer
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def silent(**settings: float) -> Driver:
    """A linked cluster of 8 CPUs with a running task, whose dashboard was found silent."""
    driver = ready(8, **settings)
    driver.submit(task("running"))
    driver.start("running")
    driver.fire("refresh:a", after=30)
    driver.dashboard("a", "connection refused")
    return driver


def test_a_linked_dashboard_is_checked_every_health_check_interval_s_while_something_runs() -> None:
    driver = ready(8, health_check_interval_s=12)
    assert driver.machine.timers == frozenset()  # nothing to do: nobody is asked
    driver.submit(task("t"))
    assert SetTimer("refresh:a", driver.now + 12) in driver.issued(SetTimer)
    driver.fire("refresh:a", after=12)
    assert driver.checked() == ["a"]
    assert driver.asked() == []
    driver.dashboard("a")
    assert SetTimer("refresh:a", driver.now + 12) in driver.issued(SetTimer)
    driver.succeed("t")
    assert driver.machine.timers == frozenset()


def test_and_while_something_waits() -> None:
    driver = ready(1, 1)
    driver.submit(task("runs"))
    driver.submit(task("runs too"))
    driver.submit(task("waits"))
    for name in ("runs", "runs too"):
        driver.start(name)
    assert {"refresh:a", "refresh:b"} <= driver.machine.timers
    driver.fire("refresh:a", after=30)
    assert driver.checked() == ["a"]


def test_one_check_at_a_time() -> None:
    driver = ready(8)
    driver.submit(task("t"))
    driver.fire("refresh:a", after=30)
    driver.submit(task("u"), after=100)
    assert driver.checked() == []
    assert "refresh:a" not in driver.machine.timers


def test_jobs_keep_away_from_a_silent_dashboard_and_tasks_do_not() -> None:
    driver = silent(breaker_failures=1)
    record = driver.submit(job("j"))
    assert (record.state, record.code) == (TaskState.QUEUED, "DASHBOARD_SILENT")
    assert record.sentence == "a: its dashboard does not accept jobs: connection refused"
    assert record.decision is not None
    assert record.decision.unblocked_by == "the dashboard of a answers again"
    driver.submit(task("t"))
    assert driver.state("t") is TaskState.DISPATCHING


def test_they_go_there_as_soon_as_it_answers() -> None:
    driver = silent()
    driver.submit(job("j"))
    driver.fire("refresh:a", after=30)
    driver.dashboard("a")
    assert driver.state("j") is TaskState.DISPATCHING


def test_a_job_goes_where_the_dashboard_answers() -> None:
    driver = ready(8, 2)
    driver.submit(task("running"))
    driver.fire("refresh:a", after=30)
    driver.dashboard("a", "timed out")
    driver.submit(job("j"))
    assert driver.sent_to()["j"] == "b"


def test_jobs_are_lost_when_it_is_silent_for_lost_after_s_and_found_again() -> None:
    driver = ready(8)
    driver.submit(job("j"))
    driver.submit(task("t"))
    driver.start("j")
    driver.start("t")
    for _ in range(3):
        assert driver.state("j") is TaskState.RUNNING
        driver.fire("refresh:a", after=30)
        driver.dashboard("a", "connection refused")
    assert driver.state("j") is TaskState.LOST
    assert driver.state("t") is TaskState.RUNNING
    driver.snapshot("a", 8)  # from the agent: it says nothing of the dashboard
    assert driver.state("j") is TaskState.LOST
    driver.fire("refresh:a", after=30)
    driver.dashboard("a")
    assert driver.state("j") is TaskState.RUNNING


def test_a_snapshot_over_http_is_as_good_as_a_check() -> None:
    driver = silent()
    driver.submit(job("j"))
    driver.snapshot("a", 8, source="http")
    assert driver.state("j") is TaskState.DISPATCHING


def test_refused_job_with_link_up_does_not_count_for_breaker() -> None:
    driver = ready(8, breaker_failures=1)
    driver.submit(job("j"))
    driver.submit(task("running"))
    driver.refuse("j")
    assert driver.checked() == ["a"]  # at once, not at the next interval
    driver.submit(task("t"))
    assert driver.state("t") is TaskState.DISPATCHING
    driver.fire("retry:j", after=2)
    assert driver.machine.record("j").code == "DASHBOARD_SILENT"
    driver.dashboard("a")
    assert driver.state("j") is TaskState.DISPATCHING


def test_without_a_link_a_refused_job_does_count() -> None:
    driver = Driver(cluster("a"), breaker_failures=1)
    driver.submit(job("j"))
    driver.snapshot("a", 8, source="http")
    driver.refuse("j")
    driver.submit(task("t"))
    assert driver.machine.record("t").code == "BREAKER_OPEN"


def test_reports_about_a_removed_or_changed_cluster() -> None:
    driver = silent()
    driver.submit(job("j"))
    driver.send(events.DashboardChecked("stranger", "who is that"))
    assert driver.machine.record("j").code == "DASHBOARD_SILENT"
    driver.send(events.ClusterChanged("a", cluster("a", weight=2.0)))
    assert driver.state("j") is TaskState.DISPATCHING  # old troubles say nothing of a new entry
