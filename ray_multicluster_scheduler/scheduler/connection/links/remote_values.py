"""RemoteValues: fetches and deletes the values that the agent of one ``AgentLink`` keeps in its cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallKey


class RemoteValues:
    """Lives on the loop. Open fetches and unconfirmed releases are repeated on each new connection. ``send`` puts a
    message into the outbox, and does nothing without a connection."""

    def __init__(self, cluster: str, agent: str, send: Callable[[str, dict[str, Any]], object]) -> None:
        self._cluster, self.agent, self._send = cluster, agent, send
        self._kept_since: dict[CallKey, float] = {}
        self._released: set[CallKey] = set()
        self._fetches: dict[CallKey, list[asyncio.Future[bytes]]] = {}
        self._lost_reason: str | None = None

    def __len__(self) -> int:
        """The number of values that the agent is known to keep."""
        return len(self._kept_since)

    def add(self, key: CallKey, age_s: float = 0.0) -> None:
        """The agent reports that it has kept this value for ``age_s``."""
        if self._lost_reason is None and key not in self._released:
            self._kept_since.setdefault(key, time.monotonic() - age_s)

    async def fetch(self, key: CallKey) -> bytes:
        """Raises ResultLostError. Concurrent fetches of one value share one request."""
        if self._lost_reason is not None:
            raise value_lost(key[0], self._cluster, self._lost_reason)
        value: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        first = key not in self._fetches
        self._fetches.setdefault(key, []).append(value)
        if first:
            self._send(m.FETCH, {"keys": [key]})
        return await value

    def release(self, key: CallKey) -> None:
        self._kept_since.pop(key, None)
        if self._lost_reason is None:
            self._released.add(key)
            self._send(m.RELEASE, {"keys": [key]})

    def release_older_than(self, seconds: float) -> None:
        before = time.monotonic() - seconds
        for key in [key for key, since in self._kept_since.items() if since < before]:
            self.release(key)

    def connected(self) -> None:
        """Repeat unanswered requests on a new connection."""
        if self._released:
            self._send(m.RELEASE, {"keys": list(self._released)})
        if self._fetches:
            self._send(m.FETCH, {"keys": list(self._fetches)})

    def handle(self, message: Message) -> bool:
        """False: the message is not about values."""
        match message.kind:
            case m.KEPT:
                for task_id, attempt, age_s in message.head["values"]:
                    self.add((str(task_id), int(attempt)), float(age_s))
            case m.RELEASED:
                self._released.difference_update(m.message_keys(message.head))
            case m.VALUE:
                self._fetched((str(message.head["id"]), int(message.head["attempt"])), message)
            case _:
                return False
        return True

    def fail_all(self, reason: str) -> None:
        """The agent has ended, and all values that it kept are lost."""
        self._lost_reason = reason
        for key in list(self._fetches):
            self._fail(key, reason)
        self._kept_since.clear()
        self._released.clear()

    def _fetched(self, key: CallKey, message: Message) -> None:
        problem = message.head.get("problem")
        if problem is not None:
            if message.head.get("gone"):
                self._kept_since.pop(key, None)
            self._fail(key, str(problem))
            return
        (value,) = message.blobs
        assert isinstance(value, bytes)
        for future in self._pop_waiting(key):
            future.set_result(value)

    def _fail(self, key: CallKey, reason: str) -> None:
        for future in self._pop_waiting(key):
            future.set_exception(value_lost(key[0], self._cluster, reason))

    def _pop_waiting(self, key: CallKey) -> list[asyncio.Future[bytes]]:
        return [future for future in self._fetches.pop(key, ()) if not future.done()]


def value_lost(task_id: str, cluster: str | None, reason: str) -> ResultLostError:
    """The error for a value that was kept in a cluster and no longer exists."""
    return ResultLostError(
        f"The value of {task_id} was kept in cluster {cluster!r} and is lost: {reason}.",
        task_id=task_id,
        cluster=cluster,
        next_step='run it again; without keep="cluster" the control plane keeps its value',
    )
