"""Opens the agent's connection to its control plane: dials it or is dialled by it, then does the handshake. Also Lease.

Used by ``Agent``. Where the control plane cannot be reached, the agent listens. The control plane is then authenticated
twice: by TLS, with the certificate from the agent's job, and by the same handshake. The agent generates its own key,
which never leaves it, and prints the key's fingerprint.
"""

from __future__ import annotations

import asyncio
import errno
import math
import os
import secrets
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ray_multicluster_scheduler.common.frames import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL_VERSION,
    FrameError,
    FrameReader,
    Message,
    small_frame,
)
from ray_multicluster_scheduler.common.tls import certificate_of, fingerprint_of, self_signed, server_context
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

FIRST_JOIN_S = 4.0
FIRST_DIAL_IN_S = 60.0
"""The time in which a listening agent must be dialled first: the control plane has to find its address in a log."""
PORT_TAKEN_TIMEOUT_S, _BIND_PAUSE_S = 10.0, 0.5
_CONNECT_TIMEOUT_S = 3.0
_TLS_TIMEOUT_S = 5.0
_HANDSHAKE_TIMEOUT_S = 5.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)
_LINGER_PAUSE_S = 0.2
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CannotDial(Exception):
    """No control plane answers at any of the addresses."""


class CannotListen(Exception):
    """The port cannot be bound."""


class Rejected(Exception):
    """The control plane rejects this agent."""


class Lease:
    """The time for which the agent may work: counts from when a PING was *sent*, once it was answered.

    Bytes may wait in a kernel or a proxy until long after the control plane gave this agent up. A PING is never later
    than its answer, so the control plane's own lease ends after this one.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._asked_at = time.monotonic()
        self._extra_s = 0.0

    @property
    def total_s(self) -> float:
        """From an answered PING to the end of the lease."""
        return self.seconds + self._extra_s

    @property
    def until(self) -> float:
        """On the clock of ``time.monotonic``."""
        return self._asked_at + self.total_s

    def answered(self, asked_at: object) -> None:
        """Renew it: the control plane has answered the PING sent at ``asked_at``. An invalid time is ignored."""
        if isinstance(asked_at, float) and asked_at <= time.monotonic():
            self._asked_at = max(self._asked_at, asked_at)

    def extend(self, seconds: float) -> None:
        """Extend it by ``seconds``, for which the control plane will be away."""
        self._extra_s = max(seconds, 0.0) if math.isfinite(seconds) else 0.0

    def reconnected(self, asked_at: float) -> None:
        """End the extension and renew it: the control plane has answered over a new connection."""
        self._extra_s = 0.0
        self.answered(asked_at)

    def grant_s(self) -> float:
        """The lease of a worker, without the extension: workers renew theirs often, and one that loses its agent must
        end as soon as usual, although the control plane is away."""
        return min(self.left_s(), self.seconds)

    def left_s(self) -> float:
        """Seconds left; negative after its end."""
        return self.until - time.monotonic()


@dataclass(frozen=True, slots=True)
class Join:
    """The data for joining the control plane; received in the environment of the agent's job. An agent that was started
    by a connector (``carrier`` ray_client), or that has to ``listen``, does not dial: ``opener`` waits for a
    connection."""

    cluster: str
    agent: str
    addresses: list[tuple[str, int]]
    token: str
    own_modules: list[str] = field(default_factory=list)
    certificate: str | None = None
    carrier: str = "agent"
    first_join_s: float = FIRST_JOIN_S
    opener: Callable[[], Awaitable[Streams]] | None = None
    listen: dict[str, Any] | None = None
    """The port at which to listen (0: any free one), and the certificate of the control plane."""
    lingers: bool = False
    """Its program has ended, and it waits for the next one, which may begin to listen at any moment."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Join:
        addresses = [(str(host), int(port)) for host, port in data["addresses"]]
        return cls(**{**data, "addresses": addresses})


@dataclass(slots=True)
class Connection:
    """A connection after its handshake."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader
    welcome: dict[str, Any]
    early: list[Message]
    """Messages that arrived together with WELCOME."""
    asked_at: float
    """When HELLO was sent (monotonic): the lease counts from it."""


async def dial(join: Join, identity: dict[str, Any], secret: str | None, until: float) -> Connection:
    """Try the addresses in turn until the control plane admits us. Raises CannotDial at ``until`` (monotonic),
    Rejected."""
    problems: dict[str, str] = {}
    tries = 0
    while True:
        for host, port in join.addresses:
            address = f"{host}:{port}"
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    return await _try(join, host, port, identity, secret)
            except (OSError, FrameError, asyncio.IncompleteReadError, TimeoutError) as error:
                # A try that was cut short does not replace the problem of an earlier one.
                if time.monotonic() < until or address not in problems:
                    problems[address] = f"{type(error).__name__}: {str(error) or 'no answer in time'}"
        pause = _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
        if join.opener is not None:  # it waits by itself
            pause = 0.0
        elif join.lingers and secret is None:
            pause = _LINGER_PAUSE_S
        tries += 1
        if time.monotonic() + pause > until:
            raise CannotDial("; ".join(f"{address} ({problem})" for address, problem in problems.items()))
        await asyncio.sleep(pause)


async def _try(join: Join, host: str, port: int, identity: dict[str, Any], secret: str | None) -> Connection:
    if join.opener is not None:
        reader, writer = await join.opener()  # until the caller's timeout
    else:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=_tls(join.certificate))
    try:
        own = writer.get_extra_info("sockname")  # empty for the socket pair of a tunnel
        if own and own == writer.get_extra_info("peername"):
            raise ConnectionRefusedError("nobody listens")  # TCP connects a socket to itself if it got that port
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            return await _handshake(join, reader, writer, identity, secret)
    except BaseException:
        writer.close()
        raise


def _tls(certificate: str | None) -> ssl.SSLContext | None:
    """Trust exactly the certificate that the control plane named, for any host name."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


async def _handshake(
    join: Join, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, identity: dict[str, Any], secret: str | None
) -> Connection:
    frames = FrameReader(MAX_HANDSHAKE_BYTES)
    inbox: list[Message] = []
    challenge = await _next(reader, frames, inbox)
    if challenge.kind != m.CHALLENGE:
        raise FrameError(f"expected a challenge, got {challenge.kind!r}")
    key, nonce = secret or join.token, secrets.token_hex(16)
    hello = {
        **identity,
        "protocol": PROTOCOL_VERSION,
        "cluster": join.cluster,
        "agent": join.agent,
        "nonce": nonce,
        "proof": m.proof(key, "agent", str(challenge.head["nonce"])),
        "resume": secret is not None,
        "lingers": join.lingers,
    }
    asked_at = time.monotonic()
    writer.write(small_frame(Message(m.HELLO, hello)))
    answer = await _next(reader, frames, inbox)
    if answer.kind == m.REJECT:
        sentence = str(answer.head.get("sentence"))
        over_tls = writer.get_extra_info("ssl_object") is not None  # then it can only be our control plane
        if (over_tls and not join.lingers) or m.proof_is_right(answer.head.get("proof"), key, "reject", nonce):
            raise Rejected(sentence)
        raise ConnectionRefusedError(f"a server that is not proved to be our control plane rejects us: {sentence}")
    if answer.kind != m.WELCOME or not m.proof_is_right(answer.head.get("proof"), key, "control-plane", nonce):
        raise ConnectionRefusedError("the server has not proved to be our control plane")
    frames.allow_large_messages()
    return Connection(reader, writer, frames, answer.head, inbox, asked_at)


async def _next(reader: asyncio.StreamReader, frames: FrameReader, inbox: list[Message]) -> Message:
    while not inbox:
        data = await reader.read(65536)
        if not data:
            raise ConnectionResetError("the connection was closed during the handshake")
        inbox += frames.feed(data)
    return inbox.pop(0)


class DialInServer:
    """The port of an agent that is dialled by its control plane, the only client that TLS admits: it has the key of the
    certificate ``trusted``. Only the newest connection counts: a control plane that dials again has given up the one
    before."""

    def __init__(self, trusted: str) -> None:
        pem = self_signed("rmcs agent")
        self.fingerprint = fingerprint_of(certificate_of(pem))
        self._tls = server_context(pem, trusted)
        self._servers: list[asyncio.Server] = []
        self._newest: Streams | None = None
        self._connected = asyncio.Event()
        self._in_use: asyncio.StreamWriter | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port's number. Retries for a while if the port is in use, because its owner may be about
        to end. Raises CannotListen."""
        until = time.monotonic() + PORT_TAKEN_TIMEOUT_S
        while True:
            try:
                bound = _bind(host, port)
                break
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                if not taken or time.monotonic() > until:
                    word = f"{m.TAKEN} " if taken else ""
                    raise CannotListen(f"{word}{host}:{port} ({os.strerror(error.errno or 0)})") from error
            await asyncio.sleep(_BIND_PAUSE_S)
        for one in bound:
            self._servers.append(
                await asyncio.start_server(self._accept, sock=one, ssl=self._tls, ssl_handshake_timeout=_TLS_TIMEOUT_S)
            )
        number: int = bound[0].getsockname()[1]
        return number

    async def next(self) -> Streams:
        """Wait for the next connection, and use it from now on."""
        while self._newest is None:
            self._connected.clear()
            await self._connected.wait()
        streams, self._newest = self._newest, None
        self._in_use = streams[1]
        return streams

    def close(self) -> None:
        """Stop listening, and abort the connections."""
        for server in self._servers:
            server.close()
        self._abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._abort()
        self._newest = (reader, writer)
        self._connected.set()

    def _abort(self) -> None:
        for old in (self._newest[1] if self._newest else None, self._in_use):
            if old is not None:
                old.transport.abort()
        self._newest = self._in_use = None


def _bind(host: str, port: int) -> list[socket.socket]:
    """Bind the address of the node, and loopback for port forwarding; no other address, because that is the operator's
    decision. Raises OSError."""
    first = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if host in _LOOPBACK:
        return [first]
    number = first.getsockname()[1]
    try:
        return [first, socket.create_server((_LOOPBACK[0], number))]
    except OSError as error:
        if port == 0 and error.errno == errno.EADDRINUSE:
            first.close()
            raise  # the caller tries another number
        why = os.strerror(error.errno or 0)
        print(f"rmcs agent: listens at {host} only, not at {_LOOPBACK[0]}:{number} ({why})", flush=True)
        return [first]


async def listen_if_configured(join: Join, host: str) -> Join:
    """If ``join.listen`` is set, listen and print the address; returns the join to use. Raises CannotListen."""
    if join.listen is None:
        return join
    server = DialInServer(str(join.listen["certificate"]))
    number = await server.open(host, int(join.listen["port"]))
    print(m.listens_line(host, number, server.fingerprint), flush=True)
    return replace(
        join, carrier="dial_in", addresses=[(host, number)], opener=server.next, first_join_s=FIRST_DIAL_IN_S
    )
