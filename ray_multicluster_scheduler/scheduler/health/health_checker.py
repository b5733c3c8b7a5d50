"""HealthChecker: "check now" for people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.lifecycle.events import SnapshotFailed, SnapshotTaken
from ray_multicluster_scheduler.scheduler.monitor.cluster_monitor import ClusterMonitor


@dataclass(frozen=True, slots=True)
class Health:
    """What a check found: a snapshot, or one sentence that says why there is none."""

    cluster: str
    snapshot: ResourceSnapshot | None
    sentence: str = ""


class HealthChecker:
    """Asks clusters themselves; the machine hears the answers too. On one loop.

    A cluster is asked once at a time, and all who want to know hear that answer: five who look in the same moment at
    one that does not answer are one failure, not five in a row.
    """

    def __init__(self, monitor: ClusterMonitor, names: Callable[[], Sequence[str]]) -> None:
        self._monitor, self._names = monitor, names
        self._asked: dict[str, asyncio.Future[SnapshotTaken | SnapshotFailed]] = {}

    async def check(self, name: str) -> Health:
        """Is this cluster there, and what has it?"""
        asked = self._asked.get(name)
        if asked is None:
            asked = self._asked[name] = asyncio.ensure_future(self._monitor.refresh(name))
            asked.add_done_callback(lambda _: self._asked.pop(name, None))
        answer = await asyncio.shield(asked)  # whoever gives up waits for himself alone
        if isinstance(answer, SnapshotFailed):
            return Health(name, None, answer.sentence)
        return Health(name, answer.snapshot)

    async def check_all(self) -> list[Health]:
        """All clusters, side by side."""
        return list(await asyncio.gather(*(self.check(name) for name in self._names())))

    async def check_all_queryable(self) -> list[Health]:
        """The same for somebody who only looks."""
        return await self.check_queryable(self._names())

    async def check_queryable(self, names: Iterable[str]) -> list[Health]:
        """These, side by side; those that cannot be asked without starting something are left out."""
        some = [name for name in names if self._monitor.is_queryable(name)]
        return list(await asyncio.gather(*(self.check(name) for name in some)))
