"""JobClientPool: the dashboard clients of a fleet, one per cluster, made when first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem


class JobClientPool:
    """Owns the DashboardClients of a fleet. Lives on one event loop."""

    def __init__(self, clusters: Mapping[str, ClusterConfig]) -> None:
        self._clusters = dict(clusters)
        self._clients: dict[str, DashboardClient] = {}

    def client(self, name: str) -> DashboardClient:
        """The client of that cluster. Raises DashboardProblem (permanent) if it is unknown or has no dashboard."""
        if name not in self._clients:
            self._clients[name] = self._make(name)
        return self._clients[name]

    def has_dashboard(self, name: str) -> bool:
        """Whether the cluster has a dashboard. True of an unknown cluster: :meth:`client` raises the error."""
        config = self._clusters.get(name)
        return config is None or config.dashboard is not None

    async def update(self, clusters: Mapping[str, ClusterConfig]) -> None:
        """Take a new configuration; close the clients of clusters that were changed or removed."""
        gone = [name for name in self._clients if clusters.get(name) != self._clusters.get(name)]
        clients = [self._clients.pop(name) for name in gone]
        self._clusters = dict(clusters)
        await asyncio.gather(*(client.close() for client in clients))

    async def close(self) -> None:
        """Close every client. Idempotent."""
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients))

    def _make(self, name: str) -> DashboardClient:
        config = self._clusters.get(name)
        if config is None:
            raise DashboardProblem(
                f"There is no cluster {name!r} in the configuration.",
                code="NOT_A_DASHBOARD",
                cluster=name,
                next_step=f"use one of: {', '.join(sorted(self._clusters)) or 'none is configured'}",
            )
        if config.dashboard is None:
            raise DashboardProblem(
                f"Cluster {name} has no `dashboard`, so no job can be sent to it.",
                code="NOT_A_DASHBOARD",
                cluster=name,
                next_step=f"add `dashboard: http://HOST:PORT` to cluster {name}, or send the job to another cluster",
            )
        return DashboardClient(
            name, config.dashboard, token=config.resolve_token, ca=config.tls.ca, verify=config.tls.verify
        )
