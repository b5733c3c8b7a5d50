"""What is wrong with a head's address is reported before Ray is asked, and in sentences after."""

from __future__ import annotations

import socket

import pytest

from ray_multicluster_scheduler.scheduler.connection.connector.diagnosis import (
    Problem,
    check_port,
    from_connecting,
    raise_for_status,
    summary_line,
)
from ray_multicluster_scheduler.scheduler.connection.links.link_problem import CONNECTOR_PROBLEMS, from_connector

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.52.0
    Python: 3.12.4
This process on Ray Client was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


def test_a_closed_port_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_port(f"127.0.0.1:{port}")
    with pytest.raises(Problem, match=rf"nothing listens at head_address .*:{port}: Connection refused") as at:
        check_port(f"127.0.0.1:{port}")
    assert at.value.code == "HEAD_UNREACHABLE"


@pytest.mark.parametrize(
    ("status", "details", "has_token", "code", "says"),
    [
        ("UNAUTHENTICATED", "", True, "HEAD_WRONG_TOKEN", "does not accept the token"),
        ("UNAUTHENTICATED", "", False, "HEAD_WRONG_TOKEN", "requires a token"),
        ("UNIMPLEMENTED", "", True, "NOT_A_RAY_CLIENT", "is not a Ray Client server"),
        ("UNAVAILABLE", "Trying to connect an http1.x server", True, "NOT_A_RAY_CLIENT", "a dashboard?"),
        ("UNAVAILABLE", "connect an http1.x server (HTTP status 400)", True, "NOT_A_RAY_CLIENT", "a dashboard?"),
        ("UNAVAILABLE", "connect an http1.x server (HTTP status 502)", True, "HEAD_UNREACHABLE", "a proxy .*HTTP 502"),
        ("UNAVAILABLE", "Received http2 header with status: 503", True, "HEAD_UNREACHABLE", "a proxy .*HTTP 503"),
        ("UNAVAILABLE", "http2 GOAWAY", True, "HEAD_UNREACHABLE", "no Ray Client server answers there"),
        ("UNAVAILABLE", "Socket closed", True, "HEAD_UNREACHABLE", "Socket closed"),
        ("DEADLINE_EXCEEDED", "", True, "HEAD_UNREACHABLE", "does not answer within"),
    ],
)
def test_problem_from_the_status_of_the_first_request(
    status: str, details: str, has_token: bool, code: str, says: str
) -> None:
    with pytest.raises(Problem, match=says.replace("?", r"\?")) as caught:
        raise_for_status("h:10001", status, details, has_token=has_token)
    assert caught.value.code == code


def test_any_other_answer_is_one_of_a_ray_client_server() -> None:
    raise_for_status("h:10001", "NOT_FOUND", "no such client", has_token=True)


def test_a_mismatch_names_both_versions_and_the_setting() -> None:
    problem = from_connecting("h:10001", RuntimeError(MISMATCH), ("2.60.0", "3.11.7"))
    assert problem.code == "RAY_MISMATCH"
    assert "the cluster runs Ray 2.52.0 on Python 3.12.4, the connector Ray 2.60.0 on Python 3.11.7" in problem.sentence
    reported = from_connector("a", "/usr/bin/python3", problem.code, problem.sentence)
    assert reported.permanent
    assert "connector_python" in str(reported.next_step)


DISCONNECTED = """Request can't be sent because the Ray client has already been disconnected due to an error. \
Last exception: <_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.{status}
\tdetails = "{details}"
\tdebug_error_string = "{status}:{details}"
>"""


@pytest.mark.parametrize(
    ("status", "details", "code", "says"),
    [
        (
            "NOT_FOUND",
            "Attempted to reconnect a session that has already been cleaned up",
            "HEAD_UNREACHABLE",
            "due to an error. NOT_FOUND: Attempted to reconnect a session that has already been cleaned up",
        ),
        ("UNAVAILABLE", 'no "route"\nto host', "HEAD_UNREACHABLE", 'UNAVAILABLE: no "route" to host'),
        ("UNAVAILABLE", "", "HEAD_UNREACHABLE", "UNAVAILABLE:"),
        (
            "UNAUTHENTICATED",
            "no token",
            "HEAD_WRONG_TOKEN",
            "does not accept the token, or the server of another cluster",
        ),
        ("PERMISSION_DENIED", "", "HEAD_WRONG_TOKEN", "does not accept the token"),
    ],
)
def test_a_grpc_error_is_reported_with_its_status_and_details(status: str, details: str, code: str, says: str) -> None:
    error = ConnectionError(DISCONNECTED.format(status=status, details=details))
    problem = from_connecting("h:10001", error, ("2.60.0", "3.11.7"))
    assert problem.code == code
    assert says in problem.sentence
    assert "\n" not in problem.sentence
    assert "terminated with" not in problem.sentence


def test_very_long_details_are_cut() -> None:
    output = summary_line(ConnectionError(DISCONNECTED.format(status="UNKNOWN", details="trace " * 1000)))
    assert "UNKNOWN: trace" in output
    assert len(output) <= 400


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionError("ray client connection timeout"), "HEAD_UNREACHABLE"),
        (RuntimeError("Unauthenticated: wrong"), "HEAD_WRONG_TOKEN"),
        (ValueError("whatever\nmore"), "CONNECTOR_FAILED"),
    ],
)
def test_other_ends_of_a_connection(error: Exception, code: str) -> None:
    problem = from_connecting("h:10001", error, ("2.60.0", "3.11.7"))
    assert problem.code == code
    assert "\n" not in problem.sentence


@pytest.mark.parametrize("code", sorted(CONNECTOR_PROBLEMS))
def test_each_code_has_its_next_step(code: str) -> None:
    problem = from_connector("a", "python", code, "it went wrong")
    assert (problem.code, problem.cluster) == (code, "a")
    assert problem.next_step
