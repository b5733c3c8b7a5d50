"""Parsing the dashboard's responses to a snapshot: real names, per node, None for missing values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.dashboard.response_parser import (
    SnapshotResponses,
    build_snapshot,
    camel_case,
)

VERSION = {"version": "4", "ray_version": "2.60.0", "session_name": "session_x"}

# Cut down from what Ray 2.60 answered.
NODE_A = {
    "node_id": "0aa9",
    "is_head_node": True,
    "state": "ALIVE",
    "resources_total": {"CPU": 2.0, "memory": 1000.0, "object_store_memory": 200.0, "my_res_two": 2.0, "myRes": 3.0},
}
NODE_B = {"node_id": "1bb9", "is_head_node": False, "state": "ALIVE", "resources_total": {"CPU": 8.0, "GPU": 2.0}}
USED_A = {
    "CPU": [1.5, 2.0],
    "memory": [100.0, 1000.0],
    "objectStoreMemory": [50.0, 200.0],
    "myResTwo": [1.0, 2.0],
    "myRes": [0.0, 3.0],
}
USED_B = {"CPU": [0.0, 8.0], "GPU": [0.5, 2.0]}
SEEN_A = {"cpu": 50.0, "cpus": [2, 2], "mem": [1000, 600, 40.0, 400], "gpus": [], "raylet": {"nodeId": "0aa9"}}
SEEN_B = {
    "cpu": 0.0,
    "cpus": [8, 4],
    "mem": [3000, 2400, 20.0, 600],
    "gpus": [{"utilizationGpu": 90}, {"utilizationGpu": 10}],
    "raylet": {"nodeId": "1bb9"},
}


def nodes_answer(*rows: dict[str, Any]) -> Any:
    return {"result": True, "data": {"result": {"total": len(rows), "result": list(rows)}}}


def status_answer(usage: dict[str, Any], **more: Any) -> Any:
    return {"result": True, "data": {"clusterStatus": {**more, "loadMetricsReport": {"usageByNode": usage}}}}


def summary_answer(*rows: dict[str, Any]) -> Any:
    return {"result": True, "data": {"summary": list(rows)}}


def answers(**changes: Any) -> SnapshotResponses:
    parts = {
        "version": VERSION,
        "nodes": nodes_answer(NODE_A, NODE_B),
        "status": status_answer({"0aa9": USED_A, "1bb9": USED_B}),
        "summary": summary_answer(SEEN_A, SEEN_B),
    }
    return SnapshotResponses(**copy.deepcopy({**parts, **changes}))


def test_total_and_free_per_node_with_real_names() -> None:
    snapshot = build_snapshot("mac", 17.0, answers())
    head, worker = snapshot.nodes
    assert (snapshot.cluster, snapshot.taken_at, snapshot.source) == ("mac", 17.0, "http")
    assert (snapshot.session_id, snapshot.ray_version) == ("session_x", "2.60.0")
    assert (head.node_id, head.is_head, worker.is_head) == ("0aa9", True, False)
    assert head.total == {"CPU": 2.0, "memory": 1000.0, "my_res_two": 2.0, "myRes": 3.0}  # as an agent reports it
    assert head.free == {"CPU": 0.5, "memory": 900.0, "my_res_two": 1.0, "myRes": 3.0}
    assert worker.free == {"CPU": 8.0, "GPU": 1.5}


def test_values_missing_over_http_are_none() -> None:
    snapshot = build_snapshot("mac", 1.0, answers())
    assert (snapshot.python_version, snapshot.os, snapshot.arch) == (None, None, None)
    assert snapshot.reported_at is None


def test_the_time_of_the_report_is_the_one_of_the_cluster() -> None:
    status = status_answer({"0aa9": USED_A}, time=700.5)
    assert build_snapshot("mac", 1.0, answers(status=status)).reported_at == 700.5


def test_observed_is_weighed_by_size() -> None:
    observed = build_snapshot("mac", 1.0, answers()).observed
    assert observed is not None
    assert dict(observed) == pytest.approx({"cpu": 0.1, "memory": 0.25, "gpu": 0.5})


@pytest.mark.parametrize("summary", [None, summary_answer(), summary_answer(SEEN_A), summary_answer({"raylet": {}})])
def test_observed_is_unknown_unless_every_node_reported(summary: Any) -> None:
    assert build_snapshot("mac", 1.0, answers(summary=summary)).observed is None


def test_gpus_that_do_not_report_use_are_left_out() -> None:
    silent = {**SEEN_B, "gpus": [{"utilizationGpu": None}]}
    observed = build_snapshot("mac", 1.0, answers(summary=summary_answer(SEEN_A, silent))).observed
    assert observed is not None
    assert "gpu" not in observed


def test_a_node_that_the_status_does_not_know_has_unknown_free() -> None:
    snapshot = build_snapshot("mac", 1.0, answers(status=status_answer({"0aa9": USED_A})))
    assert snapshot.nodes[0].free is not None
    assert snapshot.nodes[1].free is None
    assert snapshot.free() is None


@pytest.mark.parametrize("status", [{"data": {"clusterStatus": None}}, {"data": {}}, status_answer({})])
def test_a_starting_cluster_has_unknown_free(status: Any) -> None:
    assert all(node.free is None for node in build_snapshot("mac", 1.0, answers(status=status)).nodes)


def test_names_that_camel_case_makes_equal_are_not_guessed() -> None:
    node = {**NODE_B, "resources_total": {"my_res": 1.0, "myRes": 5.0}}
    snapshot = build_snapshot("mac", 1.0, answers(nodes=nodes_answer(node), status=status_answer({"1bb9": USED_A})))
    assert snapshot.nodes[0].free is None


def test_dead_nodes_do_not_count() -> None:
    snapshot = build_snapshot("mac", 1.0, answers(nodes=nodes_answer({**NODE_A, "state": "DEAD"}, NODE_B)))
    assert [node.node_id for node in snapshot.nodes] == ["1bb9"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("CPU", "CPU"),
        ("object_store_memory", "objectStoreMemory"),
        ("node:__internal_head__", "node:InternalHead"),
        ("accelerator_type:A100_80G", "acceleratorType:A10080G"),
        ("accelerator_type_X", "acceleratorTypeX"),
    ],
)
def test_camel_case_is_rays(name: str, expected: str) -> None:
    assert camel_case(name) == expected


async def ask(routes: dict[str, Any]) -> Any:
    async def answer(request: web.Request) -> web.Response:
        if request.path not in routes:
            return web.Response(status=404, text="404: Not Found")
        return web.json_response(routes[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    client = DashboardClient("mac", f"http://127.0.0.1:{server.port}")
    try:
        return await client.snapshot(5.0)
    finally:
        await client.close()
        await server.close()


def routes() -> dict[str, Any]:
    parts = answers()
    return {
        "/api/version": parts.version,
        "/api/v0/nodes": parts.nodes,
        "/api/cluster_status": parts.status,
        "/nodes": parts.summary,
    }


async def test_snapshot_over_http() -> None:
    assert await ask(routes()) == build_snapshot("mac", 5.0, answers())


async def test_physical_use_is_not_needed() -> None:
    some = routes()
    del some["/nodes"]
    assert (await ask(some)).observed is None


async def test_a_cluster_without_nodes_is_unknown_not_empty() -> None:
    with pytest.raises(DashboardProblem, match="lists no live node") as caught:
        await ask({**routes(), "/api/v0/nodes": nodes_answer()})
    assert not caught.value.permanent


async def test_an_unknown_shape_is_a_bad_answer() -> None:
    with pytest.raises(DashboardProblem, match="in an unknown form") as caught:
        await ask({**routes(), "/api/v0/nodes": {"nodes": []}})
    assert caught.value.code == "BAD_ANSWER"
