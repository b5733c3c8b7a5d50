"""ClusterMonitor: takes snapshots of clusters, from the connected agent or else from the dashboard, and posts the
result to the state machine as an event."""

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
    """The only source of snapshots is a link that is down. It reconnects or ends by itself."""


class ClusterMonitor:
    """Takes snapshots on request, and posts each result exactly once."""

    def __init__(
        self, links: RayClientPool, clients: JobClientPool, clock: Clock, post: Callable[[Event], None]
    ) -> None:
        self._links, self._clients, self._clock, self._post = links, clients, clock, post

    async def refresh(self, cluster: str, *, requested: bool = True) -> SnapshotTaken | SnapshotFailed:
        """Take a snapshot; post the result and return it. ``requested``: by the scheduler machine."""
        result: SnapshotTaken | SnapshotFailed
        try:
            result = SnapshotTaken(await self._snapshot(cluster))
        except SchedulerError as error:
            code, permanent = "CLUSTER_UNREACHABLE", isinstance(error, ConfigurationError)
            if isinstance(error, (DashboardProblem, LinkProblem)):
                code, permanent = error.code, error.permanent
            awaited = isinstance(error, LinkDownError)
            result = SnapshotFailed(cluster, code, str(error), permanent, awaited, requested)
        except Exception as error:  # noqa: BLE001 - the machine waits for a result
            _log.exception("unexpected error while taking a snapshot of cluster %s", cluster)
            result = SnapshotFailed(cluster, "DEFECT", f"{type(error).__name__}: {error}", requested=requested)
        self._post(result)
        return result

    def is_queryable(self, cluster: str) -> bool:
        """Whether a snapshot can be taken without starting an agent."""
        if self._clients.has_dashboard(cluster):
            return True
        link = self._links.existing_link(cluster)
        return link is not None and link.connected

    async def check_dashboard(self, cluster: str) -> None:
        """Check whether the dashboard answers, independent of the link, and post the result."""
        problem = None
        if self._clients.has_dashboard(cluster):  # a missing one is no problem
            try:
                await self._clients.client(cluster).version()
            except SchedulerError as error:
                problem = str(error)
            except Exception as error:  # noqa: BLE001 - the machine waits for a result
                _log.exception("unexpected error while checking the dashboard of cluster %s", cluster)
                problem = f"{type(error).__name__}: {error}"
        self._post(DashboardChecked(cluster, problem))

    async def _snapshot(self, cluster: str) -> ResourceSnapshot:
        """Take a snapshot; without a dashboard, make a link if there is none.

        Raises ClusterConnectionError, ConfigurationError.
        """
        if not self._clients.has_dashboard(cluster):
            return await self._snapshot_by_link(cluster)
        link = self._links.existing_link(cluster)
        if link is not None and link.connected:
            try:
                return await link.snapshot(_AGENT_TIMEOUT_S)
            except ClusterConnectionError as error:
                # The link reports its own problem by its heartbeat; the dashboard may still answer.
                _log.debug("the agent of cluster %s sent no snapshot: %s", cluster, error)
        return await self._clients.client(cluster).snapshot(self._clock.now())

    async def _snapshot_by_link(self, cluster: str) -> ResourceSnapshot:
        link = await self._links.link(cluster)
        try:
            return await link.snapshot(_AGENT_TIMEOUT_S)
        except ClusterConnectionError as error:
            if link.connected:
                raise
            sentence = f"the link to cluster {cluster!r} is down"
            if self._links.return_wait_s(cluster) is not None:
                sentence = f"the agent of cluster {cluster!r} has not reconnected since the restart"
            raise LinkDownError(f"{sentence}; the control plane waits for it.", cluster=cluster) from error
