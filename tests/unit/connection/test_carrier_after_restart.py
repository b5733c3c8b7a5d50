"""The carrier of a cluster and its reason are known after a restart, and forgotten with the cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ray_multicluster_scheduler.scheduler.connection.agents import agent_launcher
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.agents.carrier import CarrierChoice
from tests.unit.connection.test_ray_client_pool import Fleet
from tests.unit.connection.test_ray_client_pool_carriers import (
    ScriptedClientCarrier,
    close_fleet,
    fall_back_to_ray_client,
    fleet_with_two_carriers,
)


@pytest.fixture(autouse=True)
def _fast_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_launcher, "_POLL_S", 0.02)


async def reached_by_ray_client() -> tuple[Fleet, CarrierChoice]:
    """A cluster to which all other ways are closed, and how it is reported."""
    fleet, _ = fleet_with_two_carriers()
    await fall_back_to_ray_client(fleet)
    choice = fleet.pool.carrier("a")
    assert choice is not None
    assert choice.carrier == "ray_client"
    return fleet, choice


async def next_process(fleet: Fleet, *agents: AgentRecord) -> tuple[Fleet, ScriptedClientCarrier]:
    await fleet.die()
    after, client = fleet_with_two_carriers(before=fleet)
    await after.pool.restore_agents(agents, None)
    return after, client


async def test_the_next_process_reports_the_same_carrier_and_reason() -> None:
    fleet, choice = await reached_by_ray_client()
    assert "cannot listen at 127.0.0.1:7" in choice.why
    after, client = await next_process(fleet, *fleet.agents.values())
    assert after.pool.carrier("a") == choice, "also while it is waited for"
    ((_, port),) = client.restored
    (scripted,) = fleet.dashboard.agents
    scripted.join.addresses[:] = [("127.0.0.1", port)]
    await scripted.dial()
    await after.received.until("link_up")
    assert after.pool.carrier("a") == choice
    await close_fleet(after)


async def test_an_agent_without_a_recorded_reason_reports_its_carrier() -> None:
    fleet, _ = await reached_by_ray_client()
    (known,) = fleet.agents.values()
    after, _ = await next_process(fleet, replace(known, why=""))
    reported = after.pool.carrier("a")
    assert reported == CarrierChoice("ray_client", "its agent came this way before the restart")
    await close_fleet(after)


async def test_an_agent_of_a_cluster_that_was_removed_meanwhile_is_restored_all_the_same() -> None:
    fleet, _ = await reached_by_ray_client()
    (known,) = fleet.agents.values()
    after, client = await next_process(fleet, replace(known, cluster="gone"))
    assert [one.cluster for one, _ in client.restored] == ["gone"]
    await close_fleet(after)


async def test_records_of_a_removed_cluster_are_dropped() -> None:
    fleet, choice = await reached_by_ray_client()
    foreign = {"rmcs_control_plane": "other", "rmcs_agent": "a"}
    fleet.dashboard.jobs["x"] = {"status": "RUNNING", "metadata": foreign}
    await fleet.pool._launcher._warn_about_other_control_planes(fleet.dashboard)  # type: ignore[arg-type]
    assert fleet.pool.other_control_planes("a") == ("other",)
    config = fleet.pool._clusters["a"]
    fleet.pool.update({"a": config, "b": config.model_copy(update={"name": "b"})})
    assert (fleet.pool.carrier("a"), fleet.pool.other_control_planes("a")) == (choice, ("other",))
    await asyncio.gather(fleet.pool.close_link("a", "it goes"), fleet.hang_up_when_asked())
    fleet.pool.update({})
    assert fleet.pool.other_control_planes("a") == ()
    fleet.pool.update({"a": config})
    reported = fleet.pool.carrier("a")
    assert reported is not None
    assert reported.carrier == "agent", "a cluster of that name is another one"
    assert fleet.pool._selector._last == {}
    await close_fleet(fleet)
