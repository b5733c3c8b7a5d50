"""AgentListener: the port where agents dial in, and ``AgentAdmission``, the handshake that authenticates an agent.

Used by ``RayClientPool``. An agent first proves that it knows its one-time token, and receives a secret; on later
connections it proves the secret. The handshake is the same for connections that we made to an agent.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
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
    Message,
    small_frame,
)
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

_log = get_logger(__name__)
_HANDSHAKE_TIMEOUT_S = 5.0
TOKEN_LIFETIME_S = 120.0
_MAX_REVOKED = 1000

Admit = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
""":meth:`AgentAdmission.admit`: does the handshake and gives the connection to its link. False: rejected and closed."""


class _UnknownLingeringAgent(PermissionError):
    """It was left to another program than this one."""


class AdmittingLink(Protocol):
    """The link that waits for its agent: AgentLink."""

    def welcome(self) -> dict[str, Any]:
        """The WELCOME message for the agent. Raises PermissionError if the agent must end."""

    def admitted(self, connection: AgentConnection) -> None:
        """The agent is connected; the connection now belongs to the link."""


@dataclass(slots=True)
class AgentConnection:
    """A connection to an authenticated agent."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader
    hello: dict[str, Any]
    early: list[Message]


@dataclass(slots=True)
class _Credentials:
    """The secrets that an agent must show: the one-time token first, the secret from then on."""

    cluster: str
    link: AdmittingLink
    token: str | None
    valid_until: float
    secret: str
    first_token: str = ""
    """The token, kept after its use."""


def new_token() -> str:
    return secrets.token_urlsafe(24)


class AgentAdmission:
    """Keeps the credentials of the expected agents and does the handshake, on connections that the caller provides."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._expected: dict[str, _Credentials] = {}
        self._revoked: dict[str, tuple[str, str]] = {}
        """Secret and token of agents that must end; needed to send a REJECT that they accept."""
        self._in_handshake: set[asyncio.StreamWriter] = set()

    async def start(self) -> int:
        """Begin to admit agents. Returns the number of our port for them: 0, because there is none."""
        return 0

    def expect(self, cluster: str, agent: str, link: AdmittingLink, token: str | None = None) -> tuple[str, str]:
        """Expect a new agent, or one with this ``token``. Returns its one-time token, and the secret that it will
        get."""
        token, secret = token or new_token(), new_token()
        until = self._clock.now() + TOKEN_LIFETIME_S
        self._expected[agent] = _Credentials(cluster, link, token, until, secret, token)
        return token, secret

    def expect_return(self, cluster: str, agent: str, link: AdmittingLink, secret: str) -> None:
        """Expect an agent of the previous process, which knows this secret."""
        self._expected[agent] = _Credentials(cluster, link, None, 0.0, secret)

    def revoke(self, agent: str) -> None:
        """This agent is not admitted any more."""
        known = self._expected.pop(agent, None)
        if known is not None:
            self._revoked[agent] = (known.secret, known.first_token)
            while len(self._revoked) > _MAX_REVOKED:
                self._revoked.pop(next(iter(self._revoked)))

    async def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Do the handshake and give the connection to its link; False if it was rejected."""
        self._in_handshake.add(writer)
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):  # in this task: no timeout can follow WELCOME
                admitted, link = await self._handshake(reader, writer)
        except (OSError, FrameError, TimeoutError, PermissionError) as error:
            # An agent that another program left may have dialled this port before, and tries it again and again.
            level = logging.DEBUG if isinstance(error, _UnknownLingeringAgent) else logging.WARNING
            _log.log(level, "a connection to the agent port was rejected: %s", error)
            writer.close()
            return False
        except BaseException:  # the agent must not keep a connection that no link has
            writer.close()
            raise
        finally:
            self._in_handshake.discard(writer)
        link.admitted(admitted)
        return True

    async def _handshake(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[AgentConnection, AdmittingLink]:
        nonce = secrets.token_hex(16)
        writer.write(small_frame(Message(m.CHALLENGE, {"protocol": PROTOCOL_VERSION, "nonce": nonce})))
        frames = FrameReader(MAX_HANDSHAKE_BYTES)
        inbox: list[Message] = []
        while not inbox:
            data = await reader.read(65536)
            if not data:
                raise ConnectionResetError("it was closed before HELLO")
            inbox += frames.feed(data)
        hello = inbox.pop(0)
        try:
            known, key = self._check(hello, nonce)
            welcome = known.link.welcome()
        except PermissionError as error:
            rejection = {"sentence": str(error), "proof": self._proof_for(hello.head, nonce)}
            writer.write(small_frame(Message(m.REJECT, rejection)))
            await writer.drain()
            raise
        answer = {**welcome, "proof": m.proof(key, "control-plane", str(hello.head.get("nonce")))}
        if not hello.head.get("resume"):
            answer["secret"] = known.secret
        writer.write(small_frame(Message(m.WELCOME, answer)))
        frames.allow_large_messages()
        return AgentConnection(reader, writer, frames, hello.head, inbox), known.link

    def _proof_for(self, head: dict[str, Any], nonce: str) -> str | None:
        """Our proof in a REJECT, without which an agent does not end. None if the other end is unknown, or has not
        proved to be our agent."""
        agent = str(head.get("agent"))
        known = self._expected.get(agent)
        secret, token = self._revoked.get(agent, ("", "")) if known is None else (known.secret, known.first_token)
        key = secret if head.get("resume") else token
        if not key or not m.proof_is_right(head.get("proof"), key, "agent", nonce):
            return None
        return m.proof(key, "reject", str(head.get("nonce")))

    def _check(self, hello: Message, nonce: str) -> tuple[_Credentials, str]:
        """The agent's credentials and the key of its proof. Raises PermissionError with a sentence for the agent."""
        head = hello.head
        if hello.kind != m.HELLO:
            raise PermissionError(f"expected hello, got {hello.kind!r}")
        oldest = OLDEST_PROTOCOL if head.get("resume") else PROTOCOL_VERSION
        if head.get("protocol") not in range(oldest, PROTOCOL_VERSION + 1):
            raise PermissionError(f"protocol {head.get('protocol')} is not {PROTOCOL_VERSION}")
        known = self._expected.get(str(head.get("agent")))
        if known is None or known.cluster != head.get("cluster"):
            refused = _UnknownLingeringAgent if head.get("lingers") else PermissionError
            raise refused("this agent is not expected (any more)")
        key = known.secret
        if not head.get("resume"):
            if known.token is None or self._clock.now() > known.valid_until:
                raise PermissionError("the join token was used already or has expired")
            key = known.token
        if not m.proof_is_right(head.get("proof"), key, "agent", nonce):
            raise PermissionError("the proof is wrong")
        known.token = None
        return known, key


class AgentListener(AgentAdmission):
    """A port for the agents of all clusters that dial it, opened when first needed."""

    def __init__(self, host: str, port: int, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(clock)
        self._host, self._port, self._tls = host, port, tls
        self._server: asyncio.Server | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> int:
        """Open the port if it is not open yet; returns its number. Raises ConfigurationError."""
        async with self._starting:  # several clusters may share the port
            if self._server is None:
                try:
                    self._server = await asyncio.start_server(self._serve, self._host, self._port, ssl=self._tls)
                except OSError as error:
                    raise ConfigurationError(
                        f"cannot listen for agents on {self._host}:{self._port}: {error.strerror or error}.",
                        next_step="give another agent_listen (host:port), or auto",
                    ) from error
            port: int = self._server.sockets[0].getsockname()[1]
            return port

    def stop_admitting(self) -> None:
        """Close the port; connections of links stay."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._in_handshake):
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
