"""What a program written for Ray calls beside ``remote``, ``get`` and ``wait``: ``init``, and questions about clusters.

Light to import: a user's module that names these is loaded inside clusters, too. There they are Ray's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.actors.class_methods import method
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.logging import get_logger

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

__all__ = [
    "available_resources",
    "cluster_resources",
    "get_runtime_context",
    "init",
    "is_initialized",
    "method",
    "nodes",
]

_log = get_logger(__name__)
_RAY_ADDRESSES = ("auto", "local")


def init(
    address: str | Path | None = None,
    *,
    runtime_env: Mapping[str, Any] | None = None,
    ignore_reinit_error: bool = False,
    **of_ray: Any,
) -> UnifiedScheduler:
    """Make the shared scheduler, as ``initialize_scheduler_environment`` does; for programs that call ``ray.init``.

    ``address`` may be the path of a clusters.yaml; one of a single Ray cluster says nothing here, and the configuration
    is looked for in the usual places. ``runtime_env`` is for everything that is submitted, below what each item says
    itself. Other keywords of ``ray.init`` are about one cluster; they are named in the log and have no effect.
    Raises ConfigurationError if the configuration is missing or wrong, or if there is a scheduler already (unless
    ``ignore_reinit_error``).
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
        names = ", ".join(sorted(of_ray))
        _log.warning("init: %s: about a single Ray cluster, no effect; clusters.yaml says what ours have", names)
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
    """What all clusters that answer now have together."""
    return execution_context.active_scheduler().fleet_resources()["total"]


def available_resources() -> dict[str, float]:
    """What is free of it."""
    return execution_context.active_scheduler().fleet_resources()["free"]


def get_runtime_context() -> Any:
    """Ray's own inside of a task, actor or job. Outside one that says: no task, no actor."""
    if not execution_context.inside():
        return RuntimeContext()
    from ray_multicluster_scheduler.app.client_api.in_cluster.runtime_context import connected_ray  # noqa: PLC0415 - needs Ray

    return connected_ray().get_runtime_context()


class RuntimeContext:
    """Of a program that is outside of every cluster."""

    def get_task_id(self) -> None:
        """This is no task."""

    def get_actor_id(self) -> None:
        """This is no actor."""

    def get_node_id(self) -> None:
        """This is no node of a cluster."""

    def get_assigned_resources(self) -> dict[str, float]:
        """None are held for it."""
        return {}


def _path(address: str | Path | None) -> Path | None:
    if address is None:
        return None
    if isinstance(address, Path) or (isinstance(address, str) and address.endswith((".yaml", ".yml", ".json"))):
        return Path(address)
    if isinstance(address, str) and (address in _RAY_ADDRESSES or "://" in address or ":" in address):
        _log.warning("init: the address %r is of a single Ray cluster; clusters.yaml says where ours are", address)
        return None
    raise ConfigurationError(
        f"init was given the address {address!r}.", next_step="give the path of a clusters.yaml, or nothing"
    )
