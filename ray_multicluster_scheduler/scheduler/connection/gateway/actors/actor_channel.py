"""The line of an actor's process to its agent: open for as long as the actor lives.

Its end tells the agent to look whether the actor is dead. A detached actor needs no lease. Without an agent it lives
on, and dials the next one that attends to it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import Line, WorkerChannel
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.running import Running

LEAVING, CANCEL = "leaving", "cancel"
_BUSY_TICK_S, _IDLE_TICK_S = 0.02, 0.5
_IDLE_AFTER_S = 1.0
_LONGEST_PAUSE_S = 15.0
_KEPT_CANCELS = 10_000


class ActorChannel(WorkerChannel):
    """Made when the actor is. Everything that its process prints is the actor's, whichever method did it."""

    def __init__(self, line: Line, task_id: str, attempt: int, *, detached: bool) -> None:
        self._detached = detached
        self._actor = (task_id, attempt)
        self._failures = 0
        self._cancelled: OrderedDict[Key, None] = OrderedDict()
        super().__init__(line)

    def live(self, node_id: str) -> Running:
        """The actor's life begins. Raises NoLease."""
        running = self.begin(*self._actor, node_id)
        running.reported = True  # it counts as started when it is ready, and its agent knows that first
        return running

    def attend(self, line: Line, task_id: str, attempt: int) -> None:
        """From now on this agent is told, of an actor by this id."""
        running = self._running
        if running is None or (line, task_id, attempt) == (self.line, *self._actor):
            return
        with self._sending:
            self.line, self._actor = line, (task_id, attempt)
            running.task_id, running.attempt, running.chunks = task_id, attempt, 0
            self._failures, self._next_connect = -1, 0.0
            self._shut()

    def called(self, key: Key | None = None) -> bool:
        """A method is about to run: what it prints is told promptly. False: its end was asked for meanwhile."""
        self._last_activity = time.monotonic()
        return key is None or self._cancelled.pop(key, self) is self

    def flush(self, running: Running) -> list[tuple[str, str]]:
        """Send what was printed. Returns what could not be sent, to go with a result."""
        if not running.unsent:
            return []
        try:
            self._send_output(running)
        except OSError:
            self._shut()
            with self._lock:
                return running.rest()
        return []

    def leaving(self, running: Running) -> None:
        """The actor goes by its own wish; its agent should not take that for a crash."""
        self.flush(running)
        try:
            self._send(LEAVING, {"id": running.task_id, "attempt": running.attempt})
        except OSError:
            self._shut()  # it will be taken for a crash: nobody can be told

    def _hear(self, message: Message) -> None:
        if message.kind != CANCEL:
            super()._hear(message)
            return
        self._cancelled[str(message.head["id"]), int(message.head["attempt"])] = None
        if len(self._cancelled) > _KEPT_CANCELS:  # of methods that had begun
            self._cancelled.popitem(last=False)

    def _tick_s(self) -> float:
        running = self._running
        if (running is not None and running.unsent) or time.monotonic() - self._last_activity < _IDLE_AFTER_S:
            return _BUSY_TICK_S
        return min(_IDLE_TICK_S, self.line.lease_s / 20)

    def _who(self) -> dict[str, Any]:
        self._failures = 0
        return {"actor": list(self._actor)}

    def _lease_is_needed(self) -> bool:
        return not self._detached

    def _shut(self) -> None:
        """End the connection from another thread than the channel's own, which then sees its end and cleans up."""
        connection = self._socket
        if connection is not None:
            try:
                connection.shutdown(2)
            except OSError:
                return  # it was closed already

    def _hang_up(self) -> None:
        super()._hang_up()
        self._failures += 1
        if self._detached:  # it may be alone for days
            pause = min(2.0**self._failures / 2, _LONGEST_PAUSE_S) if self._failures else 0.0
            self._next_connect = time.monotonic() + pause
