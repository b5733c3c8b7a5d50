"""A load generator over HTTP/1.1 that costs little: kept connections, callbacks, no task for a request."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import httptools


class RequestError(Exception):
    """A server did not answer a request with status 200."""


def post(port: int, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """Sends one request at a time; ``done`` is called at the end of each answer, or with the error."""

    def __init__(self) -> None:
        self.done: Callable[[Exception | None], None] | None = None
        self.body = b""
        self.closed = False
        """Servers close connections that are idle for some seconds."""
        self._parser = httptools.HttpResponseParser(self)

    def send(self, request: bytes, done: Callable[[Exception | None], None]) -> None:
        self.done, self.body = done, b""
        self._transport.write(request)

    def close(self) -> None:
        self.done = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end(RequestError(f"the connection was lost: {exc or 'closed by the server'}"))

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        self._end(None if status == 200 else RequestError(f"status {status}: {self.body[:300]!r}"))

    def _end(self, error: Exception | None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(error)


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def ask(port: int, path: str, body: bytes) -> bytes:
    """One request over a connection of its own. Raises RequestError or OSError."""
    connection = await connect(port)
    answered: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    connection.send(post(port, path, body), answered.set_result)
    try:
        async with asyncio.timeout(60):
            error = await answered
    finally:
        connection.close()
    if error is not None:
        raise error
    return connection.body


async def closed_loop(port: int, path: str, body: bytes, connections: int, seconds: float) -> dict[str, Any]:
    """Each connection sends its next request when the last one is answered."""
    request, clock = post(port, path, body), time.perf_counter
    finished: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    times: list[float] = []
    opened = [await connect(port) for _ in range(connections)]
    running = connections
    began = clock()
    until = began + seconds

    def start(connection: Connection) -> None:
        sent = clock()

        def done(error: Exception | None) -> None:
            nonlocal running
            now = clock()
            times.append(now - sent)
            if error is None and now < until:
                start(connection)
                return
            running -= 1
            if not finished.done() and (error is not None or not running):
                finished.set_result(error)

        connection.send(request, done)

    for one in opened:
        start(one)
    error = await finished
    took = clock() - began
    for one in opened:
        one.close()
    if error is not None:
        raise error
    found = {"per_s": len(times) / took, "p50_ms": 1000 * statistics.median(times), "requests": len(times)}
    return {name: round(value, 3) for name, value in found.items()}


async def open_loop(
    port: int, path: str, arrivals: Sequence[float], bodies: Sequence[bytes]
) -> tuple[list[float], list[float]]:
    """Send each request at its time, whatever is still unanswered; when each was sent, and answered, in seconds of
    the monotonic clock."""
    idle = [await connect(port) for _ in range(16)]
    opened = list(idle)
    sent, answered = [0.0] * len(bodies), [0.0] * len(bodies)
    finished: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    left = len(bodies)
    began = time.monotonic() + 0.05

    def send(index: int, connection: Connection) -> None:
        def done(error: Exception | None) -> None:
            nonlocal left
            answered[index] = time.monotonic()
            idle.append(connection)
            left -= 1
            if not finished.done() and (error is not None or not left):
                finished.set_result(error)

        sent[index] = time.monotonic()
        connection.send(post(port, path, bodies[index]), done)

    for index, at in enumerate(arrivals):
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        if finished.done():
            break
        while idle and idle[-1].closed:
            idle.pop()
        if not idle:
            opened.append(await connect(port))
            idle.append(opened[-1])
        send(index, idle.pop())
    async with asyncio.timeout(120):
        error = await finished
    for one in opened:
        one.close()
    if error is not None:
        raise error
    return sent, answered
