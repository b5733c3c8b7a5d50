"""ServiceClient: HTTP client for one service, which retries idempotent requests. Used by RemoteRuntime and its
parts."""

from __future__ import annotations

import asyncio
import codecs
import io
import json
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

import aiohttp

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.app.client_api.remote.service_errors import (
    ServiceUnreachableError,
    refusal,
    unreachable,
    untrusted_certificate,
)
from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError, TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

_log = get_logger(__name__)
RETRY_FOR_S = 30.0
"""How long an idempotent request is retried by default."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.1, 2.0
_CONNECT_S = 5.0
_SURE_S = 1.0
"""How long after a response the address is assumed to be still the same service."""
_BUSY = frozenset({502, 503, 504})
SILENCE_S = 45.0
"""Read timeout of the event stream; the service sends a heartbeat every 15 s."""


class ServiceClient:
    """Runs on one loop. Requests may be repeated, since callers choose the ids."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        """Raises ConfigurationError for invalid certificates."""
        self.address = address
        self._credentials = credentials or Credentials()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=32, ssl=self._credentials.tls()),
            trust_env=False,
        )
        self._silent, self._heard_at = False, -math.inf
        self.current_address: Callable[[], str | None] = lambda: None
        """Returns the current address of the same service, if known."""
        self.most_bytes: int | None = None
        """The largest payload that the service accepts, once known."""

    async def close(self) -> None:
        await self._session.close()

    @property
    def closed(self) -> bool:
        """Was the client closed?"""
        return self._session.closed

    async def ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        *,
        patience: float | None = RETRY_FOR_S,
        timeout: float = 60.0,
        data: bytes | None = None,
        waiting: Callable[[SchedulerError], object] | None = None,
    ) -> Any:
        """Send a request and return the answer from JSON. ``patience``: seconds to retry, None without limit, 0 for
        requests that are not idempotent; ``waiting`` is called with the error before each retry. Raises
        ServiceUnavailableError, or the SchedulerError that the service returns."""
        body = data if data is not None else (None if document is None else json.dumps(document).encode())
        status, answer = await self._try(method, path, body, patience, timeout, waiting)
        if status >= 400:
            raise self._problem(status, answer)
        try:
            return json.loads(answer) if answer else None
        except ValueError as error:
            raise self._problem(status, answer) from error

    async def upload(self, digest: str, data: bytes, waiting: Callable[[SchedulerError], object] | None = None) -> None:
        """Upload a payload, retrying without limit. Raises TaskSubmissionError for one that is too large: the service
        would close the connection during the upload, which looks like a network error."""
        if self.most_bytes is not None and len(data) > self.most_bytes:
            raise TaskSubmissionError(
                f"A payload of {len(data):,} bytes is larger than the {self.most_bytes:,} that the service accepts.",
                next_step="send less at once, or raise max_payload_bytes of the service",
            )
        path = f"/api/v1/blobs/{digest}"
        await self.ask("PUT", path, data=data, patience=None, timeout=3600.0, waiting=waiting)

    async def fetch(self, path: str, *, patience: float | None = RETRY_FOR_S) -> bytes:
        """GET raw bytes. Raises as :meth:`ask` does."""
        status, answer = await self._try("GET", path, None, patience, 600.0)
        if status >= 400:
            raise self._problem(status, answer)
        return answer

    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, silence_s: float | None = None
    ) -> AsyncIterator[str]:
        """GET text and yield it as it arrives; ``silence_s`` is the read timeout. Raises ServiceUnavailableError, or
        the error that the service returns."""
        limit = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=silence_s)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while True:
                sent = {**self._headers(), **(headers or {})}
                async with self._session.get(f"{self.address}{path}", timeout=limit, headers=sent) as response:
                    if response.status == 401 and self._credentials.renewed():
                        continue
                    if response.status >= 400:
                        raise self._problem(response.status, await response.read())
                    self._on_response()
                    async for piece in response.content.iter_any():
                        yield decoder.decode(piece)
                    return
        except SchedulerError:  # NotAllowedError is an OSError, too
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, _DifferentServiceError) as error:
            self._follow(error)
            raise unreachable(self.address, error) from error
        except RuntimeError as error:
            problem = _closed(error)
            raise (self._shut_down() if self.closed else unreachable(self.address, problem)) from error

    async def _try(
        self,
        method: str,
        path: str,
        body: bytes | None,
        patience: float | None,
        timeout: float,
        waiting: Callable[[SchedulerError], object] | None = None,
    ) -> tuple[int, bytes]:
        deadline = None if patience is None else time.monotonic() + patience
        pause = _FIRST_PAUSE_S
        while True:
            try:
                limit = aiohttp.ClientTimeout(total=timeout, connect=_CONNECT_S)
                headers = self._headers()
                if body is not None:
                    headers["Content-Type"] = "application/json"
                sent = None if body is None else io.BytesIO(body)  # sent in pieces, whatever its size
                async with self._session.request(
                    method, f"{self.address}{path}", data=sent, headers=headers, timeout=limit
                ) as response:
                    answer = await response.read()
                    if response.status == 401 and self._credentials.renewed():
                        continue
                    if response.status not in _BUSY or deadline is not None:
                        self._on_response()
                        return response.status, answer
                    problem: Exception = self._problem(response.status, answer)
            except aiohttp.ClientConnectorCertificateError as error:
                raise untrusted_certificate(self.address, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError, _DifferentServiceError) as error:
                problem = error
            except RuntimeError as error:
                problem = _closed(error)
            if self.closed:
                raise self._shut_down() from problem
            self._follow(problem)
            if deadline is not None and time.monotonic() + pause > deadline:
                raise unreachable(self.address, problem) from problem
            if not self._silent:
                busy = isinstance(problem, SchedulerError)
                state = "cannot accept requests now" if busy else "does not answer"
                _log.warning("the service %s %s (%s); retrying", self.address, state, problem)
            self._silent = True
            if waiting is not None:
                waiting(problem if isinstance(problem, SchedulerError) else unreachable(self.address, problem))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)

    def _headers(self) -> dict[str, str]:
        """Return the authentication headers. Raises _DifferentServiceError if the address may have a new owner."""
        unsure = self._silent or time.monotonic() - self._heard_at > _SURE_S
        if unsure and not self._credentials.are_for(self.address):
            raise _DifferentServiceError("it does not run")
        return self._credentials.headers()

    def _follow(self, problem: Exception) -> None:
        """After a failed connection, switch to the new address of the service if it was restarted elsewhere."""
        gone = isinstance(problem, (aiohttp.ClientConnectorError, _DifferentServiceError))
        moved = self.current_address() if gone else None
        if moved is not None and moved != self.address:
            _log.warning("the service %s is now %s", self.address, moved)
            self.address = moved

    def _on_response(self) -> None:
        if self._silent:
            _log.warning("the service %s answers again", self.address)
        self._silent, self._heard_at = False, time.monotonic()

    def _shut_down(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            "The scheduler was shut down during a request to the service.", next_step="make a new one"
        )

    def _problem(self, status: int, answer: bytes) -> SchedulerError:
        return refusal(self.address, self._credentials, status, answer)


def _closed(error: RuntimeError) -> Exception:
    """Convert the RuntimeError of aiohttp for a closed connection or session; re-raise any other."""
    if "closed" not in str(error):
        raise error
    return ConnectionResetError(str(error).rstrip("."))


class _DifferentServiceError(Exception):
    """The service that the token belongs to does not run; another program may listen at its address."""


async def read_events(
    client: ServiceClient, wanted: EventFilter, since: int | None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Stream event batches, reconnecting after errors. Raises SchedulerError if the service refuses the request."""
    words = {one.name: ",".join(sorted(getattr(wanted, one.name))) for one in fields(wanted)}
    query = urlencode({key: value for key, value in words.items() if value})
    last, pause, began = since, _FIRST_PAUSE_S, False
    while True:
        lines = ""
        after = {} if last is None else {"Last-Event-ID": str(last)}
        try:
            async for piece in client.stream(f"/api/v1/events?{query}", headers=after, silence_s=SILENCE_S):
                pause, began = _FIRST_PAUSE_S, True
                *frames, lines = (lines + piece).split("\n\n")
                events = []
                for frame in frames:
                    number, event = _read(frame)
                    last = last if number is None else number
                    events += [] if event is None else [event]
                yield events
            _log.info("the service %s ended the event stream; reconnecting", client.address)
        except ServiceUnavailableError as error:
            if client.closed:
                return
            if not began and not isinstance(error, ServiceUnreachableError):
                raise
            _log.warning("no events: %s Reconnecting.", error.message)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_S)


def _read(frame: str) -> tuple[int | None, dict[str, Any] | None]:
    number, event = None, None
    for line in frame.split("\n"):
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            event = json.loads(line[6:])
    return number, event
