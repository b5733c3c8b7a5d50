"""Telling how calls ended: places that were handed on first, then results, in the order in which the calls ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from ray_multicluster_scheduler.scheduler.connection.gateway.calls.call_records import MOST_VALUE_BYTES, CallRecord
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import BACKLOG_HIGH, Key, Move, Reporter
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_BATCH_BYTES = 1024 * 1024
_READ_AT_ONCE = 64 * 1024 * 1024
"""So much of large results is copied out of the object store at a time, or one of them if it is larger."""
_BATCH_RESULTS = 256
_BATCH_MOVES = 500
_OUTPUT_PATIENCE_S = 2.0


class Line(Protocol):
    """The connection to the control plane, while there is one."""

    def send(self, kind: str, head: dict[str, Any], blobs: Any = (), *, lazy: bool = False) -> None: ...

    def backlog(self) -> int | None:
        """The bytes that wait to be sent; None without a connection."""

    def connection(self) -> object:
        """Which connection it is just now."""


class Results:
    """Lives on the event loop."""

    def __init__(self, line: Line, reporter: Reporter, read_back: Callable[[CallRecord], Future[bytes]]) -> None:
        self._line, self._reporter, self._read_back = line, reporter, read_back
        self._ready: deque[CallRecord] = deque()
        self._waiting: dict[Key, CallRecord] = {}
        self._reading: dict[asyncio.Task[None], int] = {}

    def resume(self, moves: list[Move], ended: Iterable[CallRecord]) -> None:
        """A new connection: everything that was not acknowledged is told again."""
        self._ready = deque(record for record in ended if not record.waits_for_output)
        self.moved(moves)
        self.send()

    def moved(self, moves: list[Move]) -> None:
        """In small messages, which no result can overtake."""
        for start in range(0, len(moves), _BATCH_MOVES):
            slots = [[*ended, *begun] for ended, begun in moves[start : start + _BATCH_MOVES]]
            self._line.send(m.MOVED, {"slots": slots}, lazy=True)  # the results of those that ended are next

    def add(self, ended: Iterable[CallRecord]) -> None:
        """These calls ended just now."""
        for record in ended:
            if record.report.chunks < (record.head or {}).get("chunks", 0):
                # Output and result come by different ways; the last of the output may still be under way.
                record.waits_for_output = True
                self._waiting[record.key] = record
                asyncio.get_running_loop().call_later(_OUTPUT_PATIENCE_S, self._give_up_output, record)
            else:
                self._ready.append(record)
        self.send()

    def output_came(self) -> None:
        """Whoever waited for the last of its output may be complete."""
        for record in list(self._waiting.values()):
            if record.report.chunks >= (record.head or {}).get("chunks", 0):
                self._release(record)

    def _give_up_output(self, record: CallRecord) -> None:
        """What did not come by now is lost; later answers of the same actor do not wait for it again."""
        if record.waits_for_output:
            record.report.chunks = max(record.report.chunks, (record.head or {}).get("chunks", 0))
            self.output_came()

    def _release(self, record: CallRecord) -> None:
        if self._waiting.pop(record.key, None) is not None:
            record.waits_for_output = False
            self._ready.append(record)
            self.send()

    def send(self) -> None:
        """Send what is ready, as long as there is room; the rest follows as it drains."""
        while self._ready and self._room():
            batch: list[CallRecord] = []
            size = 0
            while self._ready and len(batch) < _BATCH_RESULTS and size < _BATCH_BYTES:
                record = self._ready.popleft()
                self._reporter.flush(record.output_key, record.report)
                if record.big:
                    self._send_big(record)
                    break  # is there still room?
                batch.append(record)
                size += len(record.payload or b"")
            if batch:
                payloads = [record.payload or b"" for record in batch]
                self._line.send(m.FINISHED, {"results": [_result(record) for record in batch]}, payloads)

    def _room(self) -> bool:
        backlog = self._line.backlog()
        return backlog is not None and backlog < BACKLOG_HIGH and sum(self._reading.values()) < _READ_AT_ONCE

    def _send_big(self, record: CallRecord) -> None:
        connection = self._line.connection()

        async def read_and_send() -> None:
            payload = b""
            try:
                payload = await asyncio.wrap_future(self._read_back(record))
            except Exception as error:  # noqa: BLE001 - whatever Ray raises: the value cannot be had
                sentence = f"the result was stored in the cluster, but cannot be read any more: {error}"
                _fail(record, "crash", "RESULT_LOST", type(error).__name__, sentence)
            if len(payload) > MOST_VALUE_BYTES:
                sentence = f"the result has {len(payload)} bytes, and less than 4 GiB can be sent; write it to a file"
                _fail(record, "permanent", "RESULT_TOO_LARGE", "ValueError", sentence)
                payload = b""
            # After a reconnect this result is in the new connection's turn; do not send it twice.
            if self._line.connection() is connection:
                self._line.send(m.FINISHED, {"results": [_result(record)]}, [payload])

        task = asyncio.create_task(read_and_send())
        self._reading[task] = record.big_bytes
        task.add_done_callback(self._was_read)

    def _was_read(self, task: asyncio.Task[None]) -> None:
        del self._reading[task]
        self.send()


def _result(record: CallRecord) -> dict[str, Any]:
    head = record.head or {}
    result = {"id": record.key[0], "attempt": record.key[1], **head}
    result.pop("chunks", None)
    if record.method is not None:
        result["method"] = True
    if record.report.dropped and record.method is None:
        result["dropped"] = head.get("dropped", 0) + record.report.dropped
    return result


def _fail(record: CallRecord, failure: str, code: str, error_type: str, sentence: str) -> None:
    """The call ran, but its value cannot be had."""
    record.ref, record.payload = None, b""
    outcome = {"status": "failed", "failure": failure, "code": code, "error_type": error_type, "message": sentence}
    record.head = {**(record.head or {}), **outcome}
