"""submit_job and the other job verbs: on the shared scheduler, or inside a cluster on its own dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from ray_multicluster_scheduler.app.client_api.execution_context import side
from ray_multicluster_scheduler.app.client_api.interrupt import stop_everything
from ray_multicluster_scheduler.app.client_api.job_wait import AwaitedJobs
from ray_multicluster_scheduler.common.notices import notify
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.handles.handle import JobHandle
    from ray_multicluster_scheduler.app.client_api.options import JobOptions


def submit_job(entrypoint: str, **options: Unpack[JobOptions]) -> str:
    """Submit a Ray job to the best cluster; returns its id, which stays the same to the end.

    Options are those of :class:`JobOptions`: ``submission_id``, ``metadata``, ``resource_requirements``,
    ``entrypoint_resources``, ``runtime_env``, ``tags``, ``preferred_cluster``, ``priority``, ``retries`` and so on.
    Raises ConfigurationError, NoFeasibleClusterError, QueueFullError.
    """
    return side().submit_job(entrypoint, **options)


def submit_job_async(entrypoint: str, **options: Unpack[JobOptions]) -> JobHandle:
    """The same, as a handle; its result is the job's last status word."""
    return side().submit_job_async(entrypoint, **options)


def get_job_status(job_id: str) -> str:
    """Ray's words (PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED), or QUEUED, RETRYING, LOST, EXPIRED."""
    return str(get_job_info(job_id)["status"])


def get_job_info(job_id: str) -> dict[str, Any]:
    """Status, cluster, attempt, times, and Ray's own submission id. Raises UnknownItemError."""
    return side().job_info(job_id)


@overload
def get_job_logs(job_id: str, follow: Literal[False] = False) -> str: ...
@overload
def get_job_logs(job_id: str, follow: Literal[True]) -> Iterator[str]: ...
def get_job_logs(job_id: str, follow: bool = False) -> str | Iterator[str]:
    """A job's output so far; with ``follow`` an iterator over what comes, until the job is over."""
    scheduler = side()
    return scheduler.follow_job_logs(job_id) if follow else scheduler.job_logs(job_id)


def stop_job(job_id: str) -> bool:
    """Ask for its end, queued or running. False if it was over already. Raises UnknownItemError."""
    if get_job_status(job_id) in ENDED:
        return False
    side().cancel(job_id)
    return True


def list_jobs(status: str | None = None) -> list[dict[str, Any]]:
    """Every job of this control plane, oldest first; of one status if asked."""
    return side().list_jobs(status)


def wait_for_all_jobs(
    ids: Sequence[str],
    check_interval: float = 5,
    timeout: float | None = None,
    *,
    stop_on_failure: bool = False,
) -> dict[str, str]:
    """Wait until all are over; returns each one's last status word.

    Every ``check_interval`` seconds it says on stderr what it still waits for. One failed job does not stop the
    others, unless ``stop_on_failure``. Raises TaskTimeoutError. Ctrl+C stops what this program submitted.
    """
    awaited = AwaitedJobs(ids, check_interval, timeout, stop_on_failure=stop_on_failure)
    try:
        return _wait(awaited)
    except KeyboardInterrupt:
        notify("interrupted")
        stop_everything()
        raise


def _wait(awaited: AwaitedJobs) -> dict[str, str]:
    scheduler = side()
    while True:
        statuses = {job_id: get_job_status(job_id) for job_id in awaited.ids}
        left = awaited.left(statuses)
        if not left:
            return statuses
        for job_id in awaited.to_stop(statuses):
            scheduler.cancel(job_id)
        scheduler.wait_for_a_job(left, awaited.pause_s(statuses))
