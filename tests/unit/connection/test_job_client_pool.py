"""JobClientPool: one client per cluster, made when needed, replaced when its configuration changes."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool


def cluster(name: str, **keys: Any) -> ClusterConfig:
    return ClusterConfig.model_validate({"name": name, "dashboard": "http://127.0.0.1:8265", **keys})


async def test_one_client_per_cluster() -> None:
    pool = JobClientPool({"a": cluster("a"), "b": cluster("b")})
    assert pool.client("a") is pool.client("a")
    assert pool.client("a") is not pool.client("b")
    assert (pool.client("a").name, pool.client("a")._http.url) == ("a", "http://127.0.0.1:8265")
    await pool.close()


async def test_update_keeps_clients_of_unchanged_clusters() -> None:
    pool = JobClientPool({"a": cluster("a"), "b": cluster("b"), "c": cluster("c")})
    a, b = pool.client("a"), pool.client("b")
    await pool.update({"a": cluster("a"), "b": cluster("b", dashboard="http://127.0.0.1:1")})
    assert pool.client("a") is a
    assert pool.client("b") is not b
    assert pool.client("b")._http.url == "http://127.0.0.1:1"
    with pytest.raises(ClusterConnectionError, match="no cluster 'c'"):
        pool.client("c")
    await pool.close()


async def test_the_error_for_a_cluster_without_dashboard_names_the_key() -> None:
    pool = JobClientPool({"a": ClusterConfig(name="a", head_address="h:1")})
    with pytest.raises(ClusterConnectionError, match="has no `dashboard`") as caught:
        pool.client("a")
    assert caught.value.cluster == "a"
    assert isinstance(caught.value, DashboardProblem)
    assert caught.value.permanent
    assert "dashboard: http://" in (caught.value.next_step or "")


@pytest.mark.usefixtures("leak_check")
async def test_token_of_the_configuration_is_used_and_close_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({"ray_version": "2.60.0"})

    app = web.Application()
    app.router.add_get("/api/version", note)
    server = TestServer(app)
    await server.start_server()
    pool = JobClientPool({"a": cluster("a", dashboard=f"http://127.0.0.1:{server.port}", auth_token="${A_TOKEN}")})
    for token in ("one", "two"):
        monkeypatch.setenv("A_TOKEN", token)
        await pool.client("a").version()
    await pool.close()
    await pool.close()
    await server.close()
    assert seen == ["Bearer one", "Bearer two"]
