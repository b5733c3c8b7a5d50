"""DashboardProblem: the error for a failed request to a dashboard, with a code, a sentence and a next step."""

from __future__ import annotations

import os
import ssl
from functools import partial
from typing import Literal, TypeAlias

import aiohttp

from ray_multicluster_scheduler.common.exception import ClusterConnectionError

ProblemCode: TypeAlias = Literal[
    "DASHBOARD_DOWN", "DASHBOARD_TIMEOUT", "WRONG_TOKEN", "NOT_A_DASHBOARD", "TLS_FAILED", "BAD_ANSWER"
]

_PERMANENT: frozenset[ProblemCode] = frozenset({"WRONG_TOKEN", "NOT_A_DASHBOARD", "TLS_FAILED"})

_NEXT_STEPS: dict[ProblemCode, str] = {
    "DASHBOARD_DOWN": "check that the cluster is up, and that `dashboard` of cluster {name} is its address",
    "DASHBOARD_TIMEOUT": "check the load of the head node, and `dashboard` of cluster {name}",
    "WRONG_TOKEN": "set `auth_token` or `auth_token_path` of cluster {name} to the token the cluster was started with",  # nosec B105 # a sentence
    "NOT_A_DASHBOARD": "set `dashboard` of cluster {name} to where its Ray dashboard is (by default http://HEAD:8265)",
    "TLS_FAILED": "check `tls` (ca, verify) of cluster {name}, and whether its `dashboard` is http:// or https://",
    "BAD_ANSWER": "check the dashboard's log on the head node of cluster {name}, and its Ray version",
}


class DashboardProblem(ClusterConnectionError):
    """A failed request to a dashboard.

    ``permanent``: retrying does not help before the configuration is changed.
    ``ambiguous``: the request was sent, so it may have been executed.
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
        fields = {"task_id": self.task_id, "cluster": self.cluster, "next_step": self.next_step}
        return (partial(DashboardProblem, self.message, code=self.code, ambiguous=self.ambiguous, **fields), ())


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
    """Describe an error of aiohttp or the system. Raises ``error`` itself if it is another one."""
    for kinds, code, what, ambiguous in _DIAGNOSES:
        if isinstance(error, kinds):
            text = what.format(error=error, reason=_reason(error), limit_s=limit_s)
            return problem(name, url, code, text, ambiguous=ambiguous)
    raise error


_DIAGNOSES: tuple[tuple[tuple[type[Exception], ...], ProblemCode, str, bool], ...] = (
    (
        (aiohttp.ClientConnectorCertificateError,),
        "TLS_FAILED",
        "has a certificate that was not accepted ({error.certificate_error})",
        False,
    ),
    ((aiohttp.ClientSSLError, ssl.SSLError), "TLS_FAILED", "could not agree with us on TLS ({reason})", False),
    ((aiohttp.ClientConnectorDNSError,), "DASHBOARD_DOWN", "has a host name that cannot be resolved", False),
    ((aiohttp.ClientConnectorError,), "DASHBOARD_DOWN", "cannot be reached ({reason})", False),
    ((aiohttp.ConnectionTimeoutError,), "DASHBOARD_DOWN", "did not take a connection in time", False),
    ((TimeoutError,), "DASHBOARD_TIMEOUT", "gave no answer within {limit_s:.3g} s", True),
    ((aiohttp.InvalidURL,), "NOT_A_DASHBOARD", "is not a usable address", False),
    ((aiohttp.WSServerHandshakeError,), "BAD_ANSWER", "refused the log stream with HTTP {error.status}", False),
    ((aiohttp.ClientResponseError,), "NOT_A_DASHBOARD", "does not speak HTTP: something else listens there", True),
    ((aiohttp.ClientPayloadError,), "BAD_ANSWER", "closed the connection in the middle of its response", True),
    ((aiohttp.ServerDisconnectedError,), "DASHBOARD_DOWN", "closed the connection without an answer", True),
    ((aiohttp.ClientError, OSError), "DASHBOARD_DOWN", "lost the connection ({reason})", True),
)
"""The first row that matches applies: error types, code, text, whether the request may have been executed."""


def _reason(error: Exception) -> str:
    """The message of the system, without the object dumps that aiohttp and asyncio add."""
    inner = getattr(error, "os_error", None) or error
    if isinstance(inner, ssl.SSLError):
        return str(inner.reason or type(inner).__name__)
    number = getattr(inner, "errno", None)
    return os.strerror(number) if number else type(inner).__name__
