"""HealthChecker: "check now" for people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotFailed
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor


@dataclass(frozen=True, slots=True)
class Health:
    """What a check found: a snapshot, or one sentence that says why there is none."""

    cluster: str
    snapshot: ResourceSnapshot | None
    sentence: str = ""


class HealthChecker:
    """Asks clusters themselves; the machine hears the answers too."""

    def __init__(self, monitor: ClusterMonitor, names: Callable[[], Sequence[str]]) -> None:
        self._monitor, self._names = monitor, names

    async def check(self, name: str) -> Health:
        """Is this cluster there, and what has it?"""
        answer = await self._monitor.refresh(name)
        if isinstance(answer, SnapshotFailed):
            return Health(name, None, answer.sentence)
        return Health(name, answer.snapshot)

    async def check_all(self) -> list[Health]:
        """All clusters, side by side."""
        return list(await asyncio.gather(*(self.check(name) for name in self._names())))
