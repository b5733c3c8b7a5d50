"""Autoscaling clusters: Ray adds a node when something waits for it, so something has to be sent."""

from __future__ import annotations

from typing import Any

import pytest

from ray_multicluster_scheduler.common.model import JobDescription, TaskState
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import NEW_NODE
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import CancelAttempt, Dispatch, Remember, SetTimer
from ray_multicluster_scheduler.scheduler.lifecycle.timers import NEW_NODE_GRACE_S
from tests.unit.lifecycle.driver import Driver, actor, cluster, job, task

HEAD = {"CPU": 0.0, "memory": 4e9}
"""As in clouds: the head takes no work."""


def cloud(*nodes: float | dict[str, float], **values: Any) -> Driver:
    """One autoscaling cluster, linked, with its head and these nodes (n2, n3, …)."""
    settings = values.pop("settings", {})
    driver = Driver(cluster("cloud", **{"autoscaling": True, "max_node": {"CPU": 8.0}, **values}), **settings)
    driver.link_up("cloud", HEAD, *nodes)
    return driver


def held(driver: Driver, name: str = "cloud") -> dict[str, list[str]]:
    """Who has room where, by the books."""
    reservations = driver.machine.registry.state(name).ledger.reservations
    return {task_id: list(one.parts) for task_id, one in reservations.items()}


def ours(driver: Driver, name: str = "cloud") -> dict[str, float]:
    state = driver.machine.registry.state(name)
    return {node.node_id: node.reserved["CPU"] for node in state.ledger.nodes() if node.reserved}


def test_an_empty_cluster_gets_an_item_and_books_it_on_the_node_that_appears() -> None:
    driver = cloud()
    record = driver.submit(task("t", cpus=8))
    assert driver.sent_to() == {"t": "cloud"}
    assert record.decision is not None
    assert record.decision.candidates[0].node_id == NEW_NODE
    assert "on a node that is still to be added" in record.decision.sentence
    assert held(driver) == {"t": [NEW_NODE]}
    driver.accept("t")
    driver.now += 120
    driver.snapshot("cloud", HEAD, 8)
    assert held(driver) == {"t": ["n2"]}
    driver.start("t", "n2")
    assert ours(driver) == {"n2": 8.0}
    driver.now += 1
    driver.succeed("t")
    assert held(driver) == {}
    driver.now += 1
    driver.snapshot("cloud", HEAD, 8)
    assert driver.machine.view("cloud", driver.now).free["CPU"] == 8
    assert driver.machine.timers == frozenset()


def test_it_may_start_on_another_node_than_expected() -> None:
    driver = cloud()
    driver.submit(task("t", cpus=8))
    driver.accept("t")
    driver.start("t", "n9")  # reported before any snapshot showed that node
    assert held(driver) == {"t": ["n9"]}
    driver.submit(task("next", cpus=8))
    assert held(driver) == {"t": ["n9"], "next": [NEW_NODE]}


def test_an_item_larger_than_max_node_fails_at_once() -> None:
    driver = cloud()
    driver.submit(task("t", cpus=16))
    end = driver.end("t")
    assert (end.state, end.error) == (TaskState.FAILED, "NoFeasibleClusterError")
    assert "it requests 16 CPU" in end.message
    assert driver.sent_to() == {}


def test_never_more_than_one_nodes_worth_is_on_its_way() -> None:
    driver = cloud()
    for number in range(4):
        driver.submit(task(f"t{number}", cpus=3))
    assert list(driver.sent_to()) == ["t0", "t1"]  # 3 + 3 of 8
    assert driver.machine.record("t2").code == "NO_CAPACITY"
    driver.now += 100
    driver.snapshot("cloud", HEAD, 8)
    # The node is there: the two are booked on it, and the others may ask for the next one.
    assert held(driver) == {"t0": ["n2"], "t1": ["n2"], "t2": [NEW_NODE], "t3": [NEW_NODE]}


def test_without_max_node_one_item_at_a_time_of_any_size() -> None:
    driver = cloud(max_node=None)
    driver.submit(task("wide", cpus=1000))
    driver.submit(task("small"))
    assert list(driver.sent_to()) == ["wide"]
    driver.now += 100
    driver.snapshot("cloud", HEAD, 1000)
    assert held(driver) == {"wide": ["n2"], "small": [NEW_NODE]}


def test_a_cluster_that_would_have_to_grow_is_not_chosen_while_another_has_room() -> None:
    driver = Driver(cluster("cloud", autoscaling=True, prefer=True, weight=100.0), cluster("here"))
    driver.link_up("cloud", HEAD)
    driver.link_up("here", 2)
    for name in ("t1", "t2", "t3"):
        driver.submit(task(name))
    assert driver.sent_to() == {"t1": "here", "t2": "here", "t3": "cloud"}


def test_not_even_to_spare_free_gpus() -> None:
    driver = Driver(cluster("cloud", autoscaling=True), cluster("gpus"))
    driver.link_up("cloud", HEAD)
    driver.link_up("gpus", {"CPU": 4, "GPU": 4})
    driver.submit(task("t"))
    assert driver.sent_to() == {"t": "gpus"}


@pytest.mark.parametrize("wanted", [{"preferred_cluster": "cloud"}, {"tags": ("big",)}])
def test_unless_the_item_asks_for_it(wanted: dict[str, Any]) -> None:
    driver = Driver(cluster("cloud", autoscaling=True, tags=("big",)), cluster("here"))
    driver.link_up("cloud", HEAD)
    driver.link_up("here", 2)
    driver.submit(task("t", **wanted))
    assert driver.sent_to() == {"t": "cloud"}


def test_a_full_cluster_grows_although_it_is_above_the_threshold() -> None:
    driver = cloud(8, settings={"resource_threshold": 0.7})
    driver.submit(task("first", cpus=7))
    driver.submit(task("small"))
    assert driver.machine.record("small").code == "ABOVE_THRESHOLD"  # there is room for it, on nodes in use
    driver.submit(task("large", cpus=4))
    assert held(driver) == {"first": ["n2"], "large": [NEW_NODE]}


def test_a_cluster_that_does_not_grow_by_itself_is_sent_nothing() -> None:
    driver = cloud(autoscaling=False)
    driver.submit(task("t", cpus=8))
    assert driver.machine.record("t").code == "NO_CAPACITY"


def test_an_unknown_cluster_is_not_full() -> None:
    driver = cloud()
    driver.now += 1
    nodes = driver.machine.registry.latest_snapshot("cloud")
    assert nodes is not None
    snapshot = nodes.from_dict(
        {**nodes.to_dict(), "taken_at": driver.now, "nodes": [{"node_id": "n2", "total": {"CPU": 8.0}, "free": None}]}
    )
    driver.send(events.SnapshotTaken(snapshot))
    driver.submit(task("t", cpus=2))
    assert driver.machine.record("t").code == "CAPACITY_UNKNOWN"


# ---- room that comes free on a node that is there


def test_what_waits_for_a_node_gets_the_room_that_is_freed_before_anybody_else() -> None:
    """Ray starts it there: anything else that was sent to that room would wait behind it."""
    driver = cloud(4, max_node={"CPU": 4.0})
    driver.submit(task("running", cpus=4))
    driver.start("running", "n2")
    driver.submit(task("waiting", cpus=4))
    driver.submit(task("queued", cpus=4))
    assert held(driver) == {"running": ["n2"], "waiting": [NEW_NODE]}
    driver.now += 10
    driver.succeed("running")
    assert held(driver) == {"waiting": ["n2"], "queued": [NEW_NODE]}


# ---- the time it may take


def test_it_may_take_long_to_start_and_is_called_back_only_then() -> None:
    driver = cloud()
    driver.submit(task("t", cpus=8))
    driver.accept("t")
    driver.fire("starts", after=NEW_NODE_GRACE_S)
    assert driver.issued(CancelAttempt) == [CancelAttempt("t", 1, "cloud", False)]
    assert driver.machine.record("t").sentence == "cloud added no node for it within 600 s, and it was recalled"
    driver.stopped("t")
    assert [order.attempt for order in driver.issued(Dispatch)] == [2]  # it asks again
    assert held(driver) == {"t": [NEW_NODE]}


@pytest.mark.parametrize("first", ["on a node", "on a new node"])
def test_those_that_have_a_node_keep_the_short_grace(first: str) -> None:
    driver = cloud(4)
    order = [("here", 4), ("there", 8)]
    for name, cpus in order if first == "on a node" else reversed(order):
        driver.submit(task(name, cpus=cpus))
        driver.accept(name)
    assert held(driver)["there"] == [NEW_NODE]
    driver.fire("starts", after=60)
    assert [one.task_id for one in driver.issued(CancelAttempt)] == ["here"]
    driver.fire("starts", after=NEW_NODE_GRACE_S - 60)
    assert [one.task_id for one in driver.issued(CancelAttempt)] == ["there"]


def test_an_actor_holds_what_it_asked_for_where_it_began() -> None:
    driver = cloud()
    driver.submit(actor("a", cpus=0, placement={"CPU": 2.0}))
    assert held(driver) == {"a": [NEW_NODE]}
    driver.accept("a")
    driver.start("a", "n2")
    assert held(driver) == {"a": []}
    assert driver.machine.view("cloud", driver.now).new_node is not None
    driver.submit(task("t", cpus=8))
    assert held(driver) == {"a": [], "t": [NEW_NODE]}


# ---- jobs


def test_a_jobs_footprint_is_booked_on_the_nodes_that_appear() -> None:
    """Nobody tells where its tasks run; the nodes that came for it are taken to be its own."""
    driver = cloud()
    driver.submit(job("wide", cpus=20))
    driver.submit(job("next", cpus=4))
    assert held(driver) == {"wide": [NEW_NODE]}  # more than one node's worth goes alone
    driver.start("wide")
    driver.now += 100
    driver.snapshot("cloud", HEAD, 8)
    assert driver.machine.view("cloud", driver.now).new_node.reserved == {"CPU": 12.0}  # type: ignore[union-attr]  # it grows
    driver.now += 100
    driver.snapshot("cloud", HEAD, 8, 8, 8)
    assert held(driver) == {"wide": ["n2", "n3", "n4"], "next": ["n4"]}
    driver.now += 10
    driver.succeed("wide")
    assert ours(driver) == {"n4": 4.0}


def test_use_that_a_new_node_shows_from_the_beginning_is_the_jobs() -> None:
    driver = cloud()
    driver.submit(job("j", cpus=8))
    driver.start("j")
    driver.now += 100
    first = driver.machine.registry.latest_snapshot("cloud")
    assert first is not None
    data = first.to_dict()
    data["nodes"] = [*data["nodes"], {"node_id": "n2", "total": {"CPU": 8.0}, "free": {"CPU": 1.0}}]
    driver.send(events.SnapshotTaken(first.from_dict({**data, "taken_at": driver.now})))
    view = driver.machine.view("cloud", driver.now)
    assert [(node.external, node.reserved) for node in view.nodes][1] == ({"CPU": 0.0}, {"CPU": 8.0})


# ---- what ends before it has begun


def test_a_cancelled_item_gives_its_new_node_back() -> None:
    driver = cloud()
    driver.submit(task("t", cpus=8))
    driver.cancel("t")
    driver.stopped("t")
    assert held(driver) == {}
    driver.submit(task("next", cpus=8))
    assert held(driver) == {"next": [NEW_NODE]}


def test_a_restarted_cluster_books_nothing_of_the_old_one_on_its_nodes() -> None:
    driver = cloud()
    driver.submit(job("j", cpus=8))
    driver.now += 10
    driver.snapshot("cloud", HEAD, session_id="s1")
    driver.now += 10
    driver.snapshot("cloud", HEAD, {"CPU": 4.0}, session_id="s2")
    assert held(driver) == {"j": [NEW_NODE]}
    driver.fail("j", "cluster")
    assert held(driver) == {}


def test_the_row_of_one_that_was_booked_elsewhere_is_written_once() -> None:
    driver = cloud()
    driver.submit(task("t", cpus=8))
    driver.accept("t")
    driver.now += 100
    driver.snapshot("cloud", HEAD, 8)
    assert driver.issued(Remember) == [Remember("t")]
    driver.now += 1
    driver.snapshot("cloud", HEAD, 8)
    assert driver.issued(Remember) == []


def test_item_on_existing_node_times_out_before_one_on_new_node() -> None:
    """There is one timer for both: it must ring for the earliest deadline, not for the first arrival."""
    driver = cloud(4, settings={"start_grace_s": 20})
    driver.submit(task("large", cpus=8))
    driver.accept("large")
    driver.now += 1
    driver.submit(task("small", cpus=4))
    driver.accept("small")
    due = [one.at for one in driver.issued(SetTimer, ever=True) if one.key == "starts"]
    assert due == [driver.now - 1 + NEW_NODE_GRACE_S, driver.now + 20]


def test_job_entrypoint_starts_while_the_rest_waits_for_a_node() -> None:
    driver = cloud(4)
    entrypoint = JobDescription("python x.py", entrypoint_resources={"CPU": 3.0})
    driver.submit(job("wide", cpus=10, job=entrypoint))
    assert driver.sent_to() == {"wide": "cloud"}
    assert held(driver) == {"wide": ["n2", NEW_NODE]}
    assert ours(driver) == {"n2": 3.0}
    assert driver.submit(task("small", cpus=2)).state is TaskState.QUEUED, "what the entrypoint takes is not free"
    driver.snapshot("cloud", HEAD, 4, 8)
    assert held(driver)["wide"] == ["n2", "n3"]
    assert ours(driver)["n2"] == 3.0


def test_wide_job_is_found_when_free_and_new_nodes_suffice() -> None:
    driver = cloud(4)
    driver.submit(task("busy", cpus=4))
    driver.submit(task("on its way", cpus=6))
    entrypoint = JobDescription("python x.py", entrypoint_resources={"CPU": 4.0})
    driver.submit(job("wide", cpus=6, job=entrypoint))
    assert held(driver) == {"busy": ["n2"], "on its way": [NEW_NODE]}
    driver.succeed("busy")
    assert held(driver) == {"on its way": [NEW_NODE], "wide": ["n2", NEW_NODE]}


def test_its_entrypoint_may_hold_what_no_new_node_has() -> None:
    driver = cloud({"GPU": 1.0})
    driver.submit(task("busy", requirements={"GPU": 1.0}))
    entrypoint = JobDescription("python x.py", entrypoint_resources={"GPU": 1.0})
    driver.submit(job("wide", requirements={"CPU": 20.0, "GPU": 1.0}, job=entrypoint))
    assert driver.machine.record("wide").code == "NO_CAPACITY"
    driver.succeed("busy")
    assert held(driver) == {"wide": ["n2", NEW_NODE]}
