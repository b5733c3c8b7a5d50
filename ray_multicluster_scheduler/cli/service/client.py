"""A service, asked from a command line: the same HTTP as everybody's, by what starts at once.

`ServiceClient` of the client library waits through restarts and needs a loop; loading it takes longer than most
commands may take. This one asks once and says what happened.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials, find_credentials
from ray_multicluster_scheduler.app.client_api.remote.service_address import named_service, service_here
from ray_multicluster_scheduler.app.client_api.remote.service_errors import (
    no_tls,
    nobody_answers,
    not_a_service,
    not_trusted,
    refusal,
    silent,
)
from ray_multicluster_scheduler.cli.exit_codes import NotThereError
from ray_multicluster_scheduler.cli.service.connect_timeout import LOOK_S, SILENT_S, SilenceWatch, notice_death
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.runtime.problem_documents import SERVICE_HEADER
from ray_multicluster_scheduler.control_plane.store.state_folder import KilledHolder, holder, killed_holder

Address = Annotated[
    str | None, typer.Option("--address", help="The service; default: RMCS_ADDRESS, or the one that runs here.")
]
Silence = Callable[[], float] | float | None
"""So many seconds nothing may come; asked for anew where they depend on what came; None: as long as it takes."""
ANSWER_S = 60.0
_CONNECT_S = 10.0
_MOST_ROWS = 1000
_TOO_LATE, _AWAY = 504, frozenset({502, 503})
"""That the service was waited for in vain; what a proxy says that heard nothing of it, or half of an answer. Where the
service itself is the one who says such a thing, in a problem document, it knows what it did not do."""
_ITS_OWN_WORD = "application/problem+json"
_LONGEST_NAME, _SHOWN = 256, 80
_FREE_NAMES = ("owners", "owner")
"""What comes behind these may have a / in it."""
_MOST_REFUSED = 2**20
"""Of an answer that is none, so many bytes are read."""


def connect(
    address: str | None = None, *, token: str | None = None, tls_ca: str | None = None, answer_s: float = ANSWER_S
) -> Service:
    """The service that was named, else the one that runs here. Raises ConfigurationError if there is none."""
    named = named_service(address, os.environ)
    found = named or service_here(os.environ)
    if found is None:
        raise _none_runs()

    def prove(there: str) -> Credentials:
        return find_credentials(there, os.environ, token, tls_ca)

    return Service(found, prove(found), answer_s, moves=None if named else prove)


def find(address: str | None = None) -> str | None:
    """Its address; None: there is none. Raises ConfigurationError for what is no address."""
    return named_service(address, os.environ) or service_here(os.environ)


def was_killed() -> KilledHolder | None:
    """The service of the state folder here, if its process was killed or the machine went down."""
    return killed_holder(rmcs_home())


def until_when(dead: KilledHolder) -> str:
    """A clause about it, for people."""
    from ray_multicluster_scheduler.cli.layout.times import ago, iso

    seen = f"{iso(dead.seen_at)[:19]}Z ({ago(dead.seen_at, time.time())})"
    return f"a service (process {dead.pid}) ran here at least until {seen} and did not end in order"


def _none_runs() -> ConfigurationError:
    starts = holder(rmcs_home())
    if starts is not None:
        who = f" (process {starts['pid']})" if "pid" in starts else ""
        said = f"No service answers here yet: one is starting{who}."
        return ConfigurationError(said, next_step="ask again in a moment")
    dead = was_killed()
    if dead is None:
        return ConfigurationError("No service runs here.", next_step="start one with `rmcs up`, or give its --address")
    return ConfigurationError(
        f"No service runs here: {until_when(dead)}.",
        next_step="start it again with `rmcs up`, or give another --address",
    )


def check_there(service: Service) -> None:
    """For whoever goes on with the client library, which would wait for it: what is wrong with it is said at once."""
    service.get(path_of("fleet"))


def path_of(*words: str) -> str:
    """Below /api/v1; what people typed is quoted. Raises UnknownItemError for what nothing is called: it would be
    another path, or none."""
    if not all(words):
        raise UnknownItemError("An empty name was given.", next_step="give an id, or a name")
    for before, word in zip(("", *words), words, strict=False):
        divided = "/" in word and before not in _FREE_NAMES
        if word in (".", "..") or divided or len(word) > _LONGEST_NAME:
            shown = word if len(word) <= _SHOWN else f"{word[:_SHOWN]}…"
            raise UnknownItemError(f"Nothing here is called {shown!r}.", next_step="give an id, or a name")
    return "/api/v1/" + "/".join(quote(word, safe="") for word in words)


class Service:
    """Every method raises ServiceUnavailableError if nobody answers, and the SchedulerError that the service tells.

    With ``moves`` it is the one of the state folder here, wherever that listens: it may be started again at another
    port. ``moves`` says what to prove oneself with there.
    """

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        answer_s: float = ANSWER_S,
        moves: Callable[[str], Credentials] | None = None,
    ) -> None:
        self.address, self._credentials, self._answer_s, self._moves = address, credentials, answer_s, moves
        self._is_known = False

    def _look_where_it_is(self) -> None:
        now = service_here(os.environ) if self._moves is not None else None
        if self._moves is not None and now is not None and now != self.address:
            self.address, self._credentials = now, self._moves(now)

    @property
    def token(self) -> str:
        """What it is asked with, for whoever has to see that it is not shown; empty: nothing."""
        return self._credentials.token or ""

    def get(self, path: str, **query: object) -> Any:
        return self._json("GET", with_query(path, query))

    def post(self, path: str, said: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] = {}) -> Any:
        return self._json("POST", path, {} if said is None else said, headers)

    def order(self, path: str, said: Mapping[str, Any] | None = None) -> Any:
        """The same for what may be so already: ``changed`` of the answer tells. One that does not say so is none."""
        answer = self.post(path, said)
        if not isinstance(answer.get("changed"), bool):
            unlike = refusal(self.address, self._credentials, 200, json.dumps(answer).encode())
            raise _for_whoever_ordered(unlike, path)
        return answer

    def put(self, path: str, said: Mapping[str, Any]) -> Any:
        return self._json("PUT", path, said)

    def delete(self, path: str, **query: object) -> Any:
        return self._json("DELETE", with_query(path, query))

    def fetch(self, path: str, **query: object) -> bytes:
        """The answer as it is."""
        return self._whole("GET", with_query(path, query))

    def rows(self, path: str, key: str, most: int, **query: object) -> list[dict[str, Any]]:
        """So many rows of a list that comes in pages."""
        found: list[dict[str, Any]] = []
        after: str | None = None
        while len(found) < most:
            page = self.get(path, **query, after=after, limit=min(most - len(found), _MOST_ROWS))
            found += page[key]
            after = page["after"]
            if after is None:
                break
        return found

    def stream(self, path: str, *, silence_s: Silence = None, **query: object) -> Iterator[bytes]:
        """Pieces as they come, until the service ends it; after so long a silence TimeoutError."""
        return self._ask("GET", with_query(path, query), timeout=silence_s)

    def _json(
        self, method: str, path: str, said: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> Any:
        answer = self._whole(method, path, said, headers)
        try:
            found = json.loads(answer)
        except ValueError as error:
            raise refusal(self.address, self._credentials, 200, answer) from error
        if not isinstance(found, dict):  # no answer of ours is another thing
            raise refusal(self.address, self._credentials, 200, answer)
        return found

    def _whole(
        self, method: str, path: str, said: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> bytes:
        try:
            return b"".join(self._ask(method, path, said, headers, timeout=self._answer_s))
        except SchedulerError:  # TaskTimeoutError is a TimeoutError, too
            raise
        except TimeoutError as error:  # in the middle of it
            raise nobody_answers(self.address, error) from error

    def _ask(
        self,
        method: str,
        path: str,
        said: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
        timeout: Silence = None,
    ) -> Iterator[bytes]:
        self._look_where_it_is()
        connection = self._connection(min(_CONNECT_S, self._answer_s))
        base, heard = urlsplit(self.address).path, False
        order: str | None = None
        watch: SilenceWatch | None = None
        try:
            body = None if said is None else json.dumps(said).encode()
            sent = {**self._headers(), **({} if body is None else {"Content-Type": "application/json"}), **headers}
            connection.connect()
            connection.sock.settimeout(self._answer_s)
            notice_death(connection.sock)
            watch = SilenceWatch(connection.sock, self._connection, f"{base}/healthz")
            order = path if method != "GET" else None
            with watch:
                connection.request(method, base + path, body, sent)
                response = connection.getresponse()
            page = response.headers.get_content_type() == "text/html"
            if response.status >= 300 or page or not self._is_service(response):
                refused, by_proxy = self._refused(response), response.headers.get_content_type() != _ITS_OWN_WORD
                unknown = response.status == _TOO_LATE or (by_proxy and response.status in _AWAY)
                raise _for_whoever_ordered(refused, order) if unknown else refused
            heard = True
            while True:
                if connection.sock is not None:
                    connection.sock.settimeout(timeout() if callable(timeout) else timeout)
                if not (piece := response.read1(65536)):
                    return
                yield piece
        except SchedulerError:  # what the service tells; NotAllowedError is an OSError, too
            raise
        except (OSError, http.client.HTTPException) as error:
            if heard and order is None and isinstance(error, TimeoutError):
                raise
            unheard = self._unheard(error, is_silent=watch is not None and watch.silent)
            raise _for_whoever_ordered(unheard, order) from error
        finally:
            connection.close()

    def _unheard(self, error: OSError | http.client.HTTPException, *, is_silent: bool) -> SchedulerError:
        """Why there is no answer."""
        if is_silent:
            return silent(self.address, SILENT_S + LOOK_S)
        if isinstance(error, ssl.SSLCertVerificationError):
            return not_trusted(self.address, error)
        if isinstance(error, ssl.SSLError) and error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
            return no_tls(self.address)
        if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
            return not_a_service(self.address, repr(str(error)[:80]))
        return nobody_answers(self.address, error)

    def _is_service(self, response: http.client.HTTPResponse) -> bool:
        """Whoever answers anything with 200 is not one. An older service does not say in each answer what it is, so it
        is asked about itself, once."""
        if SERVICE_HEADER in response.headers or self._is_known:
            return True
        same = Service(self.address, self._credentials, self._answer_s)
        same._is_known = True
        self._is_known = "control_plane" in same.get(path_of("fleet"))
        return self._is_known

    def _refused(self, response: http.client.HTTPResponse) -> SchedulerError:
        answer, by = response.read(_MOST_REFUSED), response.headers.get("Server", "")
        error = refusal(self.address, self._credentials, response.status, answer, by)
        if response.status == 404 and isinstance(error, ConfigurationError):
            return NotThereError(error.message, cluster=error.cluster, next_step=error.next_step)
        return error

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        if parts.scheme == "https":
            tls = self._credentials.tls()
            context = tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()
            return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout, context=context)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)

    def _headers(self) -> dict[str, str]:
        if not self._credentials.are_for(self.address):  # another one may listen there by now
            raise nobody_answers(self.address, OSError("it does not run"))
        return self._credentials.headers()


def _for_whoever_ordered(error: SchedulerError, order: str | None) -> SchedulerError:
    """``order`` is the path of what was sent to be done; None: it was a question."""
    if order is None:
        return error
    from ray_multicluster_scheduler.cli.service.unconfirmed_request import perhaps_done

    return perhaps_done(error, order)


def with_query(path: str, query: Mapping[str, object]) -> str:
    """What is None is not asked."""
    given = {key: str(one).lower() if isinstance(one, bool) else one for key, one in query.items() if one is not None}
    return f"{path}?{urlencode(given)}" if given else path
