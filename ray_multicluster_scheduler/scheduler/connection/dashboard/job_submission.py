"""Submit a job so that it runs once: repeats find the first, and only ours is ever adopted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import Answer, DashboardHttp
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem

OWNER_KEYS = ("rmcs_control_plane", "rmcs_task", "rmcs_attempt")
"""Metadata that proves a job to be the attempt we sent."""
_AGENT_KEYS = ("rmcs_control_plane", "rmcs_agent")
"""The same of an agent, which is no attempt of anybody's; its id is given once."""

_BAD_REQUEST, _SERVER_ERROR = 400, 500
_MIN_TRY_S = 0.5


class _JobInfo(Protocol):
    def __call__(self, submission_id: str, *, timeout: float | None = None) -> Awaitable[dict[str, Any] | None]: ...


@dataclass(frozen=True, slots=True)
class JobRequest:
    """The body of Ray's ``POST /api/jobs/``."""

    submission_id: str
    entrypoint: str
    runtime_env: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    entrypoint_num_cpus: float | None = None
    entrypoint_num_gpus: float | None = None
    entrypoint_memory: int | None = None
    entrypoint_resources: dict[str, float] | None = None

    def body(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


class JobSubmission:
    """One submit: try, and after an ambiguous failure look the job up and try once more, within one deadline."""

    def __init__(self, http: DashboardHttp, request: JobRequest, job_info: _JobInfo) -> None:
        self._http = http
        self._request = request
        self._job_info = job_info
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._deadline = self._clock() + http.timeouts.submit

    async def run(self) -> str:
        try:
            return await self._try(self._http.timeouts.submit_first_try)
        except DashboardProblem as error:
            if not error.ambiguous or error.permanent:
                raise
            return await self._again(error)

    async def _again(self, first: DashboardProblem) -> str:
        try:
            if await self._find() is not None:
                return self._request.submission_id
            return await self._try(self._left())
        except DashboardProblem as error:
            # Whatever went wrong now, the first request may still be on its way.
            raise DashboardProblem(
                f"{error.message} Job {self._request.submission_id} was sent, and may run there all the same.",
                code=error.code,
                ambiguous=True,
                task_id=self._request.submission_id,
                cluster=error.cluster,
                next_step=f"{error.next_step}; submitting it again under the same id cannot start it twice",
            ) from first

    async def _try(self, timeout: float) -> str:
        answer = await self._http.request("POST", "/api/jobs/", json_body=self._request.body(), timeout=timeout)
        if answer.status >= _SERVER_ERROR and "already exists" in answer.text:
            return await self._adopt()
        if not answer.ok:
            raise self._refusal(answer)
        reply = self._http.parse(answer, "/api/jobs/")
        if not isinstance(reply, dict) or reply.get("submission_id") != self._request.submission_id:
            raise self._http.problem("BAD_ANSWER", "did not confirm the id of the job", ambiguous=True)
        return self._request.submission_id

    async def _adopt(self) -> str:
        if await self._find() is None:
            what = f"says that job {self._request.submission_id} exists, and that it does not"
            raise self._http.problem("BAD_ANSWER", what, ambiguous=True)
        return self._request.submission_id

    async def _find(self) -> dict[str, Any] | None:
        """The job under our id. Raises TaskSubmissionError if it is somebody else's."""
        info = await self._job_info(self._request.submission_id, timeout=self._left())
        if info is None:
            return None
        theirs = info.get("metadata") or {}
        ours = self._request.metadata
        for proof in (OWNER_KEYS, _AGENT_KEYS):
            if all(key in ours and theirs.get(key) == ours[key] for key in proof):
                return info
        raise TaskSubmissionError(
            f"Cluster {self._http.name} already has a job {self._request.submission_id}, and it is not ours.",
            task_id=self._request.submission_id,
            cluster=self._http.name,
            next_step="submit under another id, or delete that job in the cluster",
        )

    def _refusal(self, answer: Answer) -> Exception:
        """Ray wraps what its agent answered: a 400 inside is about the job, other failures are the cluster's."""
        reason = self._http.excerpt(answer)
        about_the_job = _BAD_REQUEST <= answer.status < _SERVER_ERROR or "status code 4" in answer.text
        if about_the_job:
            return TaskSubmissionError(
                f"Cluster {self._http.name} refuses job {self._request.submission_id}: {reason}.",
                task_id=self._request.submission_id,
                cluster=self._http.name,
                next_step="mend the job's entrypoint, metadata or runtime_env, and submit it again",
            )
        what = f"could not submit job {self._request.submission_id} (HTTP {answer.status}: {reason})"
        return self._http.problem("BAD_ANSWER", what, ambiguous=True)

    def _left(self) -> float:
        return max(_MIN_TRY_S, self._deadline - self._clock())
