"""Forwarder: sends tasks to instances, and probes whether they answer. Everything here runs on one event loop."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

from ray_multicluster_scheduler.common.exception import InstanceError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.serving.client import TaskInstanceClient
from ray_multicluster_scheduler.serving.models import InstanceKind, InstanceSubmitResponse
from ray_multicluster_scheduler.serving.router.ledger import Task

_log = get_logger(__name__)
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
FAILURES_TO_OPEN = 5
"""Failed requests in a row after which an instance gets no tasks until it has recovered."""
_MAX_RECOVERY_S = 60.0
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


class InstanceChannel:
    """The connection to one instance: forwards tasks, probes, and counts failures (a circuit breaker)."""

    def __init__(self, uuid: str, client: TaskInstanceClient, kind: InstanceKind, reports: Reports, interval_s: float):
        self.uuid, self.client, self.kind = uuid, client, kind
        self.problem = "it has not answered yet"
        """Why it is unhealthy; empty if it is healthy."""
        self._reports, self._interval_s = reports, interval_s
        self._failures = self._openings = 0
        self._open_until = -math.inf
        self._probe_now = asyncio.Event()
        self._finished_since_probe = self._monitored = False
        self.send: Send | None = None
        """Sends a message over a connection that the instance has opened; then tasks go that way."""
        self.model: str | None = None
        self.concurrency: int | None = None
        """What the registration says; without it, what the instance reports is used."""
        self._work: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Probe unless it is in use, and then at intervals. Idempotent."""
        await self.check()
        self.monitor()

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
        self._spawn(self._forward(task, attempt))

    def ended(self, problem: str = "") -> None:
        """A task ended there: well, or by a ``problem`` of the instance."""
        if problem:
            self.failed(problem, gone=False)
            return
        self._failures = self._openings = 0
        self._finished_since_probe = True

    def failed(self, problem: str, *, gone: bool) -> None:
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

    async def probe(self) -> None:
        """Ask the instance what it serves. One that is connected need not answer HTTP if its registration names its
        model. Raises InstanceError."""
        if self.send is not None and self.model is not None:
            self.problem = ""
            self._reports.probed(self.uuid, (self.model,), self.concurrency or 1)
            return
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                if self.kind is InstanceKind.OPENAI:
                    models, replicas = tuple(await self.client.get_models_async()), 0
                else:
                    status = await self.client.get_status_async()
                    models, replicas = (status.model_type,) if status.model_type else (), status.replicas_running
        except TimeoutError:
            raise InstanceError(f"The instance {self.client.instance_id} did not answer within 5 s.") from None
        self.problem = ""
        self._reports.probed(self.uuid, models, replicas)

    def end(self) -> None:
        """Close the connections in the background."""
        self._end = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        for one in self._work:
            one.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
        await self.client.close_async()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

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
                failed += 1
                gone = not error.sent
                if not self._finished_since_probe and (gone or failed >= _PROBES_TO_FAIL):
                    self._unreachable(str(error), gone=gone and failed >= _PROBES_TO_FAIL)

    def _unreachable(self, problem: str, *, gone: bool) -> None:
        if not self.problem:
            _log.warning("instance %s (%s) is not used: %s", self.uuid, self.client.instance_id, problem)
        self.problem = problem
        self._reports.unreachable(self.uuid, problem, gone=gone)


_OPENAI_PATHS = (("messages", "/v1/chat/completions"), ("prompt", "/v1/completions"), ("input", "/v1/embeddings"))
