"""The worker's own line to its agent: started-reports, output as it comes, and the lease.

One per worker process. A short call costs nothing here: its start and its output travel with its result.
Only a call that still runs after ``REPORT_AFTER_S`` is reported by the background thread. The same thread
watches the lease: the agent says every few seconds how long the control plane still counts on it; when that
time is over, the control plane gives this attempt to somebody else, so this process must end.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.frames import FrameError, FrameReader, FrameWriter, Message

REPORT_AFTER_S = 0.03
_TICK_S = 0.02
_IDLE_AFTER_S = 1.0
_CONNECT_TIMEOUT_S = 5.0
_RECONNECT_PAUSE_S = 1.0
_EXIT_LEASE_OVER = 75
MAX_UNSENT_CHARS = 1_000_000


@dataclass(frozen=True, slots=True)
class Line:
    """Where the agent listens for its workers, and how to be let in."""

    host: str
    port: int
    secret: str
    lease_s: float


@dataclass(slots=True)
class Running:
    """The call in progress, as far as the background thread needs to know."""

    task_id: str
    attempt: int
    node_id: str
    started_at: float
    began: float
    reported: bool = False
    chunks: int = 0
    dropped: int = 0
    unsent: list[tuple[str, list[str]]] = field(default_factory=list)
    unsent_chars: int = 0


class WorkerChannel:
    """The line of this worker process. Made on its first call, lives as long as the process."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._running: Running | None = None
        self._lease_until = time.monotonic() + line.lease_s
        self._last_activity = time.monotonic()
        self._socket: socket.socket | None = None
        self._reader = FrameReader()
        self._next_connect = 0.0
        threading.Thread(target=self._loop, name="rmcs-worker-channel", daemon=True).start()

    def begin(self, task_id: str, attempt: int, node_id: str) -> Running:
        """A call begins on this process."""
        running = Running(task_id, attempt, node_id, time.time(), time.monotonic())
        with self._lock:
            self._running = running
            self._last_activity = running.began
            # The lease is about work that nobody vouches for: a call that just arrived is vouched for.
            self._lease_until = max(self._lease_until, running.began + self.line.lease_s)
        if not self._wake.is_set():
            self._wake.set()
        return running

    def end(self, running: Running) -> list[tuple[str, str]]:
        """The call is over; returns the output that was not sent yet and goes with the result."""
        with self._lock:
            self._running = None
            self._last_activity = time.monotonic()
            rest, running.unsent = running.unsent, []
        return _joined(rest)

    def write(self, running: Running, stream: str, text: str) -> None:
        """Output of user code. Never blocks: what nobody takes is counted and dropped, newest first."""
        with self._lock:
            if running.unsent_chars + len(text) > MAX_UNSENT_CHARS:
                running.dropped += len(text)
                return
            if running.unsent and running.unsent[-1][0] == stream:
                running.unsent[-1][1].append(text)
            else:
                running.unsent.append((stream, [text]))
            running.unsent_chars += len(text)

    def _loop(self) -> None:
        while True:
            self._wake.wait()
            if time.monotonic() - self._last_activity > _IDLE_AFTER_S and self._running is None:
                self._wake.clear()
                if self._running is None:
                    self._hang_up()
                    self._next_connect = 0.0  # nothing failed: the next call need not wait
                    continue
                self._wake.set()
            self._tick()
            if self._socket is None:
                time.sleep(_TICK_S)

    def _tick(self) -> None:
        now = time.monotonic()
        running = self._running
        if running is not None and now > self._lease_until:
            self._give_up(running)
        if running is not None and now - running.began >= REPORT_AFTER_S:
            self._connect_if_due(now)
        if self._socket is not None:
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
            self._socket = socket.create_connection((self.line.host, self.line.port), _CONNECT_TIMEOUT_S)
            self._reader = FrameReader()
            self._send("hello", {"secret": self.line.secret, "pid": os.getpid()})
        except OSError:
            # Not hidden: without contact the lease runs out, and that ends the process with a sentence.
            self._hang_up()

    def _report(self, running: Running | None) -> None:
        if running is None:
            return
        with self._lock:
            start = not running.reported and time.monotonic() - running.began >= REPORT_AFTER_S
            parts, running.unsent, running.unsent_chars = running.unsent, [], 0
            running.chunks += bool(parts)
        key = {"id": running.task_id, "attempt": running.attempt}
        try:
            if start:
                self._send("started", {**key, "at": running.started_at, "node": running.node_id})
                running.reported = True
            if parts:
                self._send("output", {**key, "parts": _joined(parts)})
        except OSError:
            with self._lock:
                running.unsent = parts + running.unsent
                running.unsent_chars += sum(len(text) for _, texts in parts for text in texts)
                running.chunks -= bool(parts)
            self._hang_up()

    def _listen(self) -> None:
        """Wait one tick for the agent's word, which says how long the lease still lasts."""
        connection = self._socket
        if connection is None:
            return
        try:
            connection.settimeout(_TICK_S)
            data = connection.recv(65536)
            if not data:
                raise ConnectionResetError("closed")
            for message in self._reader.feed(data):
                self._lease_until = time.monotonic() + float(message.head["left_s"])
        except TimeoutError:
            return
        except (OSError, FrameError):
            self._hang_up()

    def _send(self, kind: str, head: dict[str, Any]) -> None:
        if self._socket is None:
            raise ConnectionResetError("not connected")
        writer = FrameWriter()
        writer.put(Message(kind, head))
        self._socket.settimeout(_CONNECT_TIMEOUT_S)
        while writer:
            self._socket.sendall(writer.take())

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._next_connect = time.monotonic() + _RECONNECT_PAUSE_S


def _joined(parts: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    """print() writes word by word; send what belongs together as one piece."""
    return [(stream, "".join(texts)) for stream, texts in parts]


_channel: WorkerChannel | None = None


def channel_for(line: Line) -> WorkerChannel:
    """This process's channel to that agent (a worker serves one agent all its life)."""
    global _channel  # noqa: PLW0603 - one per process by design
    if _channel is None or _channel.line != line:
        _channel = WorkerChannel(line)
    return _channel
