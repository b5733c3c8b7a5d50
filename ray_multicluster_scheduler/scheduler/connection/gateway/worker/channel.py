"""The worker's own line to its agent: started-reports, output as it comes, and the lease.

One per worker process. A short call costs nothing here: its start and its output travel with its result.
Only a call that still runs after ``REPORT_AFTER_S`` is reported by the background thread. The same thread
keeps the lease: it asks the agent every few seconds for how long the control plane still counts on it. When that
time is over, the control plane gives this attempt to somebody else, so this process must end.

What the agent grants counts from when this process *asked*: a process that was stopped and wakes up finds old
answers in its socket, and they are worth nothing any more. For the same reason no call starts without a lease
that was granted here: it may have waited in Ray, behind an agent that nobody counts on, for any length of time. So
the first call of a process costs one question; while calls keep coming, the lease is renewed behind them.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.frames import FrameError, FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.running import Running, joined

LEASE = "lease"
REPORT_AFTER_S = 0.03
_TICK_S = 0.02
_IDLE_AFTER_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
_LINE_PATIENCE_S = 2.0
_RECONNECT_PAUSE_S = 1.0
_EXIT_LEASE_OVER = 75
_ASK_AGAIN_AFTER = 0.1
"""Of the lease: so often is it renewed while the line is open."""


class NoLease(Exception):
    """Nobody vouches for a call that was about to start, so it did not."""


class Line(NamedTuple):
    """Where the agent listens for its workers, and how to be let in."""

    host: str
    port: int
    secret: str
    lease_s: float


class WorkerChannel:
    """The line of this worker process. Made on its first call, lives as long as the process."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._wake = threading.Event()
        self._running: Running | None = None
        self._lease_until = 0.0
        self._granted = threading.Event()
        self._waiting = False
        self._asked_at = 0.0
        self._last_activity = time.monotonic()
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._next_connect = 0.0
        threading.Thread(target=self._loop, name="rmcs-worker-channel", daemon=True).start()

    def begin(
        self, task_id: str, attempt: int, node_id: str, *, tell: bool = False, member: int | None = None
    ) -> Running:
        """A call, or this ``member`` of a gang, begins on this process, as soon as it is known to be wanted. Raises
        NoLease.

        ``tell``: say so before it does. User code may keep the interpreter to itself, and the thread that would say it
        later then never runs.
        """
        if self._lease_is_needed() and time.monotonic() >= self._lease_until - self._margin():
            self._wait_for_lease()
        running = Running(task_id, attempt, node_id, time.time(), time.monotonic(), member=member)
        with self._lock:
            self._running = running
            self._last_activity = running.began
        if not self._wake.is_set():
            self._wake.set()
        if tell:
            self._tell_start(running)
        return running

    def end(self, running: Running) -> list[tuple[str, str]]:
        """The call is over; returns the output that was not sent yet and goes with the result."""
        with self._lock:
            self._running = None
            self._last_activity = time.monotonic()
            return running.rest()

    def write(self, running: Running, stream: str, text: str) -> None:
        """Output of user code. Never blocks: what nobody takes is counted and dropped, newest first."""
        with self._lock:
            running.write(stream, text)

    def _tell_start(self, running: Running) -> None:
        """Without a line it is told later, when there is one: nothing depends on it but what people see."""
        if self._socket is None:
            self._wait_for_line()
        with self._sending:
            if running.reported or self._socket is None:
                return
            try:
                self._send_now("started", running.start())
                running.reported = True
            except OSError:
                return  # the background thread finds the line broken, too, and tells it by the next one

    def _wait_for_line(self) -> None:
        deadline = time.monotonic() + _LINE_PATIENCE_S
        self._waiting = True
        self._asked_at = 0.0
        try:
            while self._socket is None and time.monotonic() < deadline:
                self._granted.wait(_TICK_S)
                self._granted.clear()
        finally:
            self._waiting = False

    def say(self, stream: str, text: str) -> None:
        """Output of the call that runs now, if one does."""
        running = self._running
        if running is not None:
            self.write(running, stream, text)

    def _margin(self) -> float:
        """A call begins only with time left to renew the lease behind it; else a healthy process would end itself."""
        return self.line.lease_s * _ASK_AGAIN_AFTER

    def _wait_for_lease(self) -> None:
        deadline = time.monotonic() + self.line.lease_s
        self._waiting = True
        self._wake.set()
        try:
            while time.monotonic() >= self._lease_until - self._margin():
                if time.monotonic() > deadline:
                    raise NoLease(
                        f"the agent at {self.line.host}:{self.line.port} granted nothing for {self.line.lease_s:g} s, "
                        "so the call was not started; the nodes of a cluster must reach each other on all ports"
                    )
                self._granted.wait(_TICK_S)
                self._granted.clear()
        finally:
            self._last_activity = time.monotonic()
            self._waiting = False

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            if time.monotonic() - self._last_activity > _IDLE_AFTER_S and not self._needed():
                self._wake.clear()
                if not self._needed():
                    self._hang_up()
                    self._next_connect = 0.0  # nothing failed: the next call need not wait
                    continue
                self._wake.set()
            self._tick()
            if self._socket is None:
                time.sleep(self._tick_s())

    def _needed(self) -> bool:
        return self._running is not None or self._waiting

    def _lease_is_needed(self) -> bool:
        return True

    def _tick_s(self) -> float:
        return _TICK_S

    def _tick(self) -> None:
        now = time.monotonic()
        running = self._running
        if running is not None and now > self._lease_until and self._lease_is_needed():
            self._give_up(running)
        to_report = running is not None and now - running.began >= REPORT_AFTER_S
        if to_report or self._waiting or now > self._lease_until - self.line.lease_s / 2:
            self._connect_if_due(now)
        if self._socket is not None:
            self._ask_if_due(now)
            self._report(running)
            self._listen()

    def _give_up(self, running: Running) -> None:
        print(
            f"rmcs: no contact with the agent for {self.line.lease_s:g} s; task {running.task_id} "
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
            # Not hidden: without contact the lease runs out, and that ends the process with a sentence.
            self._hang_up()

    def _open(self) -> socket.socket:
        """A connection on which we have said who we are."""
        self._reader = FrameReader()
        self._asked_at = 0.0
        connection = socket.create_connection((self.line.host, self.line.port), self._patience())
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a second small message would wait 40 ms
            proof = m.proof(self.line.secret, "worker", self._nonce(connection))
            self._write(connection, m.HELLO, {"proof": proof, "pid": os.getpid(), **self._who()})
        except BaseException:
            connection.close()
            raise
        return connection

    def _who(self) -> dict[str, Any]:
        """What else to say of oneself."""
        return {}

    def _nonce(self, connection: socket.socket) -> str:
        messages: list[Message] = []
        while not messages:
            connection.settimeout(self._patience())
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("closed")
            messages = self._reader.feed(data)
        return str(messages[0].head["nonce"])

    def _patience(self) -> float:
        """This thread watches the lease, too: while a call runs, nothing may hold it up for longer than that."""
        if self._running is None or not self._lease_is_needed():
            return _CONNECT_TIMEOUT_S
        return min(_CONNECT_TIMEOUT_S, max(self._lease_until - time.monotonic(), _TICK_S))

    def _ask_if_due(self, now: float) -> None:
        if now - self._asked_at < self.line.lease_s * _ASK_AGAIN_AFTER:
            return
        self._asked_at = now
        try:
            self._send(LEASE, {"t": now})
        except OSError:
            self._hang_up()

    def _report(self, running: Running | None) -> None:
        if running is None or time.monotonic() - running.began < REPORT_AFTER_S:
            return
        try:
            with self._sending:
                if not running.reported:
                    self._send_now("started", running.start())
                    running.reported = True
            self._send_output(running)
        except OSError:
            self._hang_up()

    def _send_output(self, running: Running) -> None:
        """What was written since last time. Raises OSError, and then nothing is lost."""
        with self._sending:
            with self._lock:
                parts = running.take(time.monotonic())
            if not parts:
                return
            try:
                self._send_now("output", {"id": running.task_id, "attempt": running.attempt, "parts": joined(parts)})
            except OSError:
                with self._lock:
                    running.put_back(parts)
                raise

    def _listen(self) -> None:
        """Wait one tick for the agent's word, which says how long the lease lasts from when it was asked for."""
        connection = self._socket
        if connection is None:
            return
        try:
            if not _readable(connection, self._tick_s()):
                return
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("closed")
            for message in self._reader.feed(data):
                self._hear(message)
        except (OSError, FrameError, KeyError, TypeError, ValueError):
            self._hang_up()

    def _hear(self, message: Message) -> None:
        until = float(message.head["t"]) + float(message.head["left_s"])
        self._lease_until = max(self._lease_until, until)
        self._granted.set()

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
        connection.settimeout(self._patience())
        while writer:
            connection.sendall(writer.take())

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._next_connect = time.monotonic() + _RECONNECT_PAUSE_S


def _readable(connection: socket.socket, seconds: float) -> bool:
    """Is there something to read within this time? Others may be writing meanwhile."""
    waiter = select.poll()
    waiter.register(connection, select.POLLIN)
    return bool(waiter.poll(seconds * 1000))


_channel: WorkerChannel | None = None


def channel_for(line: Line) -> WorkerChannel:
    """This process's channel to that agent (a worker serves one agent all its life)."""
    global _channel  # noqa: PLW0603 - one per process by design
    if _channel is None or _channel.line != line:
        _channel = WorkerChannel(line)
    return _channel


def say(stream: str, text: str) -> None:
    """Something was written in this process."""
    if _channel is not None:
        _channel.say(stream, text)
