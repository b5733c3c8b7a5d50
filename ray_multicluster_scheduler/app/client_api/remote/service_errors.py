"""Converts failed requests to a service to exceptions with a next step. Light, since every command loads it."""

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
"""Keys of every problem document of the service; other programs may send some of them."""
_GATEWAY_ERRORS = frozenset({502, 503, 504})
"""Status codes of a proxy that does not reach the service."""
_TITLE = re.compile(rb"<title[^>]*>\s*(.{1,100}?)\s*</title>", re.IGNORECASE | re.DOTALL)
_SHOWN = 80


class ServiceUnreachableError(ServiceUnavailableError):
    """No connection to the service."""


def refusal(address: str, credentials: Credentials, status: int, answer: bytes, by: str = "") -> SchedulerError:
    """Return the error for a failed request; ``by`` is the ``Server`` header."""
    try:
        body = json.loads(answer)
    except ValueError:
        body = None
    if isinstance(body, dict) and body.keys() >= _OURS:
        return _unauthorized(address, credentials) if status == 401 else error_from_problem(body)
    if isinstance(body, dict) and body.get("status") == "not ready":
        return ServiceUnavailableError(
            f"The service {address} {not_ready(str(body.get('reason')))}.",
            next_step="retry later; for details read the stderr of `rmcs up`",
        )
    phrase = HTTPStatus(status).phrase if status in set(HTTPStatus) else ""
    words = f"{status} {phrase}{_shown(answer)}{f', from {escaped(by[:_SHOWN])}' if by else ''}"
    if status in _GATEWAY_ERRORS:
        return ServiceUnavailableError(
            f"The proxy at {address} does not reach the service behind it: it answered {words}.",
            next_step="check that the service runs (rmcs up), and that the proxy has its address",
        )
    return not_a_service(address, words)


def not_ready(reason: str) -> str:
    """Phrase the reason of a service that is not ready; it may already begin with a verb (``is draining``)."""
    text = reason.rstrip(".")
    return text if text.startswith(("is ", "has ")) else f"is not ready: {text}"


def not_a_service(address: str, answer: str) -> SchedulerError:
    """Another program listens at the address. Not retryable."""
    return SchedulerError(
        f"{address} answers, but not as a ray_multicluster_scheduler service: it answered {answer}.",
        next_step="check that this is the address of a service (`rmcs up` prints it), not of a Ray dashboard",
    )


def no_response(address: str, seconds: float) -> ServiceUnavailableError:
    """The address accepts connections but sends no response."""
    return ServiceUnavailableError(
        f"{address} accepts connections, but sent no answer within {seconds:g} s.",
        next_step="check that a service listens there (http or https?), and that its process is not stopped",
    )


def tls_unsupported(address: str) -> SchedulerError:
    """The address answers without TLS."""
    return SchedulerError(
        f"{address} does not use TLS.", next_step=f"use {address.replace('https:', 'http:', 1)} if it is a service"
    )


def _shown(answer: bytes) -> str:
    """Return an excerpt of an answer, to help identify the program at the address."""
    title = _TITLE.search(answer)
    if title is not None:
        return f", an HTML page titled {_text(title[1])}"
    if b"<html" in answer[:1000].lower():
        return ", an HTML page"
    first = answer.strip().partition(b"\n")[0]
    return f", {_text(first)}" if first else ""


def _text(answer: bytes) -> str:
    return repr(answer[:_SHOWN].decode(errors="replace"))


def unreachable(address: str, problem: Exception) -> ServiceUnreachableError:
    reason = getattr(getattr(problem, "os_error", problem), "strerror", None) or str(problem) or type(problem).__name__
    return ServiceUnreachableError(
        f"The service {address} does not answer: {reason}.",
        next_step="start it (rmcs up), or give another address (RMCS_ADDRESS)",
    )


def untrusted_certificate(address: str, error: Exception) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"The certificate of {address} is not trusted: {error}.",
        next_step="name a file with the certificate of its CA: RMCS_TLS_CA, or tls_ca=…",
    )


def _unauthorized(address: str, credentials: Credentials) -> NotAllowedError:
    source = credentials.source or "no token was given"
    if credentials.token is None:
        path = urlsplit(address).path
        without = f"leave {path} out of the address, unless the service is behind a proxy; else " if path else ""
        return NotAllowedError(
            f"The service {address} requires a token, and {source}.",
            next_step=f"{without}set RMCS_TOKEN or RMCS_TOKEN_FILE (in a program also token=…); "
            "the operator of the service creates one with `rmcs token create`",
        )
    return NotAllowedError(
        f"The service {address} rejects the token from {source}: it is unknown, was revoked, or has expired.",
        next_step="use another one; the operator of the service creates one with `rmcs token create`",
    )
