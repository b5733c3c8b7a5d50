"""Calls of actors' methods, as a service takes them from any sender."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import GangDescription, MemberDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.admin_api import serve
from ray_multicluster_scheduler.control_plane.admin_api.routes import actors
from ray_multicluster_scheduler.control_plane.runtime import local_queries
from tests.unit.client_api.control_plane import until
from tests.unit.lifecycle.driver import task
from tests.unit.service.actor_service import ActorService, a_call, an_actor
from tests.unit.service.http_service import body
from tests.unit.service.service_plane import A, F, running

LONE = "caf\udce9"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ActorService]:
    with ActorService(tmp_path / "state") as service:
        running(service.plane.taken(an_actor("a")))
        yield service


def a_gang(gang_id: str, of: str) -> TaskDescription:
    member = MemberDescription(name="m", requirements={"CPU": 1.0}, function_digest=F, arguments_digest=A)
    return task(gang_id, 0, kind="gang", gang=GangDescription(members=(member, member), of=of))  # type: ignore[arg-type]  # one of two


class SlowBlobs:
    """The store hands out blobs when a test says so: ``asked`` has who waits."""

    def __init__(self, service: ActorService) -> None:
        self._store = service.plane.store
        self._real = self._store.blob
        self.asked: list[threading.Event] = []
        self._store.blob = self._blob  # type: ignore[method-assign]  # a slower one

    def _blob(self, digest: str) -> bytes | None:
        self.asked.append(go := threading.Event())
        go.wait(60)
        return self._real(digest)


# ---- once


def test_the_same_id_again_is_the_same_call(service: ActorService) -> None:
    assert service.call("c", "a") == service.call("c", "a") == {"id": "c"}
    assert service.call("c", "a", first=False) == {"id": "c"}
    service.answer("c", 5)
    until(lambda: service.changes()["items"])
    assert service.call("c", "a", first=False) == {"id": "c"}, "it is in the mailbox until it was heard of"
    assert len(service.sent(1)) == 1
    assert service.link.adopted_methods == []


@pytest.mark.parametrize("recorded_after_s", [0.0, 0.3])
def test_sent_twice_at_the_same_time_it_runs_once(
    service: ActorService, monkeypatch: pytest.MonkeyPatch, recorded_after_s: float
) -> None:
    """Also if the first of the two was answered before the second went on, or before it was recorded who called."""

    async def record_called(*_: object) -> None:
        await asyncio.sleep(recorded_after_s)

    monkeypatch.setattr(actors, "record_called", record_called)
    large = b"x" * 100_000
    service.ask("PUT", f"/api/v1/blobs/{digest_of(large)}", data=large)
    slow = SlowBlobs(service)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(service.call, "c", "a", arguments=digest_of(large)) for _ in range(2)]
        until(lambda: len(slow.asked) == 2)
        slow.asked[0].set()
        service.sent(1)
        service.answer("c", 5)
        slow.asked[1].set()
        assert [one.result(60) for one in both] == [{"id": "c"}] * 2
    assert [call.task_id for call in service.link.calls] == ["c"]


def test_asked_for_twice_at_the_same_time_it_is_answered_once(service: ActorService) -> None:
    """After a restart the actor is looked for in the store, and meanwhile the program asks again."""
    service.restart()
    look, gate, waiting = service.plane.runtime.find_item, threading.Event(), []

    async def slow_look(item_id: str) -> Any:
        waiting.append(item_id)
        await asyncio.to_thread(gate.wait, 10)
        return await look(item_id)

    service.plane.runtime.find_item = slow_look  # type: ignore[method-assign]  # a slower one
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(service.call, "c", "a", first=False, mailbox="old") for _ in range(2)]
        until(lambda: len(waiting) == 2)
        gate.set()
        assert [one.result(60) for one in both] == [{"id": "c"}] * 2
    until(lambda: service.link.adopted_methods)
    assert len(service.link.adopted_methods) == 1
    service.answer("c", 5)
    (reported,) = service.changes()["items"]
    assert reported["outcome"]["completion"]["state"] == "SUCCEEDED"


def test_a_call_of_an_older_mailbox_is_asked_for_and_not_passed_on(service: ActorService) -> None:
    box = service.changes(timeout=0)["mailbox"]
    service.call("old", "a", first=False, mailbox="another")
    service.call("new", "a", first=False, mailbox=box)
    assert [call.task_id for call in service.sent(1)] == ["new"]
    assert service.link.adopted_methods == [("old", ("a", 1), ("a", 1))]


def test_a_call_whose_actor_ended_before_it_was_named_again_is_asked_for(service: ActorService) -> None:
    """Its agent may still have the result."""
    actor = service.plane.find_item("a")
    assert actor is not None
    service.plane.finish(actor)
    service.call("c", "a", first=False, mailbox="another")
    until(lambda: service.link.adopted_methods == [("c", ("a", 1), ("a", 1))])
    service.answer("c", 5)
    (reported,) = service.changes()["items"]
    assert reported["outcome"]["completion"]["state"] == "SUCCEEDED"


def test_ids_of_others_are_refused(service: ActorService) -> None:
    service.plane.taken(an_actor("b"))
    service.call("c", "a", client="one")
    for answer in (
        service.call("c", "a", client="two"),
        service.call("c", "b", client="two", first=False),
        service.call("a", "b", client="two"),
    ):
        assert answer["problem"]["error"] == "ConfigurationError", answer
    assert len(service.sent(1)) == 1


# ---- in order


def test_nothing_overtakes_a_call_whose_arguments_are_missing(service: ActorService) -> None:
    service.plane.taken(an_actor("b"))
    lacks = a_call("1", "a", arguments=digest_of(b"nowhere"))
    first, behind, other = service.calls([lacks, a_call("2", "a"), a_call("3", "b")])
    assert first["problem"]["missing"] == behind["problem"]["missing"] == [digest_of(b"nowhere")]
    assert other == {"id": "3"}
    assert [call.task_id for call in service.sent(1)] == ["3"]


# ---- whom they are for


def test_unknown_ids_and_ids_of_other_kinds(service: ActorService) -> None:
    service.submit("t")
    service.plane.taken(a_gang("tasks", "task"))
    for whom in ("nobody", "t", "tasks", "tasks.0", "a.0", "tasks.9", f"tasks.{'9' * 5000}"):
        answer = service.call(f"to {whom[:10]}", whom)
        assert answer["problem"]["error"] == "UnknownItemError", answer


def test_members_of_a_gang(service: ActorService) -> None:
    gang = running(service.plane.taken(a_gang("pair", "actor")))
    before = len(gang._step_watchers or ())
    for number in range(20):
        assert "problem" not in service.call(f"c{number}", f"pair.{number % 2}", objects=["actor:pair.1"])
    until(lambda: len(service.link.calls) == 20)
    assert len(gang._step_watchers or ()) <= before + 2, "each call leaves a watcher of the gang"
    service.post("/api/v1/items/pair/cancel", {"force": True})
    until(gang.done)
    for number in range(2):
        service.call(f"late{number}", f"pair.{number}")
        (late,) = [one for one in service.changes()["items"] if one["id"] == f"late{number}"]
        assert late["outcome"]["completion"]["error"] == "ActorDiedError"


def test_an_actor_that_is_over(service: ActorService) -> None:
    actor = service.plane.runtime.item("a")
    assert actor is not None
    service.call("before", "a")
    service.sent(1)
    service.post("/api/v1/items/a/cancel", {"force": True})
    until(actor.done)
    for number in range(5):
        service.call(f"c{number}", "a")
    reported = {one["id"]: one["outcome"]["completion"]["error"] for one in service.changes()["items"]}
    assert reported == {f"c{number}": "ActorDiedError" for number in range(5)}
    assert len(actor._step_watchers or ()) <= 3, "each call leaves a watcher"


# ---- asked for by id


def test_cancel_and_explain_by_id(service: ActorService) -> None:
    service.call("c", "a")
    service.sent(1)
    assert service.get("/api/v1/calls/c/explain")["code"] == "SENT"
    runtime = service.plane.runtime
    assert runtime.run(local_queries.answer(runtime, {"explain": "c"}))["explain"]["code"] == "SENT", (
        "as rmcs explain asks"
    )
    service.post("/api/v1/calls/c/cancel", {})
    (reported,) = service.changes()["items"]
    assert reported["state"] == "CANCELLED"
    assert service.ask("GET", "/api/v1/calls/c/explain")[0] == 404
    service.post("/api/v1/calls/c/cancel", {})
    service.post("/api/v1/calls/never/cancel", {})


# ---- nonsense


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"client": 5, "calls": []},
        {"client": "", "calls": []},
        {"client": "c"},
        {"client": "c", "calls": {}},
        {"client": "c", "calls": "x"},
        {"client": "c", "calls": [], "blobs": 5},
        {"client": "c", "calls": [], "blobs": [5]},
        {"client": "c", "calls": [], "blobs": {"x": 5}},
        {"client": "c", "calls": [], "blobs": {"x": "no base64!"}},
        [],
    ],
)
def test_bodies_that_are_none(service: ActorService, output: object) -> None:
    status, answer = service.ask("POST", "/api/v1/calls", data=json.dumps(output).encode())
    assert status == 422, answer
    assert answer["detail"]


BAD: dict[str, list[Any]] = {
    "id": [None, 5, "", [], LONE],
    "actor": [None, 5, "", {}, LONE],
    "method": [None, 5, "", [], LONE],
    "arguments": [None, 5, [], LONE],
    "objects": [None, 5, "x", [5], [None], [LONE]],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in BAD.items() for value in values])
def test_calls_that_are_none(service: ActorService, key: str, value: object) -> None:
    bad, good = service.calls([{**a_call("bad", "a"), key: value}, a_call("good", "a")])
    assert bad["problem"]["status"] == 422, bad
    assert good == {"id": "good"}


@pytest.mark.parametrize("entry", [None, 5, "x", [], {}])
def test_entries_that_are_none(service: ActorService, entry: Any) -> None:
    (answer,) = service.calls([entry])
    assert answer["problem"]["status"] == 422


@pytest.mark.parametrize("name", ["", "x", "../../x", "\0", "actor:", "actor:.", "actor:a.x", "result:", "result:x"])
def test_names_of_values_that_are_none(service: ActorService, name: str) -> None:
    for values in ({"objects": [name]}, {"arguments": name}):
        answer = service.call("c", "a", **values)
        assert 400 <= answer["problem"]["status"] < 500, answer
    assert service.get("/readyz")["status"] == "ready"


ACTOR: dict[str, list[Any]] = {
    "ray_name": [None, 5, [], "", LONE],
    "public_name": [5, [], {}, "", LONE],
    "max_restarts": [None, "x", 1.5, -2, True],
    "max_concurrency": ["x", 0, 1.5, []],
    "lifetime": [5, [], "long"],
    "ready_timeout": ["x", 0, True],
    "restart_elsewhere": [5, None],
    "adopt": [5, None],
    "asynchronous": ["x"],
    "placement": [5, {"CPU": "x"}],
    "colour": ["red"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in ACTOR.items() for value in values])
def test_actors_that_are_none(service: ActorService, key: str, value: object) -> None:
    output = body(an_actor("b"))
    output["task"]["actor"][key] = value
    status, answer = service.ask("POST", "/api/v1/items", data=json.dumps(output).encode())
    assert status == 422, answer


def test_questions_that_make_no_sense(service: ActorService) -> None:
    for path in (
        "/api/v1/calls/%FF/explain",
        "/api/v1/calls/x/result",
        "/api/v1/calls/x/result?client=",
        "/api/v1/actor?name=%FF",
        "/api/v1/actor?name=%00&cluster=%FF",
        "/api/v1/actor?name=never&cluster=5",
    ):
        status, answer = service.ask("GET", path)
        assert 400 <= status < 500, (path, answer)


def test_nobody_waits_for_the_end_of_actors_when_the_service_is_drained(service: ActorService) -> None:
    output: list[str] = []
    serve._drain(service.plane.runtime, 30.0, serve._StopSignal(), output.append)
    assert output == []
