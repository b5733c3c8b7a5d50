"""Frames that no browser sends: what cannot be understood is answered, what breaks the rules is cut off, and the log of
the service stays quiet."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.raw_websocket import BINARY, CLOSE, CONTINUES, TEXT, RawWebSocket, frame

pytestmark = pytest.mark.usefixtures("leak_check")
PATH = "/api/v1/ws"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path, auth="token") as service:
        yield service


@pytest.fixture
def line(service: HttpService) -> Iterator[RawWebSocket]:
    line = RawWebSocket(service.port, PATH, {"Authorization": f"Bearer {service.token}"})
    assert line.status == 101
    yield line
    line.close()


def message_in(line: RawWebSocket) -> dict[str, object]:
    received = line.hear(10)
    assert received is not None
    assert received.opcode == TEXT, received
    output: dict[str, object] = json.loads(received.payload)
    return output


@pytest.mark.parametrize("payload", [b"", b"ping", b"\xff\x00", b'{"type": "subscribe"}'])
def test_bytes_are_answered_with_an_error_and_it_goes_on(
    service: HttpService, line: RawWebSocket, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    line.say(frame(BINARY, payload))
    answer = message_in(line)
    assert (answer["type"], f"{len(payload)} bytes" in str(answer["message"])) == ("error", True)
    line.say(frame(TEXT, b"ping"))
    assert message_in(line) == {"type": "pong"}
    assert len(service.plane.runtime.event_publisher.hub) == 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ([frame(TEXT, b"ping\xc3")], 1007),
        ([frame(TEXT, b"p", fin=False), frame(CONTINUES, b"\xff")], 1007),
        ([frame(TEXT, b"\xff") + frame(TEXT, b"ping") + frame(TEXT, b"\xff")], 1007),
        ([frame(TEXT, b"ping", masked=False)], 1002),
        ([frame(TEXT, b"a", says=2**40)], 1009),
    ],
)
def test_what_breaks_the_rules_is_closed_quietly(
    service: HttpService, line: RawWebSocket, wrong: list[bytes], code: int, caplog: pytest.LogCaptureFixture
) -> None:
    for one in wrong:
        line.say(one)
    received = line.hear(10)
    assert received is not None
    assert (received.opcode, received.close_code) == (CLOSE, code)
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 0)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        (PATH, {}, 401),
        (f"{PATH}?types=nothing", None, 422),
        (PATH, {"Origin": "http://elsewhere.example"}, 403),
        (f"{PATH}?id={'a' * 10_000}", None, 414),
        (PATH, {"Sec-WebSocket-Protocol": "a" * 10_000}, 431),
    ],
)
def test_a_refused_handshake_is_no_error_of_the_service(
    service: HttpService,
    path: str,
    headers: dict[str, str] | None,
    status: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    line = RawWebSocket(
        service.port, path, {"Authorization": f"Bearer {service.token}"} if headers is None else headers
    )
    assert line.status == status
    line.close()
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
