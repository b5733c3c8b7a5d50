"""RemoteActors: submits and finds actors through a service."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.actors import Actors
from ray_multicluster_scheduler.app.client_api.actors.class_methods import MethodShape
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import UnknownItemError
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.outcome import error_of


class RemoteActors(Actors):
    """Actor names are shared by all programs of the service. Thread-safe."""

    def __init__(self, runtime: RemoteRuntime, submission: ActorSubmission) -> None:
        super().__init__(runtime, submission)
        self._service = runtime

    def _make(
        self, new: NewActorItem, name: str | None, methods: Mapping[str, MethodShape], *, get_if_exists: bool
    ) -> ActorHandle:
        known = None if name is None or not get_if_exists else self._registry.named(name)
        if known is not None:
            return known
        task = new.put_payloads(self._runtime.payload_cache)
        item = self._service.submit(task, new.arguments, get_if_exists=get_if_exists)
        if name is not None:
            self._service.acceptance.wait(item)
            if item.outcome is not None and item.transition is None:  # it was refused
                raise error_of(item.outcome) or UnknownItemError(f"{item.id} was refused.", task_id=item.id)
        return self._handle(item, name, methods)

    def _search(self, name: str) -> ActorHandle:
        wanted = ClusterContextManager.get()
        where = "" if wanted is None else f"&cluster={quote(wanted, safe='')}"
        item = self._service.found(f"/api/v1/actor?name={quote(name, safe='')}{where}")
        return self._handle(item, name, {})

    def _handle(self, item: Item, name: str | None, methods: Mapping[str, MethodShape]) -> ActorHandle:
        known = self._registry.find(item.id)
        if known is not None:
            return known
        return self._registry.add(lambda: item, name, methods, get_if_exists=True)
