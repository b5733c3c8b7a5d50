"""A cluster whose agent answers and whose head does not: nothing new goes there, and everybody learns why."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import RecallAttempt
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, prefetched_of_two_owners, ready, task


def test_nothing_new_goes_to_a_cluster_with_a_silent_head_until_it_answers() -> None:
    driver = ready(8)
    driver.submit(task("running"))
    driver.start("running")
    driver.send(events.HeadSilent("a", 16.0), after=16)
    assert driver.machine.record("running").state is TaskState.RUNNING, "it goes on"
    waits, posted = driver.submit(task("waits")), driver.submit(job("posted"))
    assert [(one.state, one.code) for one in (waits, posted)] == [(TaskState.QUEUED, "HEAD_SILENT")] * 2
    assert waits.sentence == "a: its link is up, but its head (GCS or raylet) has not answered for 16 s"
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
    assert waits.sentence == "a: its link is up, but its head (GCS or raylet) has not answered for 21 s"
    assert driver.send(events.HeadSilent("a", 26.0), after=5) == []
    assert driver.send(events.HeadSilent("stranger", 16.0)) == []


def test_unstarted_attempts_are_recalled_and_placed_elsewhere() -> None:
    driver = ready(4, 4)
    driver.send(events.CordonChanged("b", True))
    gone, begun = driver.submit(task("gone")), driver.submit(task("begun"))
    made, kept, posted = (
        driver.submit(actor("made")),
        driver.submit(actor("kept", lifetime="detached", public_name="kept")),
        driver.submit(job("j")),
    )
    driver.accept("gone")
    driver.start("begun")
    driver.send(events.CordonChanged("b", False))
    driver.send(events.HeadSilent("a", 5.0), after=5)
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["gone", "made"]
    assert (gone.code, gone.sentence) == (
        "TAKEN_BACK",
        "was recalled from a: its head (GCS or raylet) has not answered for 5 s",
    )
    driver.send(events.AttemptFinished("gone", 1, "cancelled", code="RECALLED"))
    driver.send(events.AttemptFinished("made", 1, "cancelled", code="RECALLED"))
    assert [(one.cluster, one.attempt, one.failures) for one in (gone, made)] == [("b", 2, {})] * 2
    assert [one.cluster for one in (begun, kept, posted)] == ["a"] * 3


def test_what_arrives_there_later_is_taken_back_by_the_next_report() -> None:
    driver = ready(4)
    first = driver.submit(task("first"))
    driver.send(events.HeadSilent("a", 5.0), after=5)
    driver.send(events.HeadSilent("a", 10.0), after=5)
    assert not driver.issued(RecallAttempt), "once is enough"
    driver.start("first")
    assert first.ending is None
    driver.snapshot("a", 4)
    driver.submit(task("second"))
    driver.send(events.HeadSilent("a", 5.0), after=5)
    assert [one.task_id for one in driver.issued(RecallAttempt)] == ["second"], "the first one runs"


def test_an_attempt_that_was_seen_to_start_and_then_taken_back_counts_as_begun() -> None:
    driver = ready(4, crash_retries=3)
    one = driver.submit(task("t"))
    driver.send(events.HeadSilent("a", 5.0), after=5)
    driver.start("t")
    driver.send(events.AttemptFinished("t", 1, "cancelled", code="RECALLED"))
    assert (one.state, one.code, dict(one.failures)) == (TaskState.RETRYING, "TAKEN_BACK", {FailureClass.CRASH: 1})


def test_one_that_got_a_slot_meanwhile_and_was_taken_back_waits_again() -> None:
    driver = prefetched_of_two_owners()
    first = driver.machine.record("theirs")
    driver.send(events.HeadSilent("a", 5.0), after=0.1)
    driver.move("runs", "theirs")
    assert first.ending is None
    driver.send(events.AttemptFinished("theirs", 1, "cancelled", code="RECALLED"))
    assert (first.state, first.failures) == (TaskState.QUEUED, {})


def polled_with_jobs() -> Driver:
    """Jobs run on a cluster without a link, which answered just now."""
    driver = Driver(cluster("a"))
    driver.submit(job("waits"))
    driver.submit(job("moves", retry_lost=True))
    driver.snapshot("a", 4, source="http")
    for one in ("waits", "moves"):
        driver.start(one)
    return driver


def test_silence_of_a_cluster_that_runs_jobs_is_known_after_one_missing_answer() -> None:
    driver = polled_with_jobs()
    driver.now += 8
    assert driver.machine.view("a", driver.now).problem is None
    driver.now += 0.1
    problem = driver.machine.view("a", driver.now).problem
    assert problem is not None
    assert problem.code == "STALE_SNAPSHOT"
    assert driver.submit(job("next")).code == "STALE_SNAPSHOT"
    driver.cancel("next")
    for one in ("waits", "moves"):
        driver.succeed(one)
    idle = driver.machine.view("a", driver.now).problem
    assert idle is None, "nobody asks an idle cluster, so its answer may be older"


def test_jobs_on_a_silent_cluster_say_once_what_happens_to_them() -> None:
    driver = polled_with_jobs()
    driver.fire("refresh:a", after=5)
    driver.no_answer("a")
    assert driver.machine.record("waits").code == "STARTED", "one refused request is no silence"
    driver.fire("refresh:a", after=5)
    driver.no_answer("a")
    waits, moves = (driver.machine.record(one) for one in ("waits", "moves"))
    assert [(one.state, one.code) for one in (waits, moves)] == [(TaskState.RUNNING, "CLUSTER_SUSPECT")] * 2
    assert waits.sentence == (
        "a has not answered for 10 s; a job may still run there, so it waits until a answers or is declared dead "
        "(`rmcs clusters declare-dead a`)"
    )
    assert moves.sentence == (
        "a has not answered for 10 s; it may still run there; after 60 s (lost_after_s) it is run elsewhere "
        "(retry_lost)"
    )
    steps = len(waits.history)
    driver.fire("refresh:a", after=5)
    driver.no_answer("a")
    assert len(waits.history) == steps
    driver.snapshot("a", 4, source="http")
    assert [(one.state, one.code) for one in (waits, moves)] == [(TaskState.RUNNING, "CONTACT_AGAIN")] * 2


def test_jobs_beside_a_link_are_told_of_a_silent_head_and_of_a_silent_dashboard() -> None:
    driver = ready(4)
    driver.submit(job("j", retry_lost=True))
    driver.start("j")
    record = driver.machine.record("j")
    driver.send(events.HeadSilent("a", 6.0), after=6)
    assert record.sentence.startswith("a has a head that has not answered for 6 s; a job may still run there")
    driver.snapshot("a", 4)
    assert record.code == "CONTACT_AGAIN"
    driver.dashboard("a", "connection refused")
    assert record.code == "CONTACT_AGAIN", "it may be a moment only"
    driver.now += 30
    driver.dashboard("a", "connection refused")
    assert record.sentence.startswith("a has a dashboard that has not answered for 30 s; it may still run there; after")
    driver.dashboard("a")
    assert record.code == "CONTACT_AGAIN"
