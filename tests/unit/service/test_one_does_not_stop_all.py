"""One bad item, or many who only listen, do not stop a service for the others."""

from __future__ import annotations

import http.client
from pathlib import Path

from tests.unit.service.http_service import HttpService, body
from tests.unit.service.service_plane import A, F, a_task, running

FOLLOWERS = 12


def test_a_gang_whose_members_name_values_that_were_not_given_is_refused(tmp_path: Path) -> None:
    """It was accepted, and stopped the service when it was sent: at every start anew."""
    member = {"name": "m", "requirements": {"CPU": 1.0}, "function_digest": F, "arguments_digest": A, "objects": 3}
    output = body(a_task("t"))
    output["task"] = {
        "id": "g",
        "kind": "gang",
        "name": "g",
        "requirements": {"CPU": 1.0},
        "gang": {"members": [member]},
    }
    with HttpService(tmp_path / "state") as service:
        status, reported = service.ask("POST", "/api/v1/items", output)
        assert (status, reported["error"]) == (422, "ConfigurationError")
        assert "has 0 objects" in reported["message"]
        assert service.submit("t")["id"] == "t"


def test_many_followers_of_a_silent_task_hold_up_nobody(tmp_path: Path) -> None:
    """Each had a thread of a small pool while nothing was printed; the service could not even be stopped."""
    with HttpService(tmp_path / "state") as service:
        service.submit("silent")
        item = service.plane.runtime.item("silent")
        assert item is not None
        running(item)
        followers = [http.client.HTTPConnection("127.0.0.1", service.port, timeout=20) for _ in range(FOLLOWERS)]
        for one in followers:
            one.request("GET", "/api/v1/items/silent/logs?follow=true")
        data = b"x" * 100_000
        digest = service.plane.store.put_blob(data)
        assert service.get(f"/api/v1/blobs/{digest}") == data
        service.plane.finish(item, b"v")
        assert [one.getresponse().read() for one in followers] == [b""] * FOLLOWERS
        for one in followers:
            one.close()
