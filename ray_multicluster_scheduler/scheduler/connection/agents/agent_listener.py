"""Where agents come in: the check of who may enter, and one port of ours for all clusters whose agents dial."""

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
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_log = get_logger(__name__)
_HANDSHAKE_TIMEOUT_S = 5.0
TOKEN_LIFETIME_S = 120.0
_MOST_OVER = 1000


class Expected(Protocol):
    """Who waits for an agent (the AgentLink)."""

    def welcome(self) -> dict[str, Any]:
        """What to tell an agent that is let in. Raises PermissionError when it is not wanted any more."""

    def admitted(self, connection: AgentConnection) -> None:
        """The agent is here; the connection now belongs to the link."""


@dataclass(slots=True)
class AgentConnection:
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
    first_token: str = ""
    """The token, also after it was used."""


class AgentReception:
    """Who may enter, and the handshake that shows it. It has no port: whoever dials an agent brings the connection."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tickets: dict[str, _Ticket] = {}
        self._over: dict[str, tuple[str, str]] = {}
        """Secret and token of agents that may not come any more, should they come all the same."""
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """From now on agents are let in; returns the number of our port for them: 0, as there is none."""
        return 0

    def expect(self, cluster: str, agent: str, link: Expected) -> tuple[str, str]:
        """Make a one-time token for this agent of this cluster, and the secret by which it is known from then on."""
        token, secret = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        until = self._clock.now() + TOKEN_LIFETIME_S
        self._tickets[agent] = _Ticket(cluster, link, token, until, secret, token)
        return token, secret

    def expect_return(self, cluster: str, agent: str, link: Expected, secret: str) -> None:
        """An agent of the process before ours, which knows this secret, may come back."""
        self._tickets[agent] = _Ticket(cluster, link, None, 0.0, secret)

    def forget(self, agent: str) -> None:
        """This agent may not come (back) in."""
        ticket = self._tickets.pop(agent, None)
        if ticket is not None:
            self._over[agent] = (ticket.secret, ticket.first_token)
            while len(self._over) > _MOST_OVER:
                self._over.pop(next(iter(self._over)))

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Shake hands, whoever dialled, and give the connection to its link; False if it was turned away."""
        self._open.add(writer)
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):  # in this task: nothing can stop it once it has welcomed
                admitted, link = await self._admit(reader, writer)
        except (OSError, FrameError, TimeoutError, PermissionError) as error:
            _log.warning("a connection to the agent port was turned away: %s", error)
            writer.close()
            return False
        except BaseException:  # whoever waits at the other end must not take a connection for one that nobody has
            writer.close()
            raise
        finally:
            self._open.discard(writer)
        link.admitted(admitted)
        return True

    async def _admit(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[AgentConnection, Expected]:
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
            _write(writer, Message(m.REJECT, {"sentence": str(error), "proof": self._proof_for(hello.head, nonce)}))
            await writer.drain()
            raise
        answer = {**welcome, "proof": m.proof(key, "control-plane", str(hello.head.get("nonce")))}
        if not hello.head.get("resume"):
            answer["secret"] = ticket.secret
        _write(writer, Message(m.WELCOME, answer))
        frames.allow_large_messages()
        return AgentConnection(reader, writer, frames, hello.head, inbox), ticket.link

    def _proof_for(self, head: dict[str, Any], nonce: str) -> str | None:
        """That it is us who turn it away: it would end itself, so it believes nobody else. Only for who has proved to
        be our agent; None if it has not, or nothing is known of it."""
        agent = str(head.get("agent"))
        ticket = self._tickets.get(agent)
        secret, token = self._over.get(agent, ("", "")) if ticket is None else (ticket.secret, ticket.first_token)
        key = secret if head.get("resume") else token
        if not key or not m.proof_is_right(head.get("proof"), key, "agent", nonce):
            return None
        return m.proof(key, "reject", str(head.get("nonce")))

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


class AgentListener(AgentReception):
    """A port of ours. Listens lazily; agents of all clusters that dial come in here and are handed to their links."""

    def __init__(self, host: str, port: int, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(clock)
        self._host, self._port, self._tls = host, port, tls
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()

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

    def stop_admitting(self) -> None:
        """Close the port; connections of links stay."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.close()

    async def close(self) -> None:
        """Close the port, once the links have closed their connections."""
        async with self._starting:
            if self._server is not None:
                self.stop_admitting()
                await self._server.wait_closed()
                self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.admit(reader, writer)


def _write(writer: asyncio.StreamWriter, message: Message) -> None:
    frames = FrameWriter()
    frames.put(message)
    writer.write(frames.take())


ListenerFactory = Callable[[], AgentListener]
