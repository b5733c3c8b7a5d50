"""Being dialled: where its control plane cannot be reached, an agent listens, and the control plane dials.

Who may enter shows it twice: by the key that came with the agent's job, before a byte is read, and then by the same
handshake as ever.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace

from ray_multicluster_scheduler.common.tls_pem import mutual
from ray_multicluster_scheduler.scheduler.connection.gateway import messages as m
from ray_multicluster_scheduler.scheduler.connection.gateway.dial import Join

_TLS_TIMEOUT_S = 5.0


FIRST_CALL_S = 60.0
"""So long an agent waits for the first call of its control plane, which has to find out where it listens."""


class CannotListen(Exception):
    """The port cannot be had."""


class Door:
    """One port, for one control plane. Only its newest connection counts: whoever dials again has given up the one
    before, even if nothing has told us so yet."""

    def __init__(self, identity: str) -> None:
        self._tls = mutual(ssl.PROTOCOL_TLS_SERVER, identity)
        self._server: asyncio.Server | None = None
        self._newest: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._came = asyncio.Event()
        self._taken: asyncio.StreamWriter | None = None

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the number of the port. Raises CannotListen."""
        try:
            self._server = await asyncio.start_server(
                self._arrive, host, port, ssl=self._tls, ssl_handshake_timeout=_TLS_TIMEOUT_S
            )
        except OSError as error:
            raise CannotListen(f"{host}:{port} ({error.strerror or error})") from error
        number: int = self._server.sockets[0].getsockname()[1]
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
        if self._server is not None:
            self._server.close()
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


async def ready_to_be_dialled(join: Join, host: str) -> Join:
    """Listen, if that is what the control plane wants, and say where. Raises CannotListen."""
    if join.listen is None:
        return join
    door = Door(str(join.listen["identity"]))
    number = await door.open(host, int(join.listen["port"]))
    print(f"{m.LISTENS} {host}:{number}", flush=True)
    return replace(join, carrier="dial_in", addresses=[(host, number)], opener=door.next, first_join_s=FIRST_CALL_S)
