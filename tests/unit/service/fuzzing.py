"""Fuzzer: asks a service what its OpenAPI document allows, and what not, and looks at every answer."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi import checks

from tests.unit.service.fuzzed_service import ITEMS, FuzzedService

HANG_S = 45.0
"""No answer takes so long: /simulate, the longest, ends after 30 s."""
STREAM_S = 0.3
"""So long one listens to an answer that does not end."""
MAX_WAIT_S = 0.2
"""What may be waited for is waited for so long."""
NOBODY = "nobody"
ENDLESS = ("/api/v1/events", "/api/v1/items/{item_id}/logs")
_NOT_OURS = {502: "a cluster does not answer", 503: "not ready, or too many", 507: "no room"}
"""What may be answered, with a problem document, and is no defect."""
_CHECKS = (
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
)


class Fuzzer:
    """With each role in turn, and without a token. ``problems`` has one text for each kind of wrong answer."""

    def __init__(self, service: FuzzedService, seed: int = 0) -> None:
        self.service = service
        self.problems: dict[str, str] = {}
        self.answers: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._session = requests.Session()
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))  # a session would be somebody
        load_all_checks()
        answer = self._session.get(f"{service.address}/api/v1/openapi.json", headers=self._as("admin"), timeout=HANG_S)
        schema = schemathesis.openapi.from_dict(answer.json())
        self._operations = [one.ok() for one in schema.get_all_operations()]
        self._nothing: set[tuple[str, GenerationMode, bool]] = set()
        """What nothing can be asked of: there is no wrong way to ask without parameters."""

    def run(self, seconds: float, examples: int) -> int:
        """Until the time is over, and at most one round if there is none. Returns how many rounds were whole."""
        end, rounds = time.monotonic() + seconds, 0
        for role, mode, operation in self._turns():
            if operation is None:
                rounds += 1
                continue
            if time.monotonic() > end:
                break
            self._ask_many(operation, mode, role, examples)
        return rounds

    def close(self) -> None:
        self._session.close()

    def _turns(self) -> Iterator[tuple[str, GenerationMode, Any]]:
        while True:
            turns = [
                (role, mode, operation)
                for role in (*self.service.tokens, NOBODY)
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
                for operation in self._operations
            ]
            self._chance.shuffle(turns)
            yield from turns
            yield "", GenerationMode.POSITIVE, None

    def _as(self, role: str) -> dict[str, str]:
        return {} if role == NOBODY else {"Authorization": f"Bearer {self.service.tokens[role]}"}

    # ---- one operation

    def _ask_many(self, operation: Any, mode: GenerationMode, role: str, examples: int) -> None:
        known = self._known(operation, role)
        key = (operation.label, mode, known is not None)
        if key in self._nothing:
            return
        strategy = operation.as_strategy(mode, path_parameters=known)

        @hypothesis.seed(self._chance.getrandbits(32))
        @hypothesis.settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(strategy)
        def ask(case: Any) -> None:
            self._ask(case, role)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the library's own making
            try:
                ask()
            except hypothesis.errors.Unsatisfiable:
                self._nothing.add(key)

    def _known(self, operation: Any, role: str) -> dict[str, Any] | None:
        """Half the time what is there is asked about, and not any text."""
        path: str = operation.path
        if "{" not in path or self._chance.random() < 0.5:
            return None
        known: dict[str, Callable[[], str]] = {
            "item_id": lambda: f"{self._chance.choice([role, 'admin'])}-{self._chance.choice(ITEMS)}",
            "job_id": lambda: f"{role}-job",
            "name": lambda: "mac",
            "what": lambda: self._chance.choice(["cluster", "owner"]),
            "owner": lambda: "sam",
        }
        found = {name: make() for name, make in known.items() if f"{{{name}}}" in path}
        return found if path.count("{") == len(found) else None

    def _ask(self, case: Any, role: str) -> None:
        _wait_briefly(case)
        wanted = case.as_transport_kwargs(base_url=self.service.address, headers=self._as(role))
        label = f"{case.method} {case.operation.path}"
        begun = time.monotonic()
        try:
            with self._session.request(**wanted, stream=True, timeout=HANG_S, allow_redirects=False) as response:
                _read(response, case.operation.path in ENDLESS)
                self._judge(case, response, label)
        except requests.Timeout:
            self._problem(f"{label}: no answer after {HANG_S:g} s", case)
        except requests.ConnectionError as error:
            self._problem(f"{label}: cut off ({type(error).__name__}: {error})", case)
        except (requests.RequestException, UnicodeError):  # it cannot be said at all
            self.answers["not sent"] += 1
        if time.monotonic() - begun > HANG_S:
            self._problem(f"{label}: took {time.monotonic() - begun:.0f} s", case)
        if not self.service.alive:
            raise AssertionError(f"{label} ended the service: {case.as_curl_command()[:2000]}")

    def _judge(self, case: Any, response: requests.Response, label: str) -> None:
        self.answers[f"{response.status_code}"] += 1
        if response.status_code >= 500:
            output = response.text
            if response.status_code not in _NOT_OURS or '"code"' not in output or "DEFECT" in output:
                self._problem(f"{label}: {response.status_code}", case, output)
        if response.headers.get("Content-Type", "").startswith("text/event-stream"):
            return  # a document of this version cannot say what one of many events is
        try:
            case.validate_response(response, checks=list(_CHECKS))
        except (Failure, FailureGroup) as failure:
            parts = failure.exceptions if isinstance(failure, FailureGroup) else [failure]
            for part in parts:
                self._problem(f"{label}: {response.status_code}: {type(part).__name__}", case, str(part))

    def _problem(self, what: str, case: Any, output: str = "") -> None:
        self.problems.setdefault(what, f"{what}\n{output[:1500]}\n{case.as_curl_command()[:1500]}")


def _wait_briefly(case: Any) -> None:
    if isinstance(case.body, dict):
        timeout = case.body.get("timeout")
        if case.operation.path.endswith(("/wait", "/drain")) and (timeout is None or _is_number(timeout)):
            case.body = {**case.body, "timeout": min(timeout or 0, MAX_WAIT_S)}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read(response: requests.Response, endless: bool) -> None:
    """All of it; of what does not end, what comes soon. Then it is closed, which the service has to notice."""
    if not endless or "content-length" in response.headers:
        assert response.content is not None
        return
    sock: Any = response.raw.connection and response.raw.connection.sock
    if sock is not None:
        sock.settimeout(STREAM_S)
    parts: list[bytes] = []
    with contextlib.suppress(requests.RequestException, OSError):
        parts.extend(response.iter_content(None))
    response._content = b"".join(parts)  # what the checks look at
    response._content_consumed = True
