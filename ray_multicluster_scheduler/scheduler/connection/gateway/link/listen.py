"""Being dialled: where its control plane cannot be reached, an agent listens, and the control plane dials.

Who may enter shows it twice: by the key whose certificate came with the agent's job, before a byte is read, and then by
the same handshake as ever. The agent makes its own key, which never leaves it, and says by which fingerprint that is
known.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from dataclasses import replace

from ray_multicluster_scheduler.common.tls import certificate_of, fingerprint_of, self_signed, server_context
from ray_multicluster_scheduler.scheduler.connection.gateway.link import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.link.dial import Join

_TLS_TIMEOUT_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
TAKEN_PATIENCE_S, _AGAIN_S = 10.0, 0.5
FIRST_CALL_S = 60.0
"""So long an agent waits for the first call of its control plane, which has to find out where it listens."""


class CannotListen(Exception):
    """The port cannot be had."""


class Door:
    """One port, for one control plane, which has the key of the certificate ``trusted``. Only its newest connection
    counts: whoever dials again has given up the one before, even if nothing has told us so yet. Nobody else gets as
    far as that."""

    def __init__(self, trusted: str) -> None:
        pem = self_signed("rmcs agent")
        self.fingerprint = fingerprint_of(certificate_of(pem))
        self._tls = server_context(pem, trusted)
        self._servers: list[asyncio.Server] = []
        self._newest: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._came = asyncio.Event()
        self._taken: asyncio.StreamWriter | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the number of the port. Raises CannotListen; one that is taken is waited for a while: whoever
        had it may be about to end."""
        until = time.monotonic() + TAKEN_PATIENCE_S
        while True:
            try:
                bound = _bind(host, port)
                break
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                if not taken or time.monotonic() > until:
                    word = f"{m.TAKEN} " if taken else ""
                    raise CannotListen(f"{word}{host}:{port} ({os.strerror(error.errno or 0)})") from error
            await asyncio.sleep(_AGAIN_S)
        for one in bound:
            self._servers.append(
                await asyncio.start_server(self._arrive, sock=one, ssl=self._tls, ssl_handshake_timeout=_TLS_TIMEOUT_S)
            )
        number: int = bound[0].getsockname()[1]
        return number

    async def next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """The connection to use from now on; waits until there is one."""
        while self._newest is None:
            self._came.clear()
            await self._came.wait()
        streams, self._newest = self._newest, None
        self._taken = streams[1]
        return streams

    def close(self) -> None:
        """Nobody is let in any more, and whoever is in is hung up on."""
        for server in self._servers:
            server.close()
        self._hang_up()

    def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._hang_up()
        self._newest = (reader, writer)
        self._came.set()

    def _hang_up(self) -> None:
        for old in (self._newest[1] if self._newest else None, self._taken):
            if old is not None:
                old.transport.abort()
        self._newest = self._taken = None


def _bind(host: str, port: int) -> list[socket.socket]:
    """At the address of its node, and on loopback, where whoever forwards ports to that machine comes out. At no other:
    who may reach it by those is for the operator to say. Raises OSError."""
    first = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    if host in _LOOPBACK:
        return [first]
    number = first.getsockname()[1]
    try:
        return [first, socket.create_server((_LOOPBACK[0], number))]
    except OSError as error:
        if port == 0 and error.errno == errno.EADDRINUSE:
            first.close()
            raise  # another number will do as well
        why = os.strerror(error.errno or 0)
        print(f"rmcs agent: it listens at {host} alone, not at {_LOOPBACK[0]}:{number} ({why})", flush=True)
        return [first]


async def ready_to_be_dialled(join: Join, host: str) -> Join:
    """Listen, if that is what the control plane wants, and say where. Raises CannotListen."""
    if join.listen is None:
        return join
    door = Door(str(join.listen["certificate"]))
    number = await door.open(host, int(join.listen["port"]))
    print(m.listens_line(host, number, door.fingerprint), flush=True)
    return replace(join, carrier="dial_in", addresses=[(host, number)], opener=door.next, first_join_s=FIRST_CALL_S)
