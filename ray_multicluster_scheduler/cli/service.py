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
from collections.abc import Iterator, Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode, urlsplit

import typer

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials, find_credentials
from ray_multicluster_scheduler.app.client_api.remote.refusals import nobody_answers, not_trusted, refusal
from ray_multicluster_scheduler.app.client_api.remote.service_address import named_service, service_here
from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.control_plane.store.state_folder import Killed, killed

Address = Annotated[
    str | None, typer.Option("--address", help="The service; default: RMCS_ADDRESS, or the one that runs here.")
]
ANSWER_S = 60.0
_MOST_ROWS = 1000


def connect(
    address: str | None = None, *, token: str | None = None, tls_ca: str | None = None, answer_s: float = ANSWER_S
) -> Service:
    """The service that was named, else the one that runs here. Raises ConfigurationError if there is none."""
    found = find(address)
    if found is None:
        raise _none_runs()
    return Service(found, find_credentials(found, os.environ, token, tls_ca), answer_s)


def find(address: str | None = None) -> str | None:
    """Its address; None: there is none. Raises ConfigurationError for what is no address."""
    return named_service(address, os.environ) or service_here(os.environ)


def was_killed() -> Killed | None:
    """The service of the state folder here, if its process was killed or the machine went down."""
    return killed(rmcs_home())


def until_when(dead: Killed) -> str:
    """A clause about it, for people."""
    from ray_multicluster_scheduler.cli.times import ago, iso

    seen = f"{iso(dead.seen_at)[:19]}Z ({ago(dead.seen_at, time.time())})"
    return f"a service (process {dead.pid}) ran here at least until {seen} and did not end in order"


def _none_runs() -> ConfigurationError:
    dead = was_killed()
    if dead is None:
        return ConfigurationError("No service runs here.", next_step="start one with `rmcs up`, or give its --address")
    return ConfigurationError(
        f"No service runs here: {until_when(dead)}.",
        next_step="start it again with `rmcs up`, or give another --address",
    )


def path_of(*words: str) -> str:
    """Below /api/v1; what people typed is quoted. Raises UnknownItemError for nothing: that would be another path."""
    if not all(words):
        raise UnknownItemError("An empty name was given.", next_step="give an id, or a name")
    return "/api/v1/" + "/".join(quote(word, safe="") for word in words)


class Service:
    """Every method raises ServiceUnavailableError if nobody answers, and the SchedulerError that the service tells."""

    def __init__(self, address: str, credentials: Credentials, answer_s: float = ANSWER_S) -> None:
        self.address, self._credentials, self._answer_s = address, credentials, answer_s

    @property
    def token(self) -> str:
        """What it is asked with, for whoever has to see that it is not shown; empty: nothing."""
        return self._credentials.token or ""

    def get(self, path: str, **query: object) -> Any:
        return self._json("GET", with_query(path, query))

    def post(self, path: str, said: Mapping[str, Any] | None = None, *, headers: Mapping[str, str] = {}) -> Any:
        return self._json("POST", path, {} if said is None else said, headers)

    def put(self, path: str, said: Mapping[str, Any]) -> Any:
        return self._json("PUT", path, said)

    def delete(self, path: str, **query: object) -> Any:
        return self._json("DELETE", with_query(path, query))

    def fetch(self, path: str, **query: object) -> bytes:
        """The answer as it is."""
        return b"".join(self._ask("GET", with_query(path, query)))

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

    def stream(self, path: str, *, silence_s: float | None = None, **query: object) -> Iterator[bytes]:
        """Pieces as they come, until the service ends it; after so long a silence TimeoutError."""
        return self._ask("GET", with_query(path, query), timeout=silence_s)

    def _json(
        self, method: str, path: str, said: Mapping[str, Any] | None = None, headers: Mapping[str, str] = {}
    ) -> Any:
        answer = b"".join(self._ask(method, path, said, headers, timeout=self._answer_s))
        try:
            return json.loads(answer)
        except ValueError as error:
            raise refusal(self.address, self._credentials, 200, answer) from error

    def _ask(
        self,
        method: str,
        path: str,
        said: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] = {},
        timeout: float | None = ANSWER_S,
    ) -> Iterator[bytes]:
        connection = self._connection()
        heard = False
        try:
            body = None if said is None else json.dumps(said).encode()
            sent = {**self._headers(), **({} if body is None else {"Content-Type": "application/json"}), **headers}
            connection.request(method, urlsplit(self.address).path + path, body, sent)
            response = connection.getresponse()
            if response.status >= 400:
                raise refusal(self.address, self._credentials, response.status, response.read())
            heard = True
            if connection.sock is not None:
                connection.sock.settimeout(timeout)
            while piece := response.read1(65536):
                yield piece
        except SchedulerError:  # what the service tells; NotAllowedError is an OSError, too
            raise
        except ssl.SSLCertVerificationError as error:
            raise not_trusted(self.address, error) from error
        except (OSError, http.client.HTTPException) as error:
            if heard and isinstance(error, TimeoutError):
                raise
            raise nobody_answers(self.address, error) from error
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.address)
        if parts.scheme == "https":
            tls = self._credentials.tls()
            context = tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()
            return http.client.HTTPSConnection(
                parts.hostname or "", parts.port, timeout=self._answer_s, context=context
            )
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self._answer_s)

    def _headers(self) -> dict[str, str]:
        if not self._credentials.are_for(self.address):  # another one may listen there by now
            raise nobody_answers(self.address, OSError("it does not run"))
        return self._credentials.headers()


def with_query(path: str, query: Mapping[str, object]) -> str:
    """What is None is not asked."""
    given = {key: str(one).lower() if isinstance(one, bool) else one for key, one in query.items() if one is not None}
    return f"{path}?{urlencode(given)}" if given else path
