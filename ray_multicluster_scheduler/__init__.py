"""One control plane above many Ray clusters: the public API, re-exported, each name loaded when it is used.

Importing the package needs only the standard library and does no work: it is also shipped into clusters, where
nothing else of ours is installed. Programs import it; start reading with ``app/client_api/scheduler.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ray_multicluster_scheduler import exceptions as exceptions
    from ray_multicluster_scheduler import util as util
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.actors.class_methods import method
    from ray_multicluster_scheduler.app.client_api.arguments.objects import ObjectHandle
    from ray_multicluster_scheduler.app.client_api.async_scheduler import AsyncScheduler
    from ray_multicluster_scheduler.app.client_api.deployment import Deployment
    from ray_multicluster_scheduler.app.client_api.execution_context import current
    from ray_multicluster_scheduler.app.client_api.executor.actor_pool import ActorPool
    from ray_multicluster_scheduler.app.client_api.executor.executor import FleetExecutor
    from ray_multicluster_scheduler.app.client_api.handles.as_completed import as_completed
    from ray_multicluster_scheduler.app.client_api.handles.call_handle import ActorCallHandle
    from ray_multicluster_scheduler.app.client_api.handles.handle import JobHandle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.handles.object_ref_generator import ObjectRefGenerator
    from ray_multicluster_scheduler.app.client_api.interrupt import graceful_shutdown_on_keyboard_interrupt
    from ray_multicluster_scheduler.app.client_api.ray_shape.dynamic_returns import DynamicObjectRefGenerator
    from ray_multicluster_scheduler.app.client_api.ray_shape.ray_shape import (
        ObjectRef,
        available_resources,
        cluster_resources,
        get_gpu_ids,
        get_runtime_context,
        init,
        is_initialized,
        nodes,
    )
    from ray_multicluster_scheduler.app.client_api.ray_shape.remote import remote
    from ray_multicluster_scheduler.app.client_api.submit_actor import (
        get_actor,
        kill,
        list_actors,
        submit_actor,
        submit_actor_async,
    )
    from ray_multicluster_scheduler.app.client_api.submit_gang import (
        GangMember,
        member,
        submit_gang,
        submit_gang_async,
    )
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
    from ray_multicluster_scheduler.app.client_api.submit_task import (
        cancel,
        get,
        put,
        submit_task,
        submit_task_async,
        wait,
    )
    from ray_multicluster_scheduler.app.client_api.unified_scheduler import (
        UnifiedScheduler,
        get_unified_scheduler,
        initialize_scheduler_environment,
        shutdown,
    )
    from ray_multicluster_scheduler.app.client_api.verbs import (
        cluster_info,
        cordon,
        declare_dead,
        deploy,
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
    from ray_multicluster_scheduler.common.context_manager import ClusterContextManager
    from ray_multicluster_scheduler.common.exception import (
        ActorDiedError,
        ActorNameTakenError,
        ClusterConnectionError,
        ClusterLostError,
        ConfigurationError,
        InferenceError,
        InstanceError,
        JobsFailedError,
        NoFeasibleClusterError,
        NoHealthyClusterError,
        NotAllowedError,
        PolicyEvaluationError,
        QueueFullError,
        RemoteError,
        RemoteTraceback,
        ResultLostError,
        SchedulerError,
        ServiceUnavailableError,
        StoreError,
        StoreFullError,
        TaskCancelledError,
        TaskSubmissionError,
        TaskTimeoutError,
        UnknownItemError,
        WorkerCrashedError,
    )
    from ray_multicluster_scheduler.common.model import Rejection, TaskState
    from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, Settings
    from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet
    from ray_multicluster_scheduler.scheduler.scheduler_core.installed_policies import register_policy

__all__ = [
    "ActorCallHandle",
    "ActorDiedError",
    "ActorHandle",
    "ActorNameTakenError",
    "ActorPool",
    "AsyncScheduler",
    "ClusterConfig",
    "ClusterConnectionError",
    "ClusterContextManager",
    "ClusterLostError",
    "ConfigurationError",
    "Deployment",
    "DynamicObjectRefGenerator",
    "FleetConfig",
    "FleetExecutor",
    "GangMember",
    "InferenceError",
    "InstanceError",
    "JobHandle",
    "JobsFailedError",
    "LocalCluster",
    "LocalFleet",
    "NoFeasibleClusterError",
    "NoHealthyClusterError",
    "NotAllowedError",
    "ObjectHandle",
    "ObjectRef",
    "ObjectRefGenerator",
    "PolicyEvaluationError",
    "QueueFullError",
    "Rejection",
    "RemoteError",
    "RemoteTraceback",
    "ResultLostError",
    "SchedulerError",
    "ServiceUnavailableError",
    "Settings",
    "StoreError",
    "StoreFullError",
    "TaskCancelledError",
    "TaskHandle",
    "TaskState",
    "TaskSubmissionError",
    "TaskTimeoutError",
    "UnifiedScheduler",
    "UnknownItemError",
    "WorkerCrashedError",
    "__version__",
    "as_completed",
    "available_resources",
    "cancel",
    "cluster_info",
    "cluster_resources",
    "cordon",
    "current",
    "declare_dead",
    "deploy",
    "drain",
    "events",
    "explain",
    "fleet_resources",
    "get",
    "get_actor",
    "get_gpu_ids",
    "get_job_info",
    "get_job_logs",
    "get_job_status",
    "get_runtime_context",
    "get_unified_scheduler",
    "graceful_shutdown_on_keyboard_interrupt",
    "hold",
    "init",
    "initialize_scheduler_environment",
    "is_initialized",
    "kill",
    "list_actors",
    "list_clusters",
    "list_jobs",
    "member",
    "method",
    "nodes",
    "on_event",
    "owner_limits",
    "pause_queue",
    "plan",
    "put",
    "register_policy",
    "release",
    "remote",
    "reset_owner_limits",
    "resume_queue",
    "set_owner_limits",
    "set_priority",
    "shutdown",
    "stop_job",
    "submit_actor",
    "submit_actor_async",
    "submit_gang",
    "submit_gang_async",
    "submit_job",
    "submit_job_async",
    "submit_task",
    "submit_task_async",
    "uncordon",
    "wait",
    "wait_for_all_jobs",
]

_HOMES = {
    "app.client_api.actors.actor_handle": "ActorHandle",
    "app.client_api.executor.actor_pool": "ActorPool",
    "app.client_api.handles.call_handle": "ActorCallHandle",
    "app.client_api.actors.class_methods": "method",
    "app.client_api.async_scheduler": "AsyncScheduler",
    "app.client_api.deployment": "Deployment",
    "app.client_api.execution_context": "current",
    "app.client_api.executor.executor": "FleetExecutor",
    "app.client_api.handles.as_completed": "as_completed",
    "app.client_api.handles.handle": "JobHandle TaskHandle",
    "app.client_api.handles.object_ref_generator": "ObjectRefGenerator",
    "app.client_api.interrupt": "graceful_shutdown_on_keyboard_interrupt",
    "app.client_api.arguments.objects": "ObjectHandle",
    "app.client_api.ray_shape.dynamic_returns": "DynamicObjectRefGenerator",
    "app.client_api.ray_shape.ray_shape": (
        "ObjectRef available_resources cluster_resources get_gpu_ids get_runtime_context init is_initialized nodes"
    ),
    "app.client_api.ray_shape.remote": "remote",
    "app.client_api.submit_actor": "get_actor kill list_actors submit_actor submit_actor_async",
    "app.client_api.submit_gang": "GangMember member submit_gang submit_gang_async",
    "app.client_api.submit_job": (
        "get_job_info get_job_logs get_job_status list_jobs stop_job submit_job submit_job_async wait_for_all_jobs"
    ),
    "app.client_api.submit_task": "cancel get put submit_task submit_task_async wait",
    "app.client_api.unified_scheduler": (
        "UnifiedScheduler get_unified_scheduler initialize_scheduler_environment shutdown"
    ),
    "app.client_api.verbs": (
        "cluster_info cordon declare_dead deploy drain events explain fleet_resources hold list_clusters on_event "
        "owner_limits pause_queue plan release reset_owner_limits resume_queue set_owner_limits set_priority uncordon"
    ),
    "common.context_manager": "ClusterContextManager",
    "common.exception": (
        "ActorDiedError ActorNameTakenError ClusterConnectionError ClusterLostError ConfigurationError "
        "JobsFailedError InferenceError InstanceError NoFeasibleClusterError NoHealthyClusterError NotAllowedError "
        "PolicyEvaluationError QueueFullError RemoteError RemoteTraceback ResultLostError SchedulerError "
        "ServiceUnavailableError StoreError StoreFullError TaskCancelledError TaskSubmissionError TaskTimeoutError "
        "UnknownItemError WorkerCrashedError"
    ),
    "common.model": "Rejection TaskState",
    "control_plane.config": "ClusterConfig FleetConfig Settings",
    "local_fleet": "LocalCluster LocalFleet",
    "scheduler.scheduler_core.installed_policies": "register_policy",
}
_INSIDE = {
    "ActorCallHandle": "app.client_api.in_cluster.handle.NativeCallHandle",
    "ActorHandle": "app.client_api.in_cluster.actors.NativeActorHandle",
    "JobHandle": "app.client_api.in_cluster.jobs.NativeJobHandle",
    "ObjectRefGenerator": "app.client_api.in_cluster.generators.NativeObjectRefGenerator",
    "ObjectHandle": "app.client_api.in_cluster.handle.NativeObjectHandle",
    "TaskHandle": "app.client_api.in_cluster.handle.NativeTaskHandle",
}
"""What a name means inside a cluster, where it is something else: the handles that the verbs return there."""
_SUBMODULES = ("exceptions", "util")
"""Modules with Ray's names that programs use as attributes of the package."""
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

if not TYPE_CHECKING:  # else a type checker would take any name for granted

    def __getattr__(name: str) -> object:
        module = _MODULE_OF.get(name)
        if module is None and name not in _SUBMODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        if module is None:
            return import_module(f"{__name__}.{name}")
        inside = import_module(f"{__name__}.common.current_item").cluster_here() is not None
        attribute = name
        if inside and name in _INSIDE:
            module, _, attribute = _INSIDE[name].rpartition(".")
        try:
            value = getattr(import_module(f"{__name__}.{module}"), attribute)
        except ImportError as error:
            if not inside:
                raise
            unsupported = import_module(f"{__name__}.app.client_api.in_cluster.unsupported")
            value = unsupported.placeholder_class(name, error)
        globals()[name] = value  # the next look-up does not come here
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_SUBMODULES})
