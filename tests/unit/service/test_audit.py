"""What was done to other people's work, or by nobody who asked over HTTP, is an event."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.admin_api.http.listen_address import ListenAddress
from ray_multicluster_scheduler.control_plane.admin_api.serve import _access
from ray_multicluster_scheduler.control_plane.store import OperationRecord, SqliteStore
from tests.unit.client_api.control_plane import fleet, until
from tests.unit.service.actor_service import ActorService, a_call, an_actor
from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import BLOBS, a_task


def actions(service: HttpService) -> list[tuple[str, str, str | None, Any]]:
    """What was done, to what, by whom, with its details."""
    notes = [one.entry for one in service.plane.store.events_after(0, 1000) if isinstance(one.entry, OperationRecord)]
    output = [(json.loads(one.document), one) for one in notes if one.what == "action"]
    return [(words["action"], note.subject, note.user, words["details"]) for words, note in output]


def test_items_run_for_another_owner_and_calls_of_others_actors(tmp_path: Path) -> None:
    with ActorService(tmp_path / "state", auth="token") as service:
        bob = service.token_for("bob", Role.SUBMITTER)
        assert service.ask("POST", "/api/v1/items", body(an_actor("actor")), token=bob)[0] == 200
        entries = [{"task": a_task(f"t{at}", 0, owner=owner).to_dict()} for at, owner in enumerate(["bob", "", "bob"])]
        blobs = body(a_task("x"))["blobs"]
        assert set(blobs) == set(BLOBS)
        service.post("/api/v1/items/batch", {"items": entries, "blobs": blobs})
        me = "root-of-tests"
        submitted = ("submit", "t0", me, {"owner": "bob", "items": 2})
        assert actions(service) == [submitted]
        for at in range(2):
            assert service.calls([a_call(f"c{at}", "actor")]) == [{"id": f"c{at}"}]
        called = ("call", "actor", me, {"owner": "bob"})
        assert actions(service) == [submitted, called]
        service.post("/api/v1/calls/c1/cancel")
        assert actions(service) == [submitted, called, ("cancel call", "c1", me, {"owner": "bob", "actor": "actor"})]


def test_reload_is_audited(tmp_path: Path) -> None:
    with ActorService(tmp_path / "state", auth="token") as service:
        changes = service.app.state.fleet_changes

        class Changed:
            to_dict = staticmethod(lambda: {"added": ["other"], "removed": [], "unchanged": ["mac"]})

        async def as_if() -> Any:
            return Changed()

        changes.reload = as_if
        service.on_loop(changes.reload_soon)
        until(lambda: bool(actions(service)))
        ((action, _, user, details),) = actions(service)
        assert (action, user, details) == ("reload", "SIGHUP", {"added": "other"})


def test_the_first_token_is_printed_when_it_is_made(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "state")
    try:
        made = [
            _access(fleet(), store, tmp_path / "state", ListenAddress(auth="token"), lambda _: None) for _ in range(2)
        ]
    finally:
        store.close()
    (access, token), (_, again) = made
    assert access.tokens is not None
    assert (token, again) == (access.tokens.list()[0]["id"], None)
