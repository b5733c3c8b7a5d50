"""Everybody can read that an agent is being started, and after a restart whose agent is waited for, and until when."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ray_multicluster_scheduler.cli.app import app
from ray_multicluster_scheduler.scheduler.connection.agents.agent_records import AgentRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Join
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.stored_agent_records import StoredAgentRecords
from tests.support.scripted_agent import ScriptedAgent
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import a_job, running

pytestmark = pytest.mark.usefixtures("leak_check")


def remembered(service: HttpService, **values: Any) -> AgentRecord:
    """The store says that this agent may live."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    agent = AgentRecord("mac", "rmcs-agent-cp-mac-1-1", "secret", "127.0.0.1", port, **values)
    asyncio.run(StoredAgentRecords(service.plane.store).save(agent))
    return agent


def row(service: HttpService) -> dict[str, Any]:
    (one,) = service.get("/api/v1/clusters")["clusters"]
    assert isinstance(one, dict)
    return one


def test_what_waits_for_an_agent_that_is_being_started_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpService(tmp_path / "state") as service:
        runtime = service.plane.runtime
        monkeypatch.setattr(service.plane, "dispatch", lambda orders: None)
        monkeypatch.setattr(runtime.links, "starting_since", lambda name: runtime.clock.now() - 8.1)
        service.submit("t")
        service.plane.taken(a_job("j"))
        for name in ("t", "j"):
            until(lambda name=name: service.get(f"/api/v1/items/{name}")["state"] == "DISPATCHING")
        started = "the agent on mac has been starting for 8 s; tasks and actors wait for it"
        assert service.get("/api/v1/items/t/explain")["sentence"].endswith(started)
        assert service.get("/api/v1/items/t")["sentence"].endswith(started)
        assert "agent" not in service.get("/api/v1/items/j/explain")["sentence"], "a job needs none"
        assert (row(service)["state"], row(service)["sentence"]) == ("UP", started)
        service.plane.post(events.DispatchAccepted("t", 1))
        until(lambda: "agent" not in service.get("/api/v1/items/t/explain")["sentence"])


def test_an_agent_that_has_not_come_back_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpService(tmp_path / "state") as service:
        service.submit("t")
        service.plane.taken(a_job("j"))
        for name in ("t", "j"):
            item = service.plane.find_item(name)
            assert item is not None
            running(item)
        assert row(service)["agent_awaited_until"] is None
        agent = remembered(service, away_s=100.0, lease_s=45.0)
        service.restart()
        now = service.plane.runtime.clock.now()
        found = row(service)
        assert 150 < found["agent_awaited_until"] - now <= 161
        assert "has not come back yet after this restart: the wait for it ends in 1" in found["sentence"]
        assert "has not come back yet" in service.get("/api/v1/items/t/explain")["sentence"]
        assert "has not come back" not in service.get("/api/v1/items/j/explain")["sentence"], "a job has no agent"
        monkeypatch.setenv("RMCS_ADDRESS", service.address)
        shown = CliRunner().invoke(app, ["clusters"])
        assert "has not come back yet" in " ".join(shown.output.split())
        back = ScriptedAgent(Join("mac", agent.agent, [(agent.host, agent.port)], ""))
        back.secret = agent.secret
        service.plane.runtime.run(back.dial())
        until(lambda: row(service)["agent_awaited_until"] is None)
        assert "has not come back" not in row(service)["sentence"]
        assert "has not come back" not in service.get("/api/v1/items/t/explain")["sentence"]
        service.plane.runtime.run(asyncio.wait_for(back.cut(), 10))
