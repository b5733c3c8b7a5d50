"""The deployments behind ``UnifiedScheduler.deploy``: of this program, or of a service."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.class_methods import is_asynchronous
from ray_multicluster_scheduler.app.client_api.in_cluster.replica import AsyncReplica, Replica
from ray_multicluster_scheduler.app.client_api.ray_shape.remote_class import RemoteClass, make_remote_class
from ray_multicluster_scheduler.app.client_api.remote.remote_runtime import RemoteRuntime
from ray_multicluster_scheduler.common.exception import ConfigurationError, InferenceError, UnknownItemError
from ray_multicluster_scheduler.control_plane.runtime.actor_replica import ActorReplica, new_replica_id, replica_task
from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.deployment import Deployments
from ray_multicluster_scheduler.serving.errors import not_finished
from ray_multicluster_scheduler.serving.models import DeploymentOptions, SchedulerRequest

T = TypeVar("T")
_SERVING = "/api/v1/serving"
_POLL_S, _MAX_POLL_S = 0.005, 0.25
_CHECK_S = 2.0
"""How often a request without an instance checks that its deployment was not deleted."""


def deployment_options(**given: Any) -> DeploymentOptions:
    """Raises ConfigurationError."""
    try:
        return DeploymentOptions(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise ConfigurationError(f"{name} is {given[name]!r}: {first['msg']}.") from None


def replica_template(
    submission: ActorSubmission,
    cls: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    needs: Mapping[str, Any] | None,
    tags: Sequence[str] | None,
    deployment: DeploymentOptions,
    options: Mapping[str, Any],
) -> NewActorItem:
    """Describe the actor of which every replica is a copy. Raises ConfigurationError, TaskSubmissionError."""
    cls = make_remote_class(cls, {}).cls
    if not hasattr(cls, "infer") and "__call__" not in dir(cls):
        raise ConfigurationError(f"{cls.__qualname__} has neither infer nor __call__.", next_step="give it one of them")
    if refused := {"lifetime", "get_if_exists", "max_concurrency"}.intersection(options):
        raise ConfigurationError(f"{min(refused)} does not apply to deployments.", next_step="leave it out")
    actor = RemoteClass(AsyncReplica if is_asynchronous(cls) else Replica)
    arguments = (cls, tuple(args), dict(kwargs or {}), deployment.max_batch > 1)
    own = {**options, "max_concurrency": deployment.concurrency}
    new = submission.describe(actor, arguments, None, needs, tags, own)
    if not new.arguments.plain:
        raise ConfigurationError("A handle cannot be an argument of a deployment.", next_step="pass its value")
    return replace(new, task=replace(new.task, name=deployment.name))


def deployments_of(runtime: ControlPlane) -> EmbeddedDeployments | RemoteDeployments:
    if isinstance(runtime, RemoteRuntime):
        return RemoteDeployments(runtime)
    assert isinstance(runtime, Runtime)
    return EmbeddedDeployments(runtime)


class EmbeddedDeployments:
    """The deployments of a control plane in this program; they end with it. Coroutines run on the scheduler's loop."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.scheduler = SwarmPilotScheduler()
        self._all = Deployments(self.scheduler)

    async def deploy(self, options: DeploymentOptions, new: NewActorItem) -> None:
        """Raises ConfigurationError if there is one of this name."""
        await self._all.add(options, _EmbeddedHost(self._runtime, new))

    async def request(self, name: str, input_data: Any, metadata: Mapping[str, Any], timeout: float | None) -> Any:
        self._all.get(name)
        values = {"model_type": name, "input_data": input_data, "metadata": dict(metadata)}
        response = await self.scheduler.schedule_async(SchedulerRequest.model_validate(values))
        return await self.scheduler.wait_async(response.task_id, timeout)

    async def scale(self, name: str, replicas: int) -> None:
        self._all.get(name).scale(deployment_options(name=name, replicas=replicas).replicas)

    async def status(self, name: str) -> dict[str, Any]:
        return self._all.get(name).status().model_dump()

    async def delete(self, name: str) -> None:
        await self._all.delete(name)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.scheduler.loop)

    def close(self) -> None:
        self.start(self._all.close()).result()
        self.scheduler.close()


class _EmbeddedHost:
    """A ReplicaHost that submits to the control plane of this program. Nothing outlives the program."""

    def __init__(self, runtime: Runtime, template: NewActorItem) -> None:
        self._runtime, self._template = runtime, template

    def new_id(self) -> str:
        return new_replica_id()

    async def start(self, replica_id: str, changed: Callable[[], None]) -> ActorReplica:
        item = await asyncio.to_thread(self._submit, replica_id)
        return ActorReplica(self._runtime, self._runtime.calls_of(item), self._end, changed)

    def _submit(self, replica_id: str) -> Item:
        task = self._template.put_payloads(self._runtime.payload_cache)
        return self._runtime.submit(replace(replica_task(task, replica_id), submitted_at=self._runtime.clock.now()))

    def _end(self, item: Item) -> None:
        self._runtime.cancel(item.id, "its deployment ended it", force=True)

    async def find(self, replica_id: str, changed: Callable[[], None]) -> None:
        return None

    def save(self, options: DeploymentOptions, replica_ids: Sequence[str], *, deleted: bool) -> None:
        pass

    def forget(self) -> None:
        pass


class RemoteDeployments:
    """The deployments of a service; they outlive the program. Coroutines run on the runtime's loop."""

    def __init__(self, runtime: RemoteRuntime) -> None:
        self._runtime, self._ask, self.start = runtime, runtime.ask_async, runtime.start

    @property
    def scheduler(self) -> SwarmPilotScheduler:
        raise ConfigurationError("The scheduler of a deployment runs in the service.", next_step="use its routes")

    async def deploy(self, options: DeploymentOptions, new: NewActorItem) -> None:
        """Raises ConfigurationError if there is one of this name."""
        template = new.put_payloads(self._runtime.payload_cache)
        await self._runtime.create_deployment(f"{_SERVING}/deployments", options.model_dump(), template)

    async def request(self, name: str, input_data: Any, metadata: Mapping[str, Any], timeout: float | None) -> Any:
        task_id = uuid.uuid4().hex
        body = {"model_name": name, "task_input": input_data, "metadata": dict(metadata), "task_id": task_id}
        task = await self._ask("POST", f"{_SERVING}/queue/submit", body)
        began, pause_s = time.monotonic(), _POLL_S
        check_at = began
        while True:
            if not task["scheduled_ti"] and time.monotonic() >= check_at:
                await self._check_served(name)
                check_at = time.monotonic() + _CHECK_S
            task = await self._ask("GET", f"{_SERVING}/task/query?task_id={task_id}")
            if task["task_status"] == "completed":
                return task["result"]
            if task["task_status"] == "failed":
                raise InferenceError(f"Task {task_id} of {name} failed: {task['error']}", task_id=task_id)
            if timeout is not None and time.monotonic() - began > timeout:
                raise not_finished(task_id, timeout)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_POLL_S)

    async def _check_served(self, name: str) -> None:
        """Raises UnknownItemError if there is neither such a deployment of the caller nor an instance of the model."""
        try:
            await self.status(name)
        except UnknownItemError:
            found = await self._ask("GET", f"{_SERVING}/models")
            if not any(one["model_name"] == name and one["instances"] for one in found["models"]):
                raise

    async def scale(self, name: str, replicas: int) -> None:
        await self._ask("PATCH", _path(name), {"replicas": replicas})

    async def status(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = await self._ask("GET", _path(name))
        return answer

    async def delete(self, name: str) -> None:
        await self._ask("DELETE", _path(name))
        with suppress(UnknownItemError):
            while True:
                await self.status(name)
                await asyncio.sleep(_MAX_POLL_S)

    def close(self) -> None:
        """They stay."""


def _path(name: str) -> str:
    return f"{_SERVING}/deployments/{quote(name, safe='')}"
