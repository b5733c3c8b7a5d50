"""`rmcs actor`: list and kill, with a service behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.client_api.control_plane import until
from tests.unit.service.actor_service import ActorService, an_actor
from tests.unit.service.http_service import body


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ActorService]:
    """With two actors, of which one has a name."""
    with ActorService(tmp_path / "state") as one:
        monkeypatch.setenv("RMCS_ADDRESS", one.address)
        one.post("/api/v1/items", body(an_actor("actor-1", {"public_name": "counter"})))
        one.post("/api/v1/items", body(an_actor("actor-2")))
        until(lambda: state(one, "actor-2") == "RUNNING")
        yield one


def state(service: ActorService, actor_id: str) -> str:
    return str(service.get(f"/api/v1/items/{actor_id}")["state"])


def test_list(service: ActorService, rmcs: Rmcs) -> None:
    title, first, _ = rmcs("actor", "list").out.splitlines()
    assert title.split()[:4] == ["ID", "NAME", "CLASS", "STATE"]
    assert first.split()[:2] == ["actor-1", "counter"]
    rows = json.loads(rmcs("actor", "list", "-o", "json").out)
    assert schema_violations(service, "/api/v1/actors", rows, "actors") == []


@pytest.mark.parametrize("output", ["actor-1", "counter"])
def test_killed_by_id_or_name(service: ActorService, rmcs: Rmcs, output: str) -> None:
    done = rmcs("actor", "kill", output)
    assert (done.code, done.out) == (0, "actor-1\n")
    until(lambda: state(service, "actor-1") == "CANCELLED")
    assert state(service, "actor-2") == "RUNNING"
    again = rmcs("actor", "kill", "actor-1")
    assert (done.err, again.err) == ("rmcs: actor-1 was killed\n", "rmcs: actor-1 has already ended: CANCELLED\n")


def test_all_and_none(service: ActorService, rmcs: Rmcs) -> None:
    killed = json.loads(rmcs("actor", "kill", "all", "-o", "json").out)
    assert [one["id"] for one in killed] == ["actor-2", "actor-1"]
    assert schema_violations(service, "/api/v1/items/{item_id}/cancel", killed[0], method="post") == []
    until(lambda: state(service, "actor-1") == state(service, "actor-2") == "CANCELLED")
    assert rmcs("actor", "kill", "nobody").code == 102
