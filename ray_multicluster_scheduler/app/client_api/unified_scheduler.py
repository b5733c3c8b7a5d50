"""UnifiedScheduler, the shared one, and the verbs that ask about items and clusters.

``UnifiedScheduler`` is the embedded one in a program, and the native one inside a cluster; each is loaded when it is
asked for, so that this module can be imported in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ray_multicluster_scheduler.app.client_api import execution_context

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.embedded.embedded_scheduler import UnifiedScheduler
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
    from ray_multicluster_scheduler.app.client_api.options import LimitOptions
    from ray_multicluster_scheduler.common.model import SchedulingDecision
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import (
        EventCallback,
        EventIterator,
        EventListener,
    )

__all__ = [
    "UnifiedScheduler",
    "cluster_info",
    "cordon",
    "declare_dead",
    "drain",
    "events",
    "explain",
    "fleet_resources",
    "get_unified_scheduler",
    "hold",
    "initialize_scheduler_environment",
    "list_clusters",
    "on_event",
    "owner_limits",
    "pause_queue",
    "plan",
    "release",
    "reset_owner_limits",
    "resume_queue",
    "set_owner_limits",
    "set_priority",
    "shutdown",
    "uncordon",
]


def initialize_scheduler_environment(config_file_path: str | Path | None = None) -> UnifiedScheduler:
    """Make the shared scheduler from this configuration, in place of an earlier one. Raises ConfigurationError.

    Inside a cluster there is nothing to make: it is the native one, whatever the configuration says.
    """
    if execution_context.inside():
        return execution_context.native()
    fresh = execution_context.embedded()(config_file_path)
    before = execution_context.exchange_shared(fresh)
    if before is not None:
        before.shutdown(drain=True)
    return fresh


def get_unified_scheduler() -> UnifiedScheduler:
    """The shared scheduler, made from the usual places if there is none. Raises ConfigurationError."""
    return execution_context.side()


def shutdown(*, drain: bool = False) -> None:
    """End the shared scheduler, if there is one."""
    if execution_context.inside():
        execution_context.native().shutdown(drain=drain)
    elif (before := execution_context.exchange_shared(None)) is not None:
        before.shutdown(drain=drain)


def explain(item_id: str | Handle | ActorHandle) -> dict[str, Any]:
    """Why an item, given by its id or handle, is where it is, as data that prints itself for people. Raises
    UnknownItemError, ConfigurationError for what is neither."""
    return execution_context.side().explain(item_id)


def events(**wanted: Any) -> EventIterator:
    """What happens, as it happens, to be iterated with `for` or `async for`: ``types``, ``id``, ``owner``, ``cluster``,
    ``state`` and ``kind`` choose, each by one word or several, and ``since`` is the number of an event after which to
    begin. See :meth:`UnifiedScheduler.events`. Raises ConfigurationError."""
    return execution_context.side().events(**wanted)


def on_event(hear: EventCallback, *, since: int | None = None, **wanted: Any) -> EventListener:
    """Call it, or await what it returns, with each event that is wanted (see `events`), until ``close()`` of what is
    returned. If it raises, that is logged, and it is not called any more."""
    return execution_context.side().on_event(hear, since=since, **wanted)


def plan(
    resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
) -> SchedulingDecision:
    """Where a task, or an actor or a job if ``kind`` says so, would go now, and why; nothing is submitted.

    The decision prints itself as a table.
    """
    return execution_context.side().plan(resource_requirements, kind=kind, **options)


def hold(item: str | Handle | ActorHandle, reason: str = "") -> None:
    """Let an item not start before `release`; what was sent to a cluster already goes on, and only its next attempt is
    held. Nothing happens to what is over. Raises UnknownItemError."""
    execution_context.side().hold(item, reason)


def release(item: str | Handle | ActorHandle) -> None:
    """The end of `hold`. Raises UnknownItemError."""
    execution_context.side().release(item)


def set_priority(item: str | Handle | ActorHandle, priority: int) -> None:
    """From now on the item waits with this priority; higher numbers go first. Raises UnknownItemError."""
    execution_context.side().set_priority(item, priority)


def pause_queue(cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
    """Send nothing new to a cluster, or start nothing new of an owner, until `resume_queue`; what runs goes on.

    Raises ConfigurationError for a cluster that is not there, or when not exactly one of the two is named.
    """
    execution_context.side().pause_queue(cluster, owner, reason)


def resume_queue(cluster: str | None = None, owner: str | None = None) -> None:
    """The end of `pause_queue`."""
    execution_context.side().resume_queue(cluster, owner)


def owner_limits(owner: str) -> dict[str, Any]:
    """What an owner may have now, by the names that `set_owner_limits` takes."""
    return execution_context.side().owner_limits(owner)


def set_owner_limits(owner: str, **limits: Unpack[LimitOptions]) -> None:
    """From now on these limits hold for an owner instead of those in the settings: ``weight``, ``max_queued``,
    ``max_running``, ``max_gpus``, ``max_priority``. They are all that it has: what is not named is as it is by default.
    What runs goes on. With a service it is for admins, and outlives restarts.

    Raises ConfigurationError for what are no limits.
    """
    execution_context.side().set_owner_limits(owner, **limits)


def reset_owner_limits(owner: str) -> None:
    """The end of `set_owner_limits`: the limits in the settings hold again."""
    execution_context.side().reset_owner_limits(owner)


def cordon(cluster: str) -> None:
    """Close a cluster for new work until `uncordon`; what was sent ahead comes back, what runs there goes on.

    Raises ConfigurationError for one that is not there.
    """
    execution_context.side().cordon(cluster)


def uncordon(cluster: str) -> None:
    """The end of `cordon` and `drain`."""
    execution_context.side().uncordon(cluster)


def drain(cluster: str, timeout: float | None = None) -> bool:
    """Close a cluster for new work and wait until nothing is there any more, so many seconds at the most: True when it
    is empty. With 0 it only says whether it is."""
    return execution_context.side().drain(cluster, timeout)


def declare_dead(cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
    """Say that a cluster is dead, if you know it: what was there is settled now. What may be repeated goes elsewhere,
    what may not fails with ClusterLostError. Returns the ids of what was there.

    It takes no work before it answers again; what of that still runs there then is cancelled. Raises SchedulerError for
    a cluster that answers, unless ``force`` is given, and ConfigurationError for one that is not there.
    """
    return execution_context.side().declare_dead(cluster, reason, force=force)


def list_clusters(*, refresh: bool = False) -> list[dict[str, Any]]:
    """One row per cluster."""
    return execution_context.side().list_clusters(refresh=refresh)


def cluster_info(name: str) -> dict[str, Any]:
    """One cluster, asked now. Raises ConfigurationError for an unknown name."""
    return execution_context.side().cluster_info(name)


def fleet_resources() -> dict[str, dict[str, float]]:
    """Total and free over all clusters that answer now."""
    return execution_context.side().fleet_resources()


if not TYPE_CHECKING:  # else a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name != "UnifiedScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return type(execution_context.native()) if execution_context.inside() else execution_context.embedded()
