"""A TCP forwarder on loopback: one fixed published port in front of whatever port the cluster has now."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress
from typing import TypeAlias

from ray_multicluster_scheduler.local_fleet.impairment import Impairment
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK

_WINDOW_CHUNKS = 64
"""Chunks under way in a delayed stream; beyond it the sender is not read from."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_Chunks: TypeAlias = "asyncio.Queue[tuple[float, bytes | None]]"
"""When each is due. An empty one is the end; None is an end that the other side is not told of."""


class _Link:
    """One connection. ``lost``: the other end is gone, and nobody says so to this one."""

    lost = False


class Forwarder:
    """Owns one port for good. It refuses connections unless it has a target and is not cut."""

    def __init__(self, impairment: Impairment) -> None:
        self._impairment = impairment
        # Bound but never listening: it keeps the port ours while connections to it are refused.
        self._reserve = _reusable_socket(0)
        self.port: int = self._reserve.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._target: int | None = None
        self._cut = False
        self._links: dict[asyncio.Task[None], _Link] = {}

    async def open(self, target: int) -> None:
        """Forward to this loopback port from now on."""
        self._target = target
        await self._settle()

    async def shut(self) -> None:
        """Drop all connections and refuse new ones until :meth:`open`."""
        self._target = None
        await self._settle()

    async def cut(self) -> None:
        """As :meth:`shut`, but the target is remembered for :meth:`mend`."""
        self._cut = True
        await self._settle()

    async def mend(self) -> None:
        """Undo :meth:`cut`."""
        self._cut = False
        await self._settle()

    async def cut_some(self, chance: float) -> int:
        """Reset each connection with this chance, and take new ones as before. How many were there?"""
        chosen = [link for link in self._links if random.random() < chance]  # nosec B311 # no secret
        await _end(chosen)
        return len(chosen)

    def lose(self) -> int:
        """From now on every byte of the connections that stand is swallowed, and no end is told: each side has half of
        a connection, as after a router forgot it. New ones are taken as before. How many were there?"""
        for link in self._links.values():
            link.lost = True
        return len(self._links)

    async def close(self) -> None:
        """Give the port back."""
        await self.shut()
        self._reserve.close()

    async def _settle(self) -> None:
        wanted = self._target is not None and not self._cut
        if wanted and self._server is None:
            listener = _reusable_socket(self.port)
            self._server = await asyncio.start_server(self._serve, sock=listener)
        if not wanted:
            if self._server is not None:
                self._server.close()
                self._server = None
            await _end(list(self._links))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, link = asyncio.current_task(), _Link()
        if task is None or self._target is None or self._cut:
            _reset(writer)
            return
        self._links[task] = link
        # A cancelled link is the normal end of a cut one; nobody awaits the task of a served connection.
        with suppress(asyncio.CancelledError):
            try:
                await self._join(link, reader, writer, self._target)
            finally:
                del self._links[task]

    async def _join(self, link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int) -> None:
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(LOOPBACK, target)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(link, "in", reader, far_writer))
                both.create_task(self._pump(link, "out", far_reader, writer))
            for each in writers:
                each.close()
                await each.wait_closed()
        except* OSError:
            pass  # one side reset or refused: the other side sees a reset below, which is the message
        finally:
            for each in writers:
                _reset(each)

    async def _pump(
        self, link: _Link, direction: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Move one direction until its end; the delay does not lower the throughput, chunks overlap."""
        line: _Chunks = asyncio.Queue(_WINDOW_CHUNKS)
        async with asyncio.TaskGroup() as halves:
            halves.create_task(self._take(link, direction, source, line))
            halves.create_task(self._deliver(link, line, sink))

    async def _take(self, link: _Link, direction: str, source: asyncio.StreamReader, line: _Chunks) -> None:
        while True:
            try:
                chunk = await source.read(self._impairment.read_size())
            except OSError:
                if not link.lost:
                    raise
                chunk = b""
            if link.lost and chunk:
                continue
            await self._impairment.pace(direction, len(chunk))
            await line.put((time.monotonic() + self._impairment.delay_s, None if link.lost else chunk))
            if not chunk:
                return

    async def _deliver(self, link: _Link, line: _Chunks, sink: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await line.get()
            await self._impairment.hold_until(due)
            if chunk is None:
                return
            if not chunk:
                if sink.can_write_eof() and not link.lost:
                    sink.write_eof()
                return
            if not link.lost:
                sink.write(chunk)
                await sink.drain()


async def _end(links: list[asyncio.Task[None]]) -> None:
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)


def _reusable_socket(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.setblocking(False)
    sock.bind((LOOPBACK, port))
    return sock


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once; a peer that still waits for bytes gets a reset, not a clean end."""
    if writer.is_closing():
        return
    sock: socket.socket = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
