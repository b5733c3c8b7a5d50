"""ScriptedAgent: an agent that speaks the real protocol, through the real dial(), and sends what a test asks for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from ray_multicluster_scheduler.common.frames import FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.connection import Connection, Join, dial
from tests.support.eventually import eventually

WHO: dict[str, Any] = {
    "ray_version": "2.60.0",
    "python_version": "3.11.7",
    "session_id": "session_1",
    "os": "linux",
    "arch": "x86_64",
    "job_id": "01000000",
}
Key = tuple[str, int]


class ScriptedAgent:
    """One agent over all its connections. It answers pings by itself unless ``mute``."""

    def __init__(self, join: Join) -> None:
        self.join = join
        self.secret: str | None = None
        self.welcome: dict[str, Any] = {}
        self.received: list[Message] = []
        self.mute = False
        self._connection: Connection | None = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def joined(cls, port: int, token: str, *, cluster: str = "a", agent: str = "agent-1") -> Self:
        """Dial in with a token."""
        scripted = cls(Join(cluster, agent, [("127.0.0.1", port)], token))
        await scripted.dial()
        return scripted

    async def dial(self, patience_s: float = 60.0) -> None:
        """Come in, for the first time or again. Raises Rejected, CannotDial."""
        self._connection = connection = await dial(self.join, WHO, self.secret, time.monotonic() + patience_s)
        self.welcome = connection.welcome
        self.secret = self.secret or str(connection.welcome["secret"])
        self._reading = asyncio.create_task(self._read(connection))

    @property
    def connected(self) -> bool:
        return self._connection is not None

    def say(self, kind: str, head: dict[str, Any] | None = None, blobs: Sequence[bytes] = ()) -> None:
        assert self._connection is not None
        frames = FrameWriter()
        frames.put(Message(kind, head or {}, blobs))
        while data := frames.take():
            self._connection.writer.write(data)

    def accept(self, *keys: Key) -> None:
        self.say(m.ACCEPTED, {"keys": [list(key) for key in keys]})

    def start(self, *keys: Key, at: float = 5.0, node: str = "n1") -> None:
        self.say(m.STARTED, {"calls": [[*key, at, node] for key in keys]})

    def move(self, ended: Key, begun: Key) -> None:
        self.say(m.MOVED, {"slots": [[*ended, *begun]]})

    def finish(self, *keys: Key, payload: bytes = b"value", **head: Any) -> None:
        """One FINISHED message with a result for each key."""
        results = [{"id": task_id, "attempt": attempt, "status": "succeeded", **head} for task_id, attempt in keys]
        self.say(m.FINISHED, {"results": results}, [payload] * len(results))

    def snapshot(self, cpus: float = 2.0) -> None:
        node = {"node_id": "n1", "total": {"CPU": cpus}, "free": {"CPU": cpus}, "is_head": True}
        self.say(m.SNAPSHOT, {"nodes": [node]})

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.received if message.kind == kind]

    async def until(self, kind: str, count: int = 1) -> Message:
        """Wait for the ``count``-th message of this kind."""

        def explanation() -> str:
            return f"{count} × {kind}, heard {[message.kind for message in self.received]}"

        await eventually(lambda: len(self.of(kind)) >= count, explanation)
        return self.of(kind)[count - 1]

    def calls(self) -> list[Key]:
        """Every call that arrived, in order, including duplicates."""
        return [(call["id"], call["attempt"]) for message in self.of(m.CALLS) for call in message.head["calls"]]

    def entries(self) -> list[dict[str, Any]]:
        """Every call that arrived, as it was written."""
        return [call for message in self.of(m.CALLS) for call in message.head["calls"]]

    def blob_bytes(self) -> int:
        """How much was attached to calls."""
        return sum(len(blob) for message in self.of(m.CALLS) for blob in message.blobs)

    async def cut(self) -> None:
        """Abort the connection without a goodbye."""
        await self._hang_up(lambda connection: connection.writer.transport.abort())

    async def close(self) -> None:
        """Close the connection, if it is open."""
        await self._hang_up(lambda connection: connection.writer.close())

    async def close_when_asked(self) -> None:
        """Close the connection at CLOSE, as a real agent does."""
        await self.until(m.CLOSE)
        await self.close()

    async def _hang_up(self, how: Callable[[Connection], object]) -> None:
        if self._connection is not None and self._reading is not None:
            how(self._connection)
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._connection = self._reading = None

    async def _read(self, connection: Connection) -> None:
        try:
            for message in connection.early:
                self._hear(message)
            while data := await connection.reader.read(1 << 18):
                for message in connection.frames.feed(data):
                    if connection is self._connection:  # messages of an abandoned connection are ignored
                        self._hear(message)
        finally:
            connection.writer.close()

    def _hear(self, message: Message) -> None:
        self.received.append(message)
        if message.kind == m.PING and not self.mute:
            self.say(m.PONG, message.head)
