"""A machine goes on from the rows of another: state by state, what it asks for and what it keeps."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import FailureClass, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events, timers
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    AdoptAttempt,
    CancelAttempt,
    Complete,
    Dispatch,
    RecallAttempt,
    Remember,
    SetTimer,
)
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, task
from tests.unit.lifecycle.test_prefetch import ahead, knowing, work


def ready(*sizes: float, **settings: Any) -> Driver:
    driver = Driver(cluster("a"), cluster("b"), **settings)
    for name, size in zip("ab", sizes, strict=False):
        driver.link_up(name, size)
    return driver


def reborn(driver: Driver, after: float = 1.0, clusters: Any = None, **settings: Any) -> Driver:
    """The next process, restored from the rows of the last one."""
    known = driver.machine.registry.list() if clusters is None else clusters
    successor = Driver(*known, **settings)
    successor.now = driver.now + after
    rows = tuple(driver.machine.row(record.task.id) for record in driver.machine.records())
    machine = driver.machine
    successor.send(events.Restored(rows, machine.cluster_rows(), machine.owner_rows(), machine.pool_rows()))
    return successor


def timer(driver: Driver, key: str) -> float | None:
    return next((one.at for one in reversed(driver.issued(SetTimer, ever=True)) if one.key == key), None)


class TestWhatWaits:
    def test_those_in_the_queue_keep_their_order_their_priority_and_their_patience(self) -> None:
        driver = ready(1)
        driver.submit(task("runs"))
        first = driver.submit(task("first", queue_timeout=30.0))
        driver.submit(task("second"))
        driver.submit(task("urgent"))
        driver.send(events.PriorityChanged("urgent", 5))
        driver.now += 10
        after = reborn(driver)
        assert timer(after, timers.queue_key("first")) == (first.queued_at or 0) + 30
        after.link_up("a", 1)
        assert [one.task_id for one in after.issued(Dispatch, ever=True)] == ["runs"], "no more slots than before"
        for ended, begun in [("runs", "urgent"), ("urgent", "first"), ("first", "second")]:
            after.succeed(ended)
            assert [one.task_id for one in after.issued(Dispatch)] == [begun]

    @pytest.mark.parametrize(
        ("sentence", "permanent", "code"),
        [("connection refused", False, "CLUSTER_UNREACHABLE"), ("HTTP 403", True, "CLUSTER_MISCONFIGURED")],
    )
    def test_clusters_that_do_not_answer_the_new_process_end_nothing_of_before(
        self, sentence: str, permanent: bool, code: str
    ) -> None:
        """After a power cut the service may be back before they are, or be started with a wrong token. What comes then
        is answered at once that no cluster is there."""
        driver = ready(1, 1)
        for number in range(3):
            driver.submit(task(f"t{number}"))
        after = reborn(driver, breaker_failures=1)
        for _ in range(5):
            after.now += 10
            for name in "ab":
                after.no_answer(name, sentence, permanent=permanent)
        record = after.machine.record("t2")
        assert (record.state, record.code) == (TaskState.QUEUED, code)
        after.submit(task("new", cpus=2))
        assert after.end("new").error == "NoHealthyClusterError"
        after.now += 120
        after.link_up("b", 2)
        assert after.state("t2") is TaskState.DISPATCHING

    def test_a_time_out_that_is_over_ends_it_at_once(self) -> None:
        driver = ready(1)
        driver.submit(task("runs"))
        driver.submit(task("t", queue_timeout=5.0))
        after = reborn(driver, after=60)
        assert timer(after, timers.queue_key("t")) == after.now

    def test_held_items_stay_held(self) -> None:
        driver = ready(1)
        driver.submit(task("runs"))
        driver.submit(task("t"))
        driver.send(events.HoldRequested("t", "not yet"))
        assert driver.issued(Remember) == [Remember("t")]
        after = reborn(driver)
        after.link_up("a", 4)
        assert after.state("t") is TaskState.QUEUED
        after.send(events.ReleaseRequested("t"))
        assert after.state("t") is TaskState.DISPATCHING

    def test_arguments_and_other_items_are_waited_for_again(self) -> None:
        driver = ready(1)
        driver.submit(task("dep"))
        driver.send(events.Submitted(task("after", after=("dep",)), "waits for x"))
        after = reborn(driver)
        after.succeed("dep")
        assert after.state("after") is TaskState.PENDING
        after.send(events.ArgumentsReady("after"))
        assert after.state("after") is TaskState.QUEUED

    def test_a_dependent_that_was_not_notified_before_the_restart(self) -> None:
        driver = ready(2)
        for name in ("good", "bad"):
            driver.submit(task(name))
            driver.submit(task(f"after {name}", after=(name,)))
        rows = {record.task.id: driver.machine.row(record.task.id) for record in driver.machine.records()}
        driver.succeed("good")
        driver.send(events.AttemptFinished("bad", 1, "failed", FailureClass.USER, sentence="no"))
        for name in ("good", "bad"):
            rows[name] = driver.machine.row(name)
        after = Driver(cluster("a"))
        after.send(events.Restored(tuple(rows.values())))
        assert (after.state("after good"), after.state("after bad")) == (TaskState.QUEUED, TaskState.FAILED)
        del rows["good"]
        after = Driver(cluster("a"))
        after.send(events.Restored(tuple(rows.values())))
        assert after.end("after good").error == "ConfigurationError"

    def test_a_time_that_it_may_not_start_before(self) -> None:
        driver = ready(1)
        driver.submit(task("later", start_after=driver.now + 50))
        after = reborn(driver)
        assert timer(after, timers.begin_key("later")) == driver.now + 50
        assert after.state("later") is TaskState.PENDING

    def test_a_back_off_goes_on(self) -> None:
        driver = ready(1)
        driver.submit(task("t", retries=3))
        driver.accept("t")
        driver.send(events.AttemptFinished("t", 1, "failed", FailureClass.USER, sentence="no"))
        due = timer(driver, timers.retry_key("t"))
        after = reborn(driver, after=0.1)
        assert timer(after, timers.retry_key("t")) == due
        after.link_up("a", 1)
        after.fire(timers.retry_key("t"), after=60)
        assert after.machine.record("t").attempt == 2
        after.send(events.AttemptFinished("t", 2, "failed", FailureClass.USER, sentence="no"))
        assert after.machine.record("t").failures == {FailureClass.USER: 2}


class TestAttempts:
    def test_one_that_was_sent_is_sent_again_as_the_same(self) -> None:
        driver = ready(2)
        driver.submit(task("t"))
        (sent,) = driver.issued(Dispatch, ever=True)
        after = reborn(driver)
        (again,) = after.issued(Dispatch)
        assert (again.attempt, again.fence, again.cluster) == (sent.attempt, sent.fence, sent.cluster)
        assert again.again
        assert not sent.again
        after.link_up("a", 2)
        after.submit(task("next"))
        assert [one.fence for one in after.issued(Dispatch)] == [sent.fence + 1]

    def test_one_that_ran_is_asked_for(self) -> None:
        driver = ready(2)
        driver.submit(task("t", run_timeout=100.0))
        driver.start("t")
        after = reborn(driver)
        assert after.issued(AdoptAttempt) == [AdoptAttempt("t", 1, 1, "a")]
        assert after.issued(Dispatch) == []
        assert timer(after, timers.run_key("t", 1)) == driver.now + 100
        after.succeed("t")
        assert after.end("t").state is TaskState.SUCCEEDED

    def test_reservations_survive_a_restart(self) -> None:
        driver = ready(2)
        driver.submit(task("t", cpus=2))
        driver.submit(task("waits", cpus=1))
        after = reborn(driver)
        after.link_up("a", 2)
        assert after.state("waits") is TaskState.QUEUED
        after.succeed("t")
        assert after.state("waits") is TaskState.DISPATCHING

    def test_an_actor_in_service_does_not_count_for_serial_mode(self) -> None:
        driver = ready(4, execution_mode="serial")
        driver.submit(actor("x"))
        driver.start("x")
        after = reborn(driver, execution_mode="serial")
        after.link_up("a", 4)
        after.submit(task("t"))
        assert after.state("t") is TaskState.DISPATCHING
        assert after.machine.record("x").pinned == "a"

    @pytest.mark.parametrize("force", [False, True])
    def test_an_end_that_was_asked_for_is_asked_for_again(self, force: bool) -> None:
        driver = ready(2)
        driver.submit(task("t"))
        driver.start("t")
        driver.send(events.CancelRequested("t", "enough", force))
        after = reborn(driver)
        assert after.issued(CancelAttempt) == [CancelAttempt("t", 1, "a", force)]
        after.send(events.AttemptFinished("t", 1, "cancelled"))
        assert after.end("t").state is TaskState.CANCELLED

    def test_one_on_a_cluster_that_is_not_there_any_more(self) -> None:
        driver = ready(2)
        driver.submit(task("t"))
        after = reborn(driver, clusters=[cluster("b")])
        assert [one.cluster for one in after.issued(Dispatch)] == ["a"]
        after.succeed("t")
        assert after.end("t").state is TaskState.SUCCEEDED

    def test_one_on_a_cluster_that_was_removed_and_is_there_again(self) -> None:
        driver = ready(2)
        driver.submit(task("t", cpus=2))
        driver.send(events.ClusterChanged("a", None))
        after = reborn(driver, clusters=[cluster("a")])
        assert after.machine.view("a", after.now).in_flight == 1
        after.link_up("a", 2)
        after.succeed("t")
        assert after.machine.view("a", after.now).in_flight == 0

    def test_one_that_was_sent_ahead_holds_nothing_and_is_taken_back_in_time(self) -> None:
        driver = knowing(1)
        driver.submit(work("t0"))
        driver.submit(work("t1"))
        assert ahead(driver) == ["t1"]
        after = reborn(driver)
        assert [(one.task_id, one.ahead) for one in after.issued(Dispatch)] == [("t0", ""), ("t1", "queue")]
        assert timer(after, timers.ahead_key("a")) is not None
        view = after.machine.view("a", after.now)
        assert (view.in_flight, view.prefetched) == (1, 1)
        driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
        (recall,) = driver.issued(RecallAttempt)
        assert reborn(driver).issued(RecallAttempt) == [recall]

    def test_who_takes_over_a_place_is_remembered(self) -> None:
        driver = knowing(1)
        driver.submit(work("t0"))
        driver.submit(work("t1"))
        driver.submit(work("t2"))
        driver.accept("t1")
        driver.send(events.PlaceMoved(("t0", 1), ("t1", 1)))
        assert driver.issued(Remember) == [Remember("t0"), Remember("t1")]
        driver.succeed("t0", 0.01)
        driver.succeed("t1", 0.01)  # t2 came too late to be given its place over there
        assert driver.issued(Remember) == [Remember("t2")]
        row = driver.machine.row("t2")
        assert (row.place, row.parts) == ("held", {"n1": {"CPU": 1.0}})


class TestRules:
    def test_whose_turn_it_is(self) -> None:
        driver = ready(2)
        driver.submit(task("ann 1", owner="ann"))
        driver.submit(task("ann 2", owner="ann"))
        driver.submit(task("ann 3", owner="ann"))
        driver.submit(task("bob 1", owner="bob"))
        after = reborn(driver)
        after.link_up("a", 2)
        after.succeed("ann 1")
        assert after.state("bob 1") is TaskState.DISPATCHING
        assert after.state("ann 3") is TaskState.QUEUED

    def test_the_submission_interval(self) -> None:
        driver = ready(4, 1, submission_interval_s=40)
        driver.submit(job("j1", cpus=1))
        driver.submit(job("j2", cpus=1, preferred_cluster="a", fallback="wait"))
        after = reborn(driver, submission_interval_s=40)
        after.link_up("a", 4)
        assert after.machine.view("a", after.now).next_submission_at == driver.now + 40
        assert after.machine.record("j2").code == "SUBMISSION_INTERVAL"

    def test_keys_still_belong_to_their_items(self) -> None:
        driver = ready(2)
        driver.submit(task("t", idempotency_key="k", content_key="c"))
        driver.submit(task("over", content_key="d"))
        driver.succeed("over")
        after = reborn(driver)
        assert after.machine.id_for_key("", "k") == "t"
        assert (after.machine.id_for_content("c"), after.machine.id_for_content("d")) == ("t", None)

    def test_operators_orders_for_clusters_and_owners(self) -> None:
        driver = ready(2, 2)
        driver.send(events.ClusterChanged("a", cluster("a"), cordoned=True))
        driver.send(events.QueuePaused("cluster", "b", "for now"))
        driver.send(events.QueuePaused("owner", "ann", "later"))
        after = reborn(driver)
        assert after.machine.cluster_rows() == driver.machine.cluster_rows()
        assert after.machine.owner_rows() == driver.machine.owner_rows()
        assert [(one.name, one.paused) for one in after.machine.owner_rows()] == [("ann", "later")]
        assert reborn(driver, clusters=[cluster("c")]).machine.cluster_rows()[0].name == "c"

    def test_a_cluster_that_was_declared_dead_is_that_until_it_answers(self) -> None:
        driver = ready(2)
        driver.send(events.LinkDown("a", "silent"))
        driver.send(events.ClusterDeclaredDead("a", "sold"))
        driver.submit(task("t"))
        after = reborn(driver)
        assert after.machine.cluster_rows() == driver.machine.cluster_rows()
        assert after.machine.record("t").code == "CLUSTER_DEAD"
        after.now += 1
        after.snapshot("a", 2)
        assert after.state("t") is TaskState.DISPATCHING

    def test_who_comes_later_has_a_later_number(self) -> None:
        driver = ready(1)
        driver.submit(task("runs"))
        driver.submit(task("old"))
        after = reborn(driver)
        assert after.submit(task("new")).number > after.machine.record("old").number

    def test_finished_items_stay_finished(self) -> None:
        driver = ready(1)
        driver.submit(task("t"))
        driver.succeed("t")
        after = reborn(driver)
        assert after.issued(Complete) == []
        assert not after.machine.has_unfinished()
        assert after.machine.record("t").finished_at == driver.now

    def test_a_machine_with_items_cannot_be_restored(self) -> None:
        driver = ready(1)
        driver.submit(task("t"))
        after = reborn(driver)
        with pytest.raises(ValueError, match="no items yet"):
            after.send(events.Restored((driver.machine.row("t"),)))


def test_numbers_continue_after_those_of_items_that_were_not_restored() -> None:
    driver = ready(1)
    driver.send(events.Restored((), next_number=8))
    assert driver.submit(task("t")).number == 8


def test_the_submission_interval_continues_for_a_fleet_with_cached_views() -> None:
    rules = {"submission_interval_s": 100, "submission_interval_kinds": ("task",)}
    driver = ready(8, **rules)
    driver.submit(task("first"))
    driver.start("first", "n1")
    driver.now += 1
    driver.succeed("first")
    after = ready(8, **rules)
    after.now = driver.now + 1
    after.link_up("a", 8)
    assert after.machine.plan(task("x"), after.now).cluster == "a"
    after.send(events.Restored((driver.machine.row("first"),)))
    assert after.submit(task("second")).code == "SUBMISSION_INTERVAL"
    assert after.sent_to() == {}
