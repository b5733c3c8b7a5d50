"""The main features end to end, on two real Ray clusters. Read this test first.

The fleet has a cluster "linux" (tags linux, x86_64) and a cluster "mac" (tags macos, arm64), two CPUs each. Our
process has no ray installed, and the clusters have neither our package nor cloudpickle.
"""

from __future__ import annotations

import time

import pytest

from ray_multicluster_scheduler import (
    NoFeasibleClusterError,
    TaskCancelledError,
    TaskState,
    UnifiedScheduler,
    cancel,
    explain,
    get,
    list_clusters,
    submit_task,
    submit_task_async,
    wait,
)
from tests.support.eventually import until

pytestmark = pytest.mark.usefixtures("scheduler")


def test_list_clusters_and_resources() -> None:
    rows = {row["name"]: row for row in list_clusters(refresh=True)}
    assert set(rows) == {"linux", "mac"}
    assert all(row["state"] == "UP" for row in rows.values())
    assert rows["mac"]["tags"] == ["macos", "arm64"]
    assert rows["linux"]["total"]["CPU"] == 2


def test_a_task_runs_somewhere_and_returns_its_value() -> None:
    def square(x: int) -> int:
        return x * x

    assert submit_task(square, args=(7,)) == 49


def test_a_task_knows_its_identity() -> None:
    def who() -> tuple[str, int, str]:
        from ray_multicluster_scheduler import current

        return current().id, current().attempt, current().cluster

    handle = submit_task_async(who)
    assert handle.result(60) == (handle.id, 1, handle.cluster)


def test_many_tasks_spread_over_all_clusters() -> None:
    def busy(number: int) -> tuple[int, str]:
        import time

        from ray_multicluster_scheduler import current

        time.sleep(0.5)
        return number, current().cluster

    results = get([submit_task_async(busy, args=(number,)) for number in range(12)], timeout=120)
    assert [number for number, _ in results] == list(range(12))
    assert {cluster for _, cluster in results} == {"linux", "mac"}


def test_choose_a_cluster_by_tag_or_name() -> None:
    def where() -> str:
        from ray_multicluster_scheduler import current

        return current().cluster

    assert submit_task(where, require_tags=["arm64"]) == "mac"
    assert submit_task(where, preferred_cluster="linux", fallback="wait") == "linux"


def test_every_placement_is_explained() -> None:
    handle = submit_task_async(lambda: None, tags=["macos"])
    handle.result(60)
    explanation = explain(handle.id)
    assert explanation["cluster"] == "mac"
    assert [step["state"] for step in explanation["history"]] == [
        "PENDING",
        "QUEUED",
        "DISPATCHING",
        "RUNNING",
        "SUCCEEDED",
    ]
    rows = {row["cluster"]: row for row in explanation["decision"]["candidates"]}
    assert set(rows) == {"linux", "mac"}
    assert rows["mac"]["ranks"]["tags"] > rows["linux"]["ranks"]["tags"]
    assert "load" in rows["linux"]["scores"]


def test_an_exception_keeps_its_type() -> None:
    class OutOfStock(Exception):
        pass

    def sell(what: str) -> None:
        print(f"selling {what}")
        raise OutOfStock(what)

    handle = submit_task_async(sell, args=("pears",))
    with pytest.raises(OutOfStock, match="pears") as caught:
        handle.result(60)
    assert handle.state is TaskState.FAILED
    assert f"on cluster {handle.cluster!r}" in "".join(caught.value.__notes__)
    assert "raise OutOfStock(what)" in str(caught.value.__cause__), "the remote traceback is its cause"
    assert "selling pears" in handle.logs()


def test_an_impossible_item_fails_at_once_with_the_table() -> None:
    began = time.monotonic()
    with pytest.raises(NoFeasibleClusterError, match="64 CPU") as caught:
        submit_task(lambda: None, resource_requirements={"CPU": 64})
    assert "linux" in str(caught.value)
    assert "mac" in str(caught.value)
    assert caught.value.next_step
    assert time.monotonic() - began < 40


def test_a_waiting_item_has_a_reason_and_can_be_cancelled(scheduler: UnifiedScheduler) -> None:
    def hold() -> None:
        import time

        time.sleep(60)

    holders = [submit_task_async(hold, resource_requirements={"CPU": 2}, name="holder") for _ in range(2)]
    waiting = submit_task_async(hold, resource_requirements={"CPU": 2})
    over, rest = wait([waiting], timeout=3)
    assert (over, rest) == ([], [waiting])
    until(lambda: waiting.explain()["code"] == "NO_CAPACITY", 60)  # the others may still be on their way
    explanation = waiting.explain()
    assert explanation["state"] == "QUEUED"
    assert explanation["code"] == "NO_CAPACITY"
    assert "2 CPU" in explanation["sentence"]
    for handle in [waiting, *holders]:
        cancel(handle.id)
    for handle in [waiting, *holders]:
        with pytest.raises(TaskCancelledError, match=handle.id):
            handle.result(30)
