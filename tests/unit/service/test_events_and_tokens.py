"""Who hears what: with tokens, with tickets, and no longer than those are good."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.admin_api.events import event_socket
from ray_multicluster_scheduler.control_plane.admin_api.routes import events as events_route
from tests.unit.client_api.control_plane import until
from tests.unit.service.event_reader import EventReader
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import a_task


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path, auth="token") as running:
        yield running


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def listening(service: HttpService, number: int) -> None:
    until(lambda: len(service.plane.runtime.event_publisher.hub) == number)


def test_without_a_token_nothing_is_answered(service: HttpService) -> None:
    reader = EventReader(service.port, "/api/v1/events")
    assert reader.response.status == 401
    reader.close()
    with pytest.raises(InvalidStatus, match="401"):
        connect(f"ws://127.0.0.1:{service.port}/api/v1/ws")
    with pytest.raises(InvalidStatus, match="400"):
        connect(f"ws://127.0.0.1:{service.port}/api/v1/ws?token={service.token}")


def test_a_submitter_hears_of_its_own_work_alone_also_of_the_past(service: HttpService) -> None:
    ann, bob = (service.token_for(name, Role.SUBMITTER) for name in ("ann", "bob"))
    for name, token in (("anns", ann), ("bobs", bob)):
        service.ask("POST", "/api/v1/items", body(a_task(name, 0)), token=token)
    service.ask("POST", "/api/v1/clusters/mac/cordon", {})
    reader = EventReader(service.port, "/api/v1/events?since=0", bearer(bob))
    service.ask("POST", "/api/v1/items", body(a_task("anns-2", 0)), token=ann)
    service.ask("POST", "/api/v1/items", body(a_task("bobs-2", 0)), token=bob)
    reported = reader.until(id="bobs-2")
    assert {one["owner"] for one in reported if "owner" in one} == {"bob"}
    assert not [one for one in reported if one["type"] == "action"]
    reader.close()
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws?snapshot=1", additional_headers=bearer(bob)) as line:
        first = json.loads(line.recv(timeout=60))
        assert {one["owner"] for one in first["items"]} == {"bob"}


def test_actions_of_operators_are_published_and_kept_with_their_user(service: HttpService) -> None:
    operator = service.token_for("olga", Role.OPERATOR)
    ann = service.token_for("ann", Role.SUBMITTER)
    service.ask("POST", "/api/v1/items", body(a_task("anns", 0, start_after=5e9)), token=ann)
    reader = EventReader(service.port, "/api/v1/events?types=action&since=0", bearer(operator))
    service.ask("POST", "/api/v1/clusters/mac/cordon", {}, token=operator)
    service.ask("POST", "/api/v1/items/anns/hold", {}, token=ann)
    service.ask("POST", "/api/v1/items/anns/cancel", {"reason": "a test"}, token=operator)
    reported = reader.until(action="cancel")
    reader.close()
    output = [(one["action"], one["subject"], one["user"]) for one in reported if one["user"] == "olga"]
    assert output == [("cordon", "mac", "olga"), ("cancel", "anns", "olga")]
    assert not [one for one in reported if one["user"] == "ann"], "what users do with their own items is no action"
    assert operator not in str(reported)
    service.restart()
    again = EventReader(service.port, "/api/v1/events?types=action&since=0", bearer(operator))
    assert again.until(action="cancel") == reported
    again.close()


def test_a_ticket_opens_one_stream_and_no_second(service: HttpService) -> None:
    ticket = service.post("/api/v1/ticket")["ticket"]
    reader = EventReader(service.port, f"/api/v1/events?since=0&ticket={ticket}")
    assert reader.response.status == 200
    reader.close()
    again = EventReader(service.port, f"/api/v1/events?ticket={ticket}")
    assert again.response.status == 401
    again.close()
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws?ticket={service.post('/api/v1/ticket')['ticket']}") as line:
        line.send("ping")
        assert json.loads(line.recv(timeout=60)) == {"type": "pong"}


def test_a_token_that_is_revoked_ends_its_streams_at_once(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (events_route, event_socket):
        monkeypatch.setattr(module, "HEARTBEAT_S", 300.0)  # it is not only noticed then
    viewer = service.token_for("vera", Role.VIEWER)
    (token_id,) = [one["id"] for one in service.get("/api/v1/tokens")["tokens"] if one["user"] == "vera"]
    reader = EventReader(service.port, "/api/v1/events", bearer(viewer))
    other = EventReader(service.port, "/api/v1/events", bearer(service.token))
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws", additional_headers=bearer(viewer)) as line:
        listening(service, 3)
        began = time.monotonic()
        service.ask("DELETE", f"/api/v1/tokens/{token_id}")
        with pytest.raises(EOFError):
            reader.until(id="never")
        with pytest.raises(ConnectionClosed, match="no longer valid"):
            line.recv(timeout=30)
        assert time.monotonic() - began < 30
    listening(service, 1)
    assert other.until(action="token revoke")[-1]["subject"] == token_id
    reader.close()
    other.close()


def test_nothing_is_sent_with_a_token_that_has_expired(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events_route, "HEARTBEAT_S", 0.1)
    late = service.token_for("late", Role.VIEWER, expires_at=time.time() + 3)
    reader = EventReader(service.port, "/api/v1/events", bearer(late))
    assert reader.response.status == 200
    with pytest.raises(EOFError):
        reader.until(id="never")
    reader.close()


def test_clusters_are_sent_only_by_who_may_run_code(service: HttpService) -> None:
    admin = service.token_for("adam", Role.ADMIN)
    clusters = {"clusters": [{"name": "mac", "dashboard": "http://127.0.0.1:9", "python": "/tmp/evil"}]}
    status, answer = service.ask("POST", "/api/v1/clusters/apply", clusters, token=admin)
    assert (status, answer["error"]) == (403, "NotAllowedError")
