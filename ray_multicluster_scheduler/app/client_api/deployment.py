"""Deployment: the handle that ``deploy`` returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler


class Deployment(ABC):
    """The handle of a deployed class. Safe from any thread."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    @abstractmethod
    def scheduler(self) -> SwarmPilotScheduler:
        """The scheduler that chooses the replica of each request. Raises ConfigurationError if it is in a service."""

    @abstractmethod
    def request(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Ask the replica that is expected to answer first, and return its result. Raises InferenceError if the class
        raised an exception, TaskTimeoutError after ``timeout`` seconds."""

    @abstractmethod
    async def request_async(
        self, input_data: Any, metadata: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """As :meth:`request`, without blocking the event loop."""

    @abstractmethod
    def scale(self, replicas: int) -> None:
        """Start more replicas, or drain and end the newest ones; returns at once."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Its options, and each replica: item, cluster, state, reason, queue, and how good the predictions were."""

    @abstractmethod
    def delete(self) -> None:
        """Drain and end all replicas, and wait for that."""

    def __repr__(self) -> str:
        return f"<Deployment {self.name!r}>"
