"""ActorChannel: the connection of an actor's process to its agent, open for as long as the actor lives.

When it closes, the agent checks whether the actor is dead. A detached actor needs no lease: it survives its agent, and
connects to the next one that takes it over with :meth:`ActorChannel.report_to`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import (
    ALWAYS_ASK,
    RunningCall,
    WorkerChannel,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint, Key

LEAVING, CANCEL = "leaving", "cancel"
_BUSY_TICK_S, _IDLE_TICK_S = 0.02, 0.5
_IDLE_AFTER_S = 1.0
_MAX_PAUSE_S = 15.0
_MAX_CANCELS = 10_000


class ActorChannel(WorkerChannel):
    """Created with the actor. All output of its process is the actor's, for every method."""

    def __init__(self, agent: AgentEndpoint, task_id: str, attempt: int, *, detached: bool) -> None:
        self._detached = detached
        self._actor = (task_id, attempt)
        self._failures = 0
        self._cancelled: OrderedDict[Key, None] = OrderedDict()
        super().__init__(agent)

    def begin_actor(self, node_id: str) -> RunningCall:
        """Start the actor's own call, which lasts as long as the actor. Raises NoLease and TakenBack."""
        running = self.begin(*self._actor, node_id, sent_at=ALWAYS_ASK)
        running.reported = True  # its agent reports the start when the constructor has returned
        return running

    def report_to(self, agent: AgentEndpoint, task_id: str, attempt: int) -> None:
        """Report to this agent from now on, under this id."""
        running = self._running
        if running is None or (agent, task_id, attempt) == (self.address, *self._actor):
            return
        with self._sending:
            self.address, self._actor = agent, (task_id, attempt)
            running.task_id, running.attempt, running.chunks = task_id, attempt, 0
            self._failures, self._next_connect = -1, 0.0
            self._shut_down()

    def begin_method(self, key: Key | None = None) -> bool:
        """A method is about to run: send its output promptly. False: the method was cancelled."""
        self._last_activity = time.monotonic()
        return key is None or self._cancelled.pop(key, self) is self

    def is_cancelled(self, key: Key) -> bool:
        """Whether a generator that runs was cancelled."""
        return key in self._cancelled

    def flush(self, running: RunningCall) -> list[tuple[str, str]]:
        """Send the output. Returns the rest that could not be sent, to go with a result."""
        if not running.unsent:
            return []
        try:
            self._send_output(running)
        except OSError:
            self._shut_down()
            with self._lock:
                return running.rest()
        return []

    def report_exit(self, running: RunningCall) -> None:
        """Report that the actor exits by its own request; otherwise the agent would report a crash."""
        self.flush(running)
        try:
            self._send(LEAVING, {"id": running.task_id, "attempt": running.attempt})
        except OSError:
            self._shut_down()  # the agent will report a crash

    def _handle(self, message: Message) -> None:
        if message.kind != CANCEL:
            super()._handle(message)
            return
        self._cancelled[str(message.head["id"]), int(message.head["attempt"])] = None
        if len(self._cancelled) > _MAX_CANCELS:  # entries of methods that had begun are never used
            self._cancelled.popitem(last=False)

    def _tick_s(self) -> float:
        running = self._running
        if (running is not None and running.unsent) or time.monotonic() - self._last_activity < _IDLE_AFTER_S:
            return _BUSY_TICK_S
        return min(_IDLE_TICK_S, self.address.lease_s / 20)

    def _identity(self) -> dict[str, Any]:
        self._failures = 0
        return {"actor": list(self._actor)}

    def _lease_is_needed(self) -> bool:
        return not self._detached

    def _shut_down(self) -> None:
        """Shut the connection down from another thread; the channel's own thread then cleans up."""
        connection = self._socket
        if connection is not None:
            with suppress(OSError):  # closed already
                connection.shutdown(2)

    def _disconnect(self) -> None:
        super()._disconnect()
        self._failures += 1
        if self._detached:  # it may be without an agent for days
            pause = min(2.0**self._failures / 2, _MAX_PAUSE_S) if self._failures else 0.0
            self._next_connect = time.monotonic() + pause
