"""The pass: order, no head-of-line blocking, equal items decided once, bounded work, reasons."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import (
    JobDescription,
    Rejection,
    SchedulingDecision,
    TaskDescription,
    TaskState,
)
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Continue, Dispatch, Persist
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.lifecycle.placement.scheduling_pass import MAX_CHECKS
from ray_multicluster_scheduler.scheduler.policy.catalog import PolicyCatalog
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.queue.shape import QueueKey
from tests.unit.lifecycle.driver import FREE, Driver, actor, cluster, job, ready, snapshot, task


class CountingEngine(PolicyEngine):
    """Counts decisions."""

    decisions = 0

    def place(self, *args: Any, **kwargs: Any) -> SchedulingDecision | None:
        self.decisions += 1
        return super().place(*args, **kwargs)


def test_thirty_tasks_of_two_cpus_on_sixteen_and_eight_cores_in_one_pass() -> None:
    driver = Driver(cluster("big"), cluster("small"), resource_threshold=1)
    for number in range(30):
        driver.submit(task(f"t{number}", cpus=2))
    one = snapshot("big", driver.now, 16)
    driver.send(events.SnapshotTaken(one))
    driver.send(events.SnapshotTaken(snapshot("small", driver.now, 8)))
    assert Counter(driver.sent_to().values()) == {"big": 8, "small": 4}
    assert driver.machine.queue_depths() == {QueueKey("task", None): 18}
    assert {driver.machine.record(f"t{number}").code for number in range(12, 30)} == {"NO_CAPACITY"}


def test_the_default_threshold_stops_a_cluster_once_it_is_above() -> None:
    driver = ready(16, resource_threshold=0.7)
    for number in range(10):
        driver.submit(task(f"t{number}", cpus=2))
    assert len(driver.sent_to()) == 6  # 5 tasks are 62 %, 6 are 75 %
    assert driver.machine.record("t9").code == "ABOVE_THRESHOLD"


def test_higher_priority_first_then_first_come() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    for name, priority in [("low", -1), ("mid1", 0), ("high", 5), ("mid2", 0)]:
        driver.submit(task(name, priority=priority))
    driver.succeed("running")
    order = ["high", "mid1", "mid2", "low"]
    for name in order:
        driver.succeed(name)
    assert list(driver.sent_to()) == ["running", *order]


def test_a_retry_keeps_its_place() -> None:
    driver = ready(1, retry_backoff={"base_s": 0})
    driver.submit(task("first", retries=1))
    driver.submit(task("second"))
    driver.submit(task("third"))
    driver.fail("first")
    assert driver.state("second") is TaskState.DISPATCHING
    driver.fire("retry:first")
    driver.succeed("second")
    assert driver.state("first") is TaskState.DISPATCHING


def test_an_item_that_does_not_fit_does_not_hold_up_the_others() -> None:
    driver = ready(4)
    driver.submit(task("half", cpus=3))
    driver.submit(task("wide", cpus=4, priority=9))
    driver.submit(task("narrow", cpus=1))
    assert driver.state("wide") is TaskState.QUEUED
    assert driver.state("narrow") is TaskState.DISPATCHING


def test_a_wide_task_never_goes_to_a_cluster_of_small_nodes() -> None:
    driver = Driver(cluster("small"), cluster("large"))
    driver.link_up("small", 8, 8)
    driver.submit(task("wide", cpus=16))
    assert driver.machine.record("wide").code == "CLUSTER_UNKNOWN"  # large may have such a node
    driver.snapshot("large", 16)
    assert driver.sent_to() == {"wide": "large"}


def test_a_job_may_spread_over_nodes() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 8, 8)
    driver.submit(job("j", cpus=16))
    assert driver.sent_to() == {"j": "a"}
    assert driver.machine.view("a", driver.now).free == {"CPU": 0}


def with_entrypoint(name: str, cpus: float, held: float) -> TaskDescription:
    return job(name, cpus, job=JobDescription("python x.py", entrypoint_resources={"CPU": held} if held else {}))


def test_a_job_goes_only_where_its_entrypoint_has_a_node() -> None:
    driver = Driver(cluster("small"), cluster("large"))
    driver.link_up("small", 8, 8)
    driver.link_up("large", 16)
    driver.submit(with_entrypoint("j", 0, 12))
    assert driver.sent_to() == {"j": "large"}
    assert driver.machine.view("large", driver.now).free == {"CPU": 4.0}  # Ray holds it, and so do the books
    driver.submit(with_entrypoint("later", 0, 12))
    assert driver.state("later") is TaskState.QUEUED
    assert driver.machine.record("later").code == "NO_CAPACITY"
    driver.succeed("j")
    assert driver.sent_to()["later"] == "large"


def test_a_job_whose_entrypoint_fits_no_node_is_refused_at_once() -> None:
    driver = ready(8, 8)
    driver.submit(with_entrypoint("j", 0, 64))
    end = driver.end("j")
    assert end.error == "NoFeasibleClusterError"
    assert "its entrypoint requests 64 CPU" in end.message
    assert driver.sent_to() == {}


def test_of_two_jobs_with_one_footprint_the_one_with_the_smaller_entrypoint_need_not_wait() -> None:
    driver = Driver(cluster("a"))
    driver.link_up("a", 8, 8)
    driver.submit(task("t1", 5))
    driver.submit(task("t2", 5))  # 3 CPUs are free on each node
    driver.submit(with_entrypoint("whole", 6, 6))
    driver.submit(with_entrypoint("parts", 6, 1))
    assert driver.state("whole") is TaskState.QUEUED
    assert driver.state("parts") is TaskState.DISPATCHING


def test_one_free_cluster_among_full_ones_is_used_at_once() -> None:
    driver = ready(1, 1, 1)
    for number in range(2):
        driver.submit(task(f"t{number}"))
    driver.submit(task("third"))
    assert sorted(driver.sent_to().values()) == ["a", "b", "c"]


def test_ten_thousand_equal_items_cost_one_decision_per_placement() -> None:
    settings = Settings(**FREE)
    engine = CountingEngine(settings)
    machine = SchedulerMachine(settings, [cluster("a")], policy=engine)
    machine.handle(events.LinkUp("a", "3.11.1", "2.60", "s"), 0)
    machine.handle(events.SnapshotTaken(snapshot("a", 0, 4)), 0)
    for number in range(10_000):
        machine.handle(events.Submitted(task(f"t{number}")), 0)
    assert engine.decisions == 5  # four placed, one rejected for all others
    before = engine.decisions
    dispatched = machine.handle(events.AttemptFinished("t0", 1, "succeeded"), 1)
    assert [one.task_id for one in dispatched if isinstance(one, Dispatch)] == ["t4"]
    assert engine.decisions - before == 1  # nobody is looked at whom the room does not suffice for
    assert machine.record("t9999").code == "NO_CAPACITY"


def test_one_call_does_a_bounded_amount_and_asks_to_be_continued() -> None:
    driver = Driver(cluster("a", max_in_flight=10_000))
    wanted = 2 * MAX_CHECKS + 10
    for number in range(wanted):
        driver.submit(task(f"t{number}"))
    now = driver.now
    first = driver.machine.handle(events.SnapshotTaken(snapshot("a", now, 10_000)), now)
    assert len([one for one in first if isinstance(one, Dispatch)]) == MAX_CHECKS
    assert first[-1] == Continue()
    second = driver.machine.handle(events.Continued(), now)
    third = driver.machine.handle(events.Continued(), now)
    assert Continue() not in third
    assert len([one for one in [*second, *third] if isinstance(one, Dispatch)]) == wanted - MAX_CHECKS


def test_many_blocked_shapes_do_not_keep_the_last_one_from_its_turn() -> None:
    driver = Driver(cluster("a"))
    shapes = MAX_CHECKS + 50
    for number in range(shapes):
        driver.submit(task(f"t{number}", cpus=2 + number / 1000))
    driver.submit(task("fits", cpus=1))
    now = driver.now
    full = {"CPU": 3.0}
    driver.machine.handle(events.SnapshotTaken(snapshot("a", now, full, full)), now)
    sent: list[str] = []
    for step in range(6):  # each time something else happens as well, which asks for another pass
        out = driver.machine.handle(events.SnapshotTaken(snapshot("a", now + step, full, full)), now + step)
        sent += [one.task_id for one in out if isinstance(one, Dispatch)]
    assert "fits" in sent


def test_only_a_new_reason_is_published() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    driver.submit(task("waiting"))
    reported = len(driver.machine.record("waiting").history)
    driver.snapshot("a", 1)
    driver.snapshot("a", 1)
    assert len(driver.machine.record("waiting").history) == reported
    driver.send(events.LinkDown("a", "silent"))
    step = driver.issued(Persist)[-1].transition
    assert (step.task_id, step.state, step.code) == ("waiting", TaskState.QUEUED, "CLUSTER_SUSPECT")
    assert driver.machine.record("waiting").code == "CLUSTER_SUSPECT"


def test_a_waiting_item_names_what_would_unblock_it() -> None:
    driver = ready(1)
    driver.submit(task("running"))
    for name in ("w1", "w2"):
        record = driver.submit(task(name))
        assert record.decision is not None
        assert record.decision.task_id == name
        assert "1 CPU is not free" in record.sentence
        assert record.decision.unblocked_by == "enough is freed on one node of a"
        assert record.history[-1].code == "NO_CAPACITY"


def test_lanes_by_kind_and_preferred_cluster() -> None:
    driver = Driver()
    driver.submit(task("t"))
    driver.submit(task("p", preferred_cluster="a"))
    driver.submit(task("w", preferred_cluster="a", fallback="wait"))
    driver.submit(job("j"))
    lanes = {QueueKey("task", None): 1, QueueKey("task", "a"): 2, QueueKey("job", None): 1}
    assert driver.machine.queue_depths() == lanes


def test_preferred_falls_back_or_waits_as_asked() -> None:
    driver = ready(1, 4)
    driver.submit(task("running", preferred_cluster="a"))
    driver.submit(task("any", preferred_cluster="a"))
    driver.submit(task("wait", preferred_cluster="a", fallback="wait"))
    assert driver.sent_to() == {"running": "a", "any": "b"}
    driver.succeed("running")
    assert driver.sent_to()["wait"] == "a"


def test_jobs_without_needs_wait_for_the_first_answer_of_an_equal_cluster() -> None:
    """Each fits on the cluster that answers first, and all would be sent there within a second."""
    for answers in (True, False):
        driver = Driver()
        for number in range(6):
            driver.submit(job(f"j{number}"))
        driver.snapshot("a", 8, source="http")
        assert driver.sent_to() == {"j0": "a"}, "the first one starts at once"
        waiting = driver.machine.record("j1")
        assert (waiting.code, waiting.sentence) == (
            "BETTER_IS_ASKED",
            "b is a better match than a and its snapshot is on its way",
        )
        if answers:
            driver.snapshot("b", 8, source="http")
            assert Counter(driver.sent_to().values()) == {"a": 3, "b": 3}
        else:
            driver.no_answer("b")
            assert Counter(driver.sent_to().values()) == {"a": 6}


def test_nothing_waits_for_an_equal_cluster_whose_agent_must_be_started_first() -> None:
    driver = Driver(cluster("a"), cluster("b", dashboard=None, head_address="b:10001"))
    for number in range(3):
        driver.submit(task(f"t{number}", cpus=0))
    driver.snapshot("a", 8, source="http")
    assert set(driver.sent_to()) == {"t0", "t1", "t2"}


def test_items_with_needs_do_not_wait_for_an_equal_cluster() -> None:
    driver = Driver()
    for number in range(6):
        driver.submit(task(f"t{number}", cpus=1))
    driver.snapshot("a", 8, source="http")
    assert set(driver.sent_to().values()) == {"a"}


def test_the_submission_interval_lies_between_two_dispatches_to_one_cluster() -> None:
    """Whatever happens meanwhile: starts and ends of earlier jobs, new jobs, a timer that fires a little early."""
    driver = ready(8, 8, submission_interval_s=2)
    for number in range(10):
        driver.submit(job(f"j{number}"))
    sent: dict[str, list[float]] = {"a": [], "b": []}
    live: list[str] = []
    for one in driver.issued(Dispatch, ever=True):
        sent[one.cluster].append(driver.now)
        live.append(one.task_id)
    while len(live) < 10:
        driver.send(events.TimerFired("wake"), after=0.3)
        for one in driver.issued(Dispatch):
            sent[one.cluster].append(driver.now)
            driver.accept(one.task_id)
            driver.start(live[-1])
            driver.succeed(live[-1])
            live.append(one.task_id)
    gaps = [later - earlier for times in sent.values() for earlier, later in pairwise(times)]
    assert len(gaps) == 8
    assert min(gaps) >= 2.0
    assert max(gaps) < 2.3 + 1e-6


def test_the_submission_interval_wakes_the_queue_by_itself() -> None:
    driver = ready(8, submission_interval_s=40)
    driver.submit(job("j1"))
    driver.submit(job("j2"), after=10)
    assert driver.machine.record("j2").code == "SUBMISSION_INTERVAL"
    driver.fire("wake", after=30)
    assert driver.sent_to() == {"j1": "a", "j2": "a"}
    assert "wake" not in driver.machine.timers


def test_an_event_at_the_very_time_of_the_wake_does_not_swallow_it() -> None:
    driver = ready(8, submission_interval_s=40)
    driver.submit(job("j1"))
    driver.submit(job("j2"))
    driver.send(events.Started("j1", 1, driver.now), after=40)
    assert driver.sent_to() == {"j1": "a", "j2": "a"}


def test_the_interval_neither_holds_for_other_kinds_nor_for_retries() -> None:
    driver = ready(8, submission_interval_s=40, retry_backoff={"base_s": 0})
    driver.submit(job("j1", retries=1))
    driver.submit(task("t"))
    driver.fail("j1")
    driver.fire("retry:j1")
    assert [one.task_id for one in driver.issued(Dispatch, ever=True)] == ["j1", "t", "j1"]


@pytest.mark.parametrize("kind", ["task", "actor"])
def test_the_interval_holds_for_the_kinds_that_are_named(kind: str) -> None:
    driver = ready(8, submission_interval_s=40, submission_interval_kinds=[kind])
    make = task if kind == "task" else actor
    driver.submit(make("t1"))
    driver.submit(make("t2"))
    driver.submit(job("j"))
    assert list(driver.sent_to()) == ["t1", "j"]


def test_serial_mode_runs_one_item_per_cluster_in_order() -> None:
    driver = ready(8, execution_mode="serial")
    for number in range(3):
        driver.submit(job(f"j{number}"))
    assert list(driver.sent_to()) == ["j0"]
    driver.succeed("j0")
    driver.succeed("j1")
    assert list(driver.sent_to()) == ["j0", "j1", "j2"]


def test_items_that_ask_for_nothing_count_against_the_caps() -> None:
    driver = Driver(cluster("a", max_in_flight=3, max_running_jobs=2))
    driver.link_up("a", 1)
    for number in range(3):
        driver.submit(job(f"j{number}"))
    for number in range(2):
        driver.submit(task(f"t{number}", cpus=0))
    assert list(driver.sent_to()) == ["j0", "j1", "t0"]
    assert driver.machine.record("j2").code == "MAX_RUNNING_JOBS"
    assert driver.machine.record("t1").code == "MAX_IN_FLIGHT"


class Angry:
    """A filter with a bug."""

    name = "angry"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        raise ZeroDivisionError(f"no mood for {task.id}")


def test_a_policy_that_raises_fails_the_item_and_nothing_else() -> None:
    settings = Settings(**FREE)
    catalog = PolicyCatalog()
    catalog.register("angry", Angry)
    driver = Driver(cluster("a"))
    driver.machine = SchedulerMachine(settings, [cluster("a")], policy=PolicyEngine(settings, catalog=catalog))
    driver.submit(task("t1"))
    driver.submit(task("t2"))
    end = driver.end("t1")
    assert (end.state, end.error) == (TaskState.FAILED, "PolicyEvaluationError")
    assert "'angry' raised ZeroDivisionError for cluster a: no mood for t1" in end.message
    assert driver.end("t2").error == "PolicyEvaluationError"
    assert not driver.machine.has_unfinished()


def test_an_unknown_score_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="'lod'") as caught:
        SchedulerMachine(Settings(weights={"lod": 1}), [])
    assert "headroom, load" in str(caught.value)
