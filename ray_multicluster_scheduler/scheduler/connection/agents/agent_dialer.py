"""Dialling an agent that listens, again and again, for as long as it is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.tls import client_context, peer_has_fingerprint

_log = get_logger(__name__)
_CONNECT_TIMEOUT_S = 3.0
_PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)

Admit = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""Shake hands, and give the connection to its link. False: it was turned away, and is closed."""


class AgentDialer:
    """Of one agent, to which we show the key ``pem``, and which shows the certificate of this ``fingerprint`` at one of
    ``addresses``; those are asked for each time, as the configuration may have changed. Begins at once; ``stop`` ends
    it."""

    def __init__(
        self,
        agent: str,
        addresses: Callable[[], Sequence[tuple[str, int]]],
        pem: str,
        fingerprint: str,
        admit: Admit,
    ) -> None:
        self._agent, self._admit = agent, admit
        self._addresses, self.identity, self.fingerprint = addresses, pem, fingerprint
        self._tls = client_context(pem)
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
            try:
                writer = await self._connection()
            except Exception as error:  # noqa: BLE001 - whatever it was: nobody else would ever dial it again
                self.problem, writer = f"{type(error).__name__}: {error}", None
                _log.exception("dialling agent %s failed in a way that was not foreseen", self._agent)
            if writer is not None:
                tries = 0
                with suppress(OSError):  # however it ends, it is dialled again
                    await writer.wait_closed()
            await asyncio.sleep(_PAUSES_S[min(tries, len(_PAUSES_S) - 1)])
            tries += 1

    async def _connection(self) -> asyncio.StreamWriter | None:
        """One that its link has; None if there is none to be had now."""
        problems = []
        for host, port in self._addresses():
            try:
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    reader, writer = await asyncio.open_connection(host, port, ssl=self._tls)
            except (OSError, TimeoutError) as error:
                problems.append(f"{host}:{port} ({type(error).__name__}: {str(error) or 'no answer in time'})")
                continue
            if not peer_has_fingerprint(writer.get_extra_info("ssl_object"), self.fingerprint):
                writer.transport.abort()
                problems.append(f"{host}:{port} (somebody answers, but not with the key of our agent)")
                continue
            if await self._admit(reader, writer):
                self.problem = ""
                return writer
            problems.append(f"{host}:{port} (somebody answers, but not as our agent)")
        self.problem = "; ".join(problems)
        _log.info("agent %s cannot be reached: %s", self._agent, self.problem)
        return None
