"""JobVerbs: the job verbs that embedded, remote and native schedulers share, and the state of `wait_for_all_jobs`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from ray_multicluster_scheduler.app.client_api.argument_names import also_named
from ray_multicluster_scheduler.app.client_api.interrupt import stop_everything
from ray_multicluster_scheduler.common.exception import ConfigurationError, JobsFailedError, TaskTimeoutError
from ray_multicluster_scheduler.common.notices import notify, shorten
from ray_multicluster_scheduler.control_plane.runtime.job_status import ENDED


class JobVerbs(ABC):
    """Base of UnifiedScheduler outside clusters and NativeScheduler inside. Each verb takes a job's id."""

    @abstractmethod
    def cancel(self, item: Any, *, force: bool = False, recursive: bool = True) -> bool: ...

    @abstractmethod
    def _check_cluster(self, name: str | None) -> None:
        """Raises ConfigurationError unless it is None or the name of a cluster."""

    @abstractmethod
    def job_info(self, job_id: str) -> dict[str, Any]: ...

    @abstractmethod
    def job_logs(self, job_id: str) -> str: ...

    @abstractmethod
    def follow_job_logs(self, job_id: str) -> Iterator[str]: ...

    @abstractmethod
    def wait_for_a_job(self, job_ids: Sequence[str], timeout: float) -> None: ...

    @also_named(submission_id="job_id")
    def get_job_status(self, job_id: str, cluster_name: str | None = None) -> str:
        """The status: Ray's PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED, or QUEUED, RETRYING, LOST, EXPIRED.

        The id alone finds the job: ``cluster_name``, from earlier versions, only has to be a cluster. Raises
        UnknownItemError, ConfigurationError.
        """
        self._check_cluster(cluster_name)
        return str(self.job_info(job_id)["status"])

    @also_named(submission_id="job_id")
    def get_job_info(self, job_id: str, cluster_name: str | None = None) -> dict[str, Any]:
        """Status, cluster, attempt, times, and Ray's own submission id; arguments and errors as for
        :meth:`get_job_status`."""
        self._check_cluster(cluster_name)
        return self.job_info(job_id)

    @overload
    def get_job_logs(self, job_id: str, follow: Literal[False] = False) -> str: ...
    @overload
    def get_job_logs(self, job_id: str, follow: Literal[True]) -> Iterator[str]: ...
    def get_job_logs(self, job_id: str, follow: bool = False) -> str | Iterator[str]:
        """A job's output so far; with ``follow`` an iterator over its output until the job ends."""
        return self.follow_job_logs(job_id) if follow else self.job_logs(job_id)

    @also_named(submission_id="job_id")
    def stop_job(self, job_id: str, cluster_name: str | None = None) -> bool:
        """Stop a queued or running job. False if it had ended already. Arguments and errors as for
        :meth:`get_job_status`."""
        if self.get_job_status(job_id, cluster_name) in ENDED:
            return False
        return self.cancel(job_id)

    @also_named(submission_ids="ids")
    def wait_for_all_jobs(
        self,
        ids: Sequence[str],
        check_interval: float = 5,
        timeout: float | None = None,
        *,
        stop_on_failure: bool = False,
        raise_on_failure: bool = True,
    ) -> dict[str, str]:
        """Wait until all jobs have ended; returns the last status of each.

        Every ``check_interval`` seconds it prints on stderr what it waits for, if that has changed. One failed job does
        not stop the others, unless ``stop_on_failure``. Raises JobsFailedError at the end if a job failed, unless
        ``raise_on_failure=False``; TaskTimeoutError. Ctrl+C stops what this program submitted.
        """
        awaited = AwaitedJobs(ids, check_interval, timeout, stop_on_failure=stop_on_failure)
        try:
            while True:
                statuses = {job_id: self.get_job_status(job_id) for job_id in awaited.ids}
                left = awaited.left(statuses)
                if not left:
                    return ended_jobs(statuses, raise_on_failure=raise_on_failure)
                for job_id in awaited.to_stop(statuses):
                    self.cancel(job_id)
                self.wait_for_a_job(left, awaited.pause_s(statuses))
        except KeyboardInterrupt as interrupt:
            stop_everything(interrupt)
            raise


def ended_jobs(statuses: dict[str, str], *, raise_on_failure: bool) -> dict[str, str]:
    """Return the statuses of jobs that have ended. Raises JobsFailedError if one failed, unless not wanted."""
    failed = [job_id for job_id, status in statuses.items() if status == "FAILED"]
    if not failed or not raise_on_failure:
        return statuses
    raise JobsFailedError(
        f"{len(failed)} of {len(statuses)} jobs failed: {shorten(failed)}.",
        statuses=statuses,
        task_id=failed[0],
        next_step=f"read get_job_logs({failed[0]!r}); with raise_on_failure=False the statuses are returned",
    )


class AwaitedJobs:
    """The state of one `wait_for_all_jobs`, sync or async; its timeout starts when it is created. Raises
    ConfigurationError if ``ids`` is not a list."""

    def __init__(
        self, ids: Sequence[str], check_interval: float, timeout: float | None, *, stop_on_failure: bool
    ) -> None:
        if isinstance(ids, str):
            raise ConfigurationError(f"ids is the text {ids!r}.", next_step="pass a list of job ids")
        self.ids = list(ids)
        self._interval, self._timeout, self._stops = check_interval, timeout, stop_on_failure
        now = time.monotonic()
        self._deadline = None if timeout is None else now + timeout
        self._next_notice = now + check_interval
        self._printed = ""

    def left(self, statuses: Mapping[str, str]) -> list[str]:
        """The jobs that have not ended."""
        return [job_id for job_id, status in statuses.items() if status not in ENDED]

    def to_stop(self, statuses: Mapping[str, str]) -> list[str]:
        """The jobs to stop now because one has failed; only once."""
        if not self._stops or "FAILED" not in statuses.values():
            return []
        self._stops = False
        return self.left(statuses)

    def pause_s(self, statuses: Mapping[str, str]) -> float:
        """Return the seconds until the next check; prints a notice when one is due and it has changed. Raises
        TaskTimeoutError."""
        now = time.monotonic()
        waiting = [f"{job_id} ({statuses[job_id]})" for job_id in self.left(statuses)]
        if self._deadline is not None and now >= self._deadline:
            raise TaskTimeoutError(
                f"{len(waiting)} of {len(self.ids)} jobs not ended after {self._timeout:g} s: {', '.join(waiting)}",
                next_step="wait longer, or stop them with stop_job",
            )
        if now >= self._next_notice:
            notice = f"waiting for {shorten(waiting)}"
            if notice != self._printed:
                notify(notice)
            self._printed, self._next_notice = notice, now + self._interval
        until = self._next_notice if self._deadline is None else min(self._next_notice, self._deadline)
        return max(0.0, until - now)
