"""Whose an item is is asked when it is found: what comes between a look and its use changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.object_argument import ACTOR, RESULT
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import SubmitRequest
from tests.unit.service.actor_service import ARGUMENTS, ActorService, a_call, an_actor
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import BLOBS, a_task


class Service(ActorService):
    """Alice submits, and nothing else."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, auth="token")
        self.alice = self.token_for("alice", Role.SUBMITTER)

    def just_before(self, place: Any, name: str, *tasks: Any) -> None:
        """Bob submits these when everything was looked at, and before it is done."""
        runtime, work, done = self.plane.runtime, getattr(place, name), []
        accept = runtime.accept

        async def later(*args: Any, **values: Any) -> Any:
            if not done:
                done.append(True)
                await accept([SubmitRequest(one) for one in tasks], BLOBS)
            return await work(*args, **values)

        setattr(place, name, later)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(tmp_path / "state") as one:
        yield one


BOBS = (a_task("victim", 0, owner="bob"), an_actor("actor", owner="bob"))


@pytest.mark.parametrize(
    ("wanted", "objects"),
    [
        (a_task("steal", 0), [f"{RESULT}victim"]),
        (a_task("steal", 0), [f"{ACTOR}actor"]),
        (a_task("steal", 0, after=("victim",)), []),
        (a_task("victim", 0), []),
    ],
)
def test_submissions(service: Service, wanted: Any, objects: list[str]) -> None:
    service.just_before(service.plane.runtime, "accept", *BOBS)
    status, output = service.ask("POST", "/api/v1/items", body(wanted, objects=objects), token=service.alice)
    assert (status, output.get("error")) == (403, "NotAllowedError")
    assert service.plane.store.item("steal") is None


@pytest.mark.parametrize(("actor", "objects"), [("actor", []), ("hers", [f"{RESULT}victim"])])
def test_calls(service: Service, actor: str, objects: list[str]) -> None:
    assert service.ask("POST", "/api/v1/items", body(an_actor("hers")), token=service.alice)[0] == 200
    service.just_before(service.plane.runtime.calls, "accept", *BOBS)
    blobs = wire.bytes_to_wire({digest_of(ARGUMENTS): ARGUMENTS})
    output = {"client": "me", "calls": [a_call("c", actor, objects=objects)], "blobs": blobs}
    answer = service.ask("POST", "/api/v1/calls", output, token=service.alice)[1]["calls"][0]
    assert answer["problem"]["status"] == 404
    assert service.link.calls == []


def test_waiting(service: Service) -> None:
    service.just_before(service.app.state.mailboxes, "ask", *BOBS)
    output = {"client": "me", "add": ["victim"], "timeout": 5}
    changes = service.ask("POST", "/api/v1/wait", output, token=service.alice)[1]
    assert (changes["items"], changes["problems"]["victim"]["error"]) == ([], "UnknownItemError")


def test_values_and_actors_that_nobody_knows_are_refused(service: Service) -> None:
    for name in (f"{RESULT}none", f"{ACTOR}none"):
        output = body(a_task("t", 0), objects=[name])
        assert service.ask("POST", "/api/v1/items", output, token=service.alice)[0] in (404, 422)


def test_the_store_is_asked_once_which_ids_it_knows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    known = service.plane.store.known_ids
    monkeypatch.setattr(service.plane.store, "known_ids", lambda ids: [asked.append(ids), known(ids)][1])
    assert service.ask("POST", "/api/v1/items", body(a_task("one", 0)), token=service.alice)[0] == 200
    assert asked == [["one"]]


def test_of_many_ids_the_store_is_asked_once(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    item = service.plane.store.item
    monkeypatch.setattr(service.plane.store, "item", lambda one: [asked.append(one), item(one)][1])
    assert service.ask("POST", "/api/v1/items", body(a_task("here", 0)), token=service.alice)[0] == 200
    asked.clear()
    output = {"client": "me", "add": ["here", *(f"none-{at}" for at in range(50))], "timeout": 5}
    changes = service.ask("POST", "/api/v1/wait", output, token=service.alice)[1]
    assert [one["id"] for one in changes["items"]] == ["here"]
    assert len(changes["problems"]) == 50
    assert changes["problems"]["none-7"]["error"] == "UnknownItemError"
    assert asked == []


def test_too_many_ids_at_once_are_refused(service: Service) -> None:
    output = {"client": "me", "add": [str(at) for at in range(10_001)]}
    status, answer = service.ask("POST", "/api/v1/wait", output, token=service.alice)
    assert (status, answer["message"]) == (422, "add has 10,001 entries.")
