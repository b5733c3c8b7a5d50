"""Checks a head address before Ray connects, and turns errors of gRPC and Ray into one sentence and a code.

Ray itself would try for half a minute and give one vague error.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from ray_multicluster_scheduler.scheduler.connection.connector import protocol as o

_CONNECT_S, _ANSWER_S = 3.0, 5.0
_HTTP_STATUS = re.compile(r"[Ss]tatus:? (\d{3})\b")
_OF_GATEWAYS = frozenset({"429", "502", "503", "504"})
"""Said by who stands before a server, of the server: it may be there a moment later."""
_NO_GRPC = ("http1.x", "parsing http/2", "http2 header with status")
_GRPC_ERROR = re.compile(
    r"(?:Last exception: *)?<\w+ of RPC that terminated with:\s*status = (?:StatusCode\.)?(\w+)\s*"
    r"details = \"(.*?)\"\s*(?:debug_error_string|>|\Z)",
    re.DOTALL,
)
"""How gRPC writes an error of its own, on several lines; Ray puts that behind a sentence of its own."""
_REFUSED = ("UNAUTHENTICATED", "PERMISSION_DENIED")
_SHARED_PORT = "or the server of another cluster has answered, if one on the same machine shares its ports"
_LONGEST = 400
_VERSIONS = re.compile(r"Ray: *(\S+)\s+Python: *(\S+)")


class Problem(Exception):
    """A sentence for an operator, and its code."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


def check_port(head: str) -> None:
    """Does anybody listen there? Raises Problem."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
    except OSError as error:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Problem(o.UNREACHABLE, f"nothing listens at head_address {head}: {reason}") from None


def check_answer(head: str, token: str | None) -> None:
    """Is it a Ray Client server, and does it take this token? Raises Problem."""
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
    """What gRPC says of the first question. Raises Problem, or returns if it is no reason not to go on."""
    if status in _REFUSED:
        said = "does not take the token" if has_token else "asks for a token"
        raise Problem(o.TOKEN_REFUSED, f"the Ray Client server at {head} {said}")
    if status == "UNIMPLEMENTED":
        raise Problem(o.NOT_RAY_CLIENT, f"what answers at head_address {head} is no Ray Client server (its GCS port?)")
    if status == "DEADLINE_EXCEEDED":
        raise Problem(o.UNREACHABLE, f"head_address {head} is open, but nothing answers there within {_ANSWER_S:g} s")
    if status == "UNAVAILABLE" and (answer := _HTTP_STATUS.search(details)) and answer[1] in _OF_GATEWAYS:
        sentence = (
            f"a proxy answers at head_address {head}, and does not reach the Ray Client server (HTTP {answer[1]})"
        )
        raise Problem(o.UNREACHABLE, sentence)
    if status == "UNAVAILABLE" and any(words in details.lower() for words in _NO_GRPC):
        raise Problem(o.NOT_RAY_CLIENT, f"what answers at head_address {head} is no Ray Client server (a dashboard?)")
    if status == "UNAVAILABLE":
        raise Problem(o.UNREACHABLE, f"head_address {head} is open, but no Ray Client server answers there: {details}")


def from_connecting(head: str, error: BaseException, ours: tuple[str, str]) -> Problem:
    """What Ray says when a connection cannot be made; ``ours``: our versions of Ray and Python."""
    text = str(error)
    if "ersion mismatch" in text:
        found: list[Any] = _VERSIONS.findall(text)
        theirs = found[0] if found else ("?", "?")
        return Problem(
            o.MISMATCH,
            f"the cluster runs Ray {theirs[0]} on Python {theirs[1]}, the connector Ray {ours[0]} on Python {ours[1]}; "
            "Ray Client needs the same Ray and the same minor version of Python",
        )
    grpc_error = _GRPC_ERROR.search(text)
    if "nauthenticated" in text or "UNAUTHENTICATED" in text or (grpc_error and grpc_error[1] in _REFUSED):
        return Problem(o.TOKEN_REFUSED, f"the Ray Client server at {head} does not take the token, {_SHARED_PORT}")
    if isinstance(error, ConnectionError):
        return Problem(o.UNREACHABLE, f"no connection to the Ray Client server at {head}: {in_one_line(error)}")
    return Problem(o.BROKEN, f"Ray Client cannot connect to {head}: {type(error).__name__}: {in_one_line(error)}")


def in_one_line(error: BaseException) -> str:
    """The first line of what it says; of an error of gRPC's, its status and its details, which are on the next ones."""
    text = str(error)
    grpc_error = _GRPC_ERROR.search(text)
    if grpc_error is not None:
        details = " ".join(grpc_error[2].split())
        text = f"{text[: grpc_error.start()].rstrip()} {grpc_error[1]}: {details}".strip()[:_LONGEST]
    return next((line.strip().rstrip(".") for line in text.splitlines() if line.strip()), type(error).__name__)


_ENDED = "The actor is dead because its worker process has died"
"""The node that it ran on has seen it end, and told the head so. All else is said before anybody has: that a node is
dead is a guess of the head's, and an actor that `ray.kill` is to end is dead to it once the order is on its way."""


def known_death(error: BaseException | str) -> str | None:
    """The sentence by which it is known to be dead; None if this error, or this cause of death, does not tell."""
    for line in str(error).splitlines():
        if _ENDED in line:
            return line[line.index(_ENDED) :].strip().rstrip(".")
    return None
