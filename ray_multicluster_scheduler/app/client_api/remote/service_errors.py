"""Why a service did not do what it was asked, as errors with a next step. Light: commands load it at every start."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from urllib.parse import urlsplit

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.common.control_characters import escaped
from ray_multicluster_scheduler.common.exception import (
    NotAllowedError,
    SchedulerError,
    ServiceUnavailableError,
    error_from_problem,
)

_OURS = frozenset({"error", "code", "message"})
"""What each of our problem documents says; those of others may say some of it."""
_AWAY = frozenset({502, 503, 504})
"""What a proxy answers for a service that it does not reach."""
_TITLE = re.compile(rb"<title[^>]*>\s*(.{1,100}?)\s*</title>", re.IGNORECASE | re.DOTALL)
_SHOWN = 80


class NobodyAnswersError(ServiceUnavailableError):
    """Not even to say that it cannot be served."""


def refusal(address: str, credentials: Credentials, status: int, answer: bytes, by: str = "") -> SchedulerError:
    """What an answer that is none means; ``by`` is how whoever gave it calls itself."""
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.keys() >= _OURS:
        return _not_let_in(address, credentials) if status == 401 else error_from_problem(said)
    if isinstance(said, dict) and said.get("status") == "not ready":
        return ServiceUnavailableError(
            f"The service {address} {not_ready(str(said.get('reason')))}.",
            next_step="ask again when that is over; what it wrote to its stderr, where `rmcs up` was typed, says more",
        )
    words = f"{status} {_phrase(status)}{_shown(answer)}{f', from {escaped(by[:_SHOWN])}' if by else ''}"
    if status in _AWAY:
        return ServiceUnavailableError(
            f"What answers at {address} does not reach the service behind it: it said {words}.",
            next_step="see whether the service runs (rmcs up), and whether what stands before it knows where",
        )
    return not_a_service(address, words)


def not_ready(reason: str) -> str:
    """What is said of a service that takes nothing new. Its reason may be said of it (``is draining``), or not."""
    said = reason.rstrip(".")
    return said if said.startswith(("is ", "has ")) else f"is not ready: {said}"


def not_a_service(address: str, said: str) -> SchedulerError:
    """Somebody else listens there. It is asked no second time: waiting does not mend it."""
    return SchedulerError(
        f"{address} answers, but not as a ray_multicluster_scheduler service: it said {said}.",
        next_step="see whether that is the address of a service (`rmcs up` prints it; a Ray dashboard is none)",
    )


def silent(address: str, seconds: float) -> ServiceUnavailableError:
    """Somebody listens there, and says nothing at all."""
    return ServiceUnavailableError(
        f"{address} takes connections, and said nothing in {seconds:g} s.",
        next_step="see whether a service listens there (http or https?), and whether its process is stopped or hangs",
    )


def no_tls(address: str) -> SchedulerError:
    """It answers, but not in TLS."""
    return SchedulerError(
        f"{address} does not speak TLS.", next_step=f"write {address.replace('https:', 'http:', 1)}, if that is meant"
    )


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in set(HTTPStatus) else ""


def _shown(answer: bytes) -> str:
    """A little of it, for whoever knows what listens there."""
    title = _TITLE.search(answer)
    if title is not None:
        return f", a page of HTML called {_text(title[1])}"
    if b"<html" in answer[:1000].lower():
        return ", a page of HTML"
    first = answer.strip().partition(b"\n")[0]
    return f", {_text(first)}" if first else ""


def _text(said: bytes) -> str:
    return repr(said[:_SHOWN].decode(errors="replace"))


def nobody_answers(address: str, problem: Exception) -> NobodyAnswersError:
    said = getattr(getattr(problem, "os_error", problem), "strerror", None) or str(problem) or type(problem).__name__
    return NobodyAnswersError(
        f"The service {address} does not answer: {said}.",
        next_step="start it (rmcs up), or give another address (RMCS_ADDRESS)",
    )


def not_trusted(address: str, error: Exception) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"{address} cannot prove that it is what it says: {error}.",
        next_step="name a file with the certificate of whoever vouches for it: RMCS_TLS_CA, or tls_ca=…",
    )


def _not_let_in(address: str, credentials: Credentials) -> NotAllowedError:
    source = credentials.source or "no token was given"
    if credentials.token is None:
        path = urlsplit(address).path
        without = f"leave {path} out of the address, if nothing stands before the service; else " if path else ""
        return NotAllowedError(
            f"The service {address} wants a token, and {source}.",
            next_step=f"{without}set RMCS_TOKEN or RMCS_TOKEN_FILE (in a program also token=…); whoever runs the "
            "service makes one with `rmcs token create`",
        )
    return NotAllowedError(
        f"The service {address} does not take the token from {source}: it is not known there, was revoked, or "
        "has expired.",
        next_step="use another one; whoever runs the service makes one with `rmcs token create`",
    )
