"""One item, top to bottom: submitted, placed, started, finished."""

from __future__ import annotations

import json

import pytest

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import (
    Complete,
    Dispatch,
    Persist,
    Publish,
    RefreshSnapshot,
    Transition,
)
from tests.unit.lifecycle.driver import Driver, cluster, job, ready, task


def test_a_submission_after_idle_asks_every_cluster_and_waits_for_the_answer() -> None:
    driver = Driver()
    record = driver.submit(task("t"))
    assert record.state is TaskState.QUEUED
    assert record.code == "CLUSTER_UNKNOWN"
    assert sorted(driver.asked()) == ["a", "b"]
    driver.snapshot("a", 4)
    assert driver.sent_to() == {"t": "a"}


def test_the_whole_life_of_a_task() -> None:
    driver = ready(4)
    record = driver.submit(task("t"))
    assert driver.issued(Dispatch) == [Dispatch("t", 1, 1, "a")]
    assert driver.state("t") is TaskState.DISPATCHING
    driver.accept("t")
    assert driver.states("t")[-1] == "DISPATCHING"
    driver.start("t")
    assert driver.states("t")[-1] == "RUNNING"
    driver.succeed("t")
    assert driver.states("t") == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert driver.end("t") == Complete("t", TaskState.SUCCEEDED, 1, "a", None, "finished on a")
    assert not driver.machine.has_unfinished()
    assert [step.number for step in record.history] == list(range(1, len(record.history) + 1))


def test_an_answer_without_a_start_passes_through_running() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    driver.succeed("t")
    assert driver.states("t")[-2:] == ["RUNNING", "SUCCEEDED"]


def test_every_transition_is_persisted_and_published_and_persisted_first() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    assert driver.persisted_first()
    assert [one.transition for one in driver.issued(Persist)] == [one.transition for one in driver.issued(Publish)]
    placed = driver.issued(Persist)[-1]
    assert placed.decision is not None
    assert placed.decision.cluster == "a"
    driver.succeed("t")
    assert driver.persisted_first()
    persisted = [one.transition for one in driver.issued(Persist, ever=True)]
    assert persisted == driver.machine.record("t").history


def test_fences_grow_over_all_items_and_attempts() -> None:
    driver = ready(4, retry_backoff={"base_s": 0})
    driver.submit(task("t1", retries=1))
    driver.submit(task("t2"))
    driver.fail("t1")
    driver.fire("retry:t1")
    fences = [one.fence for one in driver.issued(Dispatch, ever=True)]
    assert fences == [1, 2, 3]
    assert [one.attempt for one in driver.issued(Dispatch, ever=True)] == [1, 1, 2]


def test_the_same_id_again_changes_nothing() -> None:
    driver = ready(4)
    driver.submit(task("t"))
    assert driver.send(events.Submitted(task("t", cpus=2))) == []
    driver.succeed("t")
    assert driver.send(events.Submitted(task("t"))) == []


def test_an_idempotency_key_is_per_owner() -> None:
    driver = ready(4)
    driver.submit(task("t1", owner="ann", idempotency_key="k"))
    assert driver.send(events.Submitted(task("t2", owner="ann", idempotency_key="k"))) == []
    with pytest.raises(KeyError):
        driver.machine.record("t2")
    driver.submit(task("t3", owner="bob", idempotency_key="k"))
    assert driver.machine.id_for_key("ann", "k") == "t1"
    assert driver.machine.id_for_key("bob", "k") == "t3"
    assert driver.machine.id_for_key("eve", "k") is None


def test_forgetting_frees_id_and_key_but_only_when_it_is_over() -> None:
    driver = ready(4)
    driver.submit(task("t", owner="ann", idempotency_key="k"))
    with pytest.raises(ValueError, match="DISPATCHING"):
        driver.machine.forget("t")
    driver.succeed("t")
    driver.machine.forget("t")
    assert list(driver.machine.records()) == []
    assert driver.machine.id_for_key("ann", "k") is None
    with pytest.raises(KeyError):
        driver.machine.forget("t")
    driver.submit(task("no key"))
    driver.succeed("no key")
    driver.machine.forget("no key")
    assert list(driver.machine.records()) == []


@pytest.mark.parametrize(
    "item",
    [task("t", preferred_cluster="mcc"), task("t", allow_clusters=("mcc",))],
    ids=["preferred", "allowed"],
)
def test_a_typo_in_a_cluster_name_fails_at_once(item: object) -> None:
    driver = Driver(cluster("mac"), cluster("linux"))
    driver.submit(item)  # parametrize hides the type
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "ConfigurationError")
    assert "'mcc'" in end.message
    assert "mac, linux" in end.message
    assert "'mac'" in end.next_step
    assert not driver.machine.has_unfinished()


def test_a_full_queue_refuses_loudly() -> None:
    driver = ready(1, max_queue=2)
    for number in range(4):
        driver.submit(task(f"t{number}"))
    end = driver.end("t3")
    assert (end.state, end.error) == (TaskState.FAILED, "QueueFullError")
    assert "t3" in end.message
    assert "max_queue is 2" in end.message
    assert driver.state("t2") is TaskState.QUEUED


def test_what_could_start_at_once_finds_room_in_a_full_queue() -> None:
    driver = ready(4, max_queue=1)
    driver.submit(task("wide", cpus=3))
    driver.submit(task("waits", cpus=3))
    small = task("small")
    assert driver.machine.queue_full(small, driver.now, blocked=False) is None
    assert driver.submit(small).state is TaskState.DISPATCHING
    assert driver.machine.queue_full(task("t"), driver.now, blocked=False) is not None
    assert driver.machine.queue_full(task("t"), driver.now, blocked=True) is not None
    driver.submit(task("later", after=("wide",)))
    assert driver.end("later").error == "QueueFullError", "it waits for another item first"


def test_the_limit_is_asked_about_in_time() -> None:
    driver = ready(1, max_queue=2, owners={"ada": {"max_queued": 1}})
    machine = driver.machine
    assert [machine.may_be_full("", unhandled) for unhandled in (0, 1, 2)] == [False, False, True]
    assert [machine.may_be_full("ada", unhandled) for unhandled in (0, 1)] == [False, True]
    driver.submit(task("runs"))
    driver.submit(task("waits"))
    assert [machine.may_be_full("", unhandled) for unhandled in (0, 1)] == [False, True]
    assert machine.may_be_full("ada", 0)


def test_a_cluster_without_a_snapshot_is_awaited() -> None:
    driver = Driver(cluster("a"), cluster("b"))
    assert driver.machine.awaited_clusters(driver.now) == {"a", "b"}
    driver.link_up("a", {"CPU": 1.0})
    driver.no_answer("b")
    assert driver.machine.awaited_clusters(driver.now) == set()


def test_plan_changes_nothing() -> None:
    driver = ready(4)
    decision = driver.machine.plan(task("t"), driver.now)
    assert decision.cluster == "a"
    assert list(driver.machine.records()) == []
    assert driver.machine.view("a", driver.now).in_flight == 0


def test_a_plan_for_an_unknown_cluster_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="no cluster 'aa'.*did you mean 'a'"):
        ready(4).machine.plan(task("t", preferred_cluster="aa"), 0.0)


def test_transitions_survive_as_data() -> None:
    driver = ready(4)
    for step in driver.submit(task("t")).history:
        assert Transition.from_dict(json.loads(json.dumps(step.to_dict()))) == step


def test_a_job_goes_the_same_way_without_a_link() -> None:
    driver = Driver(cluster("a"))
    driver.submit(job("j"))
    driver.snapshot("a", 4, source="http")
    assert driver.sent_to() == {"j": "a"}
    driver.accept("j")
    assert not any(key.startswith("start") for key in driver.machine.timers)
    driver.start("j")
    driver.succeed("j")
    assert driver.state("j") is TaskState.SUCCEEDED
    assert driver.machine.timers == frozenset()
    assert len(driver.issued(RefreshSnapshot, ever=True)) == 1
