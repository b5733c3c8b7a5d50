"""ValueStream: reads the values of one attempt of a generator from Ray as they are requested.

A request for a value is a call of a method of the item (the task, or the actor whose method is a generator), under a
reserved name. So it travels, is answered, repeated after a reconnect and acknowledged like any other call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from ray_multicluster_scheduler.common.several_returns import DISCARD, NEXT, NO_VALUE
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.ray_threads import OnResult
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Envelope, Key, unpack

_NO_VALUE = {"status": "failed", "failure": "crash", "error_type": "RuntimeError", "code": NO_VALUE}
_NO_VALUE["message"] = "this attempt of the generator did not yield the value"


def is_request(record: CallRecord) -> bool:
    """Whether this call requests a value of a generator, or ends the reading."""
    return record.method is not None and record.method.name.startswith((NEXT, DISCARD))


def stream_key(record: CallRecord) -> Key:
    """The key of the generator that this request is about."""
    if record.method is None:
        raise TypeError(f"{record.key} is not a request")
    stream_id = record.method.name.rpartition(":")[2]
    return (stream_id, 1) if stream_id else record.method.actor


class ValueStream:
    """Runs on the event loop. ``answer`` sets the result of a request, ``refuse`` lets it fail."""

    def __init__(self, answer: OnAnswer, refuse: Callable[[CallRecord, dict[str, Any]], object]) -> None:
        self._answer, self._refuse = answer, refuse
        self._requests: dict[int, CallRecord] = {}
        self._lacking: int | None = None
        """The reader has all values before this one."""
        self._held: dict[int, tuple[Any, Envelope]] = {}
        """Values that were read before they are requested."""
        self._discards = self._over = self._peeks = False
        self._taken = 0
        self._wanted = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None

    def request(self, record: CallRecord) -> None:
        """Answer this request as soon as there is a value, or it is known that there will be none."""
        name = "" if record.method is None else record.method.name
        if self._over:
            self._refuse(record, dict(_NO_VALUE))
            return
        if name.startswith(DISCARD):
            self.discard()
            self._refuse(record, {"status": "succeeded"})
            return
        index, lacking = map(int, name.removeprefix(NEXT).split(":")[:2])
        self._lacking = lacking if self._lacking is None else min(self._lacking, lacking)
        held = self._held.pop(index, None)
        if held is not None:
            self._answer_with(record, *held)
            return
        self._requests[index] = record
        self._wanted.set()

    def discard(self) -> None:
        """Nobody reads the values any more: read them to the end, so that the generator can end."""
        self._discards = True
        self._wanted.set()

    def open(self, generator: Any, watch: Callable[[Any, OnResult], None], on_end: OnResult) -> None:
        """Read this generator of Ray's. ``on_end`` gets the envelope or the error with which the call itself ends; it
        then calls :meth:`close`."""
        watch(generator.completed(), partial(self._completed, on_end))
        self._reading = asyncio.get_running_loop().create_task(self._read(generator, on_end))

    def close(self) -> None:
        """The call has ended, so there are no more values."""
        if self._over:
            return
        self._over = True
        requests, self._requests = self._requests, {}
        self._held.clear()
        for record in requests.values():
            self._refuse(record, dict(_NO_VALUE))
        self._wanted.set()

    async def _read(self, generator: Any, on_end: OnResult) -> None:
        while True:
            while not (self._requests or self._discards or self._peeks or self._over):
                self._wanted.clear()
                await self._wanted.wait()
            if self._over:
                return
            self._peeks = False
            self._taken += 1
            try:
                ref = await anext(generator)
                value = await ref
            except StopAsyncIteration:  # its last envelope is missing
                on_end(None, RuntimeError("the generator has ended without a result"))
                return
            except Exception as error:  # noqa: BLE001 - any error of Ray is the end of the call
                on_end(None, error)
                return
            if self._over:
                return
            index = unpack(value)[0].get("yields")
            if index is None:
                on_end(value, None)
                return
            record = self._requests.pop(index, None)
            if record is not None:
                self._answer_with(record, ref, value)
            elif not self._discards and (self._lacking is None or index >= self._lacking):
                self._held[index] = ref, value

    def _answer_with(self, record: CallRecord, ref: Any, value: Envelope) -> None:
        record.ref = ref
        self._answer(record, value, None)

    def _completed(self, on_end: OnResult, value: Any, error: BaseException | None) -> None:
        """Ray has ended the call. With an error, which may come while nothing is requested, there is no envelope. One
        that was not started yields its envelope at once, and nothing is requested."""
        if self._over:
            return
        if error is not None:
            on_end(None, error)
        elif self._taken == 0:
            self._peeks = True
            self._wanted.set()


OnAnswer = Callable[[CallRecord, Envelope | None, BaseException | None], object]
