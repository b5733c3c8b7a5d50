"""Items that start no work, such as the relay of actors made inside a cluster, are not kept waiting with the others."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription, TaskState
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, ready, task

HERE: dict[str, Any] = {"preferred_cluster": "a", "fallback": "wait"}


def relay(task_id: str = "relay", **values: Any) -> TaskDescription:
    flag = {"adopt": True} if values.pop("adopt", False) else {"relay": True}
    description = ActorDescription(task_id, **flag)
    return TaskDescription(**{"id": task_id, "kind": "actor", "name": task_id, "actor": description, **HERE, **values})


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"resource_threshold": 0.7},
        {"execution_mode": "serial"},
        {"submission_interval_s": 100, "submission_interval_kinds": ["task", "actor"]},
        {"owners": {"ann": {"max_running": 1}}},
        {"max_queue": 1},
        {"owners": {"ann": {"max_queued": 0}}},
    ],
)
def test_it_goes_to_a_busy_cluster_at_once(settings: dict[str, Any], adopt: bool) -> None:
    driver = ready(1, **settings)
    driver.submit(task("busy", owner="ann"))
    if "max_queue" in settings:
        driver.submit(task("waits", owner="ann"))
    driver.submit(relay(owner="ann", adopt=adopt))
    assert driver.sent_to() == {"busy": "a", "relay": "a"}


def test_it_goes_to_a_cordoned_and_paused_cluster_past_other_actors() -> None:
    driver = ready(4)
    driver.send(events.CordonChanged("a", True))
    driver.send(events.QueuePaused("cluster", "a", "for a while"))
    driver.submit(actor("other", **HERE))
    driver.submit(relay())
    assert driver.sent_to() == {"relay": "a"}
    assert driver.state("other") is TaskState.QUEUED


def test_it_counts_neither_for_its_owner_nor_for_the_interval() -> None:
    limits = {"owners": {"ann": {"max_running": 1}}}
    driver = ready(4, submission_interval_s=100, submission_interval_kinds=["actor"], **limits)
    driver.submit(relay(owner="ann"))
    driver.start("relay")
    driver.submit(actor("first", owner="ann"))
    assert driver.sent_to() == {"relay": "a", "first": "a"}
    driver.cancel("relay")
    driver.stopped("relay")
    driver.submit(task("second", owner="ann"))
    assert driver.machine.record("second").code == "OWNER_LIMIT", "the first still counts"


def test_it_waits_for_its_cluster_and_goes_first_when_that_answers() -> None:
    driver = Driver(cluster("a"), resource_threshold=0.7)
    driver.submit(job("busy", cpus=4))
    driver.submit(relay())
    driver.submit(relay("cancelled"))
    driver.cancel("cancelled")
    assert driver.state("relay") is TaskState.QUEUED
    driver.link_up("a", 4)
    assert list(driver.sent_to()) == ["relay", "busy"]
    driver.refuse("relay")
    driver.fire("retry:relay", after=60)
    assert list(driver.sent_to()) == ["relay", "busy"]
    assert driver.attempt("relay") == 2, "a retry passes the threshold, too"


def test_one_without_a_reachable_cluster_counts_for_the_queue() -> None:
    driver = Driver(cluster("a"), max_queue=1)
    driver.submit(job("waits"))
    driver.submit(relay())
    assert driver.end("relay").error == "QueueFullError"


def test_one_that_asks_for_resources_is_an_ordinary_actor() -> None:
    driver = ready(1, resource_threshold=0.7)
    driver.submit(task("busy"))
    driver.submit(relay(actor=ActorDescription("relay", relay=True, placement={"CPU": 0.5})))
    assert driver.state("relay") is TaskState.QUEUED


def test_after_a_restart_of_the_service_it_still_goes_first() -> None:
    before = Driver(cluster("a"))
    before.submit(relay())
    after = Driver(cluster("a"), execution_mode="serial")
    after.now = before.now + 1
    after.send(events.Restored((before.machine.row("relay"),), before.machine.cluster_rows(), ()))
    after.submit(task("busy", priority=5))
    after.link_up("a", 1)
    assert list(after.sent_to()) == ["relay"]
    after.start("relay")
    assert list(after.sent_to()) == ["relay", "busy"], "a ready actor does not count in serial mode"
