"""One control plane above many Ray clusters: the public API, re-exported, each name loaded when it is used.

Importing the package needs only the standard library and does no work: it is also shipped into clusters, where
nothing else of ours is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.current import current
    from ray_multicluster_scheduler.app.client_api.handle import JobHandle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.interrupt import graceful_shutdown_on_keyboard_interrupt
    from ray_multicluster_scheduler.app.client_api.submit_job import (
        get_job_info,
        get_job_logs,
        get_job_status,
        list_jobs,
        stop_job,
        submit_job,
        submit_job_async,
        wait_for_all_jobs,
    )
    from ray_multicluster_scheduler.app.client_api.submit_task import cancel, get, submit_task, submit_task_async, wait
    from ray_multicluster_scheduler.app.client_api.unified_scheduler import (
        UnifiedScheduler,
        cluster_info,
        explain,
        fleet_resources,
        get_unified_scheduler,
        initialize_scheduler_environment,
        list_clusters,
        plan,
        shutdown,
    )
    from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
    from ray_multicluster_scheduler.common.exception import (
        ClusterConnectionError,
        ClusterLostError,
        ConfigurationError,
        NoFeasibleClusterError,
        NoHealthyClusterError,
        PolicyEvaluationError,
        QueueFullError,
        RemoteError,
        RemoteTraceback,
        ResultLostError,
        SchedulerError,
        TaskCancelledError,
        TaskSubmissionError,
        TaskTimeoutError,
        UnknownItemError,
        WorkerCrashedError,
    )
    from ray_multicluster_scheduler.common.model import TaskState
    from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
    from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet

__all__ = [
    "ClusterConfig",
    "ClusterConnectionError",
    "ClusterContextManager",
    "ClusterLostError",
    "ConfigurationError",
    "FleetConfig",
    "JobHandle",
    "LocalCluster",
    "LocalFleet",
    "NoFeasibleClusterError",
    "NoHealthyClusterError",
    "PolicyEvaluationError",
    "QueueFullError",
    "RemoteError",
    "RemoteTraceback",
    "ResultLostError",
    "SchedulerError",
    "Settings",
    "TaskCancelledError",
    "TaskHandle",
    "TaskState",
    "TaskSubmissionError",
    "TaskTimeoutError",
    "UnifiedScheduler",
    "UnknownItemError",
    "WorkerCrashedError",
    "__version__",
    "cancel",
    "cluster_info",
    "current",
    "explain",
    "fleet_resources",
    "get",
    "get_job_info",
    "get_job_logs",
    "get_job_status",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "initialize_scheduler_environment",
    "list_clusters",
    "list_jobs",
    "plan",
    "shutdown",
    "stop_job",
    "submit_job",
    "submit_job_async",
    "submit_task",
    "submit_task_async",
    "wait",
    "wait_for_all_jobs",
]

_HOMES = {
    "app.client_api.current": "current",
    "app.client_api.handle": "JobHandle TaskHandle",
    "app.client_api.interrupt": "graceful_shutdown_on_keyboard_interrupt",
    "app.client_api.submit_job": (
        "get_job_info get_job_logs get_job_status list_jobs stop_job submit_job submit_job_async wait_for_all_jobs"
    ),
    "app.client_api.submit_task": "cancel get submit_task submit_task_async wait",
    "app.client_api.unified_scheduler": (
        "UnifiedScheduler cluster_info explain fleet_resources get_unified_scheduler "
        "initialize_scheduler_environment list_clusters plan shutdown"
    ),
    "common.context_manager": "ClusterContextManager",
    "common.exception": (
        "ClusterConnectionError ClusterLostError ConfigurationError NoFeasibleClusterError "
        "NoHealthyClusterError PolicyEvaluationError QueueFullError RemoteError RemoteTraceback "
        "ResultLostError SchedulerError TaskCancelledError TaskSubmissionError TaskTimeoutError "
        "UnknownItemError WorkerCrashedError"
    ),
    "common.model": "TaskState",
    "control_plane.config": "ClusterConfig FleetConfig Settings",
    "local_fleet": "LocalCluster LocalFleet",
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # else a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{__name__}.{module}"), name)
        globals()[name] = value  # the next look-up does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
