"""Finds detached actors of other programs on the clusters by name."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
from ray_multicluster_scheduler.common.exception import ClusterConnectionError, ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

_log = get_logger(__name__)
SEARCH_TIMEOUT_S = 3.0
"""How long the creation of a detached actor waits for clusters to report an actor of the same name."""


async def search(
    runtime: Runtime, name: str, dying: Collection[str | None] = (), patience: float | None = None
) -> tuple[list[str], list[str]]:
    """On the loop: clusters with a detached actor of this name, but for those where it is ``dying``, and what became of
    asking the others: those that cannot be asked, or do not answer in so many seconds."""
    clusters = [cluster.name for cluster in runtime.config.clusters]
    answers = await asyncio.gather(*(_is_on(runtime, cluster, name, patience) for cluster in clusters))
    has_one = [cluster for cluster, answer in zip(clusters, answers, strict=True) if answer is True]
    found = [cluster for cluster in has_one if cluster not in dying]
    return found, [answer for answer in answers if isinstance(answer, str)]


def choose_cluster(name: str, clusters: Sequence[str], wanted: str | None = None) -> str:
    """The cluster of the requested actor. Raises ConfigurationError if it is ambiguous."""
    wanted = wanted or ClusterContextManager.get()
    if wanted is not None and wanted in clusters:
        return wanted
    if len(clusters) == 1:
        return clusters[0]
    raise ConfigurationError(
        f"There is a detached actor {name!r} on each of {', '.join(clusters)}.",
        next_step=f'say which one: with ClusterContextManager.use("{clusters[0]}"): …',
    )


def warn_unreachable(silent: Sequence[str], name: str) -> None:
    """Log that a detached actor is created although some clusters did not answer the name search."""
    if silent:
        _log.warning(
            "detached actor %r is made, but a cluster that could not be asked may have one of that name: %s",
            name,
            "; ".join(silent),
        )


async def _is_on(runtime: Runtime, cluster: str, name: str, patience: float | None) -> bool | str:
    try:
        async with asyncio.timeout(patience):
            return await runtime.clients.client(cluster).has_detached_actor(name)
    except ClusterConnectionError as error:
        return f"{cluster}: {error.message}"
    except TimeoutError:
        return f"{cluster}: no answer within {patience:g} s"
