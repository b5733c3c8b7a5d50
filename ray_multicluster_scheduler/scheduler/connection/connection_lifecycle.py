"""ConnectionLifecycleManager: ends links that nobody has needed for a while.

An agent costs the cluster's head about 210 MB, so it does not stay for ever; the next task starts a new one.
"""

from __future__ import annotations

import asyncio

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool

_log = get_logger(__name__)


class ConnectionLifecycleManager:
    """Watches the pool on its loop, at most ten looks per idle time."""

    def __init__(self, links: RayClientPool, agent_idle_s: float) -> None:
        self._links, self._idle_s = links, agent_idle_s
        self._watch = asyncio.get_running_loop().create_task(self._loop())

    async def close(self) -> None:
        """Stop watching; the links stay as they are."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 10)
            for link in self._links.links():
                if link.idle_s > self._idle_s:
                    _log.info("the agent of cluster %s was idle for %.0f s and is ended", link.cluster, link.idle_s)
                    try:
                        await self._links.close_link(link.cluster, "it was idle")
                    except Exception:  # noqa: BLE001 - the other links still have to be watched
                        _log.exception("the idle agent of cluster %s could not be ended", link.cluster)
