"""JobSubmission submits a job so that it runs only once; follow_log follows its output. Used by ``DashboardClient``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypedDict

import aiohttp

from ray_multicluster_scheduler.common.exception import TaskSubmissionError
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import DashboardHttp, HttpResponse
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem

OWNER_KEYS = ("rmcs_control_plane", "rmcs_task", "rmcs_attempt")
"""Metadata keys that prove a job to be the attempt that we sent."""
_AGENT_KEYS = ("rmcs_control_plane", "rmcs_agent")
"""The same for an agent, which has a unique id."""

_BAD_REQUEST, _SERVER_ERROR = 400, 500
_MIN_TRY_S = 0.5
_ENDED = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})

POLL_S = 1.0
_MAX_FAILURES = 5

JobInfo = Callable[[], Awaitable[dict[str, Any] | None]]
WholeLog = Callable[[], Awaitable[str]]


class _JobInfoRequest(Protocol):
    def __call__(self, submission_id: str, *, timeout: float | None = None) -> Awaitable[dict[str, Any] | None]: ...


class JobOptions(TypedDict, total=False):
    """Options of Ray's ``POST /api/jobs/``; None is the same as leaving one out."""

    runtime_env: Mapping[str, Any] | None
    metadata: Mapping[str, str] | None
    entrypoint_num_cpus: float | None
    entrypoint_num_gpus: float | None
    entrypoint_memory: int | None
    entrypoint_resources: Mapping[str, float] | None


class JobSubmission:
    """One submission: after an ambiguous failure, look the job up and try once more, within one deadline."""

    def __init__(
        self, http: DashboardHttp, submission_id: str, entrypoint: str, options: JobOptions, job_info: _JobInfoRequest
    ) -> None:
        self._http, self._id, self._job_info = http, submission_id, job_info
        given = {key: dict(value) if isinstance(value, Mapping) else value for key, value in options.items()}
        given = {key: value for key, value in given.items() if value is not None and value != {}}
        required = {"submission_id": submission_id, "entrypoint": entrypoint}
        self._body: dict[str, Any] = {**required, "runtime_env": {}, "metadata": {}, **given}
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._deadline = self._clock() + http.timeouts.submit

    async def run(self) -> str:
        try:
            return await self._try(self._http.timeouts.submit_first_try)
        except DashboardProblem as error:
            if not error.ambiguous or error.permanent:
                raise
            return await self._retry(error)

    async def _retry(self, first: DashboardProblem) -> str:
        try:
            if await self._find() is not None:
                return self._id
            return await self._try(self._left())
        except DashboardProblem as error:
            # The first request may still be on its way.
            raise DashboardProblem(
                f"{error.message} Job {self._id} was sent, so it may run there.",
                code=error.code,
                ambiguous=True,
                task_id=self._id,
                cluster=error.cluster,
                next_step=f"{error.next_step}; submitting it again under the same id cannot start it twice",
            ) from first

    async def _try(self, timeout: float) -> str:
        answer = await self._http.request("POST", "/api/jobs/", json_body=self._body, timeout=timeout)
        if answer.status >= _SERVER_ERROR and "already exists" in answer.text:
            if await self._find() is None:
                what = f"reports that job {self._id} exists, and that it does not"
                raise self._http.problem("BAD_ANSWER", what, ambiguous=True)
            return self._id
        if not answer.ok:
            raise self._refusal(answer)
        reply = self._http.parse(answer, "/api/jobs/")
        if not isinstance(reply, dict) or reply.get("submission_id") != self._id:
            raise self._http.problem("BAD_ANSWER", "did not confirm the id of the job", ambiguous=True)
        return self._id

    async def _find(self) -> dict[str, Any] | None:
        """Look up the job with our id. Raises TaskSubmissionError if it is not ours."""
        info = await self._job_info(self._id, timeout=self._left())
        if info is None:
            return None
        metadata = info.get("metadata") or {}
        ours = self._body["metadata"]
        for keys in (OWNER_KEYS, _AGENT_KEYS):
            if all(key in ours and metadata.get(key) == ours[key] for key in keys):
                return info
        raise TaskSubmissionError(
            f"Cluster {self._http.name} already has a job {self._id}, and it is not ours.",
            task_id=self._id,
            cluster=self._http.name,
            next_step="submit under another id, or delete that job in the cluster",
        )

    def _refusal(self, answer: HttpResponse) -> Exception:
        """Ray wraps the response of its agent: a 400 inside is about the job, other failures are about the cluster."""
        reason = self._http.excerpt(answer)
        if _BAD_REQUEST <= answer.status < _SERVER_ERROR or "status code 4" in answer.text:
            return TaskSubmissionError(
                f"Cluster {self._http.name} refuses job {self._id}: {reason}.",
                task_id=self._id,
                cluster=self._http.name,
                next_step="fix the job's entrypoint, metadata or runtime_env, and submit it again",
            )
        what = f"could not submit job {self._id} (HTTP {answer.status}: {reason})"
        return self._http.problem("BAD_ANSWER", what, ambiguous=True)

    def _left(self) -> float:
        return max(_MIN_TRY_S, self._deadline - self._clock())


async def follow_log(http: DashboardHttp, path: str, *, info: JobInfo, whole: WholeLog) -> AsyncIterator[str]:
    """Yield each character of the output once, until the job has ended. Raises DashboardProblem after several failures.

    Ray sends the log over a WebSocket from its beginning, in late chunks, and closes seconds after the end. So the
    status of the job shows its end, the whole log then completes the output, and a broken stream is opened again and
    read past what was yielded.
    """
    shown = 0
    failures = 0
    while True:
        try:
            async with aclosing(_stream(http, path, info)) as stream:
                position = 0
                async for chunk in stream:
                    start, position = position, position + len(chunk)
                    failures = 0
                    if position > shown:
                        yield chunk[max(0, shown - start) :]
                        shown = position
            if await _has_ended(info):
                yield (await whole())[shown:]
                return
        except DashboardProblem as error:
            failures += 1
            if error.permanent or failures >= _MAX_FAILURES:
                raise
        await asyncio.sleep(POLL_S)


async def _stream(http: DashboardHttp, path: str, info: JobInfo) -> AsyncGenerator[str, None]:
    """Yield the chunks of one WebSocket until it closes or the job has ended."""
    socket = await http.websocket(path)
    try:
        while True:
            try:
                message = await socket.receive(timeout=POLL_S)
            except TimeoutError:
                if await _has_ended(info):
                    return
                continue
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            yield message.data
    finally:
        await socket.close()


async def _has_ended(info: JobInfo) -> bool:
    """Also true of a job that was deleted."""
    job = await info()
    return job is None or job.get("status") in _ENDED
