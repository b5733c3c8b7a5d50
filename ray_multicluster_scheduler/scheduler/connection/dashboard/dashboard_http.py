"""DashboardHttp: HTTP requests to a dashboard with timeouts, token and TLS, for ``DashboardClient``.

Every failure is a DashboardProblem.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_problem import (
    DashboardProblem,
    ProblemCode,
    from_exception,
    problem,
)

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""No response is larger, except a job's whole log."""

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _BAD_REQUEST = 401, 403, 404, 400
_GATEWAY_ERRORS = frozenset({502, 503, 504})
_EXCERPT = 300
_WS_TIMEOUT = aiohttp.ClientWSTimeout(ws_close=1.0)

Token = Callable[[], "str | None"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds. ``submit`` covers the first attempt, the look-up and the second attempt together."""

    connect: float = 3.0
    small: float = 8.0
    submit_first_try: float = 6.0
    submit: float = 9.5
    logs: float = 60.0
    upload_base: float = 30.0
    upload_per_mib: float = 1.0


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete HTTP response."""

    status: int
    body: bytes
    date: str | None = None
    """The Date header."""

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")

    @property
    def ok(self) -> bool:
        return self.status < _BAD_REQUEST


class DashboardHttp:
    """Sends requests to one dashboard. Lives on one event loop; the session opens at the first request."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        token: Token,
        ca: str | None = None,
        verify: bool = True,
        timeouts: Timeouts | None = None,
    ) -> None:
        self.name, self.url, self.timeouts = name, url.rstrip("/"), timeouts or Timeouts()
        self._token, self._ca, self._verify = token, ca, verify
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        json_body: Mapping[str, Any] | None = None,
        data: Any = None,
        timeout: float | None = None,
        limit_bytes: int = MAX_RESPONSE_BYTES,
    ) -> HttpResponse:
        """Send a request and read the whole response. Raises DashboardProblem. The caller checks for HTTP errors."""
        limit_s = timeout if timeout is not None else self.timeouts.small
        headers = self._headers()
        session = self._open()
        try:
            async with session.request(
                method,
                self.url + path,
                headers=headers,
                json=json_body,
                data=data,
                allow_redirects=False,  # the token must not go to another host
                timeout=aiohttp.ClientTimeout(total=limit_s, sock_connect=min(self.timeouts.connect, limit_s)),
            ) as response:
                body = await self._read(response, limit_bytes)
                answer = HttpResponse(response.status, body, response.headers.get("Date"))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise from_exception(self.name, self.url, error, limit_s=limit_s) from error
        self._check_status(answer, sent_token=bool(headers), path=path)
        return answer

    async def get_json(self, path: str, *, timeout: float | None = None, limit_bytes: int = MAX_RESPONSE_BYTES) -> Any:
        """GET a route that every dashboard has, and parse the response. Raises DashboardProblem."""
        answer = await self.request("GET", path, timeout=timeout, limit_bytes=limit_bytes)
        if answer.status == _NOT_FOUND:
            raise self.problem("NOT_A_DASHBOARD", f"has no {path.partition('?')[0]} (HTTP 404)")
        return self.parse(answer, path)

    def parse(self, answer: HttpResponse, path: str) -> Any:
        """Parse a JSON response. Raises DashboardProblem for an HTTP error or if it is not JSON."""
        route = path.partition("?")[0]
        if not answer.ok:
            raise self.problem("BAD_ANSWER", f"answered {route} with HTTP {answer.status}: {self.excerpt(answer)}")
        try:
            return json.loads(answer.body)
        except ValueError:
            raise self.problem("NOT_A_DASHBOARD", f"answered {route} with something that is not JSON") from None

    async def websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket; the caller closes it. Raises DashboardProblem."""
        limit_s = self.timeouts.small
        session, headers = self._open(), self._headers()
        try:
            async with asyncio.timeout(limit_s):
                return await session.ws_connect(
                    self.url + path, headers=headers, max_msg_size=MAX_RESPONSE_BYTES, timeout=_WS_TIMEOUT
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise from_exception(self.name, self.url, error, limit_s=limit_s) from error

    def problem(self, code: ProblemCode, what: str, *, ambiguous: bool = False) -> DashboardProblem:
        return problem(self.name, self.url, code, what, ambiguous=ambiguous)

    def excerpt(self, answer: HttpResponse) -> str:
        """The last line of an error page, as in a traceback. Our token is masked."""
        lines = [line.strip() for line in answer.text.splitlines() if line.strip(" .\t")]
        text = lines[-1][:_EXCERPT].rstrip(".") if lines else "no text"
        try:
            token = self._token()
        except ConfigurationError:
            token = None
        return text.replace(token, "***") if token else text

    async def close(self) -> None:
        """Close all connections. Idempotent; a later request opens a new session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _headers(self) -> dict[str, str]:
        try:
            token = self._token()
        except ConfigurationError as error:
            raise DashboardProblem(
                error.message, code="WRONG_TOKEN", cluster=self.name, next_step=error.next_step
            ) from error
        if token is None:
            return {}
        if not token.isprintable() or not token.isascii() or not token:
            raise self.problem("WRONG_TOKEN", "was not queried: the token is empty or not printable ASCII")
        return {"Authorization": f"Bearer {token}"}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=self._tls(), limit=0)  # following a log occupies a connection
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _tls(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https:"):
            return True
        try:
            context = ssl.create_default_context(cafile=self._ca)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise self.problem(
                "TLS_FAILED", f"was not queried: `tls.ca` {self._ca} cannot be read ({reason})"
            ) from error
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def _read(self, response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_any():
            size += len(part)
            if size > limit_bytes:
                raise self.problem("BAD_ANSWER", f"sent more than {limit_bytes // 1024**2} MiB in one answer")
            parts.append(part)
        return b"".join(parts)

    def _check_status(self, answer: HttpResponse, *, sent_token: bool, path: str) -> None:
        if answer.status in (_UNAUTHORIZED, _FORBIDDEN):
            what = "refused our token" if sent_token else "wants a token, and none is configured"
            raise self.problem("WRONG_TOKEN", f"{what} (HTTP {answer.status})")
        if answer.status in _GATEWAY_ERRORS:
            what = f"is behind a proxy that cannot reach it (HTTP {answer.status})"
            raise self.problem("DASHBOARD_DOWN", what, ambiguous=True)
        if 300 <= answer.status < _BAD_REQUEST:
            raise self.problem("NOT_A_DASHBOARD", f"redirects {path.partition('?')[0]} to another address")
