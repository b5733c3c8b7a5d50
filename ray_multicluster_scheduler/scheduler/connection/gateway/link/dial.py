"""Dialling back: find an address that answers, and show each other who we are."""

from __future__ import annotations

import asyncio
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from ray_multicluster_scheduler.common.frames import (
    MAX_HANDSHAKE_BYTES,
    PROTOCOL_VERSION,
    FrameError,
    FrameReader,
    FrameWriter,
    Message,
)
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m

FIRST_JOIN_S = 4.0
_CONNECT_TIMEOUT_S = 3.0
_HANDSHAKE_TIMEOUT_S = 5.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)


class CannotDial(Exception):
    """Nobody answers at any of the addresses."""


class Rejected(Exception):
    """The control plane does not want this agent."""


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Join:
    """What the control plane told us when it started this agent. One that was brought by a connector (``carrier``
    ray_client) has no address to dial, nor has one that is to ``listen``: ``opener`` waits for a connection."""

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
    """The port at which to listen (0: any free one), and the certificate of whoever may dial."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Join:
        addresses = [(str(host), int(port)) for host, port in data["addresses"]]
        return cls(**{**data, "addresses": addresses})


@dataclass(slots=True)
class Connection:
    """One admitted connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader
    welcome: dict[str, Any]
    early: list[Message]
    asked_at: float
    """When we said who we are (monotonic): the welcome answers that, and the lease counts from it."""


async def dial(join: Join, who: dict[str, Any], secret: str | None, until: float) -> Connection:
    """Try the addresses in turn until one lets us in. Raises CannotDial at ``until`` (monotonic), Rejected."""
    problems: dict[str, str] = {}
    tries = 0
    while True:
        for host, port in join.addresses:
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    return await _try(join, host, port, who, secret)
            except (OSError, FrameError, asyncio.IncompleteReadError, TimeoutError) as error:
                problem = f"{type(error).__name__}: {str(error) or 'no answer in time'}"
                if (
                    time.monotonic() < until or f"{host}:{port}" not in problems
                ):  # a try that was cut short tells little
                    problems[f"{host}:{port}"] = problem
        # An opener waits by itself, so whatever it offers next is taken at once.
        pause = 0.0 if join.opener is not None else _PAUSES_S[min(tries, len(_PAUSES_S) - 1)]
        tries += 1
        if time.monotonic() + pause > until:
            raise CannotDial("; ".join(f"{address} ({problem})" for address, problem in problems.items()))
        await asyncio.sleep(pause)


async def _try(join: Join, host: str, port: int, who: dict[str, Any], secret: str | None) -> Connection:
    if join.opener is not None:
        reader, writer = await join.opener()  # until the caller's patience ends
    else:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=_tls(join.certificate))
    try:
        async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
            return await _handshake(join, reader, writer, who, secret)
    except BaseException:
        writer.close()
        raise


def _tls(certificate: str | None) -> ssl.SSLContext | None:
    """Trust exactly the one key that the control plane named; its host name does not matter."""
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


async def _handshake(
    join: Join,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    who: dict[str, Any],
    secret: str | None,
) -> Connection:
    frames = FrameReader(MAX_HANDSHAKE_BYTES)
    inbox: list[Message] = []
    challenge = await _next(reader, frames, inbox)
    if challenge.kind != m.CHALLENGE:
        raise FrameError(f"expected a challenge, got {challenge.kind!r}")
    key, nonce = secret or join.token, secrets.token_hex(16)
    hello = {
        **who,
        "protocol": PROTOCOL_VERSION,
        "cluster": join.cluster,
        "agent": join.agent,
        "nonce": nonce,
        "proof": m.proof(key, "agent", str(challenge.head["nonce"])),
        "resume": secret is not None,
    }
    asked_at = time.monotonic()
    outbox = FrameWriter()
    outbox.put(Message(m.HELLO, hello))
    writer.write(outbox.take())
    answer = await _next(reader, frames, inbox)
    if answer.kind == m.REJECT:
        sentence = str(answer.head.get("sentence"))
        known = writer.get_extra_info("ssl_object") is not None  # over TLS it is our control plane and nobody else
        if known or m.proof_is_right(answer.head.get("proof"), key, "reject", nonce):
            raise Rejected(sentence)
        raise ConnectionRefusedError(f"somebody who does not prove to be our control plane says: {sentence}")
    if answer.kind != m.WELCOME or not m.proof_is_right(answer.head.get("proof"), key, "control-plane", nonce):
        raise ConnectionRefusedError("somebody answers who does not prove to be our control plane")
    frames.allow_large_messages()
    return Connection(reader, writer, frames, answer.head, inbox, asked_at)


async def _next(reader: asyncio.StreamReader, frames: FrameReader, inbox: list[Message]) -> Message:
    while not inbox:
        data = await reader.read(65536)
        if not data:
            raise ConnectionResetError("the connection was closed during the handshake")
        inbox += frames.feed(data)
    return inbox.pop(0)
