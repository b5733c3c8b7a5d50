"""Where the agent hears from its workers: started-reports, output, and the renewal of their lease.

CHALLENGE  agent → worker   {nonce}
HELLO      worker → agent   {proof, pid, actor}  HMAC of the nonce with the secret that came with the call; actor: its
                                                 key, from an actor's process, whose line is open as long as it lives
lease      worker → agent   {t}                for how long is my work wanted? (t: the worker's own clock)
lease      agent → worker   {t, left_s}        so many seconds from t
started, output             worker → agent
leaving    worker → agent   {id, attempt}      this actor ends by its own wish
cancel     agent → worker   {id, attempt}      do not begin this method of the actor
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from ray_multicluster_scheduler.common.frames import (
    MAX_HANDSHAKE_BYTES,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.calls.reports import Key
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import LEASE, Line

_HANDSHAKE_TIMEOUT_S = 5.0


class WorkerServer:
    """Listens on the agent's node address; only processes that were given the secret are heard.

    ``left_s`` says how long the agent's own lease still lasts. ``actor_line`` is told when the line
    to an actor's process opens (True) and ends (False).
    """

    def __init__(
        self, hear: Callable[[Message], None], left_s: Callable[[], float], actor_line: Callable[[Key, bool], None]
    ) -> None:
        self._hear, self._left_s, self._actor_line = hear, left_s, actor_line
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._workers: set[asyncio.StreamWriter] = set()
        self._actors: dict[Key, asyncio.StreamWriter] = {}

    async def start(self, host: str, lease_s: float) -> Line:
        """Open the port; returns what a worker needs to know."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        return Line(host, port, self._secret, lease_s)

    def tell_actor(self, actor: Key, message: Message) -> None:
        """Say something to an actor's process, if there is a line to it."""
        if actor in self._actors:
            _write(self._actors[actor], message)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(MAX_HANDSHAKE_BYTES)
        actor: Key | None = None
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                heard = await self._admit(reader, writer, frames)
            if not heard:
                return
            hello, *early = heard
            if "actor" in hello.head:
                actor = (str(hello.head["actor"][0]), int(hello.head["actor"][1]))
                self._actors[actor] = writer
                self._actor_line(actor, True)
            frames.allow_large_messages()
            self._workers.add(writer)
            self._hear_all(early, writer)
            while data := await reader.read(65536):
                self._hear_all(frames.feed(data), writer)
        except (OSError, FrameError, TimeoutError, KeyError, TypeError, ValueError) as error:
            print(f"rmcs agent: the line to a worker broke: {error!r}", flush=True)
        finally:
            self._workers.discard(writer)
            writer.close()
            if actor is not None and self._actors.get(actor) is writer:
                del self._actors[actor]
                self._actor_line(actor, False)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameReader
    ) -> list[Message]:
        """A right HELLO and what came after it; empty for a stranger."""
        nonce = secrets.token_hex(16)
        _write(writer, Message(m.CHALLENGE, {"nonce": nonce}))
        while data := await reader.read(65536):
            messages = frames.feed(data)
            if messages:
                hello = messages[0]
                right = m.proof_is_right(hello.head.get("proof"), self._secret, "worker", nonce)
                return messages if hello.kind == m.HELLO and right else []
        return []

    def _hear_all(self, messages: list[Message], writer: asyncio.StreamWriter) -> None:
        for message in messages:
            if message.kind == LEASE:
                _write(writer, Message(LEASE, {"t": message.head["t"], "left_s": self._left_s()}))
            else:
                self._hear(message)


def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    frames = FrameWriter()
    frames.put(message)
    writer.write(frames.take())
