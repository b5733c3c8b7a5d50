"""Where the agent hears from its workers: started-reports, output, and the renewal of their lease."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable
from typing import Any

from ray_multicluster_scheduler.common.frames import FrameError, FrameReader, FrameWriter, Message
from ray_multicluster_scheduler.scheduler.connection.gateway.channel import Line


class WorkerServer:
    """Listens on the agent's node address; only processes that were given the secret are heard."""

    def __init__(self, hear: Callable[[Message], None]) -> None:
        self._hear = hear
        self._secret = secrets.token_hex(16)
        self._server: asyncio.Server | None = None
        self._workers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, lease_s: float) -> Line:
        """Open the port; returns what a worker needs to know."""
        self._server = await asyncio.start_server(self._serve, host, 0)
        port = self._server.sockets[0].getsockname()[1]
        return Line(host, port, self._secret, lease_s)

    def renew_leases(self, left_s: float) -> None:
        """Tell every connected worker for how long its work is still wanted."""
        frame = FrameWriter()
        frame.put(Message("lease", {"left_s": left_s}))
        data = frame.take()
        for worker in list(self._workers):
            if not worker.is_closing():
                worker.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameReader()
        admitted = False
        try:
            while data := await reader.read(65536):
                for message in frames.feed(data):
                    if admitted:
                        self._hear(message)
                    elif message.kind == "hello" and self._admits(message.head):
                        admitted = True
                        self._workers.add(writer)
                    else:
                        return
        except (OSError, FrameError) as error:
            print(f"rmcs agent: the line to a worker broke: {error}", flush=True)
        finally:
            self._workers.discard(writer)
            writer.close()

    def _admits(self, head: dict[str, Any]) -> bool:
        return hmac.compare_digest(str(head.get("secret")).encode(), self._secret.encode())
