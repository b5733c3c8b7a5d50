"""The deployments behind ``UnifiedScheduler.deploy``: of this program, or of a service."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from ray_multicluster_scheduler.app.client_api.actors.actor_submission import ActorSubmission, NewActorItem
from ray_multicluster_scheduler.app.client_api.actors.class_methods import is_asynchronous
from ray_multicluster_scheduler.app.client_api.deployment import Deployment
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

_SERVING = "/api/v1/serving"
_ROUTE = f"{_SERVING}/deployments"
_POLL_S, _MAX_POLL_S = 0.005, 0.25


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
    """The deployments of a control plane in this program; they end with it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.scheduler = SwarmPilotScheduler()
        self.all = Deployments(self.scheduler)

    def deploy(self, options: DeploymentOptions, new: NewActorItem) -> Deployment:
        """Raises ConfigurationError if there is one of this name."""
        self.scheduler.run(self.all.add(options, _EmbeddedHost(self._runtime, new)))
        return _EmbeddedDeployment(options.name, self)

    def close(self) -> None:
        self.scheduler.run(self.all.close())
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


class _EmbeddedDeployment(Deployment):
    def __init__(self, name: str, deployments: EmbeddedDeployments) -> None:
        super().__init__(name)
        self._deployments = deployments

    @property
    def scheduler(self) -> SwarmPilotScheduler:
        return self._deployments.scheduler

    def request(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        return self.scheduler.wait(self._scheduled(input_data, metadata), timeout)

    async def request_async(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        return await self.scheduler.wait_async(self._scheduled(input_data, metadata), timeout)

    def _scheduled(self, input_data: Any, metadata: Mapping[str, Any] | None) -> str:
        self._deployments.all.get(self.name)
        values = {"model_type": self.name, "input_data": input_data, "metadata": dict(metadata or {})}
        return self.scheduler.schedule(SchedulerRequest.model_validate(values)).task_id

    def scale(self, replicas: int) -> None:
        checked = deployment_options(name=self.name, replicas=replicas).replicas
        self.scheduler.run(self._on_loop(lambda: self._deployments.all.get(self.name).scale(checked)))

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.scheduler.run(
            self._on_loop(lambda: self._deployments.all.get(self.name).status().model_dump())
        )
        return answer

    def delete(self) -> None:
        self.scheduler.run(self._deployments.all.delete(self.name))

    async def _on_loop(self, call: Callable[[], Any]) -> Any:
        return call()


class RemoteDeployments:
    """The deployments of a service; they outlive the program."""

    def __init__(self, runtime: RemoteRuntime) -> None:
        self._runtime = runtime

    def deploy(self, options: DeploymentOptions, new: NewActorItem) -> Deployment:
        """Raises ConfigurationError if there is one of this name."""
        self._runtime.create_deployment(_ROUTE, options.model_dump(), new.put_payloads(self._runtime.payload_cache))
        return _RemoteDeployment(options.name, self._runtime)

    def close(self) -> None:
        pass


class _RemoteDeployment(Deployment):
    def __init__(self, name: str, runtime: RemoteRuntime) -> None:
        super().__init__(name)
        self._runtime, self._path = runtime, f"{_ROUTE}/{quote(name, safe='')}"

    @property
    def scheduler(self) -> SwarmPilotScheduler:
        raise ConfigurationError(
            f"The scheduler of the deployment {self.name} runs in the service.", next_step="use its routes"
        )

    def request(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        return self._runtime.run(self._request(input_data, metadata, timeout))

    async def request_async(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        return await asyncio.wrap_future(self._runtime.start(self._request(input_data, metadata, timeout)))

    async def _request(self, input_data: Any, metadata: Mapping[str, Any] | None, timeout: float | None) -> Any:
        ask, task_id = self._runtime.ask_async, uuid.uuid4().hex
        body = {"model_name": self.name, "task_input": input_data, "metadata": dict(metadata or {}), "task_id": task_id}
        await ask("POST", f"{_SERVING}/queue/submit", body)
        began, pause_s = time.monotonic(), _POLL_S
        while True:
            task = await ask("GET", f"{_SERVING}/task/query?task_id={task_id}")
            if task["task_status"] == "completed":
                return task["result"]
            if task["task_status"] == "failed":
                raise InferenceError(f"Task {task_id} of {self.name} failed: {task['error']}", task_id=task_id)
            if timeout is not None and time.monotonic() - began > timeout:
                raise not_finished(task_id, timeout)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_POLL_S)

    def scale(self, replicas: int) -> None:
        self._ask("PATCH", {"replicas": replicas})

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._ask("GET")
        return answer

    def delete(self) -> None:
        self._ask("DELETE")
        while True:
            try:
                self.status()
            except UnknownItemError:
                return
            time.sleep(_MAX_POLL_S)

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._runtime.run(self._runtime.ask_async(method, self._path, body))
