"""The Ray actors that hold a user's object: :class:`Shell`, and :class:`AsyncShell` for ``async def`` methods.

Created by ``ActorRunner``. A call through the agent always returns an envelope, also for errors of user code. Other
code in the same cluster may find the actor by its name in Ray and use ``native_call``.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import ray
from ray.exceptions import AsyncioActorExit

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.current_item import set_current
from ray_multicluster_scheduler.common.frames import Blob
from ray_multicluster_scheduler.common.several_returns import as_many, iterated
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import ActorChannel
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import NoLease, TakenBack
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import (
    ActorOrder,
    Envelope,
    Homes,
    MethodOrder,
    pack,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.user_code import (
    Outcome,
    Tee,
    failed,
    load_call,
    not_loadable,
    succeeded,
    user_error,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.worker import no_lease, this_node, yielded

_MethodCall: TypeAlias = tuple[str, Sequence[Any], dict[str, Any], int]
"""Its name, its arguments, and how many values it returns."""
_END = object()
NO_OBJECT = "unborn"
"""The status of a method that was not called because there is no object: the constructor failed."""


class _Shell:
    """The base of both. Its constructor does not raise, so that the agent gets the exception of user code."""

    def __init__(self, order: bytes, cls: Blob, arguments: Blob, *objects: Blob) -> None:
        actor_order = ActorOrder.unpacked(order)
        self._object: Any = None
        self._why_no_object = ""
        self._channel = ActorChannel(
            actor_order.agent, actor_order.item.part_id, actor_order.item.attempt, detached=actor_order.detached
        )
        node_id = this_node()
        try:
            self._running = self._channel.begin_actor(node_id)
        except NoLease as error:
            self._constructed, self._why_no_object = no_lease(node_id, error), str(error)
            return
        except TakenBack as error:
            self._constructed, self._why_no_object = pack(failed("crash", error, str(error))), str(error)
            return
        set_current(actor_order.item)
        for stream in ("stdout", "stderr"):
            setattr(sys, stream, Tee(getattr(sys, stream), self._writer(stream)))
        head, payload = self._construct(actor_order.homes, cls, arguments, objects)
        if head["status"] == "failed" and ray.get_runtime_context().was_current_actor_reconstructed:
            raise RuntimeError(head["message"])  # Ray restarted the actor, so Ray must see the failure
        self._why_no_object = str(head.get("message", ""))
        self._constructed = pack({"at": time.time(), "node": node_id, **head}, payload)

    def _construct(self, homes: Homes, cls: Blob, arguments: Blob, objects: tuple[Blob, ...]) -> Outcome:
        try:
            made, args, kwargs, _ = load_call(homes, arguments, objects, partial(pickling.loads, cls))
        except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; every error is reported
            return not_loadable(error), ()
        try:
            self._object = made(*args, **kwargs)
        except SystemExit as error:
            return failed("user", error, f"the actor's constructor called sys.exit({error.code!r})"), ()
        except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
            return user_error(error)
        return {"status": "succeeded"}, ()

    def _writer(self, stream: str) -> Callable[[str], None]:
        return lambda text: self._channel.write(self._running, stream, text)

    def _attend(self, order: bytes) -> Envelope:
        actor_order = ActorOrder.unpacked(order)
        if self._object is not None:
            set_current(actor_order.item)
            self._channel.report_to(actor_order.agent, actor_order.item.part_id, actor_order.item.attempt)
        return self._constructed

    def _open(self, order: bytes, separate: Sequence[Blob]) -> Envelope | _MethodCall:
        """The method call to make, or the envelope if none is made."""
        if self._object is None:
            return pack({"status": NO_OBJECT, "message": self._why_no_object})
        key, method, homes, inline = MethodOrder.unpacked(order)
        if not self._channel.begin_method(key):
            return pack({"status": "cancelled"})
        arguments: Blob | None = inline
        if arguments is None:
            arguments, *separate = separate
        try:
            return load_call(homes, arguments, separate, lambda: method)
        except Exception as error:  # noqa: BLE001 - unpickling runs arbitrary code; every error is reported
            return self._pack((not_loadable(error), ()))

    def _display_name(self, method: str) -> str:
        return f"{type(self._object).__qualname__}.{method}"

    def _pack(self, outcome: Outcome, took: float | None = None) -> Envelope:
        """Send the output, then return the method's envelope, with the output that could not be sent."""
        head, payload = outcome
        if took is not None:
            head["took"] = took
        running = self._running
        parts = self._channel.flush(running)
        if parts:
            head["parts"] = parts
        if running.chunks:
            head["chunks"] = running.chunks
        if running.dropped:
            head["dropped"], running.dropped = running.dropped, 0
        return pack(head, payload)

    def _leave(self) -> NoReturn:
        """Exit the actor, as user code asked for."""
        self._channel.report_exit(self._running)
        ray.actor.exit_actor()
        raise SystemExit(0)


class Shell(_Shell):
    """An actor whose methods run one at a time, or in ``max_concurrency`` threads."""

    def attend(self, order: bytes) -> Envelope:
        """Report to this agent from now on; returns how the constructor ended. Also shows that the actor lives."""
        return self._attend(order)

    def run(self, order: bytes, *separate: Blob) -> Envelope:
        """Call a method; returns an envelope."""
        call = self._open(order, separate)
        if not isinstance(call, tuple):
            return call
        method, args, kwargs, returns = call
        began = time.monotonic()
        try:
            value = as_many(getattr(self._object, method)(*args, **kwargs), returns, self._display_name(method))
        except SystemExit:
            self._leave()
        except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
            return self._pack(user_error(error), time.monotonic() - began)
        took = time.monotonic() - began
        return self._pack(succeeded(value, "method's"), took)

    def stream(self, order: bytes, *separate: Blob) -> Iterator[Envelope]:
        """Call a method that is a generator: an envelope for each value, with its index as ``yields``, and then that of
        the call."""
        call = self._open(order, separate)
        if not isinstance(call, tuple):
            yield call
            return
        method, args, kwargs, _ = call
        began = time.monotonic()
        values, failure = self._attempted(getattr(self._object, method), *args, **kwargs)
        if failure is None:
            values, failure = self._attempted(iterated, values, self._display_name(method))
        index, key = 0, MethodOrder.unpacked(order).key
        while failure is None:
            value, failure = self._attempted(next, values, _END)
            if value is _END:
                failure = succeeded(index, "method's")
            elif self._channel.is_cancelled(key):
                failure = {"status": "cancelled"}, ()
            elif failure is None:
                envelope, failure = yielded(value, index, "method's")
                if envelope is not None:
                    yield envelope
                index += 1
        yield self._pack(failure, time.monotonic() - began)

    def _attempted(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Outcome | None]:
        try:
            return work(*args, **kwargs), None
        except SystemExit:
            self._leave()
        except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
            return None, user_error(error)

    def native_call(self, method: str, names: Sequence[str], *values: Any) -> Any:
        """For code in the same cluster: a plain Ray call, which raises what the method raises.

        The last ``values`` are keyword arguments of these ``names``. They are not in a list or a dict, where Ray would
        not replace references by values.
        """
        args, kwargs = _split_arguments(names, values)
        self._channel.begin_method()
        try:
            return getattr(self._object, method)(*args, **kwargs)
        except SystemExit:
            self._leave()


class AsyncShell(_Shell):
    """An actor with ``async def`` methods: all of its methods run on one event loop, as in Ray."""

    async def attend(self, order: bytes) -> Envelope:
        """See :meth:`Shell.attend`."""
        return self._attend(order)

    async def run(self, order: bytes, *separate: Blob) -> Envelope:
        """See :meth:`Shell.run`."""
        call = self._open(order, separate)
        if not isinstance(call, tuple):
            return call
        method, args, kwargs, returns = call
        began = time.monotonic()
        try:
            value = getattr(self._object, method)(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
            value = as_many(value, returns, self._display_name(method))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # from ray.cancel()
            # Raised by the method: in the caller's program it would look like a cancellation there.
            head = failed("user", error, f"{self._display_name(method)} raised asyncio.CancelledError")
            return self._pack((head, ()), time.monotonic() - began)
        except (SystemExit, AsyncioActorExit):
            self._leave()
        except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
            return self._pack(user_error(error), time.monotonic() - began)
        took = time.monotonic() - began
        return self._pack(succeeded(value, "method's"), took)

    async def stream(self, order: bytes, *separate: Blob) -> AsyncIterator[Envelope]:
        """See :meth:`Shell.stream`."""
        call = self._open(order, separate)
        if not isinstance(call, tuple):
            yield call
            return
        method, args, kwargs, _ = call
        began, index = time.monotonic(), 0
        values: AsyncIterator[Any] | None = None
        while True:
            failure: Outcome | None = None
            value: Any = _END
            try:
                if values is None:
                    made = getattr(self._object, method)(*args, **kwargs)
                    values = made if isinstance(made, AsyncIterator) else _as_async(iterated(made, method))
                value = await anext(values, _END)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise  # from ray.cancel()
                failure = failed("user", error, f"{self._display_name(method)} raised asyncio.CancelledError"), ()
            except (SystemExit, AsyncioActorExit):
                self._leave()
            except BaseException as error:  # noqa: BLE001 - the user's exception is the answer
                failure = user_error(error)
            if failure is None and value is _END:
                failure = succeeded(index, "method's")
            elif failure is None:
                envelope, failure = yielded(value, index, "method's")
                if envelope is not None:
                    yield envelope
                index += 1
            if failure is not None:
                yield self._pack(failure, time.monotonic() - began)
                return

    async def native_call(self, method: str, names: Sequence[str], *values: Any) -> Any:
        """See :meth:`Shell.native_call`."""
        args, kwargs = _split_arguments(names, values)
        self._channel.begin_method()
        try:
            value = getattr(self._object, method)(*args, **kwargs)
            return await value if inspect.isawaitable(value) else value
        except (SystemExit, AsyncioActorExit):
            self._leave()


async def _as_async(values: Iterator[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


def _split_arguments(names: Sequence[str], values: tuple[Any, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    first = len(values) - len(names)
    return values[:first], dict(zip(names, values[first:], strict=True))
