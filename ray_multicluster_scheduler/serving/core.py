"""SwarmPilotScheduler: sends each request to the instance of its model that is expected to finish it first."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InstanceError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.serving.client import TaskInstance, TaskInstanceClient
from ray_multicluster_scheduler.serving.errors import (
    TaskIdTakenError,
    check_available,
    queue_full,
    unknown_task,
)
from ray_multicluster_scheduler.serving.instance_registry import InstanceRegistry, Registration
from ray_multicluster_scheduler.serving.journal import TaskJournal, fingerprint_of
from ray_multicluster_scheduler.serving.loop_owner import LoopOwner
from ray_multicluster_scheduler.serving.models import (
    MAX_CONCURRENCY,
    InstanceKind,
    InstanceSettings,
    InstanceSubmitResponse,
    ModelInfo,
    QueueInfoItem,
    SchedulerRequest,
    SchedulerResponse,
    address_of,
)
from ray_multicluster_scheduler.serving.predictor import LookupPredictor, Predictor, features_of
from ray_multicluster_scheduler.serving.router.forwarder import (
    InstanceChannel,
    Send,
    cancel_forward,
    give_slot,
    refuse_slot,
)
from ray_multicluster_scheduler.serving.router.ledger import Instance, Task
from ray_multicluster_scheduler.serving.router.router import SLICE, Router
from ray_multicluster_scheduler.serving.strategies import BaseStrategy, create_strategy
from ray_multicluster_scheduler.serving.task_tracker import TaskInfo, TaskTracker

T = TypeVar("T")
_log = get_logger(__name__)
DEFAULT_STRATEGY = "shortest_queue"
MAX_ATTEMPTS = 3
"""Of a task whose instances fail while they have it."""
_BUSY = frozenset({429, 503})


class SwarmPilotScheduler(LoopOwner):
    """Chooses, charges, forwards and tracks. Every method may be called from any thread.

    In an asyncio server pass its ``loop``; otherwise a thread of this object does the I/O. ``close()`` ends it.
    With a ``journal`` tasks and instances outlive the process: a task is forwarded only after it is on disk, and its
    result is visible only after that is. Call :meth:`restore` first; the caller closes the journal's store last.
    """

    def __init__(
        self,
        strategy: str | BaseStrategy = DEFAULT_STRATEGY,
        *,
        predictions: str | Path | None = None,
        max_waiting: int = 100_000,
        health_interval_s: float = 5.0,
        task_timeout_s: float = 3600.0,
        tracker: TaskTracker | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        journal: TaskJournal | None = None,
    ) -> None:
        super().__init__(loop)
        self.task_tracker = tracker or TaskTracker()
        self.journal = journal
        if journal is not None:
            self.task_tracker.on_forgotten = journal.forgotten
        self.max_waiting = max_waiting
        self.predictor = Predictor(LookupPredictor(predictions) if predictions else None)
        self._router = Router(create_strategy(strategy), self.predictor)
        self._instances = InstanceRegistry(self._router, journal, self, health_interval_s)
        self.task_timeout_s = task_timeout_s
        self._closed = self._continues = False

    # ---- requests

    def schedule(self, request: SchedulerRequest) -> SchedulerResponse:
        """Choose an instance and charge the request to it; it is forwarded as soon as the instance has a free slot.

        Returns at once, or with a journal as soon as the task is on disk. The same request again with the same
        ``task_id`` is the same task. Raises QueueFullError over ``max_waiting``, TaskIdTakenError if the id is that of
        another request.
        """
        info = self._submit_one(request)
        if self.journal is not None:
            self.run(self.durable())
        return _response(info)

    def submit(
        self, model: str, requests: Iterable[tuple[str | None, Any, Mapping[str, Any]]], owner: str = ""
    ) -> list[TaskInfo | SchedulerError]:
        """Schedule requests for one model in one pass; each is a task id (or None), the input and the metadata.
        Returns for each its task, or why it was refused. The id of another owner's task is taken. They are accepted
        when :meth:`durable` returns."""
        now = time.monotonic()
        results: list[TaskInfo | SchedulerError] = []
        accepted: list[tuple[Task, TaskInfo]] = []
        with self._lock:
            self._check_open()
            if self.journal is not None:
                self.journal.check_writable()
            for task_id, data, metadata in requests:
                task = Task(
                    id=task_id or uuid.uuid4().hex,
                    model=model,
                    input=data,
                    metadata=dict(metadata),
                    features=features_of(metadata),
                    arrived=now,
                )
                fingerprint = 0 if task_id is None else fingerprint_of(task)
                known = self.task_tracker.get_task_info(task_id) if task_id is not None else None
                if known is None and task.id not in self._router.tasks:
                    results.append(self._accept(task, fingerprint, accepted, owner))
                elif known is not None and (known.fingerprint, known.owner) == (fingerprint, owner):  # a repeat
                    results.append(known)
                else:
                    sentence = f"The task id {task_id} is taken by another request."
                    results.append(TaskIdTakenError(sentence, task_id=task_id, next_step="choose another id"))
            if self.journal is None or not accepted:
                self._place(accepted)
            else:
                self._call_after(self.journal.accepted(accepted), self._place, accepted)
        return results

    async def schedule_async(self, request: SchedulerRequest) -> SchedulerResponse:
        """As :meth:`schedule`, without blocking the event loop."""
        info = self._submit_one(request)
        await self.durable()
        return _response(info)

    async def durable(self) -> None:
        """Wait until all that was accepted, reported or changed so far is on disk; without a journal not at all. Raises
        StoreError if it cannot be written any more."""
        if self.journal is not None:
            await asyncio.wrap_future(self.journal.written)

    def handle_completion(
        self,
        task_id: str,
        instance_id: str | None = None,
        execution_time: float | None = None,
        result: Any = None,
        error: str | None = None,
    ) -> bool:
        """An instance (its UUID or "host:port") reports the end of a task; ``execution_time`` is in milliseconds.

        Returns whether this was the first report; repeats are harmless. It is on disk when :meth:`durable` returns.
        Raises UnknownItemError for an unknown task, InstanceError if that instance never had it.
        """
        with self._lock:
            task = self._router.tasks.get(task_id)
            if task is None or task.slot is not None:
                if self.task_tracker.get_task_info(task_id) is None:
                    raise unknown_task(task_id)
                return False
            holder = task.instance.uuid if task.instance is not None and task.started is not None else None
            current = instance_id is None or self._instances.is_called(holder, instance_id)
            if not current and not any(self._instances.is_called(one, instance_id) for one in task.tried):
                raise InstanceError(
                    f"The instance {instance_id} reports a result of task {task_id}, which it was never given.",
                    next_step="report it under the id of the instance that ran it",
                )
            self._finish(task, result, error, execution_time, current=current)
            return True

    def wait(self, task_id: str, timeout: float | None = None) -> Any:
        """Wait for the result and return it. Raises InferenceError if the task failed, TaskTimeoutError after
        ``timeout`` seconds (the task goes on), UnknownItemError for an unknown id."""
        return self.task_tracker.wait(task_id, timeout)

    async def wait_async(self, task_id: str, timeout: float | None = None) -> Any:
        """As :meth:`wait`, without blocking the event loop."""
        return await self.task_tracker.wait_async(task_id, timeout)

    def explain(self, task_id: str) -> dict[str, Any]:
        """State and instance of a task, and why that one: each candidate with its expected wait, the task's own
        predicted time there and its queue. Raises UnknownItemError."""
        return self.task_tracker.explain(task_id)

    # ---- instances

    def add_instance(
        self,
        address: str | TaskInstanceClient,
        *,
        model_name: str | None = None,
        kind: InstanceKind | str = InstanceKind.QUEUE,
        concurrency: int | None = None,
        weight: float | None = None,
        hardware: str | None = None,
        software_name: str | None = None,
        software_version: str | None = None,
    ) -> TaskInstance:
        """Register an instance by URL, "host:port" or client. Waits a few seconds at most for its first answer; one
        that does not answer is registered all the same, and used when it does. The same address again is the same
        instance, with the settings that are given now. Raises ConfigurationError for what is no address."""
        return self.run(
            self.add_instance_async(
                address,
                model_name=model_name,
                kind=kind,
                concurrency=concurrency,
                weight=weight,
                hardware=hardware,
                software_name=software_name,
                software_version=software_version,
            )
        )

    async def register_async(self, request: InstanceSettings, addresses: Sequence[str] = ()) -> TaskInstance:
        """As :meth:`add_instance`, for a registration of the API or of a configuration. ``addresses``: connect to
        these only, whatever the host's name resolves to later."""
        settings = request.model_dump(exclude={"host", "port"}, exclude_unset=True)
        client = TaskInstanceClient(address_of(request.host, request.port), addresses=addresses)
        return await self.add_instance_async(client, **settings)

    async def add_instance_async(
        self,
        address: str | TaskInstanceClient,
        *,
        model_name: str | None = None,
        kind: InstanceKind | str = InstanceKind.QUEUE,
        concurrency: int | None = None,
        weight: float | None = None,
        boot_id: str | None = None,
        **hardware: str | None,
    ) -> TaskInstance:
        """As :meth:`add_instance`, without blocking the event loop."""
        try:
            client = address if isinstance(address, TaskInstanceClient) else TaskInstanceClient(address)
        except ValueError as error:
            raise ConfigurationError(f"{address}: {error}.", next_step='give a URL, or "host:port"') from None
        known = {name: value for name, value in hardware.items() if value}
        with self._lock:
            self._check_open()
            channel = self._instances.add(
                client, Registration(InstanceKind(kind), model_name, concurrency, weight, known, boot_id)
            )
            self._carry_out()
        await self._on_loop(channel.start())
        await self.durable()
        return TaskInstance(channel.uuid, channel.client)

    def remove_instance(self, instance: str | TaskInstance, *, drain: bool = True) -> str:
        """Stop using an instance (by UUID or "host:port"); returns its UUID. Tasks that wait there go elsewhere.

        Those that run there finish (``drain``), or are sent elsewhere if they may run twice, and fail otherwise.
        Raises UnknownItemError.
        """
        with self._lock:
            found = self._instances.find(instance.uuid if isinstance(instance, TaskInstance) else instance)
            name = self._instances.channels[found].client.instance_id
            running = self._instances.drain(found)
            if not drain:
                for task in running:
                    self._lose(task, f"the instance {name} was removed", removed=True)
            self._carry_out()
            self._forget_if_empty(found)
        return found

    def set_strategy(self, strategy: str | BaseStrategy, model: str | None = None) -> None:
        """Use a strategy from the next request on: for one model, or for all that have none of their own. What is
        charged stays. Raises ConfigurationError for an unknown name."""
        chosen = create_strategy(strategy)
        with self._lock:
            if model is None:
                self._router.default_strategy = chosen
            else:
                self._router.strategies[model] = chosen

    def instance_uuid(self, name: str) -> str | None:
        """The UUID of a registered instance, by UUID or "host:port"; None if there is none."""
        with self._lock, suppress(UnknownItemError):
            return self._instances.find(name)
        return None

    def connect_instance(self, instance: str, send: Send) -> Callable[[], None]:
        """Send the tasks of an instance over its own connection from now on, until the returned function is called."""
        channel = self._instances.channels[instance]
        channel.connect(send)

        def disconnect() -> None:
            with self._lock:
                if channel.send is send:
                    channel.connect(None)
                found = self._router.instances.get(instance)
                for task in list(found.running.values()) if found is not None else ():
                    if task.socket is send and not task.acknowledged:
                        self._lose(task, f"the connection of {channel.client.instance_id} was closed")
                self._carry_out()

        return disconnect

    def acknowledge(self, task_id: str, instance: str, success: bool, message: str) -> bool:
        """An instance took a task that was sent over its connection, or refused it. False if it was not given it."""
        with self._lock:
            task = self._router.tasks.get(task_id)
            if task is None or task.instance is None or task.instance.uuid != instance or task.started is None:
                return False
            if success:
                self._acknowledged(task)
            else:
                self.forward_failed(task, task.attempt, InstanceError(f"It refused the task: {message}."))
            return True

    def models(self) -> list[ModelInfo]:
        """The models that have instances or waiting tasks."""
        with self._lock:
            return self._instances.models()

    def v1_models(self) -> list[str]:
        """The models that /v1 serves."""
        with self._lock:
            return self._router.v1_models()

    def instance_problem(self, instance: str) -> str:
        """Why an instance is not used; empty if it is healthy."""
        return self._instances.channels[instance].problem

    def queue_info(self, model: str | None = None) -> list[QueueInfoItem]:
        """The queue of each instance (of one model), and how good the predictions for it were."""
        accuracy = {(name, uuid): one for name, uuid, one in self.predictor.accuracy()}
        with self._lock:
            return self._instances.queue_info(model, time.monotonic(), accuracy)

    def statistics(self) -> dict[str, Any]:
        """Counts of tasks by state, times by model and instance, queues, and how good the predictions were."""
        with self._lock:
            return {
                "tasks": {str(status): count for status, count in self.task_tracker.counts().items()},
                "strategy": self._router.default_strategy.name,
                "strategies": {model: one.name for model, one in self._router.strategies.items()},
                "times": self.task_tracker.timing_statistics(),
                "queues": [row.model_dump() for row in self.queue_info()],
                "predictions": self.predictor.accuracy_rows(),
            }

    def restore(self) -> None:
        """Continue with the instances and tasks of the journal. Call it once, before all else. Raises StoreError."""
        assert self.journal is not None
        with self._lock:
            self._instances.restore()
            for info, task in self.journal.tasks():
                self.task_tracker.restore(info)
                if task is not None:
                    self._continue(task, self._router.instances.get(info.ti_uuid or ""))
            for one in list(self._instances.channels):
                self._forget_if_empty(one)
            for channel in self._instances.channels.values():
                self.call_soon(channel.monitor)
            self._carry_out()

    def close(self) -> None:
        """End all connections; tasks that are not finished stay as they are, and nobody waits for them any longer.
        Idempotent."""
        self._end_waits()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.run(self._close_channels())
            thread.stop()

    async def close_async(self) -> None:
        """As :meth:`close`, for a scheduler that runs on the caller's event loop."""
        self._end_waits()
        if self._thread is None:
            await self._close_channels()
        else:
            await asyncio.to_thread(self.close)

    def _end_waits(self) -> None:
        self._closed = True
        self.task_tracker.end_callbacks()

    async def _close_channels(self) -> None:
        with self._lock:
            waiting, live = self.task_tracker.waiting, len(self._router.tasks)
        if live and self.journal is None:
            _log.warning("the scheduler ends with %d accepted tasks, of which %d wait; they are lost", live, waiting)
        for channel in list(self._instances.channels.values()):
            await channel.close()

    def __enter__(self) -> SwarmPilotScheduler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- pass-through requests, on the event loop

    def open_request(self, task: Task, owner: str = "") -> None:
        """Place a request that its caller forwards when ``task.slot`` is set. Raises UnknownItemError for an unknown
        model, ServiceUnavailableError without an instance that answers, QueueFullError over ``max_waiting``."""
        with self._lock:
            self._check_open()
            check_available(list(self._router.instances_of(task.model)), task.model)
            if self._router.waiting_for(task.model) >= self.max_waiting:
                raise queue_full(task.id, task.model, self.max_waiting)
            self._router.submit(task, task.arrived)
            self._carry_out()
            self.task_tracker.keep_request(task, owner)

    def close_request(self, task: Task, *, learn: bool, problem: str = "") -> None:
        """The request has ended."""
        with self._lock:
            instance = task.instance
            if self._router.tasks.get(task.id) is not task:
                return
            if instance is not None and task.started is not None:
                self._instances.channels[instance.uuid].ended(problem)
                if learn:
                    now = time.monotonic()
                    total, execution = (now - task.arrived) * 1000, (now - task.started) * 1000
                    self.task_tracker.record_times(task.model, instance.uuid, total, execution)
            self.task_tracker.end_request(task, completed=learn, problem=problem)
            self._router.finish(task, time.monotonic(), learn=learn)
            if instance is not None:
                self._forget_if_empty(instance.uuid)
            self._carry_out()

    def retry_request(self, task: Task, problem: str, *, sent: bool) -> None:
        """The request did not reach its instance, or may be sent twice: place it again."""
        with self._lock:
            instance = task.instance
            assert instance is not None
            channel = self._instances.channels[instance.uuid]
            task.failures += sent
            if task.failures == MAX_ATTEMPTS:
                raise InstanceError(f"The request for {task.model} was tried {MAX_ATTEMPTS} times: {problem}.")
            task.slot = self.loop.create_future()
            channel.failed(problem) if sent else channel.pause(probe=True)
            self._router.give_back(task, time.monotonic(), tried=sent)
            self._forget_if_empty(instance.uuid)
            check_available(list(self._router.instances_of(task.model)), task.model)
            self._carry_out()

    # ---- reports of the channels, on the event loop

    def answered(self, task: Task, attempt: int, answer: InstanceSubmitResponse) -> None:
        """An instance acknowledged a task, or returned its result."""
        with self._lock:
            if self._router.tasks.get(task.id) is not task:
                return
            current = task.attempt == attempt
            if answer.finished:
                self._finish(task, answer.result, answer.error, answer.execution_time, current=current)
            elif answer.status == "error":
                self.forward_failed(task, attempt, InstanceError(f"It refused the task: {answer.message}."))
            elif current:
                self._acknowledged(task)

    def forward_failed(self, task: Task, attempt: int, error: InstanceError) -> None:
        """An instance did not take a task, or lost it."""
        with self._lock:
            if self._router.tasks.get(task.id) is not task or task.attempt != attempt or task.instance is None:
                return
            channel, status = self._instances.channels[task.instance.uuid], error.status
            taken = error.sent and status not in _BUSY
            if taken and status is not None and status < 500 and status != 408:
                self._finish(task, None, str(error), None)  # the request is wrong; every instance would say so
                return
            if taken or error.gone:
                channel.failed(str(error), gone=error.gone)
            else:
                channel.pause(error.retry_after, probe=not error.sent)
            if self._router.tasks.get(task.id) is task and task.attempt == attempt:
                self._lose(task, str(error), taken=taken)
            self._carry_out()

    def probed(self, uuid: str, models: tuple[str, ...], replicas: int) -> None:
        """An instance answers, and serves these models."""
        now = time.monotonic()
        with self._lock:
            instance = self._router.instances.get(uuid)
            if instance is None:
                return
            channel = self._instances.channels[uuid]
            models = (channel.model,) if channel.model else models
            if channel.kind is InstanceKind.QUEUE and channel.concurrency is None:
                self._router.set_concurrency(uuid, min(max(1, replicas), MAX_CONCURRENCY))
            if models != instance.models:
                self._router.set_models(uuid, models)
            self._router.set_health(uuid, True)
            self._expire(instance, now)
            self._carry_out()

    def unreachable(self, uuid: str, problem: str, *, gone: bool) -> None:
        """An instance does not answer; if it is gone, so is what ran there."""
        now = time.monotonic()
        with self._lock:
            instance = self._router.instances.get(uuid)
            if instance is None:
                return
            self._router.set_health(uuid, False)
            for task in list(instance.running.values()) if gone else ():
                self._lose(task, f"{problem} It ran there")
            self._expire(instance, now)
            self._carry_out()
            for model in instance.models if gone else ():
                self._refuse_waiting(model)

    def paused(self, uuid: str, paused: bool) -> None:
        """An instance gets no requests for a while, or again."""
        with self._lock:
            if uuid in self._router.instances:
                self._router.set_paused(uuid, paused)
                self._carry_out()

    def restarted(self, uuid: str, before: float) -> None:
        """An instance has lost the tasks that it acknowledged before this time."""
        with self._lock:
            instance = self._router.instances.get(uuid)
            for task in list(instance.running.values()) if instance is not None else ():
                if task.acknowledged and task.started is not None and task.started < before:
                    self._lose(task, f"The instance {self._instances.channels[uuid].client.instance_id} was restarted")
            self._carry_out()

    # ---- inside, with the lock held

    def _submit_one(self, request: SchedulerRequest) -> TaskInfo:
        (info,) = self.submit(request.model_type, [(request.task_id, request.input_data, request.metadata)])
        if isinstance(info, SchedulerError):
            raise info
        return info

    def _accept(
        self, task: Task, fingerprint: int, accepted: list[tuple[Task, TaskInfo]], owner: str
    ) -> TaskInfo | SchedulerError:
        if self.task_tracker.waiting_for(task.model) >= self.max_waiting:
            return queue_full(task.id, task.model, self.max_waiting)
        info = self.task_tracker.register_task(task.id, None, task.model, owner=owner)
        info.fingerprint = fingerprint
        accepted.append((task, info))
        return info

    def _place(self, accepted: list[tuple[Task, TaskInfo]]) -> None:
        with self._lock:
            if self._closed:
                return
            now = time.monotonic()
            for count, (task, _) in enumerate(accepted):
                try:
                    self._router.submit(task, now, later=count >= SLICE)
                except Exception as error:  # noqa: BLE001 # a fault of this program must not leave a task that waits in no queue
                    _log.exception("task %s cannot be placed", task.id)
                    self._end(task, None, f"It cannot be placed: {type(error).__name__}: {error}.")
            self._carry_out()

    def _acknowledged(self, task: Task) -> None:
        task.acknowledged = True
        if self.journal is not None:
            self.journal.moved(task)

    def _end(self, task: Task, result: Any, error: str | None, execution_ms: float | None = None) -> None:
        """Make the outcome of a task visible, with a journal as soon as it is on disk."""
        if error is None:
            show = partial(self.task_tracker.mark_completed, task.id, result, execution_ms=execution_ms)
        else:
            show = partial(self.task_tracker.mark_failed, task.id, error, execution_ms=execution_ms)
        if self.journal is None:
            show()
        else:
            self._call_after(self.journal.finished(task, result, error, execution_ms), show)

    def _finish(
        self, task: Task, result: Any, error: str | None, execution_ms: float | None, *, current: bool = True
    ) -> None:
        """End a task; ``current``: by the instance that holds it now, not by an earlier one."""
        instance = task.instance
        self._end(task, result, error, execution_ms)
        self._router.finish(task, time.monotonic(), execution_ms, learn=current and error is None)
        if instance is not None:
            if current:
                self._instances.channels[instance.uuid].ended()
            self._forget_if_empty(instance.uuid)
        self._carry_out()

    def _lose(self, task: Task, problem: str, *, taken: bool = True, removed: bool = False) -> None:
        """The instance of a running task lost it, or did not take it: repeat it if that is safe, else fail it."""
        if task.slot is not None:  # whoever forwards it sees the end of its connection
            return
        instance = task.instance
        if task.forward is not None:
            self.call_soon(cancel_forward, task.forward)
        task.failures += taken and not removed
        repeatable = not taken or bool(task.metadata.get("idempotent", not task.acknowledged))
        if repeatable and task.failures < MAX_ATTEMPTS:
            self._router.give_back(task, time.monotonic(), tried=taken)
            if self.journal is not None:
                self.journal.moved(task)
        else:
            why = f"it was tried {task.failures} times" if repeatable else "it may have run, and is not idempotent"
            self._end(task, None, f"{problem.rstrip('.')}; {why}.")
            self._router.finish(task, time.monotonic(), learn=False)
        if instance is not None:
            self._forget_if_empty(instance.uuid)

    def _expire(self, instance: Instance, now: float) -> None:
        """Give up tasks that have run for longer than ``task_timeout_s`` on this instance."""
        for task in list(instance.running.values()):
            if task.started is not None and now - task.started > self.task_timeout_s:
                self._lose(task, f"The instance {instance.uuid} reported no result in {self.task_timeout_s:g} s")

    def _carry_out(self) -> None:
        """Record what was placed, and forward what can start."""
        now = time.monotonic()
        if self._router.review(now) and not self._continues:
            self._continues = True
            self.loop.call_soon_threadsafe(self._continue_review)
        started = self._router.start_ready(now)
        for task in self._router.moved:
            if task.slot is None and self._router.tasks.get(task.id) is task:
                self._record_place(task)
        self._router.moved.clear()
        for task in started:
            assert task.instance is not None
            channel = self._instances.channels[task.instance.uuid]
            if task.slot is not None:
                self.call_soon(give_slot, task.slot, channel.client.pool)
                continue
            self.task_tracker.mark_scheduled(task.id)
            if self.journal is None:
                self.call_soon(self._forward, channel, task, task.attempt)
            else:
                self._call_after(self.journal.moved(task), self._forward, channel, task, task.attempt)

    def _continue_review(self) -> None:
        """Place more of many tasks, for which something has changed, in the next step of the loop."""
        with self._lock:
            self._continues = False
            if not self._closed:
                self._carry_out()
                for one in [one.uuid for one in self._router.instances.values() if one.draining]:
                    self._forget_if_empty(one)

    def _refuse_waiting(self, model: str) -> None:
        """The clients of pass-through requests do not wait for an instance that is gone."""
        try:
            check_available(list(self._router.instances_of(model)), model)
        except SchedulerError as error:
            for task in self._router.unassigned.get(model, {}).values():
                if task.slot is not None:
                    self.call_soon(refuse_slot, task.slot, error)

    def _forward(self, channel: InstanceChannel, task: Task, attempt: int) -> None:
        """Forward a task that was started, unless it has gone elsewhere meanwhile."""
        with self._lock:
            if self._router.tasks.get(task.id) is task and task.attempt == attempt and not self._closed:
                channel.forward(task, attempt)

    def _record_place(self, task: Task) -> None:
        if task.instance is not None:
            self.task_tracker.assign(task.id, task.instance.uuid, task.decision.reason, task.decision)
            return
        self.task_tracker.assign(task.id, None, self._router.why_unassigned(task.model))

    def _continue(self, task: Task, holder: Instance | None) -> None:
        """Continue with a task of the journal; ``holder`` is the registered instance that had it."""
        if task.acknowledged and holder is not None:
            task.tried.pop()
            self._router.resume(task, holder)
        elif task.started is not None and not task.metadata.get("idempotent", not task.acknowledged):
            self._end(task, None, "The scheduler was restarted; it may have run, and is not idempotent.")
        else:
            task.started, task.acknowledged = None, False
            self._router.submit(task, time.monotonic())

    def _forget_if_empty(self, uuid: str) -> None:
        """Drop an instance that is being removed, and has no tasks left."""
        channel = self._instances.forget_if_empty(uuid)
        if channel is not None:
            self.call_soon(channel.end)

    def _check_open(self) -> None:
        if self._closed:
            raise SchedulerError("This serving scheduler is closed.", next_step="create another one")


def _response(info: TaskInfo) -> SchedulerResponse:
    return SchedulerResponse(task_id=info.task_id, instance_id=info.ti_uuid, reason=info.reason)
