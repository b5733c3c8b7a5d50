"""Functions with Ray's names for programs written for Ray: ``init``, and queries about the clusters.

Light to import, since users' modules that use them are also loaded inside clusters, where they call Ray itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.actors.class_methods import method
from ray_multicluster_scheduler.app.client_api.handles.as_completed import WaitableHandle
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

__all__ = [
    "ObjectRef",
    "available_resources",
    "cluster_resources",
    "get_gpu_ids",
    "get_runtime_context",
    "init",
    "is_initialized",
    "method",
    "nodes",
]

_log = get_logger(__name__)
ObjectRef = WaitableHandle
"""The base of all handles, for annotations and ``isinstance``."""
_RAY_ADDRESSES = ("auto", "local")


def init(
    address: str | Path | None = None,
    *,
    runtime_env: Mapping[str, Any] | None = None,
    ignore_reinit_error: bool = False,
    **of_ray: Any,
) -> UnifiedScheduler:
    """Make the shared scheduler, as ``initialize_scheduler_environment`` does; for programs that call ``ray.init``.

    ``address`` may be the path of a clusters.yaml; the address of a single Ray cluster is ignored, and the
    configuration searched in the usual places. ``runtime_env`` is the default for all submissions. Other keywords of
    ``ray.init`` have no effect and are logged. Raises ConfigurationError if the configuration is missing or wrong, or
    if there is a scheduler already (unless ``ignore_reinit_error``).
    """
    if execution_context.inside():
        if runtime_env:
            execution_context.native().use_runtime_env(runtime_env)
        return execution_context.native()
    if is_initialized():
        if ignore_reinit_error:
            return execution_context.shared()
        raise ConfigurationError(
            "init was called, but there is a scheduler already.",
            next_step="call it once, or shutdown() before, or pass ignore_reinit_error=True to keep the first",
        )
    if of_ray:
        _log.warning("init ignores %s: options of a single Ray cluster; use clusters.yaml", ", ".join(sorted(of_ray)))
    fresh = execution_context.scheduler_class()(_path(address))
    if runtime_env:
        fresh.use_runtime_env(runtime_env)
    execution_context.exchange_shared(fresh)
    return fresh


def is_initialized() -> bool:
    """Is there a shared scheduler? Verbs make one when they need it."""
    return execution_context.inside() or execution_context.has_shared()


def nodes() -> list[dict[str, Any]]:
    """Every node of every cluster that answers now: ``NodeID``, ``Alive``, ``Resources``, and its ``Cluster``."""
    return execution_context.active_scheduler().nodes()


def cluster_resources() -> dict[str, float]:
    """Total resources of all clusters that answer now."""
    return execution_context.active_scheduler().fleet_resources()["total"]


def available_resources() -> dict[str, float]:
    """Free resources of all clusters that answer now."""
    return execution_context.active_scheduler().fleet_resources()["free"]


def get_gpu_ids() -> list[Any]:
    """Ray's own inside a task, actor or job; empty outside."""
    if not execution_context.inside():
        return []
    from ray_multicluster_scheduler.app.client_api.in_cluster.runtime_context import connected_ray  # noqa: PLC0415 - needs Ray

    return list(connected_ray().get_gpu_ids())


def get_runtime_context() -> Any:
    """Ray's own inside a task, actor or job; outside a RuntimeContext without task and actor."""
    if not execution_context.inside():
        return RuntimeContext()
    from ray_multicluster_scheduler.app.client_api.in_cluster.runtime_context import connected_ray  # noqa: PLC0415 - needs Ray

    return connected_ray().get_runtime_context()


class RuntimeContext:
    """The runtime context of a program outside all clusters."""

    def get_task_id(self) -> None:
        """None: not a task."""

    def get_actor_id(self) -> None:
        """None: not an actor."""

    def get_node_id(self) -> None:
        """None: not a node of a cluster."""

    def get_assigned_resources(self) -> dict[str, float]:
        """Empty: a program outside clusters holds none."""
        return {}


def _path(address: str | Path | None) -> Path | None:
    if address is None:
        return None
    if isinstance(address, Path) or (isinstance(address, str) and address.endswith((".yaml", ".yml", ".json"))):
        return Path(address)
    if isinstance(address, str) and (address in _RAY_ADDRESSES or "://" in address or ":" in address):
        _log.warning("init ignores the address %r of a single Ray cluster; use clusters.yaml", address)
        return None
    raise ConfigurationError(
        f"init was given the address {address!r}.", next_step="give the path of a clusters.yaml, or leave it out"
    )
