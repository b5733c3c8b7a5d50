"""Checks a head address before Ray connects, and turns errors of gRPC and Ray into a sentence and a code.

Used by the connector process, because Ray itself retries for half a minute and then raises one vague error.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.connector import protocol

_CONNECT_S, _ANSWER_S = 3.0, 5.0
_HTTP_STATUS = re.compile(r"[Ss]tatus:? (\d{3})\b")
_PROXY_STATUSES = frozenset({"429", "502", "503", "504"})
"""Statuses of a proxy for a server that it cannot reach; the server may be up a moment later."""
_NO_GRPC = ("http1.x", "parsing http/2", "http2 header with status")
_GRPC_ERROR = re.compile(
    r"(?:Last exception: *)?<\w+ of RPC that terminated with:\s*status = (?:StatusCode\.)?(\w+)\s*"
    r"details = \"(.*?)\"\s*(?:debug_error_string|>|\Z)",
    re.DOTALL,
)
"""The text of a gRPC error, on several lines; Ray puts it behind a sentence of its own."""
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_SHARED_PORT = "or the server of another cluster has answered, if one on the same machine shares its ports"
_MAX_LENGTH = 400
_VERSIONS = re.compile(r"Ray: *(\S+)\s+Python: *(\S+)")


class Problem(Exception):
    """The reason why the connector cannot work: a code, and a sentence for an operator."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


def check_port(head: str) -> None:
    """Check that the port is open. Raises Problem."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Problem(protocol.UNREACHABLE, f"nothing listens at head_address {head}: {reason}") from None


def check_answer(head: str, token: str | None) -> None:
    """Check that a Ray Client server answers, and accepts this token. Raises Problem."""
    import grpc  # noqa: PLC0415 - only an interpreter that has ray has it
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc  # noqa: PLC0415 - the same

    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return  # Ray itself reads the files for that
    metadata = [("client_id", "rmcs")] + ([("authorization", f"Bearer {token}")] if token else [])
    request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
    with grpc.insecure_channel(head, options=[("grpc.enable_http_proxy", 0)]) as channel:
        stub = ray_client_pb2_grpc.RayletDriverStub(channel)
        try:
            stub.ClusterInfo(request, timeout=_ANSWER_S, metadata=metadata)
        except grpc.RpcError as error:
            raise_for_status(head, error.code().name, error.details() or "", has_token=token is not None)


def raise_for_status(head: str, status: str, details: str, *, has_token: bool) -> None:
    """Interpret gRPC's status of the first request. Raises Problem, or returns if the connector can go on."""
    if status in _REFUSED:
        reason = "does not accept the token" if has_token else "requires a token"
        raise Problem(protocol.TOKEN_REFUSED, f"the Ray Client server at {head} {reason}")
    no_server = f"the server at head_address {head} is not a Ray Client server"
    if status == "UNIMPLEMENTED":
        raise Problem(protocol.NOT_RAY_CLIENT, f"{no_server} (its GCS port?)")
    if status == "DEADLINE_EXCEEDED":
        sentence = f"head_address {head} is open, but does not answer within {_ANSWER_S:g} s"
        raise Problem(protocol.UNREACHABLE, sentence)
    if status == "UNAVAILABLE" and (answer := _HTTP_STATUS.search(details)) and answer[1] in _PROXY_STATUSES:
        sentence = (
            f"a proxy answers at head_address {head}, and does not reach the Ray Client server (HTTP {answer[1]})"
        )
        raise Problem(protocol.UNREACHABLE, sentence)
    if status == "UNAVAILABLE" and any(phrase in details.lower() for phrase in _NO_GRPC):
        raise Problem(protocol.NOT_RAY_CLIENT, f"{no_server} (a dashboard?)")
    if status == "UNAVAILABLE":
        sentence = f"head_address {head} is open, but no Ray Client server answers there: {details}"
        raise Problem(protocol.UNREACHABLE, sentence)


def from_connecting(head: str, error: BaseException, ours: tuple[str, str]) -> Problem:
    """Interpret Ray's error when it cannot connect; ``ours``: our versions of Ray and Python."""
    text = str(error)
    if "ersion mismatch" in text:
        found: list[Any] = _VERSIONS.findall(text)
        theirs = found[0] if found else ("?", "?")
        return Problem(
            protocol.MISMATCH,
            f"the cluster runs Ray {theirs[0]} on Python {theirs[1]}, the connector Ray {ours[0]} on Python {ours[1]}; "
            "Ray Client needs the same Ray and the same minor version of Python",
        )
    grpc_error = _GRPC_ERROR.search(text)
    if "nauthenticated" in text or "UNAUTHENTICATED" in text or (grpc_error and grpc_error[1] in _REFUSED):
        return Problem(
            protocol.TOKEN_REFUSED, f"the Ray Client server at {head} does not accept the token, {_SHARED_PORT}"
        )
    if isinstance(error, ConnectionError):
        return Problem(protocol.UNREACHABLE, f"no connection to the Ray Client server at {head}: {summary_line(error)}")
    return Problem(
        protocol.BROKEN, f"Ray Client cannot connect to {head}: {type(error).__name__}: {summary_line(error)}"
    )


def summary_line(error: BaseException) -> str:
    """The first line of the error's text; for a gRPC error, its status and details, which are on later lines."""
    text = str(error)
    grpc_error = _GRPC_ERROR.search(text)
    if grpc_error is not None:
        details = " ".join(grpc_error[2].split())
        text = f"{text[: grpc_error.start()].rstrip()} {grpc_error[1]}: {details}".strip()[:_MAX_LENGTH]
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), type(error).__name__)


_ENDED = "The actor is dead because its worker process has died"
"""Reported by the actor's node after the process ended. No other cause is proof: the head only guesses that a node is
dead, and after `ray.kill` it considers an actor dead before its process has ended."""


def known_death(error: BaseException | str) -> str | None:
    """The sentence that proves that an actor's process has ended; None if this error or cause is no proof."""
    for line in str(error).splitlines():
        if _ENDED in line:
            return line[line.index(_ENDED) :].strip().rstrip(".")
    return None
