"""ActorReplica: an actor of this control plane as the replica of a deployment."""

from __future__ import annotations

import asyncio
import io
import pickle
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from ray_multicluster_scheduler.common.exception import InstanceError, SchedulerError
from ray_multicluster_scheduler.common.model import TaskDescription, TaskState
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.actor_calls import ActorCalls, CallItem
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Outcome
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime

METHOD = "handle"


class ActorReplica:
    """See :class:`serving.deployment.Replica`. Calls are made on the loop of the serving scheduler."""

    def __init__(
        self, runtime: Runtime, calls: ActorCalls, end: Callable[[Item], object], changed: Callable[[], None]
    ) -> None:
        self._runtime, self._calls, self._item, self._end = runtime, calls, calls.item, end
        self._item.watch_transitions(lambda _: changed())

    @property
    def id(self) -> str:
        return self._item.id

    @property
    def state(self) -> TaskState:
        return self._item.state

    @property
    def attempt(self) -> int:
        return self._item.attempt

    @property
    def cluster(self) -> str | None:
        return self._item.cluster

    def reason(self) -> str:
        if self._item.outcome is not None:
            return self._item.outcome.completion.message
        with suppress(SchedulerError):  # the control plane has ended
            return self._runtime.call_and_wait(self._current_reason)
        return ""

    def _current_reason(self) -> str:
        record = self._runtime.record(self.id)
        if record is None:
            return ""
        return explanation.current_reason(self._runtime, record, explanation.current_wait_reasons(self._runtime))[1]

    async def call(self, data: bytes) -> bytes:
        """Call the replica's method. Raises InstanceError."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def ended(_: CallItem) -> None:
            with suppress(RuntimeError):  # the waiting loop has ended
                loop.call_soon_threadsafe(lambda: None if over.done() else over.set_result(None))

        pickled = pickle.dumps(((data,), {}), protocol=5)
        call = CallItem(f"call-{uuid.uuid4().hex}", self._calls, METHOD, pickled, complete=True)
        call.watch(ended)
        try:
            self._calls.take(call, Arguments(b""))
        except SchedulerError as error:
            raise _not_answered(str(error)) from None
        await over
        outcome = call.outcome
        assert outcome is not None
        if outcome.result is None or outcome.result.payload is None or not outcome.succeeded:
            raise _not_answered(outcome.completion.message, outcome)
        return _plain_bytes(outcome.result.payload)

    def end(self) -> None:
        with suppress(SchedulerError):  # the control plane has ended, and the actor with it
            self._end(self._item)


def new_replica_id() -> str:
    return f"actor-{uuid.uuid4().hex}"


def replica_task(template: TaskDescription, replica_id: str) -> TaskDescription:
    """The actor of a replica: as the template, with an id of its own. It belongs to no program."""
    assert template.actor is not None
    actor = replace(template.actor, ray_name=replica_id, public_name=None, lifetime=None, adopt=False)
    return replace(template, id=replica_id, actor=actor, program=None, submitted_at=0.0)


def _not_answered(problem: str, outcome: Outcome | None = None) -> InstanceError:
    error = InstanceError(problem)
    error.sent = outcome is not None and outcome.completion.attempt > 0
    error.gone = outcome is not None and outcome.completion.error == "ActorDiedError"
    return error


class _BytesUnpickler(pickle.Unpickler):
    """Reads plain values only: a cluster must not choose the code that runs here."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"the answer refers to {module}.{name}")


def _plain_bytes(payload: bytes) -> bytes:
    """The bytes that a replica returned. Raises InstanceError for anything else."""
    try:
        value: Any = _BytesUnpickler(io.BytesIO(payload)).load()
    except Exception as error:  # noqa: BLE001 # a damaged pickle may raise any error
        raise InstanceError(f"The answer of a replica cannot be read: {error}.") from None
    if not isinstance(value, bytes):
        raise InstanceError(f"The answer of a replica is a {type(value).__name__}.")
    return value
