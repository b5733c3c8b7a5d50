"""ServiceClient: HTTP to one service. What can be repeated safely is repeated until the service is back."""

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
    NobodyAnswersError,
    nobody_answers,
    not_trusted,
    refusal,
)
from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError, TaskSubmissionError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.scheduler.scheduler_core.events.event import EventFilter

_log = get_logger(__name__)
PATIENCE_S = 30.0
"""So long a question that can be asked again is asked again, before its caller is told that nobody answers."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_CONNECT_S = 5.0
_SURE_S = 1.0
"""So long after an answer nobody else is taken to listen there."""
_BUSY = frozenset({502, 503, 504})


class ServiceClient:
    """Lives on one loop. Everything that is asked may be asked twice: ids are made by the caller."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        """Raises ConfigurationError for certificates that cannot be used."""
        self.address = address
        self._credentials = credentials or Credentials()
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=32, ssl=self._credentials.tls()),
            trust_env=False,
        )
        self._silent, self._heard_at = False, -math.inf
        self.current_address: Callable[[], str | None] = lambda: None
        """Where the same service listens now, if that can be told."""
        self.most_bytes: int | None = None
        """The largest payload that the service takes, once it was asked."""

    async def close(self) -> None:
        await self._session.close()

    @property
    def closed(self) -> bool:
        """Nobody will be asked any more."""
        return self._session.closed

    async def ask(
        self,
        method: str,
        path: str,
        said: Mapping[str, Any] | None = None,
        *,
        patience: float | None = PATIENCE_S,
        timeout: float = 60.0,
        data: bytes | None = None,
        waiting: Callable[[SchedulerError], object] | None = None,
    ) -> Any:
        """The answer as JSON. ``patience`` None: until there is one; ``waiting`` is told each time why there is none.

        Raises ServiceUnavailableError, and the SchedulerError that the service answers with.
        """
        body = data if data is not None else (None if said is None else json.dumps(said).encode())
        status, answer = await self._try(method, path, body, patience, timeout, waiting)
        if status >= 400:
            raise self._problem(status, answer)
        try:
            return json.loads(answer) if answer else None
        except ValueError as error:
            raise self._problem(status, answer) from error

    async def once(self, method: str, path: str, said: Mapping[str, Any] | None = None) -> Any:
        """The same for what must not be done twice: whoever gets no answer looks whether it was. Raises as
        :meth:`ask` does."""
        return await self.ask(method, path, said, patience=0.0)

    async def upload(self, digest: str, data: bytes, waiting: Callable[[SchedulerError], object] | None = None) -> None:
        """Give it a payload, however long it takes. Raises TaskSubmissionError for one that it would not take: it would
        close the connection while we are still sending, and that looks as if it were gone."""
        if self.most_bytes is not None and len(data) > self.most_bytes:
            raise TaskSubmissionError(
                f"A payload of {len(data):,} bytes is larger than the {self.most_bytes:,} that the service takes.",
                next_step="send less at once, or give the service another max_payload_bytes",
            )
        path = f"/api/v1/blobs/{digest}"
        await self.ask("PUT", path, data=data, patience=None, timeout=3600.0, waiting=waiting)

    async def fetch(self, path: str, *, patience: float | None = PATIENCE_S) -> bytes:
        """The answer as it is. Raises as :meth:`ask` does."""
        status, answer = await self._try("GET", path, None, patience, 600.0)
        if status >= 400:
            raise self._problem(status, answer)
        return answer

    async def stream(
        self, path: str, *, headers: Mapping[str, str] | None = None, silence_s: float | None = None
    ) -> AsyncIterator[str]:
        """Text as it comes; after so long a silence nobody is taken to be there. Raises ServiceUnavailableError, and
        what the service answers with."""
        limit = aiohttp.ClientTimeout(total=None, connect=_CONNECT_S, sock_read=silence_s)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        try:
            while True:
                said = {**self._headers(), **(headers or {})}
                async with self._session.get(f"{self.address}{path}", timeout=limit, headers=said) as response:
                    if response.status == 401 and self._credentials.renewed():
                        continue
                    if response.status >= 400:
                        raise self._problem(response.status, await response.read())
                    self._heard()
                    async for piece in response.content.iter_any():
                        yield decoder.decode(piece)
                    return
        except SchedulerError:  # NotAllowedError is an OSError, too
            raise
        except (aiohttp.ClientError, OSError, TimeoutError, _NotItselfError) as error:
            self._follow(error)
            raise self._gone(error) from error
        except RuntimeError as error:
            problem = _closed(error)
            raise (self._shut_down() if self.closed else self._gone(problem)) from error

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
                sent = None if body is None else io.BytesIO(body)  # in pieces, however large it is
                async with self._session.request(
                    method, f"{self.address}{path}", data=sent, headers=headers, timeout=limit
                ) as response:
                    answer = await response.read()
                    if response.status == 401 and self._credentials.renewed():
                        continue
                    if response.status not in _BUSY or deadline is not None:
                        self._heard()
                        return response.status, answer
                    problem: Exception = self._problem(response.status, answer)
            except aiohttp.ClientConnectorCertificateError as error:
                raise not_trusted(self.address, error) from error
            except (aiohttp.ClientError, OSError, TimeoutError, _NotItselfError) as error:
                problem = error
            except RuntimeError as error:
                problem = _closed(error)
            if self.closed:
                raise self._shut_down() from problem
            self._follow(problem)
            if deadline is not None and time.monotonic() + pause > deadline:
                raise self._gone(problem) from problem
            self._say(problem)
            if waiting is not None:
                waiting(problem if isinstance(problem, SchedulerError) else self._gone(problem))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _headers(self) -> dict[str, str]:
        """Raises _NotItselfError if another one may listen there by now, who must not have the token."""
        unsure = self._silent or time.monotonic() - self._heard_at > _SURE_S
        if unsure and not self._credentials.are_for(self.address):
            raise _NotItselfError("it does not run")
        return self._credentials.headers()

    def _follow(self, problem: Exception) -> None:
        """Nobody listens there any more; the service may have been started again somewhere else."""
        gone = isinstance(problem, (aiohttp.ClientConnectorError, _NotItselfError))
        moved = self.current_address() if gone else None
        if moved is not None and moved != self.address:
            _log.warning("the service %s is now %s", self.address, moved)
            self.address = moved

    def _say(self, problem: Exception) -> None:
        if not self._silent:
            silent = "cannot take it now" if isinstance(problem, SchedulerError) else "does not answer"
            _log.warning("the service %s %s (%s); it is asked again", self.address, silent, problem)
        self._silent = True

    def _heard(self) -> None:
        if self._silent:
            _log.warning("the service %s answers again", self.address)
        self._silent, self._heard_at = False, time.monotonic()

    def _gone(self, problem: Exception) -> NobodyAnswersError:
        return nobody_answers(self.address, problem)

    def _shut_down(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            "This scheduler was shut down while the service was asked.", next_step="make a new one"
        )

    def _problem(self, status: int, answer: bytes) -> SchedulerError:
        return refusal(self.address, self._credentials, status, answer)


def _closed(error: RuntimeError) -> Exception:
    """aiohttp's word for a connection, or a session, that was closed while somebody read from it. Raises any other."""
    if "closed" not in str(error):
        raise error
    return ConnectionResetError(str(error).rstrip("."))


class _NotItselfError(Exception):
    """The service that a token is for does not run; whoever listens there now is somebody else."""


_log = get_logger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
SILENCE_S = 45.0
"""A service says every fifteen seconds that all is well."""


async def told(
    client: ServiceClient, wanted: EventFilter, since: int | None
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """What came together, again and again. Raises SchedulerError for what the service refuses."""
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
                    number, said = _read(frame)
                    last = last if number is None else number
                    events += [] if said is None else [said]
                yield events
            _log.info("the service %s has ended its events; it is asked again", client.address)
        except ServiceUnavailableError as error:
            if client.closed:
                return
            if not began and not isinstance(error, NobodyAnswersError):
                raise
            _log.warning("no events come: %s They are asked for again.", error.message)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _read(frame: str) -> tuple[int | None, dict[str, Any] | None]:
    number, said = None, None
    for line in frame.split("\n"):
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            said = json.loads(line[6:])
    return number, said
