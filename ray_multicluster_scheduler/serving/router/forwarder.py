"""Forwarder: sends tasks to instances, and probes whether they answer. Everything here runs on one event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from ray_multicluster_scheduler.common.exception import InstanceError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.serving.client import TaskInstanceClient
from ray_multicluster_scheduler.serving.models import InstanceKind, InstanceSubmitResponse
from ray_multicluster_scheduler.serving.router.http_client import HttpPool
from ray_multicluster_scheduler.serving.router.ledger import Task

_log = get_logger(__name__)
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
FAILURES_TO_OPEN = 5
"""Failed requests in a row after which an instance gets no tasks until it has recovered."""
_MAX_RECOVERY_S = 60.0
_FIRST_PAUSE_S, _MAX_PAUSE_S, _MAX_RETRY_AFTER_S = 0.1, 5.0, 60.0
"""How long an instance that took no request gets none: twice as long each time; or as its Retry-After says."""
_PROBE_TIMEOUT_S = 5.0
_PROBES_TO_FAIL = 3
_FIRST_PROBE_S = 0.2
"""Before the first probe of an instance that does not answer; later ones take their time."""


class Reports(Protocol):
    """What a forwarder reports to the scheduler."""

    def answered(self, task: Task, attempt: int, answer: InstanceSubmitResponse) -> None:
        """The instance acknowledged the task, or returned its result."""

    def forward_failed(self, task: Task, attempt: int, error: InstanceError) -> None:
        """The instance did not take the task, or lost it."""

    def probed(self, uuid: str, models: tuple[str, ...], replicas: int) -> None:
        """The instance answers, and serves these models."""

    def unreachable(self, uuid: str, problem: str, *, gone: bool) -> None:
        """The instance does not answer. ``gone``: its process has ended, so what ran there is lost."""

    def restarted(self, uuid: str, before: float) -> None:
        """The instance has lost the tasks that it had before this time."""

    def paused(self, uuid: str, paused: bool) -> None:
        """The instance is to get no requests for a while (``paused``), or again."""


class InstanceChannel:
    """The connection to one instance: forwards tasks, probes, and counts failures (a circuit breaker)."""

    def __init__(self, uuid: str, client: TaskInstanceClient, kind: InstanceKind, reports: Reports, interval_s: float):
        self.uuid, self.client, self.kind = uuid, client, kind
        self.problem = "it has not answered yet"
        """Why it is unhealthy; empty if it is healthy."""
        self._reports, self._interval_s = reports, interval_s
        self._failures = self._openings = 0
        self._open_until = -math.inf
        self._pauses, self._paused_until = 0, -math.inf
        self._resume: asyncio.TimerHandle | None = None
        self._probe_now = asyncio.Event()
        self._finished_since_probe = self._monitored = False
        self.send: Send | None = None
        """Sends a message over a connection that the instance has opened; then tasks go that way."""
        self.model: str | None = None
        self.concurrency: int | None = None
        """What the registration says; without it, what the instance reports is used."""
        self.boot_id: str | None = None
        """As the instance reported it last."""
        self._registered_at: float | None = None
        """When it registered again without showing whether it has restarted."""
        self._work: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Probe unless it is in use and known, and then at intervals. Idempotent."""
        await self.check()
        self.monitor()
        if self._registered_at is not None:
            self._probe_now.set()

    def monitor(self) -> None:
        """Probe at intervals. Idempotent."""
        if not self._monitored:
            self._monitored = True
            self._spawn(self._monitor())

    async def check(self) -> None:
        """Probe an instance that is not used, unless it has failed too often."""
        if self.problem and asyncio.get_running_loop().time() >= self._open_until:
            try:
                await self.probe()
            except InstanceError as error:
                self.problem = str(error)

    def forward(self, task: Task, attempt: int) -> None:
        task.forward = self._spawn(self._forward(task, attempt))

    def ended(self, problem: str = "") -> None:
        """A task ended there: well, or by a ``problem`` of the instance."""
        if problem:
            self.failed(problem)
            return
        self._failures = self._openings = self._pauses = 0
        self._finished_since_probe = True

    def pause(self, retry_after: float | None = None, *, probe: bool = False) -> None:
        """A request did not get in, since the instance is busy or (``probe``) accepts no connection: send none for a
        while. What runs there goes on."""
        now = asyncio.get_running_loop().time()
        if now >= self._paused_until:
            self._pauses += 1
        pause_s = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2 ** min(self._pauses - 1, 10))
        if retry_after is not None:
            pause_s = min(max(retry_after, _FIRST_PAUSE_S), _MAX_RETRY_AFTER_S)
        if now + pause_s > self._paused_until:
            self._paused_until = now + pause_s
            if self._resume is not None:
                self._resume.cancel()
            self._resume = asyncio.get_running_loop().call_later(pause_s, self._reports.paused, self.uuid, False)
            self._reports.paused(self.uuid, True)
        if probe:
            self._probe_now.set()

    def failed(self, problem: str, *, gone: bool = False) -> None:
        """A request failed by the instance's fault: stop using it at once if it is gone, else after some in a row."""
        self._failures += 1
        if gone or self._failures >= FAILURES_TO_OPEN:
            now = asyncio.get_running_loop().time()
            if not gone:
                self._open_until = now + min(_MAX_RECOVERY_S, self._interval_s * 2**self._openings)
                self._openings += 1
                self._failures = FAILURES_TO_OPEN - 1  # after recovery, one more failure opens it again
            self._unreachable(problem, gone=gone)
            self._probe_now.set()

    def connect(self, send: Send | None) -> None:
        """Send tasks over the instance's own connection from now on, or (None) no longer."""
        self.send = send
        self._probe_now.set()

    def registered_again(self, boot_id: str | None) -> None:
        """It may have restarted: it has if it reports another boot id; or, without boot ids, an empty queue now."""
        now = time.monotonic()
        if not self._compare(boot_id, now):
            self._registered_at = now

    def _compare(self, boot_id: str | None, now: float) -> bool:
        """Whether a reported boot id shows if it has restarted."""
        known, self.boot_id = self.boot_id, boot_id or self.boot_id
        if boot_id is None or known is None:
            return False
        if boot_id != known:
            self._reports.restarted(self.uuid, now)
        return True

    async def probe(self) -> None:
        """Ask the instance what it serves, and whether it has restarted. One that is connected need not answer HTTP if
        its registration names its model. Raises InstanceError."""
        if self.send is not None and self.model is not None:
            self.problem = ""
            self._reports.probed(self.uuid, (self.model,), self.concurrency or 1)
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                if self.kind is InstanceKind.OPENAI:
                    models, replicas = tuple(await self.client.get_models_async()), 0
                else:
                    status = await self.client.get_status_async()
                    models, replicas = (status.model_type,) if status.model_type else (), status.replicas_running
                    empty = "queue_size" in status.model_fields_set and not status.queue_size
                    if not self._compare(status.boot_id, began) and empty and self._registered_at is not None:
                        self._reports.restarted(self.uuid, self._registered_at)
                    self._registered_at = None
        except TimeoutError:
            raise InstanceError(f"The instance {self.client.instance_id} did not answer within 5 s.") from None
        self.problem = ""
        self._reports.probed(self.uuid, models, replicas)

    def end(self) -> None:
        """Close the connections in the background."""
        self._end = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        for one in self._work:
            one.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.client.close_async()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def _forward(self, task: Task, attempt: int) -> None:
        try:
            answer = await (self._call_openai(task) if self.kind is InstanceKind.OPENAI else self._submit(task))
            if answer is not None and answer.task_id not in {None, task.id}:
                raise InstanceError(f"The instance {self.client.instance_id} answered for the task {answer.task_id}.")
        except InstanceError as error:
            self._reports.forward_failed(task, attempt, error)
        except Exception as error:  # noqa: BLE001 # whatever an answer causes, the task must not stay in its slot
            _log.exception("forwarding task %s to %s failed", task.id, self.client.instance_id)
            failed = InstanceError(f"Forwarding to {self.client.instance_id} failed: {type(error).__name__}: {error}.")
            self._reports.forward_failed(task, attempt, failed)
        else:
            if answer is not None:
                self._pauses = 0
                self._reports.answered(task, attempt, answer)

    async def _submit(self, task: Task) -> InstanceSubmitResponse | None:
        if self.send is not None:
            message = {"type": "task", "task_id": task.id, "model_name": task.model}
            task.socket = self.send
            try:
                await self.send({**message, "task_input": task.input, "metadata": task.metadata})
            except Exception as error:  # noqa: BLE001 # a server's socket may raise many kinds when it is closed
                raise InstanceError(f"The connection of {self.client.instance_id} failed: {error}.") from None
            return None  # it acknowledges in a message of its own
        task.socket = None
        return await self.client.submit_async(
            task.input, task_id=task.id, model_name=task.model, metadata=task.metadata
        )

    async def _call_openai(self, task: Task) -> InstanceSubmitResponse:
        """A task for an OpenAI-style server: its input is the body of the request."""
        body = task.input if isinstance(task.input, dict) else {"input": task.input}
        if body.get("stream"):
            refused = InstanceError("The input of a task has stream: true.", next_step="POST it to /v1 for a stream")
            refused.status = 422
            raise refused
        path = next((path for key, path in _OPENAI_PATHS if key in body), _OPENAI_PATHS[-1][1])
        result = await self.client.post_json(path, {"model": task.model, **body})
        return InstanceSubmitResponse.model_validate({"task_id": task.id, "result": result})

    async def _monitor(self) -> None:
        """Probe at intervals, and sooner after a failure; report what changed."""
        loop = asyncio.get_running_loop()
        failed = 0
        while True:
            pause = min(self._interval_s, _FIRST_PROBE_S * 2**failed) if self.problem else self._interval_s
            try:
                async with asyncio.timeout(max(pause, self._open_until - loop.time())):
                    await self._probe_now.wait()
            except TimeoutError:
                pass
            self._probe_now.clear()
            if loop.time() < self._open_until:
                continue
            self._finished_since_probe = False
            try:
                await self.probe()
                failed = 0
            except InstanceError as error:
                if error.local:
                    continue
                failed = 0 if self._finished_since_probe else failed + 1
                if failed and (not error.sent or failed >= _PROBES_TO_FAIL):
                    self._unreachable(str(error), gone=not error.sent and failed >= _PROBES_TO_FAIL)

    def _unreachable(self, problem: str, *, gone: bool) -> None:
        if not self.problem:
            _log.warning("instance %s (%s) is not used: %s", self.uuid, self.client.instance_id, problem)
        self.problem = problem
        self._reports.unreachable(self.uuid, problem, gone=gone)


_OPENAI_PATHS = (("messages", "/v1/chat/completions"), ("prompt", "/v1/completions"), ("input", "/v1/embeddings"))


def give_slot(slot: asyncio.Future[HttpPool], pool: HttpPool) -> None:
    """A pass-through request may be forwarded."""
    if not slot.done():
        slot.set_result(pool)


def refuse_slot(slot: asyncio.Future[HttpPool], error: SchedulerError) -> None:
    """A pass-through request does not wait any longer."""
    if not slot.done():
        slot.set_exception(error)
        slot.exception()  # its client may have left


def cancel_forward(work: asyncio.Task[None]) -> None:
    """Close the connection on which an answer is awaited; not if that is the answer that is being processed."""
    if work is not asyncio.current_task():
        work.cancel()
