"""ClusterMonitor: takes snapshots, from the agent where there is one, else over HTTP, if there is a dashboard."""

from __future__ import annotations

from collections.abc import Callable

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.job_client_pool import JobClientPool
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import LinkProblem
from ray_multicluster_scheduler.scheduler.connection.ray_client_pool import RayClientPool
from ray_multicluster_scheduler.scheduler.lifecycle.events import DashboardChecked, Event, SnapshotFailed, SnapshotTaken

_log = get_logger(__name__)
_AGENT_TIMEOUT_S = 5.0


class LinkDownError(ClusterConnectionError):
    """The link that could tell is down. It is dialled again, or ends, by itself."""


class ClusterMonitor:
    """Looks at clusters when asked; what it saw is an event."""

    def __init__(
        self, links: RayClientPool, clients: JobClientPool, clock: Clock, post: Callable[[Event], None]
    ) -> None:
        self._links, self._clients, self._clock, self._post = links, clients, clock, post

    async def refresh(self, cluster: str) -> SnapshotTaken | SnapshotFailed:
        """Take a snapshot; the machine hears the answer, exactly once, and so does the caller."""
        answer: SnapshotTaken | SnapshotFailed
        try:
            answer = SnapshotTaken(await self.look(cluster))
        except SchedulerError as error:
            code, permanent = "CLUSTER_UNREACHABLE", isinstance(error, ConfigurationError)
            if isinstance(error, (DashboardProblem, LinkProblem)):
                code, permanent = error.code, error.permanent
            answer = SnapshotFailed(cluster, code, str(error), permanent, awaited=isinstance(error, LinkDownError))
        except Exception as error:  # noqa: BLE001 - whatever it is, the machine waits for an answer
            _log.exception("looking at cluster %s failed", cluster)
            answer = SnapshotFailed(cluster, "DEFECT", f"{type(error).__name__}: {error}")
        self._post(answer)
        return answer

    def is_queryable(self, cluster: str) -> bool:
        """Is there somebody to ask? Else a look starts a gateway."""
        if self._clients.has_dashboard(cluster):
            return True
        link = self._links.existing_link(cluster)
        return link is not None and link.connected

    async def check_dashboard(self, cluster: str) -> None:
        """Does the dashboard answer, whatever the link says? The machine hears it, exactly once."""
        sentence = None
        if not self._clients.has_dashboard(cluster):  # there is none that could be silent
            self._post(DashboardChecked(cluster, None))
            return
        try:
            await self._clients.client(cluster).version()
        except SchedulerError as error:
            sentence = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the machine waits for an answer
            _log.exception("checking the dashboard of cluster %s failed", cluster)
            sentence = f"{type(error).__name__}: {error}"
        self._post(DashboardChecked(cluster, sentence))

    async def look(self, cluster: str) -> ResourceSnapshot:
        """A fresh snapshot. Where there is no dashboard, only a link can tell, so it is made.

        Raises ClusterConnectionError, ConfigurationError.
        """
        if not self._clients.has_dashboard(cluster):
            return await self._look_by_link(cluster)
        link = self._links.existing_link(cluster)
        if link is not None and link.connected:
            try:
                return await link.snapshot(_AGENT_TIMEOUT_S)
            except ClusterConnectionError:
                # The link's own heartbeat says what is wrong with it; the dashboard may still know.
                return await self._clients.client(cluster).snapshot(self._clock.now())
        return await self._clients.client(cluster).snapshot(self._clock.now())

    async def _look_by_link(self, cluster: str) -> ResourceSnapshot:
        link = await self._links.link(cluster)
        try:
            return await link.snapshot(_AGENT_TIMEOUT_S)
        except ClusterConnectionError as error:
            if link.connected:
                raise
            sentence = f"the link to cluster {cluster!r} is down"
            if self._links.return_wait_s(cluster) is not None:
                sentence = f"the agent of cluster {cluster!r}, of before this restart, has not come back yet"
            raise LinkDownError(f"{sentence}; it is waited for.", cluster=cluster) from error
