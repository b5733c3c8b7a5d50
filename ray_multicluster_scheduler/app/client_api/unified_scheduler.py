"""UnifiedScheduler, the program's shared one, and the verbs about items, queues and clusters.

``UnifiedScheduler`` is the class of ``scheduler.py`` in a program, and NativeScheduler inside a cluster; each is loaded
when it is first used, so that this module can be imported in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.verbs import (
    cluster_info,
    cordon,
    declare_dead,
    drain,
    events,
    explain,
    fleet_resources,
    hold,
    list_clusters,
    on_event,
    owner_limits,
    pause_queue,
    plan,
    release,
    reset_owner_limits,
    resume_queue,
    set_owner_limits,
    set_priority,
    uncordon,
)

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

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
    """Make the shared scheduler from this configuration and replace an earlier one. Raises ConfigurationError.

    Inside a cluster it returns the native one, whatever the configuration says.
    """
    if execution_context.inside():
        return execution_context.native()
    fresh = execution_context.scheduler_class()(config_file_path)
    before = execution_context.exchange_shared(fresh)
    if before is not None:
        before.shutdown(drain=True)
    return fresh


def get_unified_scheduler() -> UnifiedScheduler:
    """The shared scheduler; makes it from the configuration that is found if there is none. Raises
    ConfigurationError."""
    return execution_context.active_scheduler()


def shutdown(*, drain: bool = False) -> None:
    """End the shared scheduler, if there is one."""
    if execution_context.inside():
        execution_context.native().shutdown(drain=drain)
    elif (before := execution_context.exchange_shared(None)) is not None:
        before.shutdown(drain=drain)


if not TYPE_CHECKING:  # else a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        if name != "UnifiedScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return type(execution_context.native()) if execution_context.inside() else execution_context.scheduler_class()
