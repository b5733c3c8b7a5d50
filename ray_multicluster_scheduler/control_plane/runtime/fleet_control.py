"""Operator actions on clusters (cordon, declare dead, check) and the search for detached actors on all of them.

The HTTP routes, the local socket and the actor registries call these functions on the loop of the control plane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.health.health_checker import Health
from ray_multicluster_scheduler.scheduler.lifecycle.events import ClusterChecked, ClusterDeclaredDead, CordonChanged

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_log = get_logger(__name__)
PROBE_TIMEOUT_S = 3.0
"""How long a cluster has to answer before it may be declared dead."""
SEARCH_TIMEOUT_S = 3.0
"""How long the creation of a detached actor waits for clusters to report an actor of the same name."""


async def declare_dead(runtime: Runtime, cluster: str, reason: str, *, force: bool) -> list[str]:
    """Give up all items of a cluster; returns their ids. Unless forced, the cluster is probed first.

    Raises ConfigurationError for an unknown cluster, SchedulerError for a cluster that is alive.
    """
    runtime.machine.registry.get(cluster)
    if not force:
        sign = await _evidence_of_life(runtime, cluster)
        if sign is not None:
            raise SchedulerError(
                f"Cluster {cluster!r} was not declared dead: {sign}.",
                cluster=cluster,
                next_step="leave it alone, or drain it; if you know better, use --force (force=True in a program): "
                "its items are cancelled, and items that are retried elsewhere may run twice for a moment",
            )
    items = runtime.machine.clusters.items_on(cluster)
    runtime.post_user_event(ClusterDeclaredDead(cluster, reason))
    why = f": {reason}" if reason else ""
    await runtime.links.close_link(cluster, f"an operator declared it dead{why}")  # calls of its actors end, too
    return items


def cordon(runtime: Runtime, cluster: str, *, cordoned: bool, reason: str = "") -> tuple[list[str], bool]:
    """Close a cluster for new work, or open it again; returns the ids of its items, and whether this changes anything.
    Raises ConfigurationError."""
    clusters = runtime.machine.clusters
    items, other_reason = clusters.items_on(cluster), reason not in ("", clusters.cordon_reason(cluster))
    changed = clusters.is_cordoned(cluster) != cordoned or (cordoned and other_reason)
    runtime.post_user_event(CordonChanged(cluster, cordoned, reason))
    return items, changed


async def check_now(runtime: Runtime, cluster: str) -> Health:
    """Probe a cluster even if its circuit breaker is open; an answer closes the breaker."""
    health = await runtime.health.check(cluster)
    if health.snapshot is not None:
        runtime.manager.post(ClusterChecked(cluster))
    return health


async def _evidence_of_life(runtime: Runtime, cluster: str) -> str | None:
    known = runtime.machine.clusters.health(cluster, runtime.clock.now()).evidence_of_life
    if known is not None:
        return known
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            health = await runtime.health.check(cluster)
    except TimeoutError:
        return None
    return None if health.snapshot is None else "it answered just now"


async def find_detached_actor(
    runtime: Runtime, name: str, ending: Collection[str | None] = (), timeout_s: float | None = None
) -> tuple[list[str], list[str]]:
    """The clusters with a detached actor of this name, except those where it is ``ending``; and for each cluster that
    could not be queried within the timeout, the reason."""

    async def query(cluster: str) -> bool | str:
        try:
            async with asyncio.timeout(timeout_s):
                return await runtime.clients.client(cluster).has_detached_actor(name)
        except ClusterConnectionError as error:
            return f"{cluster}: {error.message}"
        except TimeoutError:
            return f"{cluster}: no answer within {timeout_s:g} s"

    answers = {one.name: query(one.name) for one in runtime.config.clusters}
    results = dict(zip(answers, await asyncio.gather(*answers.values()), strict=True))
    found = [cluster for cluster, result in results.items() if result is True and cluster not in ending]
    return found, [result for result in results.values() if isinstance(result, str)]


def choose_cluster(name: str, clusters: Sequence[str], wanted: str | None = None) -> str:
    """The cluster of the requested actor. Raises ConfigurationError if it is ambiguous."""
    wanted = wanted or ClusterContextManager.get()
    if wanted is not None and wanted in clusters:
        return wanted
    if len(clusters) == 1:
        return clusters[0]
    raise ConfigurationError(
        f"There is a detached actor {name!r} on each of {', '.join(clusters)}.",
        next_step=f'choose one: with ClusterContextManager.use("{clusters[0]}"): …',
    )


def warn_unreachable(silent: Sequence[str], name: str) -> None:
    """Log that a detached actor is created although some clusters did not answer the name search."""
    if silent:
        _log.warning(
            "detached actor %r is created, but a cluster that could not be queried may have one of that name: %s",
            name,
            "; ".join(silent),
        )
