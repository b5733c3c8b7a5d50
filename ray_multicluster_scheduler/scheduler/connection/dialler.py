"""Dialling an agent that listens, again and again, for as long as it is wanted."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.tls_pem import mutual

_log = get_logger(__name__)
_CONNECT_TIMEOUT_S = 3.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)

Admit = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Shake hands, and give the connection to its link. False: it was turned away, and is closed."""


class Dialler:
    """Of one agent, which shows the key ``pem`` at one of ``addresses``. Begins at once; ``stop`` ends it."""

    def __init__(self, agent: str, addresses: Sequence[tuple[str, int]], pem: str, admit: Admit) -> None:
        self._agent, self._admit = agent, admit
        self.addresses, self.identity = tuple(addresses), pem
        self._tls = mutual(ssl.PROTOCOL_TLS_CLIENT, pem)
        self.problem = ""
        """Why nobody was reached the last time, as part of a sentence."""
        self._work = asyncio.create_task(self._dial())

    async def stop(self) -> None:
        """It is not dialled any more; a connection that stands belongs to its link."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def _dial(self) -> None:
        tries = 0
        while True:
            writer = await self._connection()
            if writer is not None:
                tries = 0
                with suppress(OSError):  # however it ends, it is dialled again
                    await writer.wait_closed()
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1

    async def _connection(self) -> asyncio.StreamWriter | None:
        """One that its link has; None if there is none to be had now."""
        problems = []
        for host, port in self.addresses:
            try:
                opening = asyncio.open_connection(host, port, ssl=self._tls)
                reader, writer = await asyncio.wait_for(opening, _CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError) as error:
                problems.append(f"{host}:{port} ({type(error).__name__}: {str(error) or 'no answer in time'})")
                continue
            if await self._admit(reader, writer):
                self.problem = ""
                return writer
            problems.append(f"{host}:{port} (somebody answers, but not as our agent)")
        self.problem = "; ".join(problems)
        _log.info("agent %s cannot be reached: %s", self._agent, self.problem)
        return None
