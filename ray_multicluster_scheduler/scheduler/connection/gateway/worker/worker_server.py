"""WorkerServer: the agent's server for its workers: receives start reports and output, and renews their leases.

CHALLENGE  agent → worker   {nonce}
HELLO      worker → agent   {proof, pid, locked, actor}  proof: HMAC of the nonce with the secret that came with the
                                                 call; locked: whether it holds the agent's lock file; actor: its key,
                                                 from an actor's process, which stays connected as long as it lives
lease      worker → agent   {t}                asks for the lease (t: the worker's own clock)
lease      agent → worker   {t, left_s, now}   the lease lasts left_s seconds from t; now: the agent's clock
begin      worker → agent   {id, attempt}      may this call start? Asked only for one that waited in Ray for a while
begin      agent → worker   {id, attempt, may}  no, if it was recalled
started, output             worker → agent
leaving    worker → agent   {id, attempt}      this actor exits by its own request
cancel     agent → worker   {id, attempt}      do not begin this method of the actor
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from ray_multicluster_scheduler.common.frames import MAX_HANDSHAKE_BYTES, FrameError, FrameReader, Message, small_frame
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import BEGIN, LEASE
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.codec import AgentEndpoint, Key

_HANDSHAKE_TIMEOUT_S = 5.0


class WorkerServer:
    """Listens on the address of the agent's node; admits only processes that have the secret.

    ``left_s`` returns how long a worker's lease may last, ``may_begin`` whether a call may start. ``actor_connection``
    is called when an actor's process connects (True) and disconnects (False).
    """

    def __init__(
        self,
        handle: Callable[[Message], None],
        left_s: Callable[[], float],
        may_begin: Callable[[Key], bool],
        actor_connection: Callable[[Key, bool], None],
    ) -> None:
        self._handle, self._left_s, self._may_begin = handle, left_s, may_begin
        self._actor_connection = actor_connection
        self._secret, self._lock_file = secrets.token_hex(16), ""
        self._server: asyncio.Server | None = None
        self._workers: set[asyncio.StreamWriter] = set()
        self._actors: dict[Key, asyncio.StreamWriter] = {}

    async def start(self, host: str, lease_s: float, lock_file: str) -> AgentEndpoint:
        """Open the port; returns how workers reach it."""
        self._lock_file = lock_file
        self._server = await asyncio.start_server(self._serve, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        return AgentEndpoint(host, port, self._secret, lease_s, lock_file)

    def send_to_actor(self, actor: Key, message: Message) -> None:
        """Send a message to an actor's process, if that is connected."""
        if actor in self._actors:
            self._actors[actor].write(small_frame(message))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader(MAX_HANDSHAKE_BYTES)
        actor: Key | None = None
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                messages = await self._admit(reader, writer, frames)
            if not messages:
                return
            hello, *early = messages
            if not hello.head.get("locked"):
                process_lock.remove(self._lock_file)  # before the first lease is granted
            if "actor" in hello.head:
                actor = (str(hello.head["actor"][0]), int(hello.head["actor"][1]))
                self._actors[actor] = writer
                self._actor_connection(actor, True)
            frames.allow_large_messages()
            self._workers.add(writer)
            self._handle_all(early, writer)
            while data := await reader.read(65536):
                self._handle_all(frames.feed(data), writer)
        except (OSError, FrameError, TimeoutError, KeyError, TypeError, ValueError) as error:
            print(f"rmcs agent: the connection of a worker broke: {error!r}", flush=True)
        finally:
            self._workers.discard(writer)
            writer.close()
            if actor is not None and self._actors.get(actor) is writer:
                del self._actors[actor]
                self._actor_connection(actor, False)

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameReader
    ) -> list[Message]:
        """A HELLO with a valid proof, and the messages behind it; empty if the proof is invalid."""
        nonce = secrets.token_hex(16)
        writer.write(small_frame(Message(m.CHALLENGE, {"nonce": nonce})))
        while data := await reader.read(65536):
            messages = frames.feed(data)
            if messages:
                hello = messages[0]
                right = m.proof_is_right(hello.head.get("proof"), self._secret, "worker", nonce)
                return messages if hello.kind == m.HELLO and right else []
        return []

    def _handle_all(self, messages: list[Message], writer: asyncio.StreamWriter) -> None:
        for message in messages:
            head = message.head
            if message.kind == LEASE:
                grant = {"t": head["t"], "left_s": self._left_s(), "now": time.monotonic()}
                writer.write(small_frame(Message(LEASE, grant)))
            elif message.kind == BEGIN:
                may = self._may_begin((str(head["id"]), int(head["attempt"])))
                writer.write(small_frame(Message(BEGIN, {**head, "may": may})))
            else:
                self._handle(message)
