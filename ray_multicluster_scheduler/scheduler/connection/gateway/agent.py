"""The link agent: a native Ray driver that dials back to its control plane and runs what it is given.

It lives on borrowed time: when its control plane was not heard for ``lease_s``, it ends what it runs, and
itself. A connection that breaks before that is dialled again, and nothing is lost by it.
"""

from __future__ import annotations

import asyncio
import os
import platform
import time
import traceback
from collections import deque
from typing import Any

import ray

from ray_multicluster_scheduler.common.frames import MAX_MESSAGE_BYTES, FrameError, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.calls import CallRecord, Calls
from ray_multicluster_scheduler.scheduler.connection.gateway.dial import (
    FIRST_JOIN_S,
    CannotDial,
    Connection,
    Join,
    dial,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.lease import Lease
from ray_multicluster_scheduler.scheduler.connection.gateway.probe import Probe
from ray_multicluster_scheduler.scheduler.connection.gateway.reports import BACKLOG_HIGH, Key, Reporter
from ray_multicluster_scheduler.scheduler.connection.gateway.worker_server import WorkerServer

_BATCH_BYTES = 1024 * 1024
_BATCH_RESULTS = 256
_OUTPUT_PATIENCE_S = 2.0
_ROOM_FOR_HEADS = 16 * 1024 * 1024


class Closed(Exception):
    """The control plane told us to end."""


class LeaseOver(Exception):
    """The control plane does not count on us any more, and gives our calls to others."""


class Agent:
    """One agent process; everything here runs on its event loop unless said otherwise."""

    def __init__(self, join: Join) -> None:
        self._join = join
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(join.cluster, join.own_modules, self._wake_from_any_thread)
        self._lease = Lease()
        self._workers = WorkerServer(self._hear_worker, self._lease.left_s)
        self._reporter = Reporter(self._send, self._backlog)
        self._ready: deque[CallRecord] = deque()
        self._outbox: FrameWriter | None = None
        self._can_send = asyncio.Event()
        self._woken = False
        self._reading: set[asyncio.Task[None]] = set()
        self._last_contact = time.monotonic()
        self._heartbeat_s = 0.0
        self._secret: str | None = None
        self._snapshot: dict[str, Any] | None = None

    async def run(self) -> None:
        """Serve until told to end (Closed) or until nobody counts on us any more (CannotDial, Rejected)."""
        who = _who()
        connection = await dial(self._join, who, None, time.monotonic() + FIRST_JOIN_S)
        self._secret = str(connection.welcome["secret"])
        self._lease.seconds = float(connection.welcome["lease_s"])
        self._lease.answered(connection.asked_at)
        self._heartbeat_s = float(connection.welcome["heartbeat_s"])
        self._calls.line = await self._workers.start(ray.util.get_node_ip_address(), self._lease.seconds)
        probe = Probe(
            tell=self._tell_from_any_thread,
            busy=lambda: bool(self._calls.records),
        )
        try:
            while True:
                await self._serve(connection, probe)
                self._check_lease()
                connection = await dial(self._join, who, self._secret, self._lease.until)
                self._lease.answered(connection.asked_at)
        except LeaseOver as error:
            raise CannotDial(str(error)) from None

    async def _serve(self, connection: Connection, probe: Probe) -> None:
        """One connection, until it breaks."""
        self._last_contact = time.monotonic()
        self._outbox = FrameWriter()
        self._ready = deque(record for record in self._calls.records.values() if record.head is not None)
        tasks = [
            asyncio.create_task(self._read(connection, probe)),
            asyncio.create_task(self._write(connection.writer)),
            asyncio.create_task(self._beat()),
        ]
        self._send_results()
        if self._snapshot is not None:
            self._send(m.SNAPSHOT, self._snapshot)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except (Closed, LeaseOver):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it costs the connection and not what runs here
            print(f"rmcs agent: the connection broke ({type(error).__name__}: {error}); dialling again", flush=True)
        finally:
            self._outbox = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            connection.writer.transport.abort()

    def _check_lease(self) -> None:
        if self._lease.left_s() < 0:
            raise LeaseOver(f"the control plane answered nothing for {self._lease.seconds:g} s: the lease is over")

    async def _read(self, connection: Connection, probe: Probe) -> None:
        self._hear_all(connection.early, probe)
        while data := await connection.reader.read(1 << 18):
            self._check_lease()  # first: a process that was stopped and wakes up must not take what lay in its buffers
            self._last_contact = time.monotonic()
            self._hear_all(connection.frames.feed(data), probe)
        raise ConnectionResetError("closed by the other side")

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while self._outbox is not None:
            while data := self._outbox.take():
                writer.write(data)
                await writer.drain()
                self._send_results()
                self._reporter.drained()
            self._can_send.clear()
            if not self._outbox:
                await self._can_send.wait()

    async def _beat(self) -> None:
        while True:
            self._send(m.PING, {"t": time.monotonic()}, urgent=True)
            await asyncio.sleep(self._heartbeat_s)
            self._check_lease()
            if time.monotonic() - self._last_contact > max(3 * self._heartbeat_s, 1.0):
                raise TimeoutError("three heartbeats were missed")

    def _hear_all(self, messages: list[Message], probe: Probe) -> None:
        """What cannot be handled costs this connection, never the process and all that it runs."""
        for message in messages:
            try:
                self._hear(message, probe)
            except Closed:
                raise
            except Exception as error:
                traceback.print_exc()
                raise FrameError(f"the message {message.kind!r} cannot be handled: {error!r}") from error

    def _hear(self, message: Message, probe: Probe) -> None:
        head = message.head
        match message.kind:
            case m.CALLS:
                self._take(head["calls"], message.blobs)
            case m.CANCEL:
                self._calls.cancel((head["id"], head["attempt"]), bool(head["force"]))
            case m.ACK:
                self._calls.forget(_keys(head))
            case m.RESUME:
                self._resume(_keys(head))
            case m.PROBE:
                probe.now()
            case m.PING:
                self._send(m.PONG, head, urgent=True)
            case m.PONG:
                self._lease.answered(head.get("t"))
            case m.CLOSE:
                raise Closed(str(head.get("sentence")))
            case _:
                print(f"rmcs agent: a message of unknown kind {message.kind!r} was ignored", flush=True)

    def _take(self, calls: list[dict[str, Any]], blobs: Any) -> None:
        taken: list[Key] = []
        lacking: list[Key] = []
        for call in calls:
            carried = call["fn_blob"]
            function = (
                self._calls.functions.get(call["fn"])
                if carried is None
                else self._calls.functions.learn(call["fn"], blobs[carried])
            )
            if function is None:  # it was dropped here to make room, and is sent again with the call
                lacking.append((call["id"], call["attempt"]))
                continue
            record = CallRecord(
                key=(call["id"], call["attempt"]),
                fence=call["fence"],
                name=call["name"],
                digest=call["fn"],
                function=function,
                arguments=blobs[call["args_blob"]],
                resources=call["res"],
                runtime_env=call["env"],
                homes=(call["homes"], call["home"]) if call.get("home") else None,
            )
            self._calls.accept(record)
            taken.append(record.key)
        self._send(m.ACCEPTED, {"keys": taken})
        if lacking:
            self._send(m.UNKNOWN, {"keys": lacking})

    def _resume(self, keys: list[Key]) -> None:
        """After a reconnect: say which calls arrived, and what they did; those that did not arrive are sent again."""
        known = [key for key in keys if key in self._calls.records]
        unknown = [key for key in keys if key not in self._calls.records]
        self._send(m.ACCEPTED, {"keys": known})
        self._send(m.UNKNOWN, {"keys": unknown})
        records = [self._calls.records[key] for key in known]
        self._reporter.catch_up((record.key, record.report) for record in records if record.head is None)

    def _hear_worker(self, message: Message) -> None:
        head = message.head
        key = (str(head["id"]), int(head["attempt"]))
        record = self._calls.records.get(key)
        if record is None:
            return
        if message.kind == "started" and record.head is None:
            self._reporter.started(key, record.report, float(head["at"]), str(head["node"]))
        elif message.kind == "output":
            self._reporter.output(key, record.report, [(stream, text) for stream, text in head["parts"]])
            if record.waits_for_output:
                self._release_if_complete(record)

    def _wake_from_any_thread(self) -> None:
        if not self._woken:
            self._woken = True
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._woken = False
        for record in self._calls.finished():
            head = record.head or {}
            if record.report.chunks < head.get("chunks", 0):
                # Output and result come by different ways; the last of the output may still be under way.
                record.waits_for_output = True
                self._loop.call_later(_OUTPUT_PATIENCE_S, self._release, record)
            else:
                self._ready.append(record)
        self._send_results()

    def _release_if_complete(self, record: CallRecord) -> None:
        if record.report.chunks >= (record.head or {}).get("chunks", 0):
            self._release(record)

    def _release(self, record: CallRecord) -> None:
        if record.waits_for_output:
            record.waits_for_output = False
            self._ready.append(record)
            self._send_results()

    def _send_results(self) -> None:
        """Send what is ready, as long as the outbox has room; the rest follows as it drains."""
        while self._ready and self._outbox is not None and self._outbox.pending_bytes < BACKLOG_HIGH:
            batch: list[CallRecord] = []
            size = 0
            while self._ready and len(batch) < _BATCH_RESULTS and size < _BATCH_BYTES:
                record = self._ready.popleft()
                self._reporter.flush(record.key, record.report)
                if record.big:
                    self._send_big(record)
                    continue
                batch.append(record)
                size += len(record.payload or b"")
            if batch:
                payloads = [record.payload or b"" for record in batch]
                self._send(m.FINISHED, {"results": [_result(record) for record in batch]}, payloads)

    def _send_big(self, record: CallRecord) -> None:
        outbox = self._outbox

        async def read_and_send() -> None:
            payload = b""
            try:
                payload = await asyncio.wrap_future(self._calls.read_back(record))
            except Exception as error:  # noqa: BLE001 - whatever Ray raises: the value cannot be had
                sentence = f"the result was stored in the cluster, but cannot be read any more: {error}"
                _fail(record, "crash", "RESULT_LOST", type(error).__name__, sentence)
            if len(payload) > MAX_MESSAGE_BYTES - _ROOM_FOR_HEADS:
                sentence = f"the result has {len(payload)} bytes, and less than 4 GiB can be sent; write it to a file"
                _fail(record, "permanent", "RESULT_TOO_LARGE", "ValueError", sentence)
                payload = b""
            # After a reconnect this result is in the new connection's turn; do not send it twice.
            if self._outbox is outbox:
                self._send(m.FINISHED, {"results": [_result(record)]}, [payload])

        task = asyncio.create_task(read_and_send())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    def _tell_from_any_thread(self, seen: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._tell_snapshot, seen)

    def _tell_snapshot(self, seen: dict[str, Any]) -> None:
        self._snapshot = seen
        self._send(m.SNAPSHOT, seen)

    def _backlog(self) -> int | None:
        return None if self._outbox is None else self._outbox.pending_bytes

    def _send(self, kind: str, head: dict[str, Any], blobs: Any = (), *, urgent: bool = False) -> None:
        if self._outbox is not None:
            self._outbox.put(Message(kind, head, blobs), urgent=urgent)
            self._can_send.set()


def _result(record: CallRecord) -> dict[str, Any]:
    head = record.head or {}
    result = {"id": record.key[0], "attempt": record.key[1], **head}
    if record.report.dropped:
        result["dropped"] = head.get("dropped", 0) + record.report.dropped
    return result


def _fail(record: CallRecord, failure: str, code: str, error_type: str, sentence: str) -> None:
    """The call ran, but its value cannot be had."""
    record.ref, record.payload = None, b""
    outcome = {"status": "failed", "failure": failure, "code": code, "error_type": error_type, "message": sentence}
    record.head = {**(record.head or {}), **outcome}


def _keys(head: dict[str, Any]) -> list[Key]:
    return [(str(task_id), int(attempt)) for task_id, attempt in head["keys"]]


def _who() -> dict[str, Any]:
    context = ray.get_runtime_context()
    return {
        "ray_version": ray.__version__,
        "python_version": platform.python_version(),
        "session_id": context.get_session_name(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "job_id": context.get_job_id(),
        "pid": os.getpid(),
    }
