"""Why a service did not do what it was asked, as errors with a next step. Light: commands load it at every start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ray_multicluster_scheduler.app.client_api.remote.credentials import Credentials
from ray_multicluster_scheduler.common import exception as errors
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError, ServiceUnavailableError


class NobodyAnswersError(ServiceUnavailableError):
    """Not even to say that it cannot be served."""


def problem_from_wire(said: Mapping[str, Any]) -> SchedulerError:
    """The error that a problem document tells of."""
    kind = getattr(errors, str(said.get("error")), SchedulerError)
    if not (isinstance(kind, type) and issubclass(kind, SchedulerError)):
        kind = SchedulerError
    return kind(
        str(said.get("message") or "The service refused, and did not say why."),
        task_id=said.get("task_id"),
        cluster=said.get("cluster"),
        next_step=said.get("next_step"),
    )


def refusal(address: str, credentials: Credentials, status: int, answer: bytes) -> SchedulerError:
    """What an answer that is none means."""
    if status == 401:
        return _not_let_in(address, credentials)
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    if isinstance(said, dict) and "message" in said:
        return problem_from_wire(said)
    if isinstance(said, dict) and said.get("status") == "not ready":
        return ServiceUnavailableError(
            f"The service {address} is not ready: {str(said.get('reason')).rstrip('.')}.",
            next_step="ask again when that is over",
        )
    return SchedulerError(
        f"{address} answered {status}: {answer[:200].decode(errors='replace')}",
        next_step="see whether that is the address of a service",
    )


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
        return NotAllowedError(
            f"The service {address} wants a token, and {source}.",
            next_step="give token=…, RMCS_TOKEN or RMCS_TOKEN_FILE; whoever runs the service makes one with "
            "`rmcs token create`",
        )
    return NotAllowedError(
        f"The service {address} does not take the token from {source}: it is not known there, was revoked, or "
        "has expired.",
        next_step="use another one; whoever runs the service makes one with `rmcs token create`",
    )
