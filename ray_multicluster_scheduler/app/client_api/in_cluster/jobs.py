"""NativeJobs and NativeJobHandle: jobs from inside a cluster, submitted to its own dashboard with Ray's job client."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.in_cluster import runtime_context
from ray_multicluster_scheduler.app.client_api.in_cluster.handle import NativeHandle, explain_child
from ray_multicluster_scheduler.app.client_api.in_cluster.options import check_place, ray_resources, refuse
from ray_multicluster_scheduler.common.current_item import CurrentItem
from ray_multicluster_scheduler.common.exception import (
    ClusterConnectionError,
    ConfigurationError,
    RemoteError,
    SchedulerError,
    TaskCancelledError,
    TaskSubmissionError,
    TaskTimeoutError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model.resources import parse_resources
from ray_multicluster_scheduler.common.model.states import TaskState
from ray_multicluster_scheduler.common.model.submit_options import options_of
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED, JOB_STATUS

PARENT = "rmcs_parent"
"""Key of a job's metadata: its parent item."""
POLL_S = 0.5

_NO_RETRIES = "Ray does not retry jobs; wait for it and submit it again"
_UNSUPPORTED = {
    "require_tags": "the tags of clusters are unknown inside a cluster; submit from outside to choose one",
    "queue_timeout": "Ray starts it itself; use get_job_status and stop_job",
    "run_timeout": "use wait_for_all_jobs(…, timeout=…) and stop_job",
    **{name: _NO_RETRIES for name in options_of("job") if "retr" in name},
    "after": "wait for them with wait_for_all_jobs, and then submit it",
    "start_after": "Ray starts it as soon as it can; wait, and then submit it",
}


class NativeJobs:
    """The job verbs of NativeScheduler, for jobs whose parent is the item of this code."""

    _client: Any = None

    @also_named(job_id="submission_id")
    def submit_job(self, entrypoint: str, **options: Any) -> str:
        """Submit a job; returns Ray's id. An equal ``submission_id`` or ``idempotency_key`` means the same job."""
        parent = runtime_context.item()
        refuse(options, "job", parent.cluster, _UNSUPPORTED)
        check_place(options, parent.cluster)
        if not isinstance(entrypoint, str) or not entrypoint.strip():
            raise ConfigurationError(
                f"The entrypoint is {entrypoint!r}.", next_step='give a shell command, for example "python train.py"'
            )
        parse_resources(options.get("resource_requirements"))  # only checked: a job inside a cluster is not placed
        amounts = parse_resources(options.get("entrypoint_resources"), what="entrypoint_resources")
        job_id = options.get("submission_id") or _new_id(parent, options.get("idempotency_key"))
        with _translated_errors(parent.cluster, job_id):
            try:
                return str(
                    self._jobs().submit_job(
                        entrypoint=entrypoint,
                        submission_id=job_id,
                        runtime_env=_environment(options.get("runtime_env") or {}, job_id, parent),
                        metadata={**(options.get("metadata") or {}), PARENT: parent.id},
                        **ray_resources(amounts, "entrypoint_"),
                    )
                )
            except RuntimeError as error:
                if "already exists" not in str(error) or not _is_child(self._jobs().get_job_info(job_id), parent):
                    raise
                return str(job_id)

    def job_info(self, job_id: str) -> dict[str, Any]:
        """Return the state of a job. Raises UnknownItemError unless its parent is this item."""
        parent = runtime_context.item()
        with _translated_errors(parent.cluster, job_id):
            details = self._jobs().get_job_info(job_id)
        if not _is_child(details, parent):
            raise _unknown(job_id, parent.cluster)
        return _row(details, parent)

    def list_jobs(self, status: str | None = None) -> list[dict[str, Any]]:
        """Return the jobs of this item, oldest first; ``status`` selects one status."""
        parent = runtime_context.item()
        with _translated_errors(parent.cluster, "the list of jobs"):
            jobs = self._jobs().list_jobs()
        ours = sorted((job for job in jobs if _is_child(job, parent)), key=lambda job: job.start_time or 0)
        rows = [_row(job, parent) for job in ours]
        return [row for row in rows if status in (None, row["status"])]

    def job_logs(self, job_id: str) -> str:
        """Return its output so far."""
        self.job_info(job_id)
        with _translated_errors(runtime_context.item().cluster, job_id):
            return str(self._jobs().get_job_logs(job_id))

    def follow_job_logs(self, job_id: str) -> Iterator[str]:
        """Iterate over its output until it ends."""
        seen = 0
        while True:
            over = self.job_info(job_id)["status"] in ENDED  # before the logs, or output in between would be lost
            text = self.job_logs(job_id)
            if len(text) > seen:
                yield text[seen:]
                seen = len(text)
            if over:
                return
            time.sleep(POLL_S)

    @also_named(job_id="submission_id")
    def submit_job_async(self, entrypoint: str, **options: Any) -> NativeJobHandle:
        """Submit a job; returns its handle."""
        return NativeJobHandle(self.submit_job(entrypoint, **options), self, runtime_context.item())

    def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None:
        """Wait until one of these jobs has ended, or the timeout."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and not any(self.job_info(one)["status"] in ENDED for one in job_ids):
            time.sleep(max(0.0, min(POLL_S, deadline - time.monotonic())))

    def stop(self, job_id: str) -> None:
        """Stop a job."""
        self.job_info(job_id)
        with _translated_errors(runtime_context.item().cluster, job_id):
            self._jobs().stop_job(job_id)

    def _jobs(self) -> Any:
        """Return Ray's client, which finds the dashboard and the token of this cluster."""
        if self._client is None:
            ray = runtime_context.connected_ray()
            from ray.job_submission import JobSubmissionClient  # noqa: PLC0415 - inside a cluster only

            self._client = JobSubmissionClient(ray.get_runtime_context().gcs_address)
        return self._client


def _is_child(details: Any, parent: CurrentItem) -> bool:
    return bool((details.metadata or {}).get(PARENT) == parent.id)


def _new_id(parent: CurrentItem, key: str | None) -> str:
    """Return an id derived from the idempotency key; without one a random id in Ray's format."""
    if key is None:
        return f"raysubmit_{secrets.token_hex(8)}"
    return f"rmcs-{hashlib.sha256(f'{parent.id}/{key}'.encode()).hexdigest()[:16]}"


def _environment(given: Mapping[str, Any], job_id: str, parent: CurrentItem) -> dict[str, Any]:
    """Return the caller's environment with our package and the variables that identify the job and its cluster."""
    env = dict(given)
    env["py_modules"] = list(dict.fromkeys([runtime_context.own_package(), *map(str, env.get("py_modules") or ())]))
    variables = {
        "RMCS_CLUSTER": parent.cluster,
        "RMCS_TASK_ID": job_id,
        "RMCS_ATTEMPT": "1",
        "RMCS_FENCE": str(parent.fence),
    }
    env["env_vars"] = {**(env.get("env_vars") or {}), **variables}
    return env


def _row(details: Any, parent: CurrentItem) -> dict[str, Any]:
    return {
        "job_id": details.submission_id,
        "status": str(getattr(details.status, "value", details.status)),
        "entrypoint": details.entrypoint,
        "metadata": {key: value for key, value in (details.metadata or {}).items() if key != PARENT},
        "cluster": parent.cluster,
        "attempt": 1,
        "ray_submission_id": details.submission_id,
        "message": details.message or "",
        "submitted_at": None,
        "started_at": _seconds(details.start_time),
        "finished_at": _seconds(details.end_time),
        "parent": parent.id,
    }


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _unknown(job_id: str, cluster: str) -> UnknownItemError:
    return UnknownItemError(
        f"There is no job {job_id!r} that this item submitted.",
        task_id=job_id,
        cluster=cluster,
        next_step="use the id that submit_job returned; query jobs from outside the cluster there",
    )


@contextmanager
def _translated_errors(cluster: str, what: str) -> Iterator[None]:
    """Translate errors of Ray's client. Raises UnknownItemError, TaskSubmissionError, ClusterConnectionError."""
    try:
        yield
    except RuntimeError as error:
        if "status code 404" in str(error):
            raise _unknown(what, cluster) from error
        raise TaskSubmissionError(
            f"The dashboard of cluster {cluster!r} refused {what}: {error}",
            cluster=cluster,
            next_step="fix the cause and submit it again",
        ) from error
    except (OSError, ImportError) as error:  # requests' own errors are OSErrors
        raise ClusterConnectionError(
            f"The dashboard of cluster {cluster!r} cannot be used from inside: {type(error).__name__}: {error}.",
            cluster=cluster,
            next_step="check that the dashboard runs, and that ray[default] is installed there",
        ) from error


_log = get_logger(__name__)
_STATES = {word: state for state, word in JOB_STATUS.items()}


class NativeJobHandle(NativeHandle):
    """A Ray job of the cluster where this code runs; its value is its last status word. Awaitable."""

    def __init__(self, job_id: str, jobs: NativeJobs, parent: CurrentItem) -> None:
        self.id, self._jobs, self.parent = job_id, jobs, parent

    @property
    def state(self) -> TaskState:
        """Its status, read now."""
        return _STATES[str(self._jobs.job_info(self.id)["status"])]

    def done(self) -> bool:
        """True if it has succeeded, failed or been stopped."""
        return self._jobs.job_info(self.id)["status"] in ENDED

    def result(self, timeout: float | None = None) -> str:
        """Wait for the end; returns SUCCEEDED. Raises RemoteError, TaskCancelledError, TaskTimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return str(TaskState.SUCCEEDED)

    def exception(self, timeout: float | None = None) -> SchedulerError | None:
        """Wait for the end and return what :meth:`result` would raise. Raises TaskTimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (info := self._jobs.job_info(self.id))["status"] not in ENDED:
            if deadline is not None and time.monotonic() >= deadline:
                raise TaskTimeoutError(
                    f"Job {self.id} on cluster {self.cluster!r} is {info['status']}, not ended after {timeout:g} s.",
                    task_id=self.id,
                    cluster=self.cluster,
                    next_step="wait longer, or stop it",
                )
            time.sleep(POLL_S)
        if info["status"] == "SUCCEEDED":
            return None
        kind = TaskCancelledError if info["status"] == "STOPPED" else RemoteError
        return kind(
            f"Job {self.id} on cluster {self.cluster!r} ended as {info['status']}: {info['message']}",
            task_id=self.id,
            cluster=self.cluster,
            next_step="see its logs",
        )

    def cancel(self, *, force: bool = False) -> bool:
        """Stop it. ``force`` has no effect, since Ray kills a job that does not stop. False: it had ended already."""
        if self.done():
            return False
        self._jobs.stop(self.id)
        return True

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call ``callback(handle)`` on a new thread when it has ended."""

        def watch() -> None:
            try:
                self.exception()
                callback(self)
            except Exception:  # noqa: BLE001 - nothing joins this thread: log its error
                _log.exception("a callback of %s failed", self.id)

        threading.Thread(target=watch, name="rmcs-callback", daemon=True).start()

    def explain(self) -> dict[str, Any]:
        """Return its parent item, cluster and state."""
        info = self._jobs.job_info(self.id)
        return explain_child(self.id, "job", str(info["entrypoint"]), _STATES[str(info["status"])], self.parent)

    def logs(self) -> str:
        """Return its output so far."""
        return self._jobs.job_logs(self.id)

    def follow_logs(self) -> Iterator[str]:
        """Iterate over its output until it ends."""
        return self._jobs.follow_job_logs(self.id)

    def __await__(self) -> Generator[Any, None, str]:
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} on {self.cluster!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.id, self.parent)


def _rebuild(job_id: str, parent: CurrentItem) -> NativeJobHandle:
    return NativeJobHandle(job_id, NativeJobs(), parent)
