"""WorkerChannel: the connection of a worker process to its agent: start reports, output, and the lease.

One per worker process. A short call sends no messages: its start and output travel with its result. A background thread
reports calls that still run after ``REPORT_AFTER_S``, and renews the lease every few seconds. When the lease expires,
the control plane gives this attempt to another cluster, so this process must end.

A grant counts from when this process *asked*: a process that was stopped and resumes finds old, invalid answers in its
socket. For the same reason no call starts without a lease that was granted to this process: the call may have waited in
Ray for any length of time, after the agent's lease expired. So the first call of a process costs one round trip; during
further calls the lease is renewed in the background.

A call that has waited in Ray for ``ASK_AFTER_S`` may have been recalled, so the agent is asked before it starts. Its
age is known without a round trip: a grant has the time of the agent's clock, so this process knows the latest time that
it can be there.
"""

from __future__ import annotations

import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ray_multicluster_scheduler.common.frames import FrameError, FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint, Key

Parts: TypeAlias = list[tuple[str, list[str]]]
"""Streams, and the texts that were written to each, in order."""
MAX_UNSENT_CHARS = 1_000_000
UNFINISHED_LINE_S = 1.0
"""An unfinished line of a gang's member is held back for this time: all members write to one output, and print() writes
the end of a line separately."""


@dataclass(slots=True)
class RunningCall:
    """The call in progress, and its output that was not sent yet. The channel's lock protects it."""

    task_id: str
    attempt: int
    node_id: str
    started_at: float
    began: float
    reported: bool = False
    chunks: int = 0
    dropped: int = 0
    unsent: Parts = field(default_factory=list)
    unsent_chars: int = 0
    member: int | None = None
    unfinished_since: float | None = None
    """When the last line began to be held back."""

    def start(self) -> dict[str, Any]:
        """The head of the message "started"."""
        head: dict[str, Any] = {"id": self.task_id, "attempt": self.attempt, "at": self.started_at}
        head |= {"node": self.node_id, "pid": os.getpid()}
        return head if self.member is None else {**head, "member": self.member}

    def write(self, stream: str, text: str) -> None:
        """Keep output; beyond the limit it is counted and dropped."""
        if self.unsent_chars + len(text) > MAX_UNSENT_CHARS:
            self.dropped += len(text)
            return
        if self.unsent and self.unsent[-1][0] == stream:
            self.unsent[-1][1].append(text)
        else:
            self.unsent.append((stream, [text]))
        self.unsent_chars += len(text)

    def take(self, now: float) -> Parts:
        """Remove and return the output to send now, as one chunk; an unfinished line of a gang's member stays."""
        parts, unfinished = self._split_unfinished_line(now)
        self.unsent, self.unsent_chars = unfinished, _chars(unfinished)
        self.chunks += bool(parts)
        return parts

    def put_back(self, parts: Parts) -> None:
        """Undo :meth:`take` after an error."""
        self.unsent = parts + self.unsent
        self.unsent_chars += _chars(parts)
        self.chunks -= 1

    def rest(self) -> list[tuple[str, str]]:
        """Remove and return all remaining output, to go with a result."""
        parts, self.unsent, self.unsent_chars = self.unsent, [], 0
        return join_texts(parts)

    def _split_unfinished_line(self, now: float) -> tuple[Parts, Parts]:
        parts = self.unsent
        if self.member is None or not parts:
            return parts, []
        stream, texts = parts[-1]
        finished, end, unfinished = "".join(texts).rpartition("\n")
        if end or self.unfinished_since is None:
            self.unfinished_since = now
        if not unfinished or now - self.unfinished_since >= UNFINISHED_LINE_S:
            self.unfinished_since = None
            return parts, []
        return parts[:-1] + ([(stream, [finished + end])] if end else []), [(stream, [unfinished])]


def join_texts(parts: Parts) -> list[tuple[str, str]]:
    """Each stream's texts as one piece: print() writes word by word."""
    return [(stream, "".join(texts)) for stream, texts in parts]


def _chars(parts: Parts) -> int:
    return sum(len(text) for _, texts in parts for text in texts)


LEASE, BEGIN = "lease", "begin"
ASK_AFTER_S = 2.0
"""A call that was given to Ray this long ago starts only with the agent's permission."""
RECALL_AFTER_S = ASK_AFTER_S + 2.0
"""The agent recalls a call from Ray only this long after it was given to it: by then it has received the report of any
start without permission."""
ALWAYS_ASK = -math.inf
"""The ``sent_at`` of a call that always needs the permission."""
REPORT_AFTER_S = 0.03
_TICK_S = 0.02
_IDLE_AFTER_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
_CONNECTED_TIMEOUT_S = 2.0
_RECONNECT_PAUSE_S = 1.0
_EXIT_LEASE_OVER = 75
_RENEW_AFTER = 0.1
"""Share of the lease after which it is renewed while the connection is open."""


class NoLease(Exception):
    """The agent granted no lease for a call that was about to start, so it was not started."""


class TakenBack(Exception):
    """The control plane has recalled a call that was about to start, so it was not started."""


class WorkerChannel:
    """The connection of this worker process. Created on its first call, lives as long as the process."""

    def __init__(self, address: AgentEndpoint) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._running: RunningCall | None = None
        self._lease_until = 0.0
        self._agent_ahead_s = 0.0
        """How far the agent's clock is ahead of ours, at most."""
        self._question: Key | None = None
        """The call that waits for the agent's permission to start."""
        self._asked_over: socket.socket | None = None
        self._permission: bool | None = None
        self._answered = threading.Event()
        self._waiting = False
        self._asked_at = 0.0
        self._last_activity = time.monotonic()
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._next_connect = 0.0
        threading.Thread(target=self._loop, name="rmcs-worker-channel", daemon=True).start()

    def begin(
        self,
        task_id: str,
        attempt: int,
        node_id: str,
        *,
        sent_at: float,
        report_now: bool = False,
        member: int | None = None,
    ) -> RunningCall:
        """Start a call, or this ``member`` of a gang, once there is a lease for it. Raises NoLease and TakenBack.

        ``sent_at``: when the agent gave the call to Ray, by the agent's clock. ``report_now``: report the start before
        user code runs, which may hold the interpreter's lock, so that the thread that would report it later never runs.
        """
        if self._lease_is_needed():
            self._wait_until(self._has_lease)
            if time.monotonic() + self._agent_ahead_s - sent_at >= ASK_AFTER_S:
                self._ask((task_id, attempt))
        running = RunningCall(task_id, attempt, node_id, time.time(), time.monotonic(), member=member)
        with self._lock:
            self._running = running
            self._last_activity = running.began
        if not self._wake.is_set():
            self._wake.set()
        if report_now:
            self._report_start(running)
        return running

    def end(self, running: RunningCall) -> list[tuple[str, str]]:
        """End the call; returns the output that was not sent yet and goes with the result."""
        with self._lock:
            self._running = None
            self._last_activity = time.monotonic()
            return running.rest()

    def write(self, running: RunningCall, stream: str, text: str) -> None:
        """Keep output of user code for the background thread. Never blocks; output beyond the limit is dropped."""
        with self._lock:
            running.write(stream, text)

    def _report_start(self, running: RunningCall) -> None:
        """Report the start now; without a connection later, because only displays depend on it."""
        if self._socket is None:
            self._wait_for_connection()
        with self._sending:
            if running.reported or self._socket is None:
                return
            try:
                self._send_now("started", running.start())
                running.reported = True
            except OSError:
                return  # the background thread reconnects and reports it

    def _wait_for_connection(self) -> None:
        deadline = time.monotonic() + _CONNECTED_TIMEOUT_S
        self._waiting = True
        self._asked_at = 0.0
        try:
            while self._socket is None and time.monotonic() < deadline:
                self._answered.wait(_TICK_S)
                self._answered.clear()
        finally:
            self._waiting = False

    def write_output(self, stream: str, text: str) -> None:
        """Output of the call that runs now, if any."""
        running = self._running
        if running is not None:
            self.write(running, stream, text)

    def _margin(self) -> float:
        """The time that a call must have left to renew the lease in the background."""
        return self.address.lease_s * _RENEW_AFTER

    def _has_lease(self) -> bool:
        return time.monotonic() < self._lease_until - self._margin()

    def _ask(self, call: Key) -> None:
        """Wait for the agent's permission to start this call. Raises NoLease and TakenBack."""
        self._permission, self._asked_over, self._question = None, None, call
        try:
            self._wait_until(lambda: self._permission is not None)
        finally:
            self._question = None
        if not self._permission:
            raise TakenBack(f"{call[0]} (attempt {call[1]}) was recalled before it started")
        self._wait_until(self._has_lease)  # which may have expired while it waited

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for an answer of the agent. Raises NoLease."""
        if condition():
            return
        deadline = time.monotonic() + self.address.lease_s
        self._waiting = True
        self._wake.set()
        try:
            while not condition():
                if time.monotonic() > deadline:
                    agent = f"the agent at {self.address.host}:{self.address.port}"
                    raise NoLease(
                        f"{agent} granted nothing for {self.address.lease_s:g} s, so the call was not started; "
                        "the nodes of a cluster must reach each other on all ports"
                    )
                self._answered.wait(_TICK_S)
                self._answered.clear()
        finally:
            self._last_activity = time.monotonic()
            self._waiting = False

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            if time.monotonic() - self._last_activity > _IDLE_AFTER_S and not self._is_needed():
                self._wake.clear()
                if not self._is_needed():
                    self._disconnect()
                    self._next_connect = 0.0  # not an error, so the next call need not wait
                    continue
                self._wake.set()
            self._tick()
            if self._socket is None:
                time.sleep(self._tick_s())

    def _is_needed(self) -> bool:
        return self._running is not None or self._waiting

    def _lease_is_needed(self) -> bool:
        return True

    def _tick_s(self) -> float:
        return _TICK_S

    def _tick(self) -> None:
        now = time.monotonic()
        running = self._running
        if running is not None and now > self._lease_until and self._lease_is_needed():
            self._exit_without_lease(running)
        to_report = running is not None and now - running.began >= REPORT_AFTER_S
        if to_report or self._waiting or now > self._lease_until - self.address.lease_s / 2:
            self._connect_if_due(now)
        if self._socket is not None:
            self._renew_if_due(now)
            self._send_question()
            self._report(running)
            self._receive()

    def _exit_without_lease(self, running: RunningCall) -> None:
        print(
            f"rmcs: no contact with the agent for {self.address.lease_s:g} s; task {running.task_id} "
            f"(attempt {running.attempt}) will be run elsewhere, so this process ends.",
            file=sys.__stderr__,
            flush=True,
        )
        os._exit(_EXIT_LEASE_OVER)

    def _connect_if_due(self, now: float) -> None:
        if self._socket is not None or now < self._next_connect:
            return
        try:
            self._socket = self._open()
        except (OSError, FrameError, KeyError):
            # Not an error yet: if the agent stays unreachable, the lease expires, which ends the process.
            self._disconnect()

    def _open(self) -> socket.socket:
        """Connect and send HELLO."""
        self._reader = FrameReader()
        self._asked_at = 0.0
        connection = socket.create_connection((self.address.host, self.address.port), self._timeout())
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a second small message would wait 40 ms
            proof = m.proof(self.address.secret, "worker", self._nonce(connection))
            locked = process_lock.hold(self.address.lock_file)  # before any lease: see process_lock
            hello = {"proof": proof, "pid": os.getpid(), "locked": locked, **self._identity()}
            self._write(connection, m.HELLO, hello)
        except BaseException:
            connection.close()
            raise
        return connection

    def _identity(self) -> dict[str, Any]:
        """More fields of HELLO."""
        return {}

    def _nonce(self, connection: socket.socket) -> str:
        messages: list[Message] = []
        while not messages:
            connection.settimeout(self._timeout())
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("closed")
            messages = self._reader.feed(data)
        return str(messages[0].head["nonce"])

    def _timeout(self) -> float:
        """While a call runs, this thread must not block beyond the lease, which it also watches."""
        if self._running is None or not self._lease_is_needed():
            return _CONNECT_TIMEOUT_S
        return min(_CONNECT_TIMEOUT_S, max(self._lease_until - time.monotonic(), _TICK_S))

    def _renew_if_due(self, now: float) -> None:
        if now - self._asked_at < self.address.lease_s * _RENEW_AFTER:
            return
        self._asked_at = now
        try:
            self._send(LEASE, {"t": now})
        except OSError:
            self._disconnect()

    def _send_question(self) -> None:
        """Once over each connection."""
        call = self._question
        if call is None or self._asked_over is self._socket:
            return
        self._asked_over = self._socket
        try:
            self._send(BEGIN, {"id": call[0], "attempt": call[1]})
        except OSError:
            self._disconnect()

    def _report(self, running: RunningCall | None) -> None:
        if running is None or time.monotonic() - running.began < REPORT_AFTER_S:
            return
        try:
            with self._sending:
                if not running.reported:
                    self._send_now("started", running.start())
                    running.reported = True
            self._send_output(running)
        except OSError:
            self._disconnect()

    def _send_output(self, running: RunningCall) -> None:
        """Send the new output. Raises OSError, and then keeps it."""
        with self._sending:
            with self._lock:
                parts = running.take(time.monotonic())
            if not parts:
                return
            try:
                self._send_now(
                    "output", {"id": running.task_id, "attempt": running.attempt, "parts": join_texts(parts)}
                )
            except OSError:
                with self._lock:
                    running.put_back(parts)
                raise

    def _receive(self) -> None:
        """Wait one tick for messages of the agent."""
        connection = self._socket
        if connection is None:
            return
        try:
            if not _is_readable(connection, self._tick_s()):
                return
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("closed")
            for message in self._reader.feed(data):
                self._handle(message)
        except (OSError, FrameError, KeyError, TypeError, ValueError):
            self._disconnect()

    def _handle(self, message: Message) -> None:
        """Renew the lease by a grant, which counts from the time of the request; or note the agent's permission."""
        head = message.head
        if message.kind == BEGIN:
            if (head["id"], head["attempt"]) == self._question:
                self._permission = bool(head["may"])
        else:
            self._agent_ahead_s = float(head["now"]) - float(head["t"])
            self._lease_until = max(self._lease_until, float(head["t"]) + float(head["left_s"]))
        self._answered.set()

    def _send(self, kind: str, head: dict[str, Any]) -> None:
        with self._sending:
            self._send_now(kind, head)

    def _send_now(self, kind: str, head: dict[str, Any]) -> None:
        connection = self._socket
        if connection is None:
            raise ConnectionResetError("not connected")
        self._write(connection, kind, head)

    def _write(self, connection: socket.socket, kind: str, head: dict[str, Any]) -> None:
        writer = FrameWriter()
        writer.put(Message(kind, head))
        connection.settimeout(self._timeout())
        while writer:
            connection.sendall(writer.take())

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._next_connect = time.monotonic() + _RECONNECT_PAUSE_S


def _is_readable(connection: socket.socket, seconds: float) -> bool:
    """Poll for data to read; other threads may write at the same time."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


_channel: WorkerChannel | None = None


def channel_for(address: AgentEndpoint) -> WorkerChannel:
    """The channel of this process, which serves a single agent."""
    global _channel  # noqa: PLW0603 - one per process by design
    if _channel is None or _channel.address != address:
        _channel = WorkerChannel(address)
    return _channel


def write_output(stream: str, text: str) -> None:
    """Record output of the running call, if any."""
    if _channel is not None:
        _channel.write_output(stream, text)
