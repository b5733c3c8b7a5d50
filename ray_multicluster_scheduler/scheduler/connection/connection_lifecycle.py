"""ConnectionLifecycleManager: closes links that have been idle for a while.

An agent takes about 210 MB on the cluster's head, so an idle one is stopped; the next task starts a new one.
"""

from __future__ import annotations

import asyncio

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool

_log = get_logger(__name__)


class ConnectionLifecycleManager:
    """Checks the links of the pool on its loop, ten times per idle time."""

    def __init__(self, links: RayClientPool, agent_idle_s: float) -> None:
        self._links, self._idle_s = links, agent_idle_s
        self._task = asyncio.get_running_loop().create_task(self._close_idle_links())

    async def close(self) -> None:
        """Stop checking; the links stay as they are."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _close_idle_links(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / 10)
            for link in self._links.links():
                if link.idle_s > self._idle_s:
                    _log.info("close the link to cluster %s: its agent was idle for %.0f s", link.cluster, link.idle_s)
                    try:
                        await self._links.close_link(link.cluster, "it was idle")
                    except Exception:  # noqa: BLE001 - the other links still have to be checked
                        _log.exception("cannot close the idle link to cluster %s", link.cluster)
