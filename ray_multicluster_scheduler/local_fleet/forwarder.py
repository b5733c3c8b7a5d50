"""A TCP forwarder on loopback: one fixed published port in front of whatever port the cluster has now.

It can drop, freeze, delay and throttle the traffic, so that tests can simulate a bad network.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from contextlib import suppress
from typing import TypeAlias

from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK

_SLICE_S = 0.05
"""A throttled stream is read in slices of this duration, so that a change takes effect soon."""
_MAX_READ = 65536


class Impairment:
    """Delay, throttle and freeze for all connections of a cluster; may be changed at any time."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._free_at = {"in": 0.0, "out": 0.0}

    def freeze(self) -> None:
        """Hold every byte; connections stay open on both sides."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Forward the held bytes, in order and without loss."""
        self._flowing.set()

    def read_size(self) -> int:
        """How many bytes to read at once."""
        if self.bytes_per_s is None:
            return _MAX_READ
        return max(1, min(_MAX_READ, int(self.bytes_per_s * _SLICE_S)))

    async def pace(self, direction: str, size: int) -> None:
        """Wait until ``size`` bytes fit the rate that all connections of the cluster share."""
        if self.bytes_per_s is None:
            return
        begin = max(time.monotonic(), self._free_at[direction])
        self._free_at[direction] = begin + size / self.bytes_per_s
        await asyncio.sleep(self._free_at[direction] - time.monotonic())

    async def hold_until(self, due: float) -> None:
        """Wait until a chunk is due, and then for as long as the traffic is frozen."""
        late = due - time.monotonic()
        if late > 0:
            await asyncio.sleep(late)
        await self._flowing.wait()


_WINDOW_CHUNKS = 64
"""Chunks in flight in a delayed stream; beyond that, the sender is not read from."""
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_Chunks: TypeAlias = "asyncio.Queue[tuple[float, bytes | None]]"
"""Due time and bytes of each chunk. Empty bytes are the end of the stream; None is an end that is not passed on."""


class _Connection:
    """``half_open``: bytes and the end of the other side are dropped."""

    half_open = False


class Forwarder:
    """Owns one port. It refuses connections unless it has a target and is not cut."""

    def __init__(self, impairment: Impairment) -> None:
        self._impairment = impairment
        # Bound but never listening: it keeps the port ours while connections to it are refused.
        self._reserve = _reusable_socket(0)
        self.port: int = self._reserve.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._target: int | None = None
        self._cut = False
        self._links: dict[asyncio.Task[None], _Connection] = {}

    async def open(self, target: int) -> None:
        """Forward to this loopback port from now on."""
        self._target = target
        await self._apply()

    async def shut(self) -> None:
        """Drop all connections and refuse new ones until :meth:`open`."""
        self._target = None
        await self._apply()

    async def cut(self) -> None:
        """Like :meth:`shut`, but keep the target for :meth:`uncut`."""
        self._cut = True
        await self._apply()

    async def uncut(self) -> None:
        """Undo :meth:`cut`."""
        self._cut = False
        await self._apply()

    async def cut_some(self, probability: float) -> int:
        """Reset each connection with this probability; new ones work. Returns how many were reset."""
        chosen = [link for link in self._links if random.random() < probability]  # nosec B311 # no secret
        await _end(chosen)
        return len(chosen)

    def blackhole(self) -> int:
        """Make the open connections half-open: their bytes and ends are dropped from now on. New connections work.

        Returns how many there were."""
        for link in self._links.values():
            link.half_open = True
        return len(self._links)

    async def close(self) -> None:
        """Release the port."""
        await self.shut()
        self._reserve.close()

    async def _apply(self) -> None:
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
        task, link = asyncio.current_task(), _Connection()
        if task is None or self._target is None or self._cut:
            _reset(writer)
            return
        self._links[task] = link
        # Cancellation is the normal end of a cut connection; no code awaits the task of a served one.
        with suppress(asyncio.CancelledError):
            try:
                await self._relay(link, reader, writer, self._target)
            finally:
                del self._links[task]

    async def _relay(
        self, link: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int
    ) -> None:
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
            pass  # one side reset or refused; the other side gets a reset below
        finally:
            for each in writers:
                _reset(each)

    async def _pump(
        self, link: _Connection, direction: str, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward one direction until its end. A delay does not lower the throughput: chunks overlap."""
        line: _Chunks = asyncio.Queue(_WINDOW_CHUNKS)
        async with asyncio.TaskGroup() as halves:
            halves.create_task(self._read(link, direction, source, line))
            halves.create_task(self._deliver(link, line, sink))

    async def _read(self, link: _Connection, direction: str, source: asyncio.StreamReader, line: _Chunks) -> None:
        while True:
            try:
                chunk = await source.read(self._impairment.read_size())
            except OSError:
                if not link.half_open:
                    raise
                chunk = b""
            if link.half_open and chunk:
                continue
            await self._impairment.pace(direction, len(chunk))
            await line.put((time.monotonic() + self._impairment.delay_s, None if link.half_open else chunk))
            if not chunk:
                return

    async def _deliver(self, link: _Connection, line: _Chunks, sink: asyncio.StreamWriter) -> None:
        while True:
            due, chunk = await line.get()
            await self._impairment.hold_until(due)
            if chunk is None:
                return
            if not chunk:
                if sink.can_write_eof() and not link.half_open:
                    sink.write_eof()
                return
            if not link.half_open:
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
    """Close at once: a peer that waits for bytes gets a reset, not a clean end."""
    if writer.is_closing():
        return
    sock: socket.socket = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
