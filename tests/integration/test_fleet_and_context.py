"""Queries of the fleet, and the preferred cluster of a thread or asyncio task, on two real clusters."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ClusterContextManager,
    ConfigurationError,
    UnifiedScheduler,
    cluster_info,
    fleet_resources,
    get_unified_scheduler,
    plan,
    submit_task,
    submit_task_async,
)
from tests.support.by_value_functions import all_idle, where

pytestmark = pytest.mark.usefixtures("scheduler")


class TestTheFleet:
    def test_plan_does_not_submit(self, scheduler: UnifiedScheduler) -> None:
        all_idle(scheduler)
        before = {item.id for item in scheduler.unfinished()}
        decision = plan({"CPU": 1}, tags=["arm64"])
        assert (decision.cluster, {row["cluster"] for row in decision.to_dict()["candidates"]}) == (
            "mac",
            {"linux", "mac"},
        )
        assert plan({"CPU": 1}, require_tags=["x86_64"]).cluster == "linux"
        never = plan({"CPU": 64})
        assert (never.cluster, never.code) == (None, "TOO_BIG")
        with pytest.raises(ConfigurationError, match="lunix"):
            plan(preferred_cluster="lunix")
        assert {item.id for item in scheduler.unfinished()} <= before

    def test_clusters_and_their_resources(self) -> None:
        row = cluster_info("mac")
        assert (row["name"], row["state"], row["nodes"], row["total"]["CPU"]) == ("mac", "UP", 1, 2.0)
        with pytest.raises(ConfigurationError, match="lunix"):
            cluster_info("lunix")
        whole = fleet_resources()
        assert whole["total"]["CPU"] == 4.0
        assert 0 <= whole["free"]["CPU"] <= 4.0

    def test_shared_and_separate_schedulers(self, scheduler: UnifiedScheduler) -> None:
        assert get_unified_scheduler() is scheduler
        mac = next(one for one in scheduler.config.clusters if one.name == "mac")
        with UnifiedScheduler(clusters=[mac]) as own:
            assert [row["name"] for row in own.list_clusters(refresh=True)] == ["mac"]
            assert own.submit_job_async("true").result(60) == "SUCCEEDED"
        with pytest.raises(ConfigurationError, match="Both config and clusters"):
            UnifiedScheduler(scheduler.config, clusters=[mac])


class TestContext:
    def test_argument_then_context_then_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RMCS_CLUSTER", "linux")
        assert submit_task(where(), fallback="wait") == "linux"
        ClusterContextManager.set("mac")
        try:
            assert ClusterContextManager.get() == "mac"
            assert submit_task(where(), fallback="wait") == "mac"
            assert submit_task(where(), preferred_cluster="linux", fallback="wait") == "linux"
            with ClusterContextManager.use("linux"):
                assert submit_task(where(), fallback="wait") == "linux"
            assert submit_task(where(), fallback="wait") == "mac"
        finally:
            ClusterContextManager.clear()
        assert ClusterContextManager.get() == "linux"

    def test_each_thread_has_its_own(self) -> None:
        with ClusterContextManager.use("mac"):
            seen: list[Any] = []
            thread = threading.Thread(target=lambda: seen.append(ClusterContextManager.get()))
            thread.start()
            thread.join()
            assert seen == [None]

    async def test_each_asyncio_task_has_its_own(self) -> None:
        async def go(cluster: str) -> str:
            with ClusterContextManager.use(cluster):
                await asyncio.sleep(0)  # the other one is here, too
                return str(await submit_task_async(where(), fallback="wait"))

        assert await asyncio.gather(go("mac"), go("linux")) == ["mac", "linux"]
        assert ClusterContextManager.get() is None
