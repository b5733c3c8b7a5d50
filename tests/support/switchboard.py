"""One address for the agents of all clusters, which forwards each through the network of its own cluster.

A control plane advertises one address to all agents, but a local fleet impairs the network of each cluster separately.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import psutil

from ray_multicluster_scheduler.local_fleet import LocalFleet

_HERE = "127.0.0.1"


class Switchboard:
    """``port`` of ours, reached by every cluster through its own forwarder. Has a thread of its own."""

    def __init__(self, fleet: LocalFleet, port: int) -> None:
        self._lines: Mapping[str, int] = {
            str(fleet.home(one.name)): int(fleet.expose(one.name, port).rpartition(":")[2]) for one in fleet.clusters
        }
        self._loop = asyncio.new_event_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, _HERE, 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="switchboard")

    @property
    def address(self) -> str:
        return f"{_HERE}:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.current_task()
        assert call is not None
        self._calls.add(call)
        ends = [writer]
        with suppress(asyncio.CancelledError):
            try:
                line = await asyncio.to_thread(self._line_of, writer.get_extra_info("peername")[1])
                far_reader, far_writer = await asyncio.open_connection(_HERE, line)
                ends.append(far_writer)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_move(reader, far_writer))
                    both.create_task(_move(far_reader, writer))
            except* (OSError, LookupError, psutil.Error):
                pass  # the caller sees the end of its connection, which is the message
            finally:
                self._calls.discard(call)
                for end in ends:
                    end.transport.abort()

    def _line_of(self, port: int) -> int:
        """By the home of the process that has this port: every cluster has one of its own."""
        for one in psutil.net_connections("tcp4"):
            if one.laddr and one.raddr and (one.laddr.port, one.raddr.port) == (port, self.port) and one.pid:
                return self._lines[psutil.Process(one.pid).environ()["HOME"]]
        raise LookupError(f"no process has the port {port}")


async def _move(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
