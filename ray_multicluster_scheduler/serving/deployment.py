"""Deployment: keeps replicas of a model running as actors; each is an instance of a SwarmPilotScheduler.

It has no queue of its own: a ReplicaHost submits each replica as an ordinary actor, which waits, is placed and is
explained like every other. Its name is the name of its model.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ray_multicluster_scheduler.common.exception import (
    ConfigurationError,
    InstanceError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.serving.client import TaskInstanceClient
from ray_multicluster_scheduler.serving.core import SwarmPilotScheduler
from ray_multicluster_scheduler.serving.models import (
    DeploymentOptions,
    DeploymentStatus,
    InstanceStatusResponse,
    InstanceSubmitResponse,
    ReplicaStatus,
)

_log = get_logger(__name__)
STABLE_S = 10.0
"""A replica that served for so long is replaced at once; others after a pause that doubles."""
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 60.0


class Replica(Protocol):
    """An actor that holds one object of the deployed class."""

    @property
    def id(self) -> str:
        """The id of its item."""

    @property
    def state(self) -> TaskState: ...

    @property
    def attempt(self) -> int:
        """Grows when the actor is restarted."""

    @property
    def cluster(self) -> str | None: ...

    def reason(self) -> str:
        """Why it is in this state."""

    async def call(self, data: bytes) -> bytes:
        """Pass a JSON list of inputs; returns a JSON list with one ``{"result": …}`` or ``{"error": …}`` for each.
        Raises InstanceError if the actor does not answer; ``gone`` if it has died."""

    def end(self) -> None:
        """End the actor. Idempotent."""


class ReplicaHost(Protocol):
    """Starts the replicas of one deployment. ``changed`` is called from any thread when the state of one changes."""

    def new_id(self) -> str:
        """The id of a new replica."""

    async def start(self, replica_id: str, changed: Callable[[], None]) -> Replica:
        """Submit a replica. Raises SchedulerError."""

    async def find(self, replica_id: str, changed: Callable[[], None]) -> Replica | None:
        """A replica that was submitted before and has not ended."""

    def save(self, options: DeploymentOptions, replica_ids: Sequence[str], *, deleted: bool) -> None:
        """Store this for the next process, before anything that is submitted later."""

    def forget(self) -> None:
        """The deployment is deleted, and its replicas have ended."""


class ReplicaClient(TaskInstanceClient):
    """Sends requests to a replica as calls of its actor, in batches of ``max_batch`` at most. It has no connections."""

    stored = False

    def __init__(self, replica: Replica, options: DeploymentOptions) -> None:
        self.base_url, self.instance_id, self.addresses = f"actor://{replica.id}", replica.id, ()
        self._replica, self._options = replica, options
        self._waiting: list[tuple[Any, asyncio.Future[dict[str, Any]]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._dead_attempt = -1
        """The attempt that a call found dead, perhaps before the item shows it."""
        self.ends_replica = False
        """Whether closing it ends the actor: its instance is being removed."""

    async def get_status_async(self) -> InstanceStatusResponse:
        """Raises InstanceError while the actor is not running."""
        if self._replica.state is not TaskState.RUNNING or self._replica.attempt == self._dead_attempt:
            problem = InstanceError(f"The replica {self._replica.id} is {self._replica.state}.")
            problem.sent = False
            raise problem
        return InstanceStatusResponse(instance_id=self.instance_id, model_type=self._options.name)

    async def submit_async(
        self, task_input: Any, *, task_id: str, model_name: str, metadata: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> InstanceSubmitResponse:  # fmt: skip
        """The result. Waits up to ``batch_wait_ms`` until a batch is full, or longer while the replica is busy."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._waiting.append((task_input, answer))
        if len(self._waiting) >= self._options.max_batch:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(self._options.batch_wait_ms / 1000, self._send)
        return InstanceSubmitResponse.model_validate({"task_id": task_id, **await answer})

    async def close_async(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        if self.ends_replica:
            self._replica.end()

    def _send(self) -> None:
        """Send a batch, unless as many are under way as the replica runs at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting and len(self._calls) < self._options.concurrency:
            size = self._options.max_batch
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            call = asyncio.get_running_loop().create_task(self._call(batch))
            self._calls.add(call)
            call.add_done_callback(self._sent)

    def _sent(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._send()

    async def _call(self, batch: Sequence[tuple[Any, asyncio.Future[dict[str, Any]]]]) -> None:
        attempt = self._replica.attempt
        try:
            data = await self._replica.call(json.dumps([task_input for task_input, _ in batch]).encode())
            answers = json.loads(data)
            for (_, answer), found in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(dict(found))
        except (InstanceError, ValueError, TypeError, RecursionError) as error:  # the last three: a wrong answer
            if isinstance(error, InstanceError) and error.gone:
                self._dead_attempt = attempt
            problem = f"The replica {self._replica.id} sent a wrong answer: {error}."
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error if isinstance(error, InstanceError) else InstanceError(problem))


@dataclass(slots=True, eq=False)
class _Live:
    """A replica that has not ended. ``instance`` is the UUID of its registration, from when it runs."""

    replica: Replica
    client: ReplicaClient
    instance: str | None = None
    since: float = math.inf
    draining: bool = False


class Deployment:
    """Keeps as many replicas as its options say. Used on the scheduler's event loop; :meth:`wake` from any thread."""

    def __init__(self, options: DeploymentOptions, host: ReplicaHost, scheduler: SwarmPilotScheduler) -> None:
        self.options, self.host, self._scheduler = options, host, scheduler
        self._live: dict[str, _Live] = {}
        self._unclear: list[str] = []
        """Replicas that were submitted, perhaps by an earlier process, and have to be found."""
        self._failures = self._errors = 0
        self._start_at = self._pause_s = 0.0
        self.problem = ""
        """Why the last replica ended by itself, or could not be submitted."""
        self.deleted = False
        self._changed = asyncio.Event()

    def wake(self) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._scheduler.loop.call_soon_threadsafe(self._changed.set)

    async def run(self, replica_ids: Iterable[str] = ()) -> None:
        """Until it is deleted and its replicas have ended. ``replica_ids``: those of an earlier process."""
        self._unclear += replica_ids
        while True:
            self._changed.clear()
            try:
                pause_s = await self._reconcile()
                if self.deleted and not self._live:
                    self.host.forget()
                    return
                self._errors = 0
            except Exception as error:  # noqa: BLE001 # whatever it is, the replicas must not be left alone
                self._errors += 1
                pause_s = _pause_s(self._errors)
                self.problem = f"tried again every {pause_s:g} s: {type(error).__name__}: {error}"
                _log.exception("deployment %s is tried again in %g s", self.options.name, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()

    def scale(self, replicas: int) -> None:
        """Start more, or drain and end the newest ones."""
        self.options = self.options.model_copy(update={"replicas": replicas})
        self._failures, self._start_at = 0, 0.0
        self._save()
        self._changed.set()

    def delete(self) -> None:
        """Drain and end all replicas; :meth:`run` returns when they have ended."""
        self.deleted = True
        self.scale(0)

    def status(self) -> DeploymentStatus:
        """Its options, and each replica: item, cluster, state, reason, queue, and how good the predictions were."""
        queues = {row.ti_uuid: row for row in self._scheduler.queue_info(self.options.name)}
        rows = []
        for replica_id, one in self._live.items():
            queue = queues.get(one.instance or "")
            rows.append(
                ReplicaStatus(
                    id=replica_id,
                    cluster=one.replica.cluster,
                    state="DRAINING" if one.draining else str(one.replica.state),
                    reason=one.replica.reason(),
                    instance=one.instance,
                    length=0 if queue is None else queue.length,
                    waiting_time_expect=0.0 if queue is None else queue.waiting_time_expect,
                    relative_error=None if queue is None else queue.relative_error,
                    within_p90=None if queue is None else queue.within_p90,
                )
            )
        running = sum(row.state == TaskState.RUNNING for row in rows)
        return DeploymentStatus(
            **self.options.model_dump(),
            state=self._state(running),
            running=running,
            problem=self.problem,
            instances=rows,
        )

    def _state(self, running: int) -> Literal["RUNNING", "STARTING", "DELETING", "RETRYING"]:
        if self._errors:
            return "RETRYING"
        if self.deleted:
            return "DELETING"
        return "RUNNING" if running >= self.options.replicas else "STARTING"

    async def _reconcile(self) -> float | None:
        """Bring the replicas in line with the options; returns after how many seconds to try again."""
        while self._unclear:
            found = await self.host.find(self._unclear[0], self.wake)
            replica_id = self._unclear.pop(0)
            if found is not None:
                self._live[replica_id] = self._taken(found)
        for one in list(self._live.values()):
            if one.replica.state.terminal:
                self._ended(one)
            elif one.replica.state is TaskState.RUNNING and one.instance is None and not one.draining:
                await self._register(one)
        wanted = [one for one in reversed(self._live.values()) if not one.draining]
        missing = self.options.replicas - len(wanted)
        if missing < 0:  # first those that do not serve yet, then the newest
            for one in sorted(wanted, key=lambda one: one.instance is not None)[:-missing]:
                self._drain(one)
        while sum(not one.draining for one in self._live.values()) < self.options.replicas:
            pause_s = self._start_at - self._scheduler.loop.time()
            if pause_s > 0:
                return pause_s
            await self._start()
        return None

    async def _start(self) -> None:
        replica_id = self.host.new_id()
        self._unclear.append(replica_id)
        self._save()  # before it exists, so that the next process finds it
        try:
            self._live[replica_id] = self._taken(await self.host.start(replica_id, self.wake))
        except SchedulerError as error:
            self._failed(str(error), 0.0)
        self._unclear.remove(replica_id)  # after any other error it may exist, and is looked for

    def _taken(self, replica: Replica) -> _Live:
        return _Live(replica, ReplicaClient(replica, self.options))

    async def _register(self, one: _Live) -> None:
        slots = self.options.max_batch * self.options.concurrency
        added = await self._scheduler.add_instance_async(one.client, model_name=self.options.name, concurrency=slots)
        one.instance, one.since = added.uuid, self._scheduler.loop.time()

    def _drain(self, one: _Live) -> None:
        one.draining = True
        if one.instance is None:
            one.replica.end()
            return
        one.client.ends_replica = True  # once nothing runs there any more, the scheduler closes it
        try:
            self._scheduler.remove_instance(one.instance)
        except UnknownItemError:  # an operator removed it
            one.replica.end()

    def _ended(self, one: _Live) -> None:
        reason = one.replica.reason()
        if one.instance is not None:
            self._scheduler.unreachable(one.instance, f"The replica {one.replica.id} has ended.", gone=True)
            with suppress(UnknownItemError):  # it was drained, and is forgotten
                self._scheduler.remove_instance(one.instance)
        del self._live[one.replica.id]
        if not one.draining:
            self._failed(f"{one.replica.id} ended: {reason}", self._scheduler.loop.time() - one.since)
        self._save()

    def _failed(self, problem: str, served_s: float) -> None:
        self.problem = problem
        self._failures = 0 if served_s > STABLE_S else self._failures + 1
        self._pause_s = _pause_s(self._failures)
        self._start_at = self._scheduler.loop.time() + self._pause_s
        _log.warning("deployment %s starts another replica in %g s: %s", self.options.name, self._pause_s, problem)

    def _save(self) -> None:
        self.host.save(self.options, [*self._live, *self._unclear], deleted=self.deleted)


def _pause_s(failures: int) -> float:
    """After so many failures in a row."""
    return min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)) if failures else 0.0


class Deployments:
    """The deployments of one scheduler, by name. Used on the scheduler's event loop."""

    def __init__(self, scheduler: SwarmPilotScheduler) -> None:
        self._scheduler = scheduler
        self._all: dict[str, tuple[Deployment, asyncio.Task[None]]] = {}
        self.unreadable: dict[str, str] = {}
        """Deployments of an earlier process that cannot be continued, by name, each with the reason."""

    async def add(self, options: DeploymentOptions, host: ReplicaHost) -> Deployment:
        """Start one. Raises ConfigurationError if its name is that of another deployment, or of a model that other
        instances serve: its replicas would get the requests for that model."""
        self._check_readable(options.name)
        if options.name in self._all:
            raise ConfigurationError(
                f"There is a deployment {options.name!r} already.",
                next_step="choose another name, or delete that one first",
            )
        others = ", ".join(row.address for row in self._scheduler.queue_info(options.name)[:3])
        if others:
            raise ConfigurationError(
                f"The model {options.name!r} is served by other instances already: {others}.",
                next_step="choose another name, or have an operator remove those instances first",
            )
        return self.resume(options, host, ())

    def resume(self, options: DeploymentOptions, host: ReplicaHost, replica_ids: Iterable[str]) -> Deployment:
        """Continue that of an earlier process."""
        made = Deployment(options, host, self._scheduler)
        work = asyncio.get_running_loop().create_task(made.run(replica_ids))
        self._all[options.name] = made, work
        work.add_done_callback(lambda _: self._all.pop(options.name))
        return made

    def get(self, name: str) -> Deployment:
        """Raises UnknownItemError; ConfigurationError for one that cannot be continued."""
        self._check_readable(name)
        if name not in self._all:
            raise unknown_deployment(name)
        return self._all[name][0]

    def _check_readable(self, name: str) -> None:
        if name in self.unreadable:
            raise ConfigurationError(
                f"The stored deployment {name!r} cannot be continued: {self.unreadable[name]}.",
                next_step="correct that, or go back to the former version or key of the service, and restart it",
            )

    def list(self) -> list[Deployment]:
        return [one for one, _ in self._all.values()]

    async def delete(self, name: str) -> None:
        """Drain and end all replicas of one, and wait for that. Raises UnknownItemError."""
        self.get(name).delete()
        await asyncio.wait([self._all[name][1]])

    async def close(self) -> None:
        """Stop; the replicas stay as they are."""
        tasks = [work for _, work in self._all.values()]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def unknown_deployment(name: str) -> UnknownItemError:
    return UnknownItemError(f"There is no deployment {name!r}.", next_step="list them with `rmcs serving list`")
