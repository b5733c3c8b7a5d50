"""An id means one thing to the ownership check and to the use that follows: an item, or else a gang's member."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import GangDescription, MemberDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.client_api.control_plane import until
from tests.unit.lifecycle.driver import task
from tests.unit.service.actor_service import ARGUMENTS, ActorService, a_call
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import A, F, a_task


class Service(ActorService):
    """Bob has a gang of two actors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, auth="token", kept_finished=1)
        self.alice = self.token_for("alice", Role.SUBMITTER)
        self.bob = self.token_for("bob", Role.SUBMITTER)

    def send(self, token: str, wanted: TaskDescription, **values: Any) -> tuple[int, Any]:
        return self.ask("POST", "/api/v1/items", body(wanted, **values), token=token)

    def call_as(self, token: str, call_id: str, actor: str) -> dict[str, Any]:
        blobs = wire.bytes_to_wire({digest_of(ARGUMENTS): ARGUMENTS})
        output = {"client": "me", "calls": [a_call(call_id, actor)], "blobs": blobs}
        answer: dict[str, Any] = self.ask("POST", "/api/v1/calls", output, token=token)[1]["calls"][0]
        return answer

    def run_to_the_end(self, token: str, item_id: str) -> None:
        assert self.send(token, a_task(item_id, 0))[0] == 200
        until(lambda: self.get(f"/api/v1/items/{item_id}")["state"] == "RUNNING")
        self.plane.end(CallResult(item_id, 1, "succeeded", None))
        until(lambda: self.get(f"/api/v1/items/{item_id}")["state"] == "SUCCEEDED")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "state") as one:
        yield one


def a_gang(gang_id: str) -> TaskDescription:
    one = MemberDescription(name="f", requirements={"CPU": 0.5}, function_digest=F, arguments_digest=A)
    return task(gang_id, 1, kind="gang", gang=GangDescription(members=(one, one), of="actor"))


def test_members_are_their_gangs_owners(service: Service) -> None:
    assert service.send(service.bob, a_gang("g"))[0] == 200
    until(lambda: service.get("/api/v1/items/g")["state"] == "RUNNING")
    assert service.call_as(service.bob, "c0", "g.0") == {"id": "c0"}
    assert service.call_as(service.alice, "c1", "g.0")["problem"]["status"] == 404
    assert service.call_as(service.alice, "c2", "g.7")["problem"]["status"] == 404
    assert service.ask("GET", "/api/v1/items/g.0/explain", token=service.alice)[0] == 404
    assert service.ask("GET", "/api/v1/items/g.0/explain", token=service.bob)[1]["member"]["index"] == 0


def test_an_item_that_is_called_like_a_member_is_refused(service: Service) -> None:
    assert service.send(service.bob, a_gang("g"))[0] == 200
    for token in (service.alice, service.bob):
        status, output = service.send(token, a_task("g.0", 0))
        assert status == 422
        assert "g.0" in output["message"]
        assert "member of the gang g" in output["message"]
    assert service.send(service.alice, a_task("g.2", 0))[0] == 200, "it has two members"


def test_a_gang_is_refused_whose_member_would_be_called_like_an_item(service: Service) -> None:
    assert service.send(service.alice, a_task("h.1", 0))[0] == 200
    status, output = service.send(service.bob, a_gang("h"))
    assert (status, "member of the gang h" in output["message"] and "h.1" in output["message"]) == (422, True)


def test_an_item_that_only_the_store_knows_is_not_taken_for_a_member(service: Service) -> None:
    """As it may be in folders of before: hers is called like a member of his, and is not in memory any more."""
    service.plane.runtime.check_member_ids = lambda _: None  # type: ignore[method-assign]  # of before
    assert service.send(service.bob, a_gang("g"))[0] == 200
    service.run_to_the_end(service.alice, "g.0")
    for at in range(3):
        service.run_to_the_end(service.alice, f"other-{at}")
    until(lambda: service.plane.runtime.item("g.0") is None)
    assert service.call_as(service.alice, "c3", "g.0")["problem"]["status"] == 404
    assert service.link.calls == []
    status, output = service.ask("GET", "/api/v1/items/g.0/explain", token=service.alice)
    assert (status, output["id"], output["owner"]) == (200, "g.0", "alice")


def test_a_number_that_nobody_counts_to_is_no_member(service: Service) -> None:
    assert service.ask("GET", f"/api/v1/items/g.{'9' * 5000}/explain", token=service.alice)[0] == 404
