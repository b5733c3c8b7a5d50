"""Follow a job's output: each character once, none missing, done soon after the job is.

Ray sends the log over a WebSocket from its beginning, in late chunks, and closes seconds after the end. So the
job's status says when it is over, the whole log then completes what was streamed, and a broken stream is
opened again and read past what was shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import aiohttp

from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_http import DashboardHttp
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import DashboardProblem

OVER = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
"""Ray's words for a job that has ended."""

POLL_S = 1.0
_MAX_BREAKS = 5

Info = Callable[[], Awaitable[dict[str, Any] | None]]
Whole = Callable[[], Awaitable[str]]


async def follow_log(http: DashboardHttp, path: str, *, info: Info, whole: Whole) -> AsyncIterator[str]:
    """Yield the output until the job is over. Raises DashboardProblem after several breaks in a row."""
    shown = 0
    breaks = 0
    while True:
        try:
            async with aclosing(_stream(http, path, info)) as stream:
                position = 0
                async for chunk in stream:
                    start, position = position, position + len(chunk)
                    breaks = 0
                    if position > shown:
                        yield chunk[max(0, shown - start) :]
                        shown = position
            if await _over(info):
                yield (await whole())[shown:]
                return
        except DashboardProblem as error:
            breaks += 1
            if error.permanent or breaks >= _MAX_BREAKS:
                raise
        await asyncio.sleep(POLL_S)


async def _stream(http: DashboardHttp, path: str, info: Info) -> AsyncGenerator[str, None]:
    """Chunks of one WebSocket, until it closes or the job is over."""
    socket = await http.websocket(path)
    try:
        while True:
            try:
                message = await socket.receive(timeout=POLL_S)
            except TimeoutError:
                if await _over(info):
                    return
                continue
            if message.type is not aiohttp.WSMsgType.TEXT:
                return
            yield message.data
    finally:
        await socket.close()


async def _over(info: Info) -> bool:
    """A job that is gone is over as well."""
    job = await info()
    return job is None or job.get("status") in OVER
