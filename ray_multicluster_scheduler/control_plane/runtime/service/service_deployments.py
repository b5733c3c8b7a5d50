"""The deployments of a service: submits their replicas as actors of their owners, and stores them as settings.

The setting ``deployment/NAME`` has the options, the actor to copy, its payloads, which the store keeps while it is
there, and the ids of the replicas. It is written before a replica is submitted, so the next process finds them all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ray_multicluster_scheduler.common.blob_names import package_digests_in
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime.actor_replica import ActorReplica, new_replica_id, replica_task
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime, SubmitRequest
from ray_multicluster_scheduler.control_plane.store import Change
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_description, encode_description
from ray_multicluster_scheduler.serving.deployment import Deployments
from ray_multicluster_scheduler.serving.models import DeploymentOptions

_log = get_logger(__name__)
_KEY = "deployment/"


class ServiceReplicas:
    """A :class:`ReplicaHost` of one deployment. Used on the runtime's loop."""

    def __init__(self, runtime: ServiceRuntime, name: str, template: TaskDescription) -> None:
        self._runtime, self._key, self.template = runtime, f"{_KEY}{name}", template
        self.written: Future[int] = Future()
        """Of the last change: completes when it is durable."""

    def new_id(self) -> str:
        return new_replica_id()

    async def start(self, replica_id: str, changed: Callable[[], None]) -> ActorReplica:
        (answer,) = await self._runtime.accept([SubmitRequest(replica_task(self.template, replica_id))], {})
        if isinstance(answer, SchedulerError):
            raise answer
        return await self._replica(answer, changed)

    async def find(self, replica_id: str, changed: Callable[[], None]) -> ActorReplica | None:
        item = self._runtime.item(replica_id)
        return None if item is None or item.done() else await self._replica(item, changed)

    async def _replica(self, item: Item, changed: Callable[[], None]) -> ActorReplica:
        return ActorReplica(self._runtime, await self._runtime.calls.queue(item.id), self._end, changed)

    def _end(self, item: Item) -> None:
        self._runtime.kill(item, "its deployment ended it", force=True)

    def save(self, options: DeploymentOptions, replica_ids: Sequence[str], *, deleted: bool) -> None:
        document = {
            "options": options.model_dump(),
            "task": encode_description(self.template, cipher=self._runtime.store.cipher).decode(),
            "payloads": payloads_of(self.template),
            "replicas": list(replica_ids),
            "deleted": deleted,
        }
        self.written = self._runtime.store.write(Change(settings={self._key: json.dumps(document).encode()}))

    def forget(self) -> None:
        self.written = self._runtime.store.write(Change(settings={self._key: None}))


def payloads_of(template: TaskDescription) -> list[str]:
    """The digests of all that its replicas need."""
    return [*filter(None, template.payload_digests), *package_digests_in(template.runtime_env)]


async def restore_deployments(runtime: ServiceRuntime, deployments: Deployments) -> None:
    """Continue the deployments of the previous process."""
    for key, value in runtime.store.settings(_KEY).items():
        name = key.removeprefix(_KEY)
        try:
            document = json.loads(value)
            template, _ = decode_description(document["task"].encode(), runtime.store.cipher)
            options = DeploymentOptions(**document["options"])
            found = deployments.resume(options, ServiceReplicas(runtime, name, template), document["replicas"])
            found.deleted = document["deleted"]
        except Exception as error:  # noqa: BLE001 # one that cannot be read must not stop the others
            deployments.unreadable[name] = f"{type(error).__name__}: {error}"
            _log.exception("the stored deployment %s cannot be continued; its replicas stay as they are", name)
