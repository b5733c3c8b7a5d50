"""A service over HTTP whose actors live on a link that a test moves; nothing is contacted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import Call
from tests.support.fake_link import FakeLink
from tests.unit.client_api.control_plane import until
from tests.unit.lifecycle.driver import task
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import A, F

ARGUMENTS = pickling.dumps(((), {}))


class ActorService(HttpService):
    """Actors run as soon as they are placed; calls of methods wait in ``link`` for a test to answer."""

    link: FakeLink

    def __init__(self, folder: Path, **values: Any) -> None:
        self.detached: set[str] = set()
        super().__init__(folder, **values)

    def _listen(self) -> None:
        runtime = self.plane.runtime
        self.link = FakeLink("mac", runtime.collector)
        runtime.method_calls.link = lambda cluster: self.link if cluster == "mac" else None
        runtime.clients = _Clients(self.detached)  # type: ignore[assignment]  # a fake
        super()._listen()

    def sent(self, number: int) -> list[Call]:
        """The first so many calls that left, as soon as they are there."""
        until(lambda: len(self.link.calls) >= number)
        return self.link.calls

    def on_loop(self, work: Callable[[], object]) -> None:
        self.plane.runtime.call_and_wait(work)

    def answer(self, call_id: str, value: object = None) -> None:
        self.on_loop(lambda: self.link.finish(call_id, pickling.dumps(value)))

    def call(self, call_id: str, actor: str, client: str = "me", **values: Any) -> dict[str, Any]:
        """The answer of the service to one call that the test sends itself."""
        return self.calls([a_call(call_id, actor, **values)], client)[0]

    def calls(self, calls: list[dict[str, Any]], client: str = "me", **values: Any) -> list[dict[str, Any]]:
        blobs = wire.bytes_to_wire({digest_of(ARGUMENTS): ARGUMENTS})
        output = {"client": client, "calls": calls, "blobs": blobs, **values}
        answers: list[dict[str, Any]] = self.post("/api/v1/calls", output)["calls"]
        return answers

    def changes(self, client: str = "me", mailbox: str | None = None, **values: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.post(
            "/api/v1/wait", {"client": client, "mailbox": mailbox, "timeout": 5, **values}
        )
        return answer


class _Clients:
    """Of clusters, which are asked for detached actors only."""

    def __init__(self, detached: set[str]) -> None:
        self._detached = detached

    def client(self, _: str) -> _Clients:
        return self

    async def has_detached_actor(self, name: str) -> bool:
        return name in self._detached

    async def close(self) -> None: ...


def a_call(call_id: str, actor: str, **values: Any) -> dict[str, Any]:
    return {"id": call_id, "actor": actor, "method": "add", "arguments": digest_of(ARGUMENTS), **values}


def an_actor(actor_id: str, described: Mapping[str, Any] = {}, **values: Any) -> TaskDescription:
    actor = ActorDescription(**{"ray_name": actor_id, "placement": {"CPU": 1.0}, **described})
    return task(actor_id, 0, **{"kind": "actor", "actor": actor, "function_digest": F, "arguments_digest": A, **values})


def runtime_of(scheduler: UnifiedScheduler) -> RemoteRuntime:
    runtime, _ = scheduler._started()
    assert isinstance(runtime, RemoteRuntime)
    return runtime


def ready(actor: ActorHandle) -> ActorHandle:
    return ActorHandle.ready(actor, 10)
