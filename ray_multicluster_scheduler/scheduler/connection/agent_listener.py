"""Where agents dial in: one port of ours for all clusters, and the check of who may enter."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ray_multicluster_scheduler.common.clock import Clock
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.frames import (
    MAX_HANDSHAKE_BYTES,
    OLDEST_PROTOCOL,
    PROTOCOL_VERSION,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m

_log = get_logger(__name__)
_HANDSHAKE_TIMEOUT_S = 5.0
TOKEN_LIFETIME_S = 120.0


class Expected(Protocol):
    """Who waits for an agent (the AgentLink)."""

    def welcome(self) -> dict[str, Any]:
        """What to tell an agent that is let in. Raises PermissionError when it is not wanted any more."""

    def admitted(self, connection: Admitted) -> None:
        """The agent is here; the connection now belongs to the link."""


@dataclass(slots=True)
class Admitted:
    """A connection whose other end proved to be our agent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader
    hello: dict[str, Any]
    early: list[Message]


@dataclass(slots=True)
class _Ticket:
    """What an agent must know to enter: a one-time token first, the link's secret from then on."""

    cluster: str
    link: Expected
    token: str | None
    valid_until: float
    secret: str


class AgentListener:
    """Listens lazily; agents of all clusters come in here and are handed to their links."""

    def __init__(self, host: str, port: int, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port, self._clock, self._tls = host, port, clock, tls
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()
        self._tickets: dict[str, _Ticket] = {}
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Open the port if it is not open yet; returns its number. Raises ConfigurationError."""
        async with self._starting:  # several clusters may ask at once, and the port is one
            if self._server is None:
                self._server = await self._listen()
            port: int = self._server.sockets[0].getsockname()[1]
            return port

    async def _listen(self) -> asyncio.Server:
        try:
            return await asyncio.start_server(self._serve, self._host, self._port, ssl=self._tls)
        except OSError as error:
            raise ConfigurationError(
                f"agents cannot be listened for on {self._host}:{self._port}: {error.strerror or error}.",
                next_step="give another agent_listen (host:port), or auto",
            ) from error

    def expect(self, cluster: str, agent: str, link: Expected) -> tuple[str, str]:
        """Make a one-time token for this agent of this cluster, and the secret by which it is known from then on."""
        token, secret = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        until = self._clock.now() + TOKEN_LIFETIME_S
        self._tickets[agent] = _Ticket(cluster, link, token, until, secret)
        return token, secret

    def expect_back(self, cluster: str, agent: str, link: Expected, secret: str) -> None:
        """An agent of the process before ours, which knows this secret, may come back."""
        self._tickets[agent] = _Ticket(cluster, link, None, 0.0, secret)

    def forget(self, agent: str) -> None:
        """This agent may not come (back) in."""
        self._tickets.pop(agent, None)

    def let_nobody_in(self) -> None:
        """Close the port; connections of links stay."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()

    async def close(self) -> None:
        """Close the port, once the links have closed their connections."""
        async with self._starting:
            if self._server is not None:
                self.let_nobody_in()
                await self._server.wait_closed()
                self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.admit(reader, writer)

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Shake hands, whoever dialled, and give the connection to its link; False if it was turned away."""
        self._open.add(writer)
        try:
            admitted, link = await asyncio.wait_for(self._admit(reader, writer), _HANDSHAKE_TIMEOUT_S)
        except (OSError, FrameError, TimeoutError, PermissionError) as error:
            _log.warning("a connection to the agent port was turned away: %s", error)
            writer.close()
            return False
        finally:
            self._open.discard(writer)
        link.admitted(admitted)
        return True

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Admitted, Expected]:
        nonce = secrets.token_hex(16)
        _write(writer, Message(m.CHALLENGE, {"protocol": PROTOCOL_VERSION, "nonce": nonce}))
        frames = FrameReader(MAX_HANDSHAKE_BYTES)
        inbox: list[Message] = []
        while not inbox:
            data = await reader.read(65536)
            if not data:
                raise ConnectionResetError("it closed before it said who it is")
            inbox += frames.feed(data)
        hello = inbox.pop(0)
        try:
            ticket, key = self._check(hello, nonce)
            welcome = ticket.link.welcome()
        except PermissionError as error:
            _write(writer, Message(m.REJECT, {"sentence": str(error)}))
            await writer.drain()
            raise
        answer = {**welcome, "proof": m.proof(key, "control-plane", str(hello.head.get("nonce")))}
        if not hello.head.get("resume"):
            answer["secret"] = ticket.secret
        _write(writer, Message(m.WELCOME, answer))
        frames.allow_large_messages()
        return Admitted(reader, writer, frames, hello.head, inbox), ticket.link

    def _check(self, hello: Message, nonce: str) -> tuple[_Ticket, str]:
        """Whose ticket is it, and is the proof right? Raises PermissionError with a sentence for the agent."""
        head = hello.head
        if hello.kind != m.HELLO:
            raise PermissionError(f"expected hello, got {hello.kind!r}")
        oldest = OLDEST_PROTOCOL if head.get("resume") else PROTOCOL_VERSION
        if head.get("protocol") not in range(oldest, PROTOCOL_VERSION + 1):
            raise PermissionError(f"protocol {head.get('protocol')} is not {PROTOCOL_VERSION}")
        ticket = self._tickets.get(str(head.get("agent")))
        if ticket is None or ticket.cluster != head.get("cluster"):
            raise PermissionError("nobody waits for this agent (any more)")
        key = ticket.secret
        if not head.get("resume"):
            if ticket.token is None or self._clock.now() > ticket.valid_until:
                raise PermissionError("the join token was used already or is too old")
            key = ticket.token
        if not m.proof_is_right(head.get("proof"), key, "agent", nonce):
            raise PermissionError("the proof is wrong")
        ticket.token = None
        return ticket, key


def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    frames = FrameWriter()
    frames.put(message)
    writer.write(frames.take())


ListenerFactory = Callable[[], AgentListener]
