"""Operator actions on clusters: cordon, drain, declare dead, check. They run on the loop of the control plane."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.circuit_breaker import BreakerState
from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.scheduler.health.health_checker import Health
from ray_multicluster_scheduler.scheduler.lifecycle.events import ClusterChecked, ClusterDeclaredDead, CordonChanged

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

PROBE_TIMEOUT_S = 3.0
"""How long a cluster has to answer before it may be declared dead."""


async def declare_dead(runtime: Runtime, cluster: str, reason: str, *, force: bool) -> list[str]:
    """Give up all items of a cluster; returns their ids. Unless forced, the cluster is probed first.

    Raises ConfigurationError for an unknown cluster, SchedulerError for a cluster that is alive.
    """
    runtime.machine.registry.get(cluster)
    if not force:
        sign = await _sign_of_life(runtime, cluster)
        if sign is not None:
            raise SchedulerError(
                f"Cluster {cluster!r} was not declared dead: {sign}.",
                cluster=cluster,
                next_step="leave it alone, or drain it; if you know better, use --force (force=True in a program): "
                "what runs there is cancelled, and what is repeated elsewhere may run twice for a moment",
            )
    items = items_on(runtime, cluster)
    runtime.post_user_event(ClusterDeclaredDead(cluster, reason))
    why = f": {reason}" if reason else ""
    await runtime.links.close_link(cluster, f"an operator declared it dead{why}")  # calls of its actors end, too
    return items


def cordon(runtime: Runtime, cluster: str, *, cordoned: bool) -> list[str]:
    """Close a cluster for new work, or open it again; returns the ids of its items. Raises ConfigurationError."""
    items = items_on(runtime, cluster)
    runtime.post_user_event(CordonChanged(cluster, cordoned))
    return items


def is_cordoned(runtime: Runtime, cluster: str) -> bool:
    """Whether it is closed for new work. Raises ConfigurationError."""
    return runtime.machine.clusters.is_cordoned(cluster)


def is_drained(runtime: Runtime, cluster: str) -> bool | None:
    """Whether no items are left there. None if it is open for new work. Raises ConfigurationError."""
    return runtime.machine.clusters.is_drained(cluster)


def items_on(runtime: Runtime, cluster: str) -> list[str]:
    """Ids of the items that are placed or prefetched there. Raises ConfigurationError."""
    return runtime.machine.clusters.items_on(cluster)


async def check_now(runtime: Runtime, cluster: str) -> Health:
    """Probe a cluster even if its circuit breaker is open; an answer closes the breaker."""
    health = await runtime.health.check(cluster)
    if health.snapshot is not None:
        runtime.manager.post(ClusterChecked(cluster))
    return health


def breaker_is_closed(runtime: Runtime, cluster: str) -> bool:
    """Whether its circuit breaker is closed."""
    return runtime.machine.clusters.health(cluster, runtime.clock.now()).breaker is BreakerState.CLOSED


async def _sign_of_life(runtime: Runtime, cluster: str) -> str | None:
    known = runtime.machine.clusters.health(cluster, runtime.clock.now()).evidence_of_life
    if known is not None:
        return known
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            health = await runtime.health.check(cluster)
    except TimeoutError:
        return None
    return None if health.snapshot is None else "it answered just now"
