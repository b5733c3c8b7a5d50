"""The part of a UnifiedScheduler that asks about jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from ray_multicluster_scheduler.control_plane.runtime.interface import ControlPlane
from ray_multicluster_scheduler.control_plane.runtime.item import wait_for


class JobVerbs(ABC):
    """Each is by the job's id. Safe from any thread."""

    def job_info(self, job_id: str) -> dict[str, Any]:
        """What is known of a job. Raises UnknownItemError."""
        return self._that_knows(job_id).job_info(job_id)

    def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """Every job of this control plane, oldest first; of one status if asked."""
        runtime = self._running()
        rows = [] if runtime is None else runtime.job_rows()
        return [row for row in rows if status in (None, row["status"])]

    def job_logs(self, job_id: str) -> str:
        """Output of a job's newest attempt; empty while it waits. Raises ClusterConnectionError."""
        return self._that_knows(job_id).job_log(job_id)

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """A job's output as it comes, until the job is over."""
        return self._that_knows(job_id).follow_job_log(job_id)

    def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        """Wait until one of these is over, or the time is."""
        wait_for([self.handle(job_id)._item for job_id in job_ids], 1, timeout)

    @abstractmethod
    def handle(self, item_id: str) -> Any:
        """The scheduler that these verbs are part of has it."""

    @abstractmethod
    def _that_knows(self, item_id: str) -> ControlPlane:
        """So has it this. Raises UnknownItemError."""

    @abstractmethod
    def _running(self) -> ControlPlane | None:
        """And this: None if nothing was ever submitted."""
