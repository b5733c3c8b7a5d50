"""HealthChecker: checks clusters now, on request of an operator, a program or the circuit breaker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotFailed, SnapshotTaken
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor


@dataclass(frozen=True, slots=True)
class Health:
    """The result of a check: a snapshot, or the reason why there is none."""

    cluster: str
    snapshot: ResourceSnapshot | None
    sentence: str = ""


class HealthChecker:
    """Lives on one loop; the machine gets the results, too.

    Concurrent checks of one cluster share one request. Failed checks do not count for the circuit breaker: the
    number of queries says nothing about a cluster.
    """

    def __init__(self, monitor: ClusterMonitor, names: Callable[[], Sequence[str]]) -> None:
        self._monitor, self._names = monitor, names
        self._running: dict[str, asyncio.Future[SnapshotTaken | SnapshotFailed]] = {}

    async def check(self, name: str) -> Health:
        """Take a snapshot of a cluster now."""
        running = self._running.get(name)
        if running is None:
            running = self._running[name] = asyncio.ensure_future(self._monitor.refresh(name, requested=False))
            running.add_done_callback(lambda _: self._running.pop(name, None))
        result = await asyncio.shield(running)  # cancelling one caller does not affect the others
        if isinstance(result, SnapshotFailed):
            return Health(name, None, result.sentence)
        return Health(name, result.snapshot)

    async def check_all(self) -> list[Health]:
        """Check all clusters concurrently."""
        return list(await asyncio.gather(*(self.check(name) for name in self._names())))

    async def check_all_queryable(self) -> list[Health]:
        """Check all clusters that can be checked without starting an agent."""
        return await self.check_queryable(self._names())

    async def check_queryable(self, names: Iterable[str]) -> list[Health]:
        """Check those of these clusters that can be checked without starting an agent, concurrently."""
        queryable = [name for name in names if self._monitor.is_queryable(name)]
        return list(await asyncio.gather(*(self.check(name) for name in queryable)))
