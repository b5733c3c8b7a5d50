"""RemoteValues: values that stay with the agent of one link, and come when they are asked for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Protocol

from ray_multicluster_scheduler.common.exception import ResultLostError
from ray_multicluster_scheduler.common.frames import Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.links.link_messages import message_keys
from ray_multicluster_scheduler.scheduler.connection.links.pending_calls import Key


class Send(Protocol):
    """Puts a message into the outbox. Without a connection it does nothing."""

    def __call__(self, kind: str, head: dict[str, Any]) -> object: ...


class RemoteValues:
    """On the loop. What was asked for, or is not wanted any more, is said again to each new connection."""

    def __init__(self, cluster: str, agent: str, send: Send) -> None:
        self._cluster, self.agent, self._send = cluster, agent, send
        self._there: dict[Key, float] = {}
        self._unwanted: set[Key] = set()
        self._asked: dict[Key, list[asyncio.Future[bytes]]] = {}
        self._over: str | None = None

    def __len__(self) -> int:
        """How many are known to be there."""
        return len(self._there)

    def is_there(self, key: Key, age_s: float = 0.0) -> None:
        """The agent says that it keeps this one, and since when."""
        if self._over is None and key not in self._unwanted:
            self._there.setdefault(key, time.monotonic() - age_s)

    async def fetch(self, key: Key) -> bytes:
        """Raises ResultLostError. Whoever asks while it is under way gets the same."""
        if self._over is not None:
            raise self._lost(key, self._over)
        came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        first = key not in self._asked
        self._asked.setdefault(key, []).append(came)
        if first:
            self._send(m.FETCH, {"keys": [key]})
        return await came

    def release_value(self, key: Key) -> None:
        """It is not wanted any more."""
        self._there.pop(key, None)
        if self._over is None:
            self._unwanted.add(key)
            self._send(m.RELEASE, {"keys": [key]})

    def release_values_older_than(self, seconds: float) -> None:
        """The same of all that are known for longer."""
        before = time.monotonic() - seconds
        for key in [key for key, since in self._there.items() if since < before]:
            self.release_value(key)

    def connected(self) -> None:
        """There is a new connection."""
        if self._unwanted:
            self._send(m.RELEASE, {"keys": list(self._unwanted)})
        if self._asked:
            self._send(m.FETCH, {"keys": list(self._asked)})

    def hear(self, message: Message) -> bool:
        """False: the message is not about values."""
        match message.kind:
            case m.KEPT:
                for task_id, attempt, age_s in message.head["values"]:
                    self.is_there((str(task_id), int(attempt)), float(age_s))
            case m.RELEASED:
                self._unwanted.difference_update(message_keys(message.head))
            case m.VALUE:
                self._came((str(message.head["id"]), int(message.head["attempt"])), message)
            case _:
                return False
        return True

    def all_lost(self, sentence: str) -> None:
        """The agent is gone, and with it all that it kept."""
        self._over = sentence
        for key in list(self._asked):
            self._fail(key, sentence)
        self._there.clear()
        self._unwanted.clear()

    def _came(self, key: Key, message: Message) -> None:
        problem = message.head.get("problem")
        if problem is not None:
            if message.head.get("gone"):
                self._there.pop(key, None)
            self._fail(key, str(problem))
            return
        value = bytes(message.blobs[0])
        for one in self._waiting(key):
            one.set_result(value)

    def _fail(self, key: Key, why: str) -> None:
        for one in self._waiting(key):
            one.set_exception(self._lost(key, why))

    def _waiting(self, key: Key) -> Iterable[asyncio.Future[bytes]]:
        return [one for one in self._asked.pop(key, ()) if not one.done()]

    def _lost(self, key: Key, why: str) -> ResultLostError:
        return value_lost(key[0], self._cluster, why)


def value_lost(task_id: str, cluster: str | None, why: str) -> ResultLostError:
    """A value that was kept in a cluster is not there any more."""
    return ResultLostError(
        f"The value of {task_id} was kept in cluster {cluster!r} and is lost: {why}.",
        task_id=task_id,
        cluster=cluster,
        next_step='run it again; without keep="cluster" the control plane keeps its value',
    )
