"""DashboardClient: jobs, packages and snapshots of one cluster over HTTP.

Every failure is a :class:`DashboardProblem` (a ClusterConnectionError), or a TaskSubmissionError if it is about the job
itself. Calls take less than ten seconds, except uploads and whole logs: their timeouts grow with the size.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.common.model import ResourceSnapshot
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import (
    DashboardHttp,
    HttpResponse,
    Timeouts,
    Token,
)
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_jobs import (
    JobOptions,
    JobSubmission,
    follow_log,
)
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem
from ray_multicluster_scheduler.scheduler.connection.dashboard.response_parser import (
    NODES_ROUTE,
    STATUS_ROUTE,
    SUMMARY_ROUTE,
    VERSION_ROUTE,
    SnapshotResponses,
    actors_route,
    build_snapshot,
    has_living_actor,
)

MAX_LOG_BYTES = 1024 * 1024 * 1024

_NOT_FOUND, _TOO_LARGE = 404, 413
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_PACKAGE_URI = re.compile(r"gcs://([A-Za-z0-9_.+-]+\.(?:zip|whl))")


class DashboardClient:
    """Client of one dashboard, at exactly this URL. Created and used on one event loop."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        token: Token = lambda: None,
        ca: str | None = None,
        verify: bool = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        """``token`` is called for every request and its result not kept; ``ca`` is a file of trusted certificates."""
        self.name = name
        self._http = DashboardHttp(name, url, token=token, ca=ca, verify=verify, timeouts=timeouts)

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        await self._http.close()

    async def version(self) -> dict[str, Any]:
        """``ray_version``, ``session_name`` and the other fields that the dashboard reports about itself."""
        answer = await self._http.get_json(VERSION_ROUTE)
        if not isinstance(answer, dict) or "ray_version" not in answer:
            raise self._http.problem("NOT_A_DASHBOARD", "answers in JSON, but not like a Ray dashboard")
        return answer

    async def clock(self) -> float | None:
        """The dashboard's time, to the second; None if it does not send it. Raises DashboardProblem."""
        date = (await self._http.request("GET", VERSION_ROUTE)).date
        return None if date is None else parsedate_to_datetime(date).timestamp()

    async def snapshot(self, now: float) -> ResourceSnapshot:
        """Total and free per node, as of ``now`` at the latest. Raises DashboardProblem."""
        try:
            async with asyncio.TaskGroup() as group:
                version = group.create_task(self.version())
                nodes = group.create_task(self._http.get_json(NODES_ROUTE))
                status = group.create_task(self._http.get_json(STATUS_ROUTE))
                summary = group.create_task(self._physical_use())
        except* DashboardProblem as problems:
            raise _first(problems) from None
        responses = SnapshotResponses(version.result(), nodes.result(), status.result(), summary.result())
        try:
            snapshot = build_snapshot(self.name, now, responses)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            what = f"describes its nodes in an unknown form ({type(error).__name__}: {error})"
            raise self._http.problem("BAD_ANSWER", what) from error
        if not snapshot.nodes:
            raise self._http.problem("BAD_ANSWER", "lists no live node: the cluster is still starting, or going down")
        return snapshot

    async def has_detached_actor(self, name: str) -> bool:
        """Whether a detached actor of ours with this name is alive there. Raises DashboardProblem."""
        answer = await self._http.get_json(actors_route(name))
        try:
            return has_living_actor(answer, name)
        except (KeyError, TypeError) as error:
            what = f"describes its actors in an unknown form ({type(error).__name__}: {error})"
            raise self._http.problem("BAD_ANSWER", what) from error

    async def submit_job(self, submission_id: str, entrypoint: str, **options: Unpack[JobOptions]) -> str:
        """Start a job, or find the one that an earlier call with the same id started; safe to repeat.

        Raises TaskSubmissionError if Ray refuses the job or if the id belongs to another job, otherwise
        DashboardProblem; if that is ``ambiguous``, the job may run.
        """
        job_id = _checked(submission_id, self.name)
        return await JobSubmission(self._http, job_id, entrypoint, options, self.job_info).run()

    async def job_info(self, submission_id: str, *, timeout: float | None = None) -> dict[str, Any] | None:
        """Ray's description of a job; None if the cluster does not know it."""
        path = _job_path(submission_id, self.name)
        answer = await self._http.request("GET", path, timeout=timeout)
        if self._unknown(answer):
            return None
        return dict(self._http.parse(answer, path))

    async def list_jobs(self) -> list[dict[str, Any]]:
        """All jobs of the cluster, including those that are not ours."""
        answer = await self._http.get_json("/api/jobs/")
        if not isinstance(answer, list):
            raise self._http.problem("BAD_ANSWER", "did not answer with a list of jobs")
        return answer

    async def job_logs(self, submission_id: str) -> str:
        """The whole output so far. Raises TaskSubmissionError for an unknown job."""
        path = _job_path(submission_id, self.name) + "/logs"
        timeout = self._http.timeouts.logs
        answer = await self._http.request("GET", path, timeout=timeout, limit_bytes=MAX_LOG_BYTES)
        if self._unknown(answer):
            raise self._no_such_job(submission_id)
        return str(self._http.parse(answer, path).get("logs") or "")

    async def tail_job_logs(self, submission_id: str) -> AsyncIterator[str]:
        """Yield each character of the output once, until the job has ended."""
        if await self.job_info(submission_id) is None:
            raise self._no_such_job(submission_id)
        path = _job_path(submission_id, self.name) + "/logs/tail"
        info, whole = partial(self.job_info, submission_id), partial(self.job_logs, submission_id)
        async for piece in follow_log(self._http, path, info=info, whole=whole):
            yield piece

    async def stop_job(self, submission_id: str) -> bool:
        """Stop a job. False if it is unknown or has ended already."""
        path = _job_path(submission_id, self.name) + "/stop"
        answer = await self._http.request("POST", path)
        if self._unknown(answer):
            return False
        return bool(self._http.parse(answer, path).get("stopped"))

    async def package_exists(self, uri: str) -> bool:
        """Whether the cluster's store has the package. The request also keeps it there for some minutes."""
        path = _package_path(uri, self.name)
        answer = await self._http.request("GET", path)
        if self._unknown(answer):
            return False
        if not answer.ok:
            self._http.parse(answer, path)
        return True

    async def upload_package(self, uri: str, source: Path | bytes) -> None:
        """Store a package under ``uri``; a file is streamed. Raises TaskSubmissionError if it is too large."""
        path = _package_path(uri, self.name)
        if isinstance(source, bytes):
            answer = await self._put(path, io.BytesIO(source), len(source))
        else:
            with await asyncio.to_thread(source.open, "rb") as file:
                answer = await self._put(path, file, os.fstat(file.fileno()).st_size)
        if answer.status == _TOO_LARGE or "exceeds the maximum size" in answer.text:
            raise TaskSubmissionError(
                f"The package {uri} is too large for the dashboard of cluster {self.name}.",
                cluster=self.name,
                next_step="leave large files out with `excludes` in runtime_env, or put the package on shared storage",
            )
        if not answer.ok:
            self._http.parse(answer, path)

    async def _put(self, path: str, data: BinaryIO, size: int) -> HttpResponse:
        limits = self._http.timeouts
        timeout = limits.upload_base + limits.upload_per_mib * size / 1024**2
        return await self._http.request("PUT", path, data=data, timeout=timeout)

    async def _physical_use(self) -> Any | None:
        """The node summary; None if the dashboard has none, because placement does not need it."""
        try:
            return await self._http.get_json(SUMMARY_ROUTE)
        except DashboardProblem as error:
            if error.code in ("BAD_ANSWER", "NOT_A_DASHBOARD"):
                return None
            raise

    def _unknown(self, answer: HttpResponse) -> bool:
        """Whether Ray answers that the object does not exist. Raises DashboardProblem for a 404 that is not Ray's."""
        if answer.status != _NOT_FOUND:
            return False
        if "does not exist" not in answer.text:
            raise self._http.problem("NOT_A_DASHBOARD", "answers HTTP 404, but not like a Ray dashboard")
        return True

    def _no_such_job(self, submission_id: str) -> TaskSubmissionError:
        return TaskSubmissionError(
            f"Cluster {self.name} has no job {submission_id}.",
            task_id=submission_id,
            cluster=self.name,
            next_step="list the jobs of the cluster; the job may have been deleted, or the cluster restarted",
        )


def _first(problems: BaseExceptionGroup[DashboardProblem]) -> BaseException:
    """A permanent problem if there is one, because an operator can fix it; else the first."""
    found = [error for error in problems.exceptions if isinstance(error, DashboardProblem)]
    return min(found, key=lambda error: not error.permanent)


def _checked(submission_id: str, cluster: str) -> str:
    if not _JOB_ID.fullmatch(submission_id):
        raise TaskSubmissionError(
            f"{submission_id!r} cannot be the id of a Ray job on cluster {cluster}.",
            task_id=submission_id,
            cluster=cluster,
            next_step="begin with a letter or digit, then use letters, digits, '_', '-', '.'; at most 200 characters",
        )
    return submission_id


def _job_path(submission_id: str, cluster: str) -> str:
    return f"/api/jobs/{_checked(submission_id, cluster)}"


def _package_path(uri: str, cluster: str) -> str:
    match = _PACKAGE_URI.fullmatch(uri)
    if match is None:
        raise TaskSubmissionError(
            f"{uri!r} is not the address of a package in cluster {cluster}.",
            cluster=cluster,
            next_step="use gcs://NAME.zip or gcs://NAME.whl",
        )
    return f"/api/packages/gcs/{match.group(1)}"
