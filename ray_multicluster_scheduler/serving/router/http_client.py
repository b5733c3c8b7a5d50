"""HttpPool: a small HTTP/1.1 client for one address, with kept connections, streaming and back-pressure.

A general client costs more for each request than all else that the router does with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

MAX_BODY = 64 * 1024**2
_MAX_HEAD = 1024**2
"""Bytes in a row that are no part of a body: headers, interim answers, trailers."""
_KEEP_S = 4.0
"""Idle connections are not used after this time; common servers close theirs after 5 s."""
_PAUSE_AT = 256 * 1024
"""Bytes that were received and not read, at which receiving pauses."""
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)

Headers = list[tuple[bytes, bytes]]


class HttpError(Exception):
    """A request failed. ``sent``: the server may have received it. ``local``: this process has no descriptors left."""

    def __init__(self, message: str, *, sent: bool, local: bool = False) -> None:
        super().__init__(message)
        self.sent, self.local = sent, local


@dataclass(slots=True)
class Response:
    """Status and headers of an answer; its body in pieces as they arrive (:meth:`pieces`), or whole (:meth:`read`)."""

    status: int
    headers: Headers
    _connection: _Connection = field(repr=False)

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            piece = await self._connection.next_piece()
            if piece is None:
                return
            yield piece

    async def read(self, limit: int = MAX_BODY) -> bytes:
        """The whole body. Raises HttpError if it is longer than ``limit`` or does not arrive whole."""
        pieces, size = [], 0
        async for piece in self.pieces():
            size += len(piece)
            if size > limit:
                raise HttpError(f"the answer has more than {limit:,} bytes", sent=True)
            pieces.append(piece)
        return b"".join(pieces)

    def passed_on_headers(self) -> Headers:
        """The headers that concern the content, not the connection."""
        return [(name, value) for name, value in self.headers if name not in _HOP_BY_HOP]


class HttpPool:
    """Connections to one base URL (http or https). Each event loop that uses it has connections of its own."""

    def __init__(self, base_url: str, *, connect_timeout: float = 2.0, addresses: Sequence[str] = ()) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http address")
        self.base_url = base_url.rstrip("/")
        self._path = parts.path.rstrip("/")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self.addresses = addresses or (self._host,)
        self._ssl = ssl.create_default_context() if parts.scheme == "https" else None
        self._authority = parts.netloc.rpartition("@")[2].encode()
        self._connect_timeout = connect_timeout
        self._kept: dict[asyncio.AbstractEventLoop, tuple[deque[_Connection], set[_Connection]]] = {}
        """By loop: the idle connections, and those in use."""

    @contextlib.asynccontextmanager
    async def request(
        self, method: str, path: str, *, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> AsyncIterator[Response]:
        """Send a request; the answer's body is read inside the context. Leaving it early, or a cancellation, closes the
        connection, so that the server stops working on it. Raises HttpError."""
        connection = await self._acquire()
        try:
            connection.send(self._head(method, path, headers, len(body)), body)
            status, received = await connection.answer()
            yield Response(status, received, connection)
        finally:
            self._release(connection)

    async def fetch(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        headers: Iterable[tuple[bytes, bytes]] = (),
        timeout: float | None = None,
        limit: int = MAX_BODY,
    ) -> tuple[int, bytes, Headers]:
        """Send a request and read the whole answer: status, body and headers. Raises HttpError, after ``timeout`` s at
        last."""
        try:
            async with asyncio.timeout(timeout), self.request(method, path, body=body, headers=headers) as response:
                return response.status, await response.read(limit), response.headers
        except TimeoutError:
            raise HttpError(f"{self.base_url} did not answer within {timeout:g} s", sent=True) from None

    def close(self) -> None:
        """Close all connections of the running loop, also those in use."""
        for connection in itertools.chain(*self._kept.pop(asyncio.get_running_loop(), ())):
            connection.close()

    def _of_loop(self, loop: asyncio.AbstractEventLoop) -> tuple[deque[_Connection], set[_Connection]]:
        try:
            return self._kept[loop]
        except KeyError:
            for ended in [one for one in list(self._kept) if one.is_closed()]:
                del self._kept[ended]
            return self._kept.setdefault(loop, (deque(), set()))

    async def _acquire(self) -> _Connection:
        loop = asyncio.get_running_loop()
        idle, in_use = self._of_loop(loop)
        while idle:
            connection = idle.pop()
            if connection.usable and loop.time() - connection.idle_since < _KEEP_S:
                in_use.add(connection)
                return connection
            connection.close()
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._connect(loop)
        except TimeoutError:
            raise HttpError(
                f"{self.base_url} did not accept a connection within {self._connect_timeout:g} s", sent=False
            ) from None
        except OSError as error:
            local = error.errno in {errno.EMFILE, errno.ENFILE}
            sentence = f"{self.base_url} refused the connection: {error.strerror or error}"
            raise HttpError(sentence, sent=False, local=local) from None
        except UnicodeError:
            raise HttpError(f"{self.base_url} has a host that is no name", sent=False) from None
        in_use.add(connection)
        return connection

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        problem = OSError("no address")
        for address in self.addresses:
            name = self._host if self._ssl is not None else None
            try:
                return (
                    await loop.create_connection(_Connection, address, self._port, ssl=self._ssl, server_hostname=name)
                )[1]
            except OSError as error:
                problem = error
        raise problem

    def _release(self, connection: _Connection) -> None:
        loop = asyncio.get_running_loop()
        idle, in_use = self._of_loop(loop)
        in_use.discard(connection)
        if connection.usable:
            connection.idle_since = loop.time()
            idle.append(connection)
            if len(idle) > 1 and idle[0].idle_since < connection.idle_since - _KEEP_S:
                idle.popleft().close()
        else:
            connection.close()

    def _head(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]], length: int) -> bytes:
        lines = [f"{method} {self._path}{path} HTTP/1.1\r\nhost: ".encode("latin-1") + self._authority]
        lines += [name + b": " + value for name, value in headers]
        if length or method in {"POST", "PUT", "PATCH"}:
            lines.append(b"content-length: %d" % length)
        return b"\r\n".join(lines) + b"\r\n\r\n"


class _Connection(asyncio.Protocol):
    """One connection; carries one request at a time."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._busy = False
        """From sending a request until the last byte of its answer."""
        self._paused = False
        self._reset()

    def _reset(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._status = 0
        self._headers: Headers = []
        self._pieces: deque[bytes] = deque()
        self._unread = self._head = 0
        self._complete = False
        self._keep = True
        self._problem: str | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def usable(self) -> bool:
        return not self._closed and not self._busy

    def send(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._reset()
        self._busy = True
        self._transport.writelines((head, body) if body else (head,))

    async def answer(self) -> tuple[int, Headers]:
        """Wait for status and headers."""
        while not self._status:
            self._check()
            await self._wait()
        return self._status, self._headers

    async def next_piece(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while not self._pieces:
            if self._complete:
                return None
            self._check()
            await self._wait()
        piece = self._pieces.popleft()
        self._unread -= len(piece)
        if self._paused and self._unread < _PAUSE_AT and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return piece

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def _check(self) -> None:
        if self._problem is not None:
            raise HttpError(self._problem, sent=True)
        if self._closed:
            raise HttpError("the connection was closed before the answer was complete", sent=True)

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # bytes that belong to no request
            self.close()
            return
        self._head += len(data)
        try:
            self._parser.feed_data(data)
            if self._head > _MAX_HEAD:
                raise httptools.HttpParserError("endless headers")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._problem = f"the answer is not HTTP: {error}"
            self.close()
        self._wake()

    def eof_received(self) -> bool:
        if self._busy and self._status and not self._complete and not self._delimited():
            self.on_message_complete()  # a body without a length ends with the connection
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._wake()

    def _delimited(self) -> bool:
        return any(name in {b"content-length", b"transfer-encoding"} for name, _ in self._headers)

    # ---- httptools

    def on_message_begin(self) -> None:
        if self._complete:
            raise ValueError("it goes on after its end")
        self._headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # 1xx precede the answer
            self._status = status
            self._keep = self._parser.should_keep_alive()

    def on_body(self, piece: bytes) -> None:
        self._head = 0
        self._pieces.append(piece)
        self._unread += len(piece)
        if self._unread > _PAUSE_AT and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        if not self._status:
            return
        self._complete = True
        self._busy = False
        if not self._keep or not self._delimited():
            self._closed = True
