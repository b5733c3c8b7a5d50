"""Sends progress, results and retained values of the ``Agent``'s calls to the control plane, also after a reconnect."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeAlias

from ray_multicluster_scheduler.common.frames import CHUNK_BYTES, Pieces, bytes_in
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import (
    MAX_VALUE_BYTES,
    CallRecord,
    Parts,
    Progress,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import Key

Move: TypeAlias = tuple[Key, Key]
"""A call that ended, and the call that got its slot."""

MAX_UNSENT_CHARS = 200_000
"""Output of one call that is kept while it cannot be sent; the rest is dropped, to bound the agent's memory."""
BACKLOG_HIGH = 16 * 1024 * 1024
"""While more bytes than this wait to be sent, output and results are held back."""

_BYTES_PER_CHAR = 12  # JSON's longest escape of one character
_BYTES_PER_PART = 32
_MAX_OUTPUT_BYTES = CHUNK_BYTES - 4096
_BATCH_BYTES = 1024 * 1024
_BATCH_RESULTS = 256
_BATCH_MOVES = 500
_READ_BYTES_AT_ONCE = 64 * 1024 * 1024
"""The bytes of large results that are read, maybe from other nodes, at a time, or one larger result."""
_VALUES_AT_ONCE = 2
_OUTPUT_TIMEOUT_S = 2.0


class ControlPlaneSender(Protocol):
    """The current connection to the control plane, if there is one."""

    def send(self, kind: str, head: dict[str, Any], blobs: Any = (), *, lazy: bool = False) -> None: ...

    def backlog(self) -> int | None:
        """The bytes that wait to be sent; None without a connection."""

    def connection(self) -> object:
        """Identifies the current connection."""


class ProgressReporter:
    """Sends starts and output, or keeps them for later. ``backlog`` is as in :class:`ControlPlaneSender`."""

    def __init__(self, send: Callable[[str, dict[str, Any]], None], backlog: Callable[[], int | None]) -> None:
        self._send, self._backlog = send, backlog
        self._behind: dict[int, tuple[Key, Progress]] = {}
        """By identity of the progress: members of a gang share a key."""

    def started(self, key: Key, progress: Progress, at: float, node: str) -> None:
        """Report that a call runs."""
        progress.started = (at, node)
        self._send(m.STARTED, {"calls": [[*key, at, node]]})

    def output(self, key: Key, progress: Progress, parts: Parts) -> None:
        """Send output of a call, keep it until there is room, or count it as dropped."""
        progress.chunks += 1
        if self._has_room() and not progress.unsent:
            self._send_output(key, parts)
            return
        size = sum(len(text) for _, text in parts)
        if progress.unsent_chars + size > MAX_UNSENT_CHARS:
            progress.dropped += size
            return
        progress.unsent += parts
        progress.unsent_chars += size
        self._behind[id(progress)] = key, progress

    def drained(self) -> None:
        """Bytes were sent, so there may be room again."""
        for key, progress in list(self._behind.values()):
            if not self._has_room():
                return
            self.flush(key, progress)

    def resend(self, calls: Iterable[tuple[Key, Progress]]) -> None:
        """After a reconnect: report these calls again. A start may be sent twice, but is never lost."""
        for key, progress in calls:
            if progress.started is not None:
                self._send(m.STARTED, {"calls": [[*key, *progress.started]]})
            self.flush(key, progress)

    def flush(self, key: Key, progress: Progress) -> None:
        """Send the output that was kept."""
        self._behind.pop(id(progress), None)
        kept, progress.unsent, progress.unsent_chars = progress.unsent, [], 0
        self._send_output(key, kept)

    def _has_room(self) -> bool:
        backlog = self._backlog()
        return backlog is not None and backlog <= BACKLOG_HIGH

    def _send_output(self, key: Key, parts: Parts) -> None:
        for some in split_output(parts):
            self._send(m.OUTPUT, {"id": key[0], "attempt": key[1], "parts": some})


def split_output(parts: Parts) -> Iterator[Parts]:
    """The same output in pieces of one frame each: a result could overtake a larger message."""
    some: Parts = []
    room = _MAX_OUTPUT_BYTES
    for stream, whole in parts:
        text = whole
        while text:
            fits = max((room - _BYTES_PER_PART) // _BYTES_PER_CHAR, 0)
            if fits == 0:
                yield some
                some, room = [], _MAX_OUTPUT_BYTES
                continue
            piece, text = text[:fits], text[fits:]
            some.append((stream, piece))
            room -= _BYTES_PER_PART + len(piece) * _BYTES_PER_CHAR
    if some:
        yield some


class ResultSender:
    """Sends results in the order in which the calls ended, after the moves of their slots. Lives on the event loop."""

    def __init__(
        self, sender: ControlPlaneSender, reporter: ProgressReporter, read_back: Callable[[CallRecord], Future[Pieces]]
    ) -> None:
        self._sender, self._reporter, self._read_back = sender, reporter, read_back
        self._ready: deque[CallRecord] = deque()
        self._waiting: dict[Key, CallRecord] = {}
        """Results that wait for the last output of their calls."""
        self._reading: dict[asyncio.Task[None], int] = {}

    def resume(self, moves: list[Move], ended: Iterable[CallRecord]) -> None:
        """Over a new connection, send all unacknowledged moves and results again."""
        self._ready = deque(record for record in ended if not record.waits_for_output)
        self.send_moves(moves)
        self.send()

    def send_moves(self, moves: list[Move]) -> None:
        """In small messages, which no result can overtake."""
        for start in range(0, len(moves), _BATCH_MOVES):
            slots = [[*ended, *begun] for ended, begun in moves[start : start + _BATCH_MOVES]]
            self._sender.send(m.MOVED, {"slots": slots}, lazy=True)  # the results of those that ended are next

    def add(self, ended: Iterable[CallRecord]) -> None:
        """These calls have ended."""
        for record in ended:
            if record.progress.chunks < (record.head or {}).get("chunks", 0):
                # Output and result arrive by different ways, so the last output may still be in transit.
                record.waits_for_output = True
                self._waiting[record.key] = record
                asyncio.get_running_loop().call_later(_OUTPUT_TIMEOUT_S, self._give_up_output, record)
            else:
                self._ready.append(record)
        self.send()

    def output_arrived(self) -> None:
        """Send the results that waited for it."""
        for record in list(self._waiting.values()):
            if record.progress.chunks >= (record.head or {}).get("chunks", 0):
                self._waiting.pop(record.key, None)
                record.waits_for_output = False
                self._ready.append(record)
                self.send()

    def _give_up_output(self, record: CallRecord) -> None:
        """Treat missing output as lost; later results of the same actor do not wait for it again."""
        if record.waits_for_output:
            record.progress.chunks = max(record.progress.chunks, (record.head or {}).get("chunks", 0))
            self.output_arrived()

    def send(self) -> None:
        """Send ready results while there is room; the rest follows as the connection drains."""
        while self._ready and self._has_room():
            batch: list[CallRecord] = []
            size = 0
            while self._ready and len(batch) < _BATCH_RESULTS and size < _BATCH_BYTES:
                record = self._ready.popleft()
                self._reporter.flush(record.output_key, record.progress)
                if record.has_stored_result:
                    self._send_stored(record)
                    break  # check again whether there is room
                batch.append(record)
                size += len(record.payload or b"")
            if batch:
                payloads = [record.payload or b"" for record in batch]
                self._sender.send(m.FINISHED, {"results": [_result(record) for record in batch]}, payloads)

    def _has_room(self) -> bool:
        backlog = self._sender.backlog()
        return backlog is not None and backlog < BACKLOG_HIGH and sum(self._reading.values()) < _READ_BYTES_AT_ONCE

    def _send_stored(self, record: CallRecord) -> None:
        connection = self._sender.connection()

        async def read_and_send() -> None:
            payload: Pieces = []
            try:
                payload = await asyncio.wrap_future(self._read_back(record))
            except Exception as error:  # noqa: BLE001 - any error of Ray makes the value unreadable
                sentence = f"the result was stored in the cluster, but cannot be read any more: {error}"
                _fail(record, "crash", "RESULT_LOST", type(error).__name__, sentence)
            size = bytes_in(payload)
            if size > MAX_VALUE_BYTES:
                sentence = f"the result has {size} bytes, and less than 4 GiB can be sent; write it to a file"
                _fail(record, "permanent", "RESULT_TOO_LARGE", "ValueError", sentence)
                payload = []
            # After a reconnect the new connection sends this result; do not send it twice.
            if self._sender.connection() is connection:
                self._sender.send(m.FINISHED, {"results": [_result(record)]}, [payload])

        task = asyncio.create_task(read_and_send())
        self._reading[task] = record.stored_bytes
        task.add_done_callback(self._read_done)

    def _read_done(self, task: asyncio.Task[None]) -> None:
        del self._reading[task]
        self.send()


def _result(record: CallRecord) -> dict[str, Any]:
    head = record.head or {}
    result = {"id": record.key[0], "attempt": record.key[1], **head}
    result.pop("chunks", None)
    if record.method is not None:
        result["method"] = True
    if record.progress.dropped and record.method is None:
        result["dropped"] = head.get("dropped", 0) + record.progress.dropped
    return result


def _fail(record: CallRecord, failure: str, code: str, error_type: str, sentence: str) -> None:
    """Make a call failed that ran, because its value cannot be sent."""
    record.ref, record.payload = None, b""
    outcome = {"status": "failed", "failure": failure, "code": code, "error_type": error_type, "message": sentence}
    record.head = {**(record.head or {}), **outcome}


class RetainedValues:
    """Values that stay in the cluster: listed on each new connection, sent on FETCH, few at a time.

    ``values`` are references into the object store, each with its time of arrival. Runs on the event loop.
    """

    def __init__(
        self,
        sender: ControlPlaneSender,
        values: MutableMapping[Key, tuple[Any, float]],
        read: Callable[[Any], Future[Pieces]],
    ) -> None:
        self._sender, self._values, self._read = sender, values, read
        self._requested: OrderedDict[Key, None] = OrderedDict()
        self._reading: set[asyncio.Task[None]] = set()

    def resume(self) -> None:
        """Over a new connection: list the values. The control plane repeats its requests."""
        self._requested.clear()
        if self._values:
            now = time.monotonic()
            ages = [[*key, now - since] for key, (_, since) in self._values.items()]
            self._sender.send(m.KEPT, {"values": ages})

    def fetch(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._requested[key] = None
        self.send()

    def release(self, keys: Iterable[Key]) -> None:
        keys = list(keys)
        for key in keys:
            self._values.pop(key, None)
        self._sender.send(m.RELEASED, {"keys": keys})

    def send(self) -> None:
        """Copy the next values out of the object store, few at a time, while there is room. One read that hangs does
        not block the others."""
        backlog = self._sender.backlog()
        while (
            self._requested and len(self._reading) < _VALUES_AT_ONCE and backlog is not None and backlog < BACKLOG_HIGH
        ):
            key, _ = self._requested.popitem(last=False)
            task = asyncio.create_task(self._send(key))
            self._reading.add(task)
            task.add_done_callback(self._read_done)

    def _read_done(self, task: asyncio.Task[None]) -> None:
        self._reading.discard(task)
        self.send()

    async def _send(self, key: Key) -> None:
        connection = self._sender.connection()
        payload: Pieces = []
        problem: dict[str, Any] = {}
        try:
            if key in self._values:
                payload = await asyncio.wrap_future(self._read(self._values[key][0]))
            else:
                problem = {"problem": "the cluster does not have it any more", "gone": True}
        except Exception as error:  # noqa: BLE001 - any error of Ray makes the value unreadable
            problem = {"problem": f"it cannot be read there ({type(error).__name__}: {str(error).strip()[:300]})"}
        if self._sender.connection() is connection:  # else it is requested again over the new one
            self._sender.send(m.VALUE, {"id": key[0], "attempt": key[1], **problem}, [payload])
