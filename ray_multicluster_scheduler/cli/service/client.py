"""Service: a small HTTP client for commands.

`ServiceClient` of the client library waits through restarts and needs an event loop, and its import takes too long for
most commands. This client sends one request and reports what happened.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Self
from urllib.parse import quote, unquote, urlencode, urlsplit

import typer

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials, find_credentials
from ray_multicluster_scheduler.app.client_api.remote.service_address import named_service, service_here
from ray_multicluster_scheduler.app.client_api.remote.service_errors import (
    no_response,
    not_a_service,
    refusal,
    tls_unsupported,
    unreachable,
    untrusted_certificate,
)
from ray_multicluster_scheduler.cli.exit_codes import NotFoundError
from ray_multicluster_scheduler.common.exception import (
    SERVICE_HEADER,
    ConfigurationError,
    SchedulerError,
    UnknownItemError,
)
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import KilledHolder, holder, killed_holder

Address = Annotated[
    str | None, typer.Option("--address", help="The service; default: RMCS_ADDRESS, or the one on this machine.")
]
StreamTimeout = Callable[[], float] | float | None
"""Seconds without data after which a stream ends with TimeoutError; called before each read; None: no limit."""
ANSWER_S = 60.0
PROBE_AFTER_S = 5.0
"""After so long without an answer, another connection probes whether the service answers at all."""
PROBE_S = 5.0
_CONNECT_S = 10.0
_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPALIVE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
"""A dead peer is detected within a minute. The names differ between systems."""
_PAGE = 1000
_GATEWAY_TIMEOUT, _PROXY_ERRORS = 504, frozenset({502, 503})
"""The outcome of a request is unknown after 504, and after 502 or 503 from a proxy: the service itself sends a problem
document, and then it knows that it did nothing."""
_PROBLEM = "application/problem+json"
_MAX_NAME, _MAX_SHOWN = 256, 80
_MAY_CONTAIN_SLASH = ("owners", "owner")
"""The name that follows one of these in a path may contain a slash."""
_MAX_ERROR_BYTES = 2**20
_SHOWN_BY = {
    "items": "rmcs task show {}",
    "clusters": "rmcs clusters show {}",
    "owners": "rmcs owner show {}",
    "pools": "rmcs pool list",
    "tokens": "rmcs token list",
    "queue": "rmcs status",
    "serving": "rmcs serving list",
    "log-level": "rmcs config log-level",
}
"""The command that shows what a request to such a path has changed."""


def connect(
    address: str | None = None, *, token: str | None = None, tls_ca: str | None = None, answer_s: float = ANSWER_S
) -> Service:
    """The named service, else the one on this machine. Raises ConfigurationError if there is none."""
    named = named_service(address, os.environ)
    found = named or service_here(os.environ)
    if found is None:
        raise _no_service()

    def credentials_for(url: str) -> Credentials:
        return find_credentials(url, os.environ, token, tls_ca)

    return Service(found, credentials_for(found), answer_s, relocate=None if named else credentials_for)


def find_address(address: str | None = None) -> str | None:
    """The address of the service; None: there is none. Raises ConfigurationError if the given one is not valid."""
    return named_service(address, os.environ) or service_here(os.environ)


def killed_service() -> KilledHolder | None:
    """The service of the state folder on this machine, if its process was killed or the machine went down."""
    return killed_holder(rmcs_home())


def describe_killed(dead: KilledHolder) -> str:
    """A clause for an error message."""
    from ray_multicluster_scheduler.cli.layout.times import ago, iso

    seen = f"{iso(dead.seen_at)[:19]}Z ({ago(dead.seen_at, time.time())})"
    return f"a service (process {dead.pid}) ran here at least until {seen} and did not shut down properly"


def _no_service() -> ConfigurationError:
    starting = holder(rmcs_home())
    if starting is not None:
        process = f" (process {starting['pid']})" if "pid" in starting else ""
        text = f"No service answers here yet: one is starting{process}."
        return ConfigurationError(text, next_step="ask again in a moment")
    dead = killed_service()
    if dead is None:
        return ConfigurationError("No service runs here.", next_step="start one with `rmcs up`, or give its --address")
    return ConfigurationError(
        f"No service runs here: {describe_killed(dead)}.",
        next_step="start it again with `rmcs up`, or give another --address",
    )


def api_path(*parts: str) -> str:
    """A path below /api/v1, quoted. Raises UnknownItemError for a part that cannot be the name of anything."""
    if not all(parts):
        raise UnknownItemError("An empty name was given.", next_step="give an id, or a name")
    for before, part in zip(("", *parts), parts, strict=False):
        has_slash = "/" in part and before not in _MAY_CONTAIN_SLASH
        if part in (".", "..") or has_slash or len(part) > _MAX_NAME:
            shown = part if len(part) <= _MAX_SHOWN else f"{part[:_MAX_SHOWN]}…"
            raise UnknownItemError(f"Nothing here is called {shown!r}.", next_step="give an id, or a name")
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def with_query(path: str, query: Mapping[str, object]) -> str:
    """The path with these parameters, without those that are None."""
    given = {key: str(one).lower() if isinstance(one, bool) else one for key, one in query.items() if one is not None}
    return f"{path}?{urlencode(given)}" if given else path


class Service:
    """Methods raise ServiceUnavailableError if there is no answer, and the SchedulerError that the service reports.

    With ``relocate`` it is the service of the local state folder, wherever that listens: it may be restarted on another
    port. ``relocate`` returns the credentials for the new address.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        answer_s: float = ANSWER_S,
        relocate: Callable[[str], Credentials] | None = None,
    ) -> None:
        self.address, self._credentials, self._answer_s, self._relocate = address, credentials, answer_s, relocate
        self._is_known = False

    @property
    def token(self) -> str:
        """The token that is sent; empty: none."""
        return self._credentials.token or ""

    def get(self, path: str, **query: object) -> Any:
        return self._json("GET", with_query(path, query))

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] = {}) -> Any:
        return self._json("POST", path, {} if body is None else body, headers)

    def change(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """POST to a path whose answer says in ``changed`` whether it had any effect."""
        answer = self.post(path, body)
        if not isinstance(answer.get("changed"), bool):
            error = refusal(self.address, self._credentials, 200, json.dumps(answer).encode())
            raise _outcome_unknown(error, path)
        return answer

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("PATCH", path, body)

    def delete(self, path: str, **query: object) -> Any:
        return self._json("DELETE", with_query(path, query))

    def fetch(self, path: str, **query: object) -> bytes:
        """The body of the answer."""
        return self._bytes("GET", with_query(path, query))

    def rows(self, path: str, key: str, limit: int, **query: object) -> list[dict[str, Any]]:
        """Rows of a list, following its pagination."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while len(found) < limit:
            page = self.get(path, **query, after=after, limit=min(limit - len(found), _PAGE))
            found += page[key]
            after = page["after"]
            if after is None:
                break
        return found

    def stream(self, path: str, *, timeout: StreamTimeout = None, **query: object) -> Iterator[bytes]:
        """Chunks of the answer as they arrive, until the service ends it. Raises TimeoutError."""
        return self._request("GET", with_query(path, query), timeout=timeout)

    def _json(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> Any:
        answer = self._bytes(method, path, body, headers)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise refusal(self.address, self._credentials, 200, answer) from error
        if not isinstance(found, dict):  # a service always answers with an object
            raise refusal(self.address, self._credentials, 200, answer)
        return found

    def _bytes(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        try:
            return b"".join(self._request(method, path, body, headers, timeout=self._answer_s))
        except SchedulerError:  # TaskTimeoutError is also a TimeoutError
            raise
        except TimeoutError as error:  # in the middle of the answer
            raise unreachable(self.address, error) from error

    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
        timeout: StreamTimeout = None,
    ) -> Iterator[bytes]:
        self._update_address()
        connection = self._connection(min(_CONNECT_S, self._answer_s))
        base, answered = urlsplit(self.address).path, False
        changing: str | None = None  # the path of a request that may have been applied
        watchdog: _Watchdog | None = None
        try:
            data = None if body is None else json.dumps(body).encode()
            content_type = {} if data is None else {"Content-Type": "application/json"}
            if not self._credentials.are_for(self.address):  # another process may listen there by now
                raise unreachable(self.address, OSError("it does not run"))
            sent = {**self._credentials.headers(), **content_type, **headers}
            connection.connect()
            connection.sock.settimeout(self._answer_s)
            enable_keepalive(connection.sock)
            watchdog = _Watchdog(connection.sock, self._connection, f"{base}/healthz")
            changing = path if method != "GET" else None
            with watchdog:
                connection.request(method, base + path, data, sent)
                response = connection.getresponse()
            html = response.headers.get_content_type() == "text/html"
            if response.status >= 300 or html or not self._is_service(response):
                refused, by_proxy = self._refused(response), response.headers.get_content_type() != _PROBLEM
                unknown = response.status == _GATEWAY_TIMEOUT or (by_proxy and response.status in _PROXY_ERRORS)
                raise _outcome_unknown(refused, changing) if unknown else refused
            answered = True
            while True:
                if connection.sock is not None:
                    connection.sock.settimeout(timeout() if callable(timeout) else timeout)
                if not (chunk := response.read1(65536)):
                    return
                yield chunk
        except SchedulerError:  # reported by the service; NotAllowedError is also an OSError
            raise
        except (OSError, http.client.HTTPException) as error:
            if answered and changing is None and isinstance(error, TimeoutError):
                raise
            unanswered = self._unanswered(error, is_silent=watchdog is not None and watchdog.silent)
            raise _outcome_unknown(unanswered, changing) from error
        finally:
            connection.close()

    def _update_address(self) -> None:
        now = service_here(os.environ) if self._relocate is not None else None
        if self._relocate is not None and now is not None and now != self.address:
            self.address, self._credentials = now, self._relocate(now)

    def _unanswered(self, error: OSError | http.client.HTTPException, *, is_silent: bool) -> SchedulerError:
        """The error for a request without an answer, with its cause."""
        if is_silent:
            return no_response(self.address, PROBE_AFTER_S + PROBE_S)
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted_certificate(self.address, error)
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return tls_unsupported(self.address)
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            return not_a_service(self.address, repr(str(error)[:80]))
        return unreachable(self.address, error)

    def _is_service(self, response: http.client.HTTPResponse) -> bool:
        """Any server may answer with 200. An older service does not send the header, so it is asked once what it is."""
        if SERVICE_HEADER in response.headers or self._is_known:
            return True
        same = Service(self.address, self._credentials, self._answer_s)
        same._is_known = True
        self._is_known = "control_plane" in same.get(api_path("fleet"))
        return self._is_known

    def _refused(self, response: http.client.HTTPResponse) -> SchedulerError:
        answer, by = response.read(_MAX_ERROR_BYTES), response.headers.get("Server", "")
        error = refusal(self.address, self._credentials, response.status, answer, by)
        if response.status == 404 and isinstance(error, ConfigurationError):
            return NotFoundError(error.message, cluster=error.cluster, next_step=error.next_step)
        return error

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        if parts.scheme == "https":
            tls = self._credentials.tls()
            context = tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)


def _outcome_unknown(error: SchedulerError, path: str | None) -> SchedulerError:
    """Adds to the error of a changing request that it may have been applied although no answer arrived, and which
    command shows that. Without a path it was no such request, and the error stays as it is."""
    if path is None:
        return error
    what, *names = (unquote(part) for part in urlsplit(path).path.removeprefix("/api/v1/").split("/"))
    command = _SHOWN_BY.get(what, "rmcs events")
    if "{}" in command:
        command = command.format(names[0]) if len(names) > 1 or what == "owners" else "rmcs events"
    return type(error)(
        f"{error.message} The request may have been applied all the same.",
        task_id=error.task_id,
        cluster=error.cluster,
        next_step=f"check its effect before you repeat it (`{command}`); else {error.next_step}",
    )


def enable_keepalive(connection: socket.socket) -> None:
    """Let TCP detect a peer that is gone while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


class _Watchdog:
    """Detects a peer that accepts connections and never answers, while the first byte of an answer is awaited.

    Some requests take long and must not be sent twice, so a second connection probes the service. If it gets no answer
    either, ``silent`` is set and the first connection is shut down."""

    def __init__(
        self, connection: socket.socket, connect: Callable[[float], http.client.HTTPConnection], path: str
    ) -> None:
        self._connection, self._connect, self._path = connection, connect, path
        self.silent = self._over = False
        self._deciding = threading.Lock()
        self._timer = threading.Timer(PROBE_AFTER_S, self._probe)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._deciding:  # a probe in progress must not end a connection on which the answer has begun
            self._over = True

    def _probe(self) -> None:
        probe = self._connect(PROBE_S)
        try:
            probe.request("GET", self._path)
            probe.getresponse()
        except TimeoutError:
            with self._deciding:
                if not self._over:
                    self.silent = True
                    with suppress(OSError):  # the process has ended
                        # Not SSLSocket.shutdown: it removes the TLS layer while another thread reads.
                        socket.socket.shutdown(self._connection, socket.SHUT_RDWR)
        except (OSError, http.client.HTTPException):
            return  # it is down, or answers in some way: the first connection will show
        finally:
            probe.close()
