"""What can be wrong between us and a dashboard, each with its code, its sentence and its next step."""

from __future__ import annotations

import os
import ssl
from typing import Literal, TypeAlias

import aiohttp

from ray_multicluster_scheduler.common.exception import ClusterConnectionError

ProblemCode: TypeAlias = Literal[
    "DASHBOARD_DOWN", "DASHBOARD_TIMEOUT", "WRONG_TOKEN", "NOT_A_DASHBOARD", "TLS_FAILED", "BAD_ANSWER"
]

_PERMANENT: frozenset[ProblemCode] = frozenset({"WRONG_TOKEN", "NOT_A_DASHBOARD", "TLS_FAILED"})

_NEXT_STEPS: dict[ProblemCode, str] = {
    "DASHBOARD_DOWN": "check that the cluster is up, and that `dashboard` of cluster {name} is its address",
    "DASHBOARD_TIMEOUT": "look at the load of the head node, and check `dashboard` of cluster {name}",
    "WRONG_TOKEN": "set `auth_token` or `auth_token_path` of cluster {name} to the token the cluster was started with",  # nosec B105 # a sentence
    "NOT_A_DASHBOARD": "set `dashboard` of cluster {name} to where its Ray dashboard is (by default http://HEAD:8265)",
    "TLS_FAILED": "check `tls` (ca, verify) of cluster {name}, and whether its `dashboard` is http:// or https://",
    "BAD_ANSWER": "look at the dashboard's log on the head node of cluster {name}, and at its Ray version",
}


class DashboardProblem(ClusterConnectionError):
    """One failed conversation with a dashboard.

    ``permanent``: asking again cannot help before somebody mends the configuration.
    ``ambiguous``: the request had left us, so it may have been carried out all the same.
    """

    def __init__(
        self,
        message: str,
        *,
        code: ProblemCode,
        ambiguous: bool = False,
        task_id: str | None = None,
        cluster: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message, task_id=task_id, cluster=cluster, next_step=next_step)
        self.code: ProblemCode = code
        self.permanent = code in _PERMANENT
        self.ambiguous = ambiguous

    def __reduce__(self) -> tuple[object, ...]:
        fields = (self.message, self.code, self.ambiguous, self.task_id, self.cluster, self.next_step)
        return (_rebuild, fields)


def _rebuild(
    message: str, code: ProblemCode, ambiguous: bool, task_id: str | None, cluster: str | None, next_step: str | None
) -> DashboardProblem:
    return DashboardProblem(
        message, code=code, ambiguous=ambiguous, task_id=task_id, cluster=cluster, next_step=next_step
    )


def problem(name: str, url: str, code: ProblemCode, what: str, *, ambiguous: bool = False) -> DashboardProblem:
    """The error for cluster ``name``; ``what`` completes "The dashboard at URL …"."""
    return DashboardProblem(
        f"The dashboard of cluster {name} at {url} {what}.",
        code=code,
        ambiguous=ambiguous,
        cluster=name,
        next_step=_NEXT_STEPS[code].format(name=name),
    )


def from_exception(name: str, url: str, error: Exception, *, limit_s: float) -> DashboardProblem:
    """Say in words what aiohttp or the system reported. Raises ``error`` itself if it is none of theirs."""
    code, what, ambiguous = _diagnose(error, limit_s)
    return problem(name, url, code, what, ambiguous=ambiguous)


def _diagnose(error: Exception, limit_s: float) -> tuple[ProblemCode, str, bool]:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return "TLS_FAILED", f"has a certificate that was not accepted ({error.certificate_error})", False
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return "TLS_FAILED", f"could not agree with us on TLS ({_reason(error)})", False
        case aiohttp.ClientConnectorDNSError():
            return "DASHBOARD_DOWN", "has a host name that cannot be resolved", False
        case aiohttp.ClientConnectorError():
            return "DASHBOARD_DOWN", f"cannot be reached ({_reason(error)})", False
        case aiohttp.ConnectionTimeoutError():
            return "DASHBOARD_DOWN", "did not take a connection in time", False
        case TimeoutError():
            return "DASHBOARD_TIMEOUT", f"gave no answer within {limit_s:.3g} s", True
        case aiohttp.InvalidURL():
            return "NOT_A_DASHBOARD", "is not a usable address", False
        case aiohttp.WSServerHandshakeError():
            return "BAD_ANSWER", f"refused the log stream with HTTP {error.status}", False
        case aiohttp.ClientResponseError():
            return "NOT_A_DASHBOARD", "does not speak HTTP: something else listens there", True
        case aiohttp.ClientPayloadError():
            return "BAD_ANSWER", "broke off in the middle of its answer", True
        case aiohttp.ServerDisconnectedError():
            return "DASHBOARD_DOWN", "closed the connection without an answer", True
        case aiohttp.ClientError() | OSError():
            return "DASHBOARD_DOWN", f"lost the connection ({_reason(error)})", True
    raise error


def _reason(error: Exception) -> str:
    """The system's own words, without the object dumps that aiohttp and asyncio add."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLError):
        return str(inner.reason or type(inner).__name__)
    number = getattr(inner, "errno", None)
    return os.strerror(number) if number else type(inner).__name__
