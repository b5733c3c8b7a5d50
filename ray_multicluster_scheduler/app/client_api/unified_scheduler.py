"""UnifiedScheduler, the shared one, and the verbs that ask about items and clusters.

``UnifiedScheduler`` is the embedded one in a program, and the native one inside a cluster; each is loaded when it is
asked for, so that this module can be imported in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api import where

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.embedded.embedded_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.common.model import SchedulingDecision

__all__ = [
    "UnifiedScheduler",
    "cluster_info",
    "explain",
    "fleet_resources",
    "get_unified_scheduler",
    "initialize_scheduler_environment",
    "list_clusters",
    "plan",
    "shutdown",
]


def initialize_scheduler_environment(config_file_path: str | Path | None = None) -> UnifiedScheduler:
    """Make the shared scheduler from this configuration, in place of an earlier one. Raises ConfigurationError.

    Inside a cluster there is nothing to make: it is the native one, whatever the configuration says.
    """
    if where.inside():
        return where.native()
    fresh = where.embedded()(config_file_path)
    before = where.exchange_shared(fresh)
    if before is not None:
        before.shutdown(drain=True)
    return fresh


def get_unified_scheduler() -> UnifiedScheduler:
    """The shared scheduler, made from the usual places if there is none. Raises ConfigurationError."""
    return where.side()


def shutdown(*, drain: bool = False) -> None:
    """End the shared scheduler, if there is one."""
    if where.inside():
        where.native().shutdown(drain=drain)
    elif (before := where.exchange_shared(None)) is not None:
        before.shutdown(drain=drain)


def explain(item_id: str) -> dict[str, Any]:
    """Why an item is where it is. Raises UnknownItemError."""
    return where.side().explain(item_id)


def plan(resource_requirements: Mapping[str, Any] | None = None, **options: Any) -> SchedulingDecision:
    """Where a task like this would go now, and why; nothing is submitted."""
    return where.side().plan(resource_requirements, **options)


def list_clusters(*, refresh: bool = False) -> list[dict[str, Any]]:
    """One row per cluster."""
    return where.side().list_clusters(refresh=refresh)


def cluster_info(name: str) -> dict[str, Any]:
    """One cluster, asked now. Raises ConfigurationError for an unknown name."""
    return where.side().cluster_info(name)


def fleet_resources() -> dict[str, dict[str, float]]:
    """Total and free over all clusters that answer now."""
    return where.side().fleet_resources()


if not TYPE_CHECKING:  # else a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name != "UnifiedScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return type(where.native()) if where.inside() else where.embedded()
