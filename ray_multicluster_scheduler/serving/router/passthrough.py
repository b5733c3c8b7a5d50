"""Pass-through of /v1 requests: to the chosen instance as they are, and its answer back byte for byte as it arrives.

A plain ASGI handler. A request is charged like a task, but it is not tracked: its client waits for it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Protocol
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InstanceError,
    QueueFullError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.serving.predictor import features_of
from ray_multicluster_scheduler.serving.router.http_client import Headers, HttpError, HttpPool, Response
from ray_multicluster_scheduler.serving.router.ledger import Task

_log = get_logger(__name__)
DEADLINE, IDEMPOTENT = b"x-rmcs-deadline-ms", b"x-rmcs-idempotent"
_NOT_FORWARDED = frozenset(
    {
        b"host", b"connection", b"content-length", b"expect", b"keep-alive", b"proxy-authorization",
        b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade", DEADLINE, IDEMPOTENT,
    }
)  # fmt: skip
_WATCH_AFTER_S = 0.05
"""Only requests that take longer are watched for a client that goes away."""


class Requests(Protocol):
    """What the scheduler does for a pass-through."""

    def open_request(self, task: Task, owner: str) -> None:
        """Place it; ``task.slot`` gets the pool of its instance when it may be forwarded. Raises SchedulerError."""

    def close_request(self, task: Task, *, learn: bool, problem: str = "") -> None:
        """Remove it. ``problem``: what the instance did wrong."""

    def retry_request(self, task: Task, problem: str, *, sent: bool) -> None:
        """Place it again, as with :meth:`open_request`; ``sent``: its instance may have received it."""


class PassThrough:
    """Answers POST /v1/… by forwarding it."""

    def __init__(self, requests: Requests, owner: str, private: Collection[bytes] = ()) -> None:
        """``owner``: who may query the request; ``private``: further headers that are not forwarded."""
        self._requests, self._owner, self._not_forwarded = requests, owner, _NOT_FORWARDED.union(private)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, body: bytes, prefix: str = "") -> None:
        """``prefix`` precedes the path that is forwarded. Raises SchedulerError before anything was sent."""
        arrived = time.monotonic()
        headers = dict(scope["headers"])
        model, features = describe_request(body)
        deadline = _deadline(headers.get(DEADLINE))
        loop = asyncio.get_running_loop()
        task = Task(uuid.uuid4().hex, model, None, {}, features, arrived, slot=loop.create_future())
        self._requests.open_request(task, self._owner)
        request = asyncio.current_task()
        assert request is not None
        watch = _ClientWatch(loop, receive, request)
        exchange = _Exchange(self._requests, task, send, idempotent=headers.get(IDEMPOTENT) == b"true")
        try:
            if deadline is not None:
                _check_deadline(task, deadline)
            async with asyncio.timeout_at(None if deadline is None else loop.time() + deadline / 1000) as limit:
                while True:
                    pool = await task.slot
                    limit.reschedule(None)
                    forwarded = [one for one in scope["headers"] if one[0] not in self._not_forwarded]
                    if await exchange.run(pool, _path(scope, prefix), forwarded, body):
                        return
        except TimeoutError:
            raise _too_late(task, deadline or 0.0) from None
        except asyncio.CancelledError:
            if not watch.client_left:
                _log.warning("request %s for %s was cut off, since the server stops", task.id, model)
        finally:
            watch.end()
            exchange.close()


class _Exchange:
    """One request with its answer, over one instance or, before the first byte, another."""

    def __init__(self, requests: Requests, task: Task, send: Send, *, idempotent: bool) -> None:
        self._requests, self._task, self._send, self._idempotent = requests, task, send, idempotent
        self._began = self._closed = False

    async def run(self, pool: HttpPool, path: str, headers: Headers, body: bytes) -> bool:
        """Whether it was answered; False: it was placed again. Raises InstanceError."""
        try:
            async with pool.request("POST", path, headers=headers, body=body) as response:
                await self._answer(response)
        except HttpError as error:
            if self._began:  # the server closes the connection, so the client sees that the answer is cut off
                _log.warning("the answer of request %s was cut off: %s", self._task.id, error)
                self.close(problem=str(error))
                return True
            if not error.sent or self._idempotent:
                self._requests.retry_request(self._task, str(error), sent=error.sent)
                return False
            self.close(problem=str(error))
            sentence = f"The instance at {pool.base_url} failed while it had the request: {error}."
            raise UpstreamError(
                sentence, next_step=f"send it again if it may run twice ({IDEMPOTENT.decode()}: true repeats it)"
            ) from None
        self.close(learn=response.status < 400, problem=f"status {response.status}" if response.status >= 500 else "")
        return True

    def close(self, *, learn: bool = False, problem: str = "") -> None:
        if not self._closed:
            self._closed = True
            self._requests.close_request(self._task, learn=learn, problem=problem)

    async def _answer(self, response: Response) -> None:
        task = self._task
        assert task.instance is not None
        assert task.started is not None
        overhead = (task.started - task.arrived) * 1000
        own = [
            (b"x-rmcs-instance", task.instance.uuid.encode()),
            (b"x-rmcs-task-id", task.id.encode()),
            (b"x-rmcs-overhead-ms", b"%.3f" % overhead),
        ]
        start = {"type": "http.response.start", "status": response.status}
        self._began = True
        await self._send({**start, "headers": [*response.passed_on_headers(), *own]})
        async for piece in response.pieces():
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


class _ClientWatch:
    """Cancels the request when its client closes the connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receive: Receive, request: asyncio.Task[Any]) -> None:
        self.client_left = False
        self._receive, self._request = receive, request
        self._watching: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_WATCH_AFTER_S, self._begin)

    def end(self) -> None:
        self._timer.cancel()
        if self._watching is not None:
            self._watching.cancel()

    def _begin(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.client_left = True
        self._request.cancel()


def describe_request(body: bytes) -> tuple[str, dict[str, float]]:
    """The model of a request, and the features on which its time depends. Raises ConfigurationError."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        request = None
    model = request.get("model") if isinstance(request, dict) else None
    if not isinstance(model, str) or not model:
        raise ConfigurationError("The body is not a JSON object with a model.", next_step="name a model of /v1/models")
    limit = request.get("max_completion_tokens", request.get("max_tokens"))
    return model, features_of({"prompt_characters": _length(request), "max_tokens": limit})


def _length(request: Mapping[str, Any]) -> int:
    """Characters of the prompt, the messages or the input."""
    found, pending = 0, [request.get("messages"), request.get("prompt"), request.get("input")]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            found += len(one)
        elif isinstance(one, list):
            pending += one
        elif isinstance(one, dict):
            pending += (one.get("content"), one.get("text"))
    return found


class UpstreamError(InstanceError):
    """The chosen instance failed before it answered, and the request must not be sent twice."""


class DeadlineError(QueueFullError):
    """A request cannot be answered before its deadline, so it was not forwarded."""


def _deadline(value: bytes | None) -> float | None:
    if value is None:
        return None
    try:
        deadline = float(value)
    except ValueError:
        deadline = -1.0
    if not 0 <= deadline < 1e9:
        text = value[:50].decode("latin-1")
        raise ConfigurationError(f"{DEADLINE.decode()} is {text!r}.", next_step="give milliseconds")
    return deadline


def _check_deadline(task: Task, deadline: float) -> None:
    """Refuse at once what is not expected to be answered in time."""
    if task.decision is not None and (expected := task.decision.expected_ms()) is not None and expected > deadline:
        raise _too_late(task, deadline)


def _too_late(task: Task, deadline: float) -> DeadlineError:
    return DeadlineError(
        f"The request for {task.model} cannot be answered within {deadline:g} ms.",
        task_id=task.id,
        next_step="try again later, with a longer deadline, or with more instances",
    )


def _path(scope: Scope, prefix: str) -> str:
    raw = str(scope.get("raw_path", b"").decode("latin-1"))
    path = raw if raw.startswith(f"{prefix}/v1/") else quote(scope["path"])
    path = path[len(prefix) :]
    query = scope.get("query_string", b"")
    return f"{path}?{query.decode('latin-1')}" if query else path
