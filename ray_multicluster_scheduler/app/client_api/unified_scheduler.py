"""UnifiedScheduler by its public name, the functions that create, return and end the program's shared one, and verbs.

``UnifiedScheduler`` is the class of ``scheduler.py`` in a program, and NativeScheduler inside a cluster; each is loaded
when it is first used, so that this module can be imported in both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.verbs import submit_actor, submit_job, submit_task

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler

__all__ = [
    "UnifiedScheduler",
    "get_unified_scheduler",
    "initialize_scheduler_environment",
    "shutdown",
    "submit_actor",
    "submit_job",
    "submit_task",
]


def initialize_scheduler_environment(config_file_path: str | Path | None = None) -> UnifiedScheduler:
    """Make the shared scheduler, replacing an earlier one; inside a cluster the native one. Raises
    ConfigurationError."""
    if execution_context.inside():
        return execution_context.native()
    fresh = execution_context.scheduler_class()(config_file_path)
    before = execution_context.exchange_shared(fresh)
    if before is not None:
        before.shutdown(drain=True)
    return fresh


def get_unified_scheduler() -> UnifiedScheduler:
    """Return the shared scheduler, made with the default configuration if needed. Raises ConfigurationError."""
    return execution_context.active_scheduler()


def shutdown(*, drain: bool = False) -> None:
    """End the shared scheduler, if there is one."""
    if execution_context.inside():
        execution_context.native().shutdown(drain=drain)
    elif (before := execution_context.exchange_shared(None)) is not None:
        before.shutdown(drain=drain)


if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name != "UnifiedScheduler":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return type(execution_context.native()) if execution_context.inside() else execution_context.scheduler_class()
