"""Agents whose job has failed, with logs that cannot be read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from tests.support.eventually import eventually
from tests.unit.connection.test_ray_client_pool_carriers import close_fleet, fleet_with_two_carriers

FAILS = DashboardProblem("the log cannot be read: HTTP 500", code="BAD_ANSWER", cluster="a")
REFUSES = DashboardProblem("the log may not be read", code="WRONG_TOKEN", cluster="a")
KNOWS_NOTHING = TaskSubmissionError("there is no such job.")


@pytest.fixture(autouse=True)
def _fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)


@pytest.mark.parametrize("carrier", ["agent", "dial_in"])
@pytest.mark.parametrize("why", [FAILS, REFUSES, KNOWS_NOTHING], ids=["fails", "refuses", "knows nothing"])
async def test_the_reason_of_a_failure_is_reported_without_a_readable_log(
    carrier: str, why: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, _ = fleet_with_two_carriers(carrier=carrier)
    fleet.dashboard.joins = False

    async def cannot_be_read(_: str) -> str:
        raise why

    async def has_failed(_: str) -> dict[str, Any]:
        return {"status": "FAILED", "message": f"{m.NO_RAY} python cannot import ray"}

    monkeypatch.setattr(fleet.dashboard, "job_logs", cannot_be_read)
    monkeypatch.setattr(fleet.dashboard, "job_info", has_failed)
    with pytest.raises(LinkProblem, match="cannot run our agent: python cannot import ray"):
        await asyncio.wait_for(fleet.pool.link("a"), 10)
    await close_fleet(fleet)


async def test_an_agent_that_has_failed_is_noticed_while_its_log_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet, _ = fleet_with_two_carriers(carrier="dial_in")
    fleet.dashboard.joins = False
    asked: list[str] = []

    async def takes_long(agent: str) -> str:
        asked.append(agent)
        if len(asked) == 1:
            await asyncio.sleep(1000)
        return f"{m.NO_RAY} python cannot import ray"

    monkeypatch.setattr(fleet.dashboard, "job_logs", takes_long)
    starting = asyncio.create_task(fleet.pool.link("a"))
    await eventually(lambda: fleet.dashboard.jobs)
    for job in fleet.dashboard.jobs.values():
        job["status"] = "FAILED"
    with pytest.raises(LinkProblem, match="cannot run our agent: python cannot import ray"):
        await asyncio.wait_for(starting, 10)
    await close_fleet(fleet)
