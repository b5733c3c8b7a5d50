"""A cluster whose agent answers and whose head does not: nothing new goes there, and everybody learns why."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import job, ready, task


def test_nothing_new_goes_to_a_cluster_with_a_silent_head_until_it_answers() -> None:
    driver = ready(8)
    driver.submit(task("running"))
    driver.start("running")
    driver.send(events.HeadSilent("a", 16.0), after=16)
    assert driver.machine.record("running").state is TaskState.RUNNING, "it goes on"
    waits, posted = driver.submit(task("waits")), driver.submit(job("posted"))
    assert [(one.state, one.code) for one in (waits, posted)] == [(TaskState.QUEUED, "HEAD_SILENT")] * 2
    assert waits.sentence == "a: its link is up, but its head (GCS) has not answered for 16 s"
    driver.succeed("running")
    assert waits.state is TaskState.QUEUED, "that an item ended says nothing of the head"
    driver.snapshot("a", 8)
    assert waits.state is posted.state is TaskState.DISPATCHING


def test_other_clusters_take_the_work() -> None:
    driver = ready(8, 8)
    driver.send(events.HeadSilent("a", 16.0))
    for number in range(4):
        assert driver.submit(task(f"t{number}")).cluster == "b"


def test_repeated_reports_change_nothing_and_unknown_clusters_are_ignored() -> None:
    driver = ready(8)
    driver.send(events.HeadSilent("a", 16.0), after=16)
    driver.send(events.HeadSilent("a", 21.0), after=5)
    waits = driver.submit(task("waits"))
    assert waits.sentence == "a: its link is up, but its head (GCS) has not answered for 21 s"
    assert driver.send(events.HeadSilent("a", 26.0), after=5) == []
    assert driver.send(events.HeadSilent("stranger", 16.0)) == []
