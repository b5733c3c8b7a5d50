"""Clusters come, go silent, get lost, return, change and are removed."""

from __future__ import annotations

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import FailureClass, NodeSnapshot, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    CancelAttempt,
    Complete,
    Persist,
    RememberFleet,
    SetTimer,
)
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task, with_lost_job


def test_a_silent_link_makes_the_cluster_suspect_and_keeps_what_runs() -> None:
    driver = ready(2)
    driver.submit(task("running"))
    driver.start("running")
    driver.send(events.LinkDown("a", "3 heartbeats missed"))
    assert driver.state("running") is TaskState.RUNNING
    assert SetTimer("lost:a", driver.now + 5) in driver.issued(SetTimer)
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "CLUSTER_SUSPECT"
    driver.link_up("a", 2)
    assert driver.state("new") is TaskState.DISPATCHING
    assert "lost:a" not in driver.machine.timers


def test_what_is_on_a_silent_cluster_says_when_it_goes_elsewhere() -> None:
    driver = ready(4)
    for one in (task("running"), task("sent"), job("j")):
        driver.submit(one)
    driver.start("running")
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=5)
    for task_id, state in (("running", TaskState.RUNNING), ("sent", TaskState.DISPATCHING)):
        record = driver.machine.record(task_id)
        assert (record.state, record.code) == (state, "CLUSTER_SUSPECT")
        assert record.sentence == (
            "a has been silent for 5 s; what runs there may be alive, so it goes elsewhere in 55 s (lost_after_s) "
            "unless it answers"
        )
    assert driver.machine.record("j").code == "PLACED", "a job does not go elsewhere"
    assert SetTimer("lost:a", driver.now + 55) in driver.issued(SetTimer)
    driver.link_up("a")
    for task_id, state in (("running", TaskState.RUNNING), ("sent", TaskState.DISPATCHING)):
        assert (driver.state(task_id), driver.machine.record(task_id).code) == (state, "CONTACT_AGAIN")


def test_the_announced_time_counts_from_the_last_contact_as_the_link_does() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.start("t")
    driver.send(events.LinkDown("a", "3 heartbeats missed", silent_s=15.5))
    driver.fire("lost:a", after=5)
    record = driver.machine.record("t")
    assert record.sentence.startswith("a has been silent for 20 s; ")
    assert "elsewhere in 40 s" in record.sentence
    assert SetTimer("lost:a", driver.now + 39.5) in driver.issued(SetTimer)
    driver.fire("lost:a", after=39.5)
    assert driver.state("t") is TaskState.LOST


@pytest.mark.parametrize(("silent_s", "in_s"), [(57.0, 3.0), (100.0, 0.0)])
def test_a_link_that_is_nearly_lost_is_checked_at_that_time(silent_s: float, in_s: float) -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.send(events.LinkDown("a", "silent", silent_s=silent_s))
    assert SetTimer("lost:a", driver.now + in_s) in driver.issued(SetTimer)
    driver.fire("lost:a", after=in_s)
    assert driver.state("t") is TaskState.LOST


def test_a_cluster_whose_processes_are_dead_gets_no_work_before_it_answers() -> None:
    driver = ready(4, 2, retry_backoff={"base_s": 0})
    driver.submit(task("t", preferred_cluster="a"))
    driver.start("t")
    driver.send(events.LinkDown("a", "the connection was closed"))
    driver.send(events.ProcessesDead("a", "its agent and all its workers are dead"))
    assert [type(one) for one in driver.issued(RememberFleet)] == [RememberFleet]
    assert driver.state("t") is TaskState.RUNNING, "its own end follows"
    lost = events.AttemptFinished("t", 1, "failed", FailureClass.CLUSTER, code="PROCESSES_DEAD", sentence="it died")
    driver.send(lost)
    driver.send(events.LinkClosed("a", "it has ended"))
    assert (driver.state("t"), driver.machine.record("t").code) == (TaskState.RETRYING, "PROCESSES_DEAD")
    driver.fire("retry:t")
    assert driver.sent_to() == {"t": "b"}, "not a, although its snapshot is new"
    problem = driver.machine.view("a", driver.now).problem
    assert problem is not None
    assert problem.code == "CLUSTER_DEAD"
    assert problem.sentence == "its agent and all its workers are dead; it takes no work before it answers again"
    driver.now += 1
    driver.snapshot("a", 4)
    assert driver.machine.view("a", driver.now).problem is None
    driver.send(events.ProcessesDead("nobody", ""))


def test_lost_tasks_run_again_when_the_link_returns() -> None:
    driver = ready(4)
    driver.submit(task("running"))
    driver.submit(task("sent"))
    driver.start("running")
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=60)
    assert {driver.state("running"), driver.state("sent")} == {TaskState.LOST}
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "CLUSTER_LOST"
    driver.link_up("a")
    assert driver.state("running") is TaskState.RUNNING
    assert driver.state("sent") is TaskState.DISPATCHING
    driver.succeed("running")
    assert driver.end("running").state is TaskState.SUCCEEDED


def test_a_lost_attempt_that_is_known_dead_goes_elsewhere() -> None:
    driver = ready(4, 2, retry_backoff={"base_s": 0})
    driver.submit(task("t"))
    driver.start("t")
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=60)
    assert driver.sent_to() == {"t": "a"}  # never a second attempt before the first is known dead
    driver.fail("t", "cluster")
    driver.fire("retry:t")
    assert driver.sent_to() == {"t": "b"}


def test_a_result_of_a_lost_attempt_counts() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.start("t")
    started = driver.machine.record("t").started_at
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=60)
    driver.succeed("t")
    assert driver.states("t")[-3:] == ["LOST", "RUNNING", "SUCCEEDED"]
    assert driver.machine.record("t").started_at == started


def test_a_closed_link_is_no_trouble() -> None:
    driver = ready(4)
    driver.send(events.LinkClosed("a", "idle"))
    driver.submit(task("t"))
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_link_that_closes_after_it_was_down_ends_the_suspicion() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.send(events.LinkDown("a", "silent"))
    driver.send(events.LinkClosed("a", "over"))
    assert "lost:a" not in driver.machine.timers
    driver.fail("t", "cluster")
    assert driver.state("t") is TaskState.RETRYING


def test_jobs_do_not_depend_on_the_link() -> None:
    driver = ready(4)
    driver.submit(job("j"))
    driver.start("j")
    driver.send(events.LinkDown("a", "silent"))
    driver.fire("lost:a", after=60)
    assert driver.state("j") is TaskState.RUNNING


def test_jobs_are_lost_when_their_cluster_does_not_answer_for_long() -> None:
    driver = with_lost_job(refreshes=13)
    driver.fire("refresh:a", after=5)
    driver.snapshot("a", 4, source="http")
    assert driver.state("j") is TaskState.RUNNING


# ---- asking for snapshots


def test_nothing_waiting_and_nothing_running_means_no_polling() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t"))
    driver.snapshot("a", 4)
    assert driver.machine.timers == {"refresh:a"}
    driver.succeed("t")
    assert driver.machine.timers == frozenset()


def test_only_clusters_of_interest_are_polled() -> None:
    driver = Driver()
    driver.submit(task("t"))
    driver.snapshot("a", 4)
    driver.snapshot("b", 2)
    assert driver.machine.timers == {"refresh:a"}  # nothing waits and nothing of ours runs on b
    driver.fire("refresh:a", after=5)
    assert driver.asked() == ["a"]


def test_one_question_at_a_time_and_at_the_interval() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    assert driver.asked() == ["a"]
    driver.submit(task("t2"))
    assert driver.asked() == []
    assert driver.machine.timers == {"keep"}  # that of those who wait
    driver.snapshot("a", 1)
    assert SetTimer("refresh:a", driver.now + 5) in driver.issued(SetTimer)


def test_a_linked_cluster_is_not_polled() -> None:
    driver = ready(1)
    driver.submit(task("t1"))
    driver.submit(task("t2"), after=100)
    assert driver.asked() == []
    assert driver.machine.timers == {"keep"}  # that of those who wait
    assert driver.machine.record("t2").code == "NO_CAPACITY"


def test_a_link_without_a_snapshot_of_its_own_is_asked() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t0"))
    driver.snapshot("a", 4, source="http")
    driver.succeed("t0")
    driver.now += 100
    driver.link_up("a")
    driver.submit(task("t"))
    assert driver.machine.record("t").code == "STALE_SNAPSHOT"
    assert driver.asked() == ["a"]
    driver.snapshot("a", 4)
    assert driver.state("t") is TaskState.DISPATCHING


def test_a_stale_snapshot_is_unknown_not_idle() -> None:
    driver = Driver(cluster("a"))
    driver.submit(task("t1"))
    driver.snapshot("a", 4)
    driver.succeed("t1")
    driver.submit(task("t2"), after=15)
    assert driver.state("t2") is TaskState.DISPATCHING
    assert driver.asked() == ["a"]
    driver.snapshot("a", 4)
    driver.succeed("t2")
    driver.submit(task("t3"), after=1000)
    assert driver.machine.record("t3").code == "STALE_SNAPSHOT"
    assert driver.asked() == ["a"]


def test_a_submission_that_is_placed_at_once_still_refreshes_unknown_clusters() -> None:
    driver = Driver()
    driver.link_up("a", 4)
    driver.submit(task("t"))
    assert driver.sent_to() == {"t": "a"}
    assert driver.asked() == ["b"]


# ---- breaker


def test_the_breaker_opens_and_a_snapshot_is_the_probe() -> None:
    driver = ready(8, breaker_failures=2, breaker_recovery_s=60)
    for name in ("t1", "t2", "t3"):
        driver.submit(task(name, lost_retries=0))
    driver.fail("t1", "cluster")
    driver.fail("t2", "cluster")
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "BREAKER_OPEN"
    assert (
        "the last time, with a task: contact with it was lost (CLUSTER_LOST)" in driver.machine.record("new").sentence
    )
    driver.snapshot("a", 8)
    assert driver.machine.record("new").code == "BREAKER_OPEN"  # too early for a probe
    driver.fire("refresh:a", after=60)
    assert driver.asked() == ["a"]
    assert driver.state("new") is TaskState.QUEUED  # a user's task is never the probe
    driver.snapshot("a", 8)
    assert driver.state("new") is TaskState.DISPATCHING


def test_a_failed_probe_opens_it_again() -> None:
    driver = ready(8, breaker_failures=1, breaker_recovery_s=60)
    driver.submit(task("t", lost_retries=0))
    driver.fail("t", "cluster")
    driver.submit(task("new"))
    driver.fire("refresh:a", after=60)
    driver.no_answer("a")
    assert driver.machine.record("new").code == "BREAKER_OPEN"
    assert SetTimer("refresh:a", driver.now + 60) in driver.issued(SetTimer)


def test_one_probe_per_recovery_period_however_often_people_look() -> None:
    """Somebody watches the status: what he finds counts nothing, and does not answer the machine's own request."""
    driver = Driver(cluster("a"), breaker_failures=2, breaker_recovery_s=6, snapshot_interval_s=1)
    driver.submit(task("t", cpus=8))
    driver.snapshot("a", nodes=(NodeSnapshot("n1", {"CPU": 8.0}, {"CPU": 0.0}),), source="http")
    state = driver.machine.registry.state("a")
    look = events.SnapshotFailed("a", "REFUSED", "connection refused", requested=False)
    probes = 0
    for _ in range(600):
        driver.send(look, after=0.1)
        if not driver.asked():  # the machine's own request is due by its timer, or with any event after that
            continue
        if state.breaker.failures_in_a_row >= 2:
            probes += 1
            problem = driver.machine.view("a", driver.now).problem
            assert problem is not None
            assert (problem.code, "is being tried again" in problem.sentence) == ("BREAKER_HALF_OPEN", True)
        driver.send(look)
        assert driver.asked() == [], "the machine's request is under way"
        driver.no_answer("a")
    assert probes in (9, 10), "60 s, one each 6 s"
    assert state.breaker.failures_in_a_row == 2 + probes
    assert driver.machine.record("t").code == "BREAKER_OPEN"


@pytest.mark.parametrize("failure", ["user", "crash", "permanent"])
def test_failures_of_users_and_workers_never_open_it(failure: str) -> None:
    driver = ready(8, breaker_failures=1)
    for number in range(5):
        driver.submit(task(f"t{number}", retries=0, crash_retries=0))
        driver.fail(f"t{number}", failure)
    driver.submit(task("new"))
    assert driver.state("new") is TaskState.DISPATCHING


def test_one_that_cannot_be_asked_yet_is_waited_for() -> None:
    driver = Driver(cluster("a"), breaker_failures=2)
    driver.submit(task("t"))
    for _ in range(3):
        driver.send(events.SnapshotFailed("a", "CLUSTER_UNREACHABLE", "its agent has not come back yet.", awaited=True))
    assert driver.state("t") is TaskState.QUEUED, "the process before ours has heard of it: it may well come back"
    assert driver.machine.record("t").code == "CLUSTER_UNKNOWN"
    assert "has not come back yet" in driver.machine.record("t").sentence
    driver.snapshot("a", 8)
    assert driver.state("t") is TaskState.DISPATCHING, "that it could not be asked has opened no breaker"


def restarted(driver: Driver, name: str) -> None:
    """The cluster knows nothing of it any more."""
    attempt, sentence = driver.attempt(name), "it was restarted"
    driver.send(
        events.AttemptFinished(
            name, attempt, "failed", FailureClass.CLUSTER, "ClusterLostError", "CLUSTER_RESTARTED", sentence
        )
    )


def test_a_cluster_that_reports_its_restart_is_back() -> None:
    """One restart is one failure, however many were there, and at however many moments that is reported."""
    driver = ready(8)
    names = [f"t{number}" for number in range(8)]
    for name in names:
        driver.submit(task(name, lost_retries=0))
    for name in names:
        driver.now += 0.1
        restarted(driver, name)
    driver.submit(task("new"))
    assert driver.state("new") is TaskState.DISPATCHING
    assert driver.machine.registry.state("a").breaker.failures_in_a_row == 1


def test_one_restart_ends_what_was_sent_ahead_as_well() -> None:
    driver = ready(1, prefetch_ms=200)
    for number in range(3):
        driver.submit(task(f"seen{number}", function_digest="f"))
        driver.succeed(f"seen{number}", took=0.01)
    for name in ("runs", "next"):
        driver.submit(task(name, function_digest="f", lost_retries=0))
    assert driver.machine.record("next").code == "SENT_AHEAD"
    restarted(driver, "runs")
    restarted(driver, "next")
    assert driver.machine.registry.state("a").breaker.failures_in_a_row == 1


def test_a_cluster_that_restarts_again_and_again_gets_no_more_work() -> None:
    driver = ready(8, retry_backoff={"base_s": 0})
    driver.submit(task("t", lost_retries=9))
    for number in range(5):
        driver.submit(task(f"u{number}", lost_retries=0))
        assert driver.state("t") is TaskState.DISPATCHING
        restarted(driver, "t")
        restarted(driver, f"u{number}")
        driver.fire("retry:t")
    assert driver.machine.record("t").code == "BREAKER_OPEN"
    assert "5 times in a row" in driver.machine.record("t").sentence
    assert "with a task: it was restarted (CLUSTER_RESTARTED)" in driver.machine.record("t").sentence


def test_work_that_goes_well_between_restarts_breaks_their_row() -> None:
    driver = ready(8)
    for number in range(8):
        driver.submit(task(f"t{number}", lost_retries=0))
        restarted(driver, f"t{number}")
        if number % 2:
            driver.submit(task(f"ok{number}"))
            driver.succeed(f"ok{number}")
    driver.submit(task("new"))
    assert driver.state("new") is TaskState.DISPATCHING


def test_work_that_goes_well_breaks_the_row() -> None:
    driver = ready(8, breaker_failures=2)
    for name in ("t1", "ok", "t2"):
        driver.submit(task(name, lost_retries=0))
    driver.fail("t1", "cluster")
    driver.succeed("ok")
    driver.fail("t2", "cluster")
    driver.submit(task("new"))
    assert driver.state("new") is TaskState.DISPATCHING


def test_a_requested_check_closes_the_breaker_before_its_time() -> None:
    driver = ready(8, breaker_failures=2, breaker_recovery_s=60)
    for name in ("t1", "t2"):
        driver.submit(task(name, lost_retries=0))
        driver.send(events.AttemptFinished(name, 1, "failed", FailureClass.CLUSTER, "ClusterLostError", "CLUSTER_LOST"))
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "BREAKER_OPEN"
    assert "with a task: contact with it was lost (CLUSTER_LOST)" in driver.machine.record("new").sentence
    driver.snapshot("a", 8)
    driver.send(events.ClusterChecked("a"))
    assert driver.state("new") is TaskState.DISPATCHING
    driver.send(events.ClusterChecked("nobody"))


def test_the_reason_of_an_open_breaker_is_good_english_for_actors_too() -> None:
    driver = ready(8, breaker_failures=1)
    driver.submit(actor("a1", lost_retries=0))
    driver.fail("a1", "cluster")
    driver.submit(task("new"))
    assert "the last time, with an actor: contact with it was lost" in driver.machine.record("new").sentence


def test_snapshots_that_go_well_do_not_hide_work_that_does_not() -> None:
    driver = ready(8, breaker_failures=2)
    for name in ("t1", "t2"):
        driver.submit(task(name, lost_retries=0))
        driver.refuse(name)
        driver.snapshot("a", 8)
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "BREAKER_OPEN"
    assert driver.machine.record("new").sentence == (
        "a: it failed 2 times in a row and is tried again in 60 s; the last time, with a task: it failed (REFUSED)"
    )


@pytest.mark.parametrize(("awaited", "lost"), [(True, 5), (False, 4)])  # a silence that counts is one more
def test_a_link_that_flaps_does_not_hide_work_that_is_lost(awaited: bool, lost: int) -> None:
    """An answer ends the silence before it, and takes back nothing of what happened to work."""
    driver = ready(8, breaker_failures=5)
    for number in range(lost):
        driver.submit(task(f"t{number}", lost_retries=0))
        assert driver.state(f"t{number}") is TaskState.DISPATCHING
        driver.fail(f"t{number}", "cluster")
        driver.send(events.SnapshotFailed("a", "CLUSTER_UNREACHABLE", "its link is down.", awaited=awaited))
        driver.snapshot("a", 8)
    driver.submit(task("new"))
    assert driver.machine.record("new").code == "BREAKER_OPEN"


def test_answer_resets_count_of_missing_answers() -> None:
    driver = ready(8, breaker_failures=3)
    for _ in range(3):
        driver.no_answer("a")
        driver.send(events.SnapshotFailed("a", "CLUSTER_UNREACHABLE", "its link is down.", awaited=True))
        driver.snapshot("a", 8)
    driver.submit(task("new"))
    assert driver.state("new") is TaskState.DISPATCHING


def test_refusals_of_a_link_that_is_known_to_fail_leave_jobs_alone() -> None:
    driver = Driver(cluster("a"), breaker_failures=2)
    for number in range(5):
        driver.submit(task(f"t{number}"))
    driver.snapshot("a", 8)
    driver.send(events.LinkFailed("a", "TIMEOUT", "the agent did not dial back."))
    for number in range(5):
        driver.refuse(f"t{number}")
    driver.submit(job("j"))
    assert driver.state("j") is TaskState.DISPATCHING


# ---- changes of the fleet


def test_a_cluster_that_is_added_gets_what_waits() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 1)
    driver.submit(task("t1"))
    driver.submit(task("t2"))
    driver.send(events.ClusterChanged("new", cluster("new")))
    assert driver.asked() == ["new"]
    driver.snapshot("new", 4)
    assert driver.sent_to() == {"t1": "a", "t2": "new"}


def test_cordon_and_uncordon() -> None:
    driver = ready(4)
    driver.submit(task("running"))
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
    driver.submit(task("t"))
    assert driver.machine.record("t").code == "CORDONED"
    assert driver.state("running") is TaskState.DISPATCHING
    driver.send(events.ClusterChanged("a", cluster("a"), cordoned=False))
    assert driver.state("t") is TaskState.DISPATCHING


def test_removing_a_cluster_fails_what_waits_only_for_it_and_lets_the_rest_run() -> None:
    driver = ready(1, 1)
    driver.submit(task("running", preferred_cluster="a"))
    driver.submit(task("pinned", preferred_cluster="a", fallback="wait"))
    driver.submit(task("onb"))
    driver.submit(task("free", preferred_cluster="a"))
    driver.send(events.ClusterChanged("a", None))
    end = driver.end("pinned")
    assert (end.state, end.error) == (TaskState.FAILED, "ConfigurationError")
    assert "waited for a" in end.message
    assert driver.state("free") is TaskState.QUEUED
    assert driver.state("running") is TaskState.DISPATCHING
    driver.succeed("running")
    assert driver.end("running").state is TaskState.SUCCEEDED
    driver.succeed("onb")
    assert driver.sent_to()["free"] == "b"


def test_what_still_runs_on_a_cluster_that_comes_back_counts() -> None:
    driver = Driver(cluster("a", max_in_flight=1))
    driver.link_up("a", 4)
    driver.submit(task("running"))
    driver.send(events.ClusterChanged("a", None))
    driver.send(events.ClusterChanged("a", cluster("a", max_in_flight=1)))
    driver.snapshot("a", 4)
    driver.submit(task("t"))
    assert driver.machine.record("t").code == "MAX_IN_FLIGHT"
    driver.succeed("running")
    assert driver.state("t") is TaskState.DISPATCHING


def test_correcting_the_entry_forgets_old_problems() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 2)
    driver.send(events.ClusterChanged("b", cluster("b", tags=("gpu",))))
    driver.submit(task("t", require_tags=("gpu",)))
    driver.no_answer("b", "wrong token", permanent=True)
    assert driver.end("t").error == "NoHealthyClusterError"
    driver.send(events.ClusterChanged("b", cluster("b", tags=("gpu",), dashboard="http://b:1")))
    driver.submit(task("t2", require_tags=("gpu",)))
    assert driver.machine.record("t2").code == "CLUSTER_UNKNOWN"
    assert driver.asked() == ["b"]


def test_changing_tags_places_what_waited() -> None:
    driver = Driver(cluster("a"), cluster("b", tags=("gpu",)))
    driver.link_up("a", 2)
    driver.submit(task("t", require_tags=("gpu",)))
    driver.send(events.ClusterChanged("a", cluster("a", tags=("gpu",))))
    assert driver.sent_to() == {"t": "a"}


def test_removing_an_unknown_cluster_changes_nothing() -> None:
    driver = ready(1)
    assert driver.send(events.ClusterChanged("nobody", None)) == []


# ---- late, repeated and unknown events


@pytest.mark.parametrize(
    "event",
    [
        events.DispatchAccepted("nobody", 1),
        events.Started("nobody", 1, 0.0),
        events.AttemptFinished("nobody", 1, "succeeded"),
        events.TimerFired("nonsense"),
        events.TimerFired("retry:nobody"),
        events.LinkDown("nobody", ""),
        events.LinkUp("nobody", "3.11.1", "2.60", "s"),
        events.LinkClosed("nobody", ""),
        events.LinkFailed("nobody", "", ""),
        events.SnapshotFailed("nobody", "", ""),
        events.CordonChanged("nobody", cordoned=True),
        events.Continued(),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_about_strangers_change_nothing(event: events.Event) -> None:
    driver = ready(1)
    assert driver.send(event) == []


def test_events_of_an_old_attempt_change_nothing() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("t", retries=1))
    driver.fail("t")
    driver.fire("retry:t")
    for late in (
        events.DispatchAccepted("t", 1),
        events.Started("t", 1, driver.now),
        events.AttemptFinished("t", 1, "succeeded"),
        events.DispatchRefused("t", 1, FailureClass.CLUSTER, "NO", "not taken"),
    ):
        assert driver.send(late) == []
    assert driver.state("t") is TaskState.DISPATCHING
    assert driver.machine.view("a", driver.now).in_flight == 1


def test_repeated_events_change_nothing() -> None:
    driver = ready(1)
    driver.submit(task("t"))
    driver.accept("t")
    driver.start("t")
    history = len(driver.machine.record("t").history)
    driver.accept("t")
    driver.start("t")
    assert len(driver.machine.record("t").history) == history
    driver.succeed("t")
    assert driver.send(events.AttemptFinished("t", 1, "succeeded")) == []
    assert driver.send(events.AttemptFinished("t", 1, "failed")) == []
    assert [one.transition.number for one in driver.issued(Persist, ever=True)] == list(range(1, 6))


def test_how_often_a_cluster_is_asked_is_set_by_snapshot_interval_s() -> None:
    driver = Driver(cluster("a"), snapshot_interval_s=2)
    driver.submit(task("t", 4))
    driver.snapshot("a", 4)
    driver.submit(task("waits", 4))
    assert SetTimer("refresh:a", driver.now + 2) in driver.issued(SetTimer, ever=True)


def test_a_recalled_attempt_does_not_count_for_the_breaker() -> None:
    """Between two failures of the cluster, neither a cancelled attempt nor one that was never sent breaks the row."""
    driver = ready(8, breaker_failures=2)
    for name in ("t1", "t2", "t3", "t4"):
        driver.submit(task(name, lost_retries=0))
    driver.send(events.AttemptFinished("t1", 1, "failed", FailureClass.CLUSTER))
    driver.send(events.CancelRequested("t2", "no more"))
    driver.send(events.AttemptFinished("t2", 1, "cancelled"))
    driver.send(events.DispatchRefused("t3", 1, FailureClass.PERMANENT, "BAD_ENV", "it cannot be packed"))
    driver.send(events.AttemptFinished("t4", 1, "failed", FailureClass.CLUSTER))
    assert driver.machine.view("a", driver.now).problem.code == "BREAKER_OPEN"


def test_a_refusal_with_its_own_advice_gets_no_second_one() -> None:
    driver = ready(8)
    driver.submit(task("t1"))
    why = str(ConfigurationError("The folder is not there.", next_step="correct the path"))
    driver.send(events.DispatchRefused("t1", 1, FailureClass.PERMANENT, "BAD_ENV", why))
    (done,) = driver.issued(Complete)
    assert done.message.endswith(": The folder is not there.")
    assert done.next_step == "correct the path"


def test_python_mismatch_found_by_link_uses_no_retry() -> None:
    driver = Driver(cluster("a"), cluster("b"))
    record = driver.submit(task("t", lost_retries=0, preferred_cluster="a"))
    driver.snapshot("a", 4)
    driver.snapshot("b", 4)
    assert record.cluster == "a"
    driver.send(events.LinkUp("a", "3.9.1", "2.60", "s1"))
    driver.send(events.DispatchRefused("t", 1, FailureClass.CLUSTER, "PYTHON_MISMATCH", "3.9 is not 3.11"))
    assert (record.state, record.cluster, record.attempt) == (TaskState.DISPATCHING, "b", 2)
    assert record.failures == {}


def test_a_lost_job_that_may_be_repeated_moves_and_its_old_attempt_is_ended() -> None:
    driver = Driver(cluster("a"), cluster("b"), lost_after_s=60)
    driver.submit(job("j", retry_lost=True, preferred_cluster="a"))
    driver.snapshot("a", 4, source="http")
    driver.snapshot("b", 4, source="http")
    driver.start("j")
    driver.no_answer("a")
    driver.now += 61
    driver.no_answer("a")
    assert [(one.task_id, one.attempt, one.cluster, one.force) for one in driver.issued(CancelAttempt)] == [
        ("j", 1, "a", True)
    ]
    assert driver.states("j")[-2:] == ["LOST", "RETRYING"]
    driver.snapshot("b", 4, source="http")
    driver.fire("retry:j", after=2)
    assert driver.sent_to(ever=False) == {"j": "b"}
    driver.send(events.AttemptFinished("j", 1, "succeeded"))  # it had lived on over there: that changes nothing
    assert driver.state("j") is TaskState.DISPATCHING
