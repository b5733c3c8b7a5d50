"""submit_job and the other job verbs: on the shared scheduler, or inside a cluster on its own dashboard."""

from __future__ import annotations

from ray_multicluster_scheduler.app.client_api.interrupt import graceful_shutdown_on_keyboard_interrupt
from ray_multicluster_scheduler.app.client_api.verbs import (
    get_job_info,
    get_job_logs,
    get_job_status,
    list_jobs,
    stop_job,
    submit_job,
    submit_job_async,
    wait_for_all_jobs,
)

__all__ = [
    "get_job_info",
    "get_job_logs",
    "get_job_status",
    "graceful_shutdown_on_keyboard_interrupt",
    "list_jobs",
    "stop_job",
    "submit_job",
    "submit_job_async",
    "wait_for_all_jobs",
]
