"""Simulations over HTTP: bounded, one at a time, in a process of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from ray_multicluster_scheduler.common.exception import QueueFullError, SchedulerError
from ray_multicluster_scheduler.control_plane.admin_api.routes.simulation import _simulation_request
from ray_multicluster_scheduler.control_plane.admin_api.simulation_process import SimulationRunner, simulated
from tests.unit.service.http_service import HttpService

SMALL = {"synthetic": "items=20 over=5min run=constant:30 sizes=1", "nodes": {"mac": "2x{CPU:4}"}}
ASKED = {
    "config": {"clusters": [{"name": "mac", "dashboard": "http://simulated:8265"}]},
    "nodes": {"mac": "{CPU:4}"},
    "synthetic": "items=10 over=1min run=constant:30",
    "seed": 0,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("simulate") / "state") as one:
        yield one


def test_a_small_workload_is_simulated(service: HttpService) -> None:
    output = service.post("/api/v1/simulate", SMALL)
    assert service.post("/api/v1/simulate", SMALL) == output
    assert output == simulated_here(service, SMALL)
    assert service.get("/api/v1/items")["items"] == []


def simulated_here(service: HttpService, output: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(simulated(_simulation_request(output, service.plane.runtime))))
    return found


def test_clusters_are_as_large_as_they_were_last_seen(service: HttpService) -> None:
    service.post("/api/v1/clusters/mac/check")
    seen = service.post("/api/v1/simulate", {"synthetic": SMALL["synthetic"]})
    assert seen == simulated_here(service, {**SMALL, "nodes": {"mac": "{CPU:8}"}})


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"synthetic": 5},
        {"synthetic": "items=many"},
        {"synthetic": "items=5001"},
        {"synthetic": "load=0.9 over=300d run=constant:1", "nodes": {"mac": "{CPU:4}"}},
        {**SMALL, "seed": -1},
        {**SMALL, "seed": "x"},
        {**SMALL, "nodes": {"mars": "{CPU:4}"}},
        {**SMALL, "nodes": {"mac": "many"}},
        {**SMALL, "nodes": 5},
        {**SMALL, "settings": {"colour": "red"}},
        {**SMALL, "settings": {"policies": {"x": "os:system"}}},
        {**SMALL, "colour": "red"},
    ],
)
def test_invalid_or_too_large_simulation_is_rejected(service: HttpService, output: dict[str, Any]) -> None:
    status, answer = service.ask("POST", "/api/v1/simulate", output)
    assert status in (409, 422), answer
    assert answer["next_step"]


async def test_one_at_a_time_and_not_for_ever() -> None:
    runs = SimulationRunner()
    first = asyncio.create_task(runs.run(ASKED))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await runs.run(ASKED)
    assert await first
    with pytest.raises(SchedulerError, match="did not end within"):
        await runs.run(ASKED, limit_s=0.01)
    with pytest.raises(SchedulerError, match="without an answer"):
        await runs.run({})
    assert await runs.run(ASKED)
