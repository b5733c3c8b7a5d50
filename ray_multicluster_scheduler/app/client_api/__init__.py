"""The client library: the verbs, handles, actors, the executor, and the schedulers behind them.

Start with ``scheduler.py`` (UnifiedScheduler); other verbs are generated from it. Programs and ``cli`` import it.
``execution_context.py`` chooses between that class and the native one in ``in_cluster``, ``remote`` talks to a service,
and ``submission`` turns arguments into descriptions of items. Modules that are loaded inside clusters import only the
standard library and Ray.

Programs of earlier versions import the verbs from here. As an attribute of this package, ``submit_task`` is therefore
the function, not the module; so are ``submit_actor`` and ``submit_job``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.lazy_imports import lazy_attributes

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.submit_actor import submit_actor
    from ray_multicluster_scheduler.app.client_api.submit_job import (
        get_job_status,
        graceful_shutdown_on_keyboard_interrupt,
        stop_job,
        submit_job,
        wait_for_all_jobs,
    )
    from ray_multicluster_scheduler.app.client_api.submit_task import submit_task
    from ray_multicluster_scheduler.app.client_api.unified_scheduler import (
        UnifiedScheduler,
        get_unified_scheduler,
        initialize_scheduler_environment,
    )

__all__ = [
    "UnifiedScheduler",
    "get_job_status",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "initialize_scheduler_environment",
    "stop_job",
    "submit_actor",
    "submit_job",
    "submit_task",
    "wait_for_all_jobs",
]


class _Package(ModuleType):
    """Keeps the function where an import would set the module of the same name as an attribute."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and name in ("submit_actor", "submit_job", "submit_task"):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = lazy_attributes(
        __name__,
        {
            "submit_actor": "submit_actor",
            "submit_job": (
                "get_job_status graceful_shutdown_on_keyboard_interrupt stop_job submit_job wait_for_all_jobs"
            ),
            "submit_task": "submit_task",
            "unified_scheduler": "UnifiedScheduler get_unified_scheduler initialize_scheduler_environment",
        },
    )
