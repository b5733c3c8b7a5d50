"""Deployment: the handle that ``deploy`` returns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.deployments import EmbeddedDeployments, RemoteDeployments
    from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler


class Deployment:
    """The handle of a deployed class, in this program or in a service. Safe from any thread."""

    def __init__(self, name: str, deployments: EmbeddedDeployments | RemoteDeployments) -> None:
        self.name, self._all = name, deployments

    @property
    def scheduler(self) -> SwarmPilotScheduler:
        """The scheduler that chooses the replica of each request. Raises ConfigurationError if it is in a service."""
        return self._all.scheduler

    def request(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Ask the replica that is expected to answer first, and return its result. Raises InferenceError if the class
        raised an exception, TaskTimeoutError after ``timeout`` seconds."""
        return self._all.start(self._all.request(self.name, input_data, metadata or {}, timeout)).result()

    async def request_async(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """As :meth:`request`, without blocking the event loop."""
        work = self._all.request(self.name, input_data, metadata or {}, timeout)
        return await asyncio.wrap_future(self._all.start(work))

    def scale(self, replicas: int) -> None:
        """Start more replicas, or drain and end the newest ones; returns at once."""
        self._all.start(self._all.scale(self.name, replicas)).result()

    def status(self) -> dict[str, Any]:
        """Its options, and each replica: item, cluster, state, reason, queue, and how good the predictions were."""
        return self._all.start(self._all.status(self.name)).result()

    def delete(self) -> None:
        """Drain and end all replicas, and wait for that."""
        self._all.start(self._all.delete(self.name)).result()

    def __repr__(self) -> str:
        return f"<Deployment {self.name!r}>"
