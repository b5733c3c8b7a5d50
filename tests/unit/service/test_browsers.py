"""Pages in browsers: sessions, tickets, other origins; a token never stands in an address."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from ray_multicluster_scheduler.control_plane.admin_api.access import expiry
from ray_multicluster_scheduler.control_plane.admin_api.access.access import Access
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Caller, Role
from ray_multicluster_scheduler.control_plane.admin_api.access.sessions import MAX_PER_TOKEN, SessionStore, hash_of
from ray_multicluster_scheduler.control_plane.admin_api.http.middleware import (
    AuthMiddleware,
    Denial,
    OriginGuard,
    is_stream,
    same_origin,
)
from tests.unit.client_api.control_plane import until
from tests.unit.service.event_reader import EventReader
from tests.unit.service.http_service import HttpService

PAGE = "https://fleet.example"
ALICE = Caller("alice", frozenset({Role.VIEWER}), "t1")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with HttpService(tmp_path_factory.mktemp("browser") / "state", auth="token", origins=[PAGE]) as one:
        yield one


def ask(
    service: HttpService, method: str, path: str, headers: Mapping[str, str] = {}
) -> tuple[int, http.client.HTTPMessage, Any]:
    """As a browser does: only with what is given."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
    try:
        sent = b"{}" if method in ("POST", "PUT") else None
        kind = {"Content-Type": "application/json"} if sent else {}
        connection.request(method, path, sent, {**kind, **headers})
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, answer.headers, json.loads(data) if data else None
    finally:
        connection.close()


def log_in(service: HttpService, token: str | None = None) -> str:
    status, headers, _ = ask(service, "POST", "/api/v1/session", {"Authorization": f"Bearer {token or service.token}"})
    assert status == 200
    return headers["set-cookie"].partition(";")[0]


def test_a_session_is_a_cookie_that_no_script_reads(service: HttpService) -> None:
    status, headers, output = ask(service, "POST", "/api/v1/session", {"Authorization": f"Bearer {service.token}"})
    assert (status, output["user"]) == (200, "root-of-tests")
    parts = [one.strip() for one in headers["set-cookie"].split(";")]
    assert parts[0].startswith("rmcs_session=")
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(parts)
    assert "Secure" not in parts, "over plain HTTP a browser would not keep it"
    assert headers["cache-control"] == "no-store"
    cookie = parts[0]
    assert service.token.rpartition("_")[2] not in str(headers) + str(output)
    assert ask(service, "GET", "/api/v1/fleet", {"Cookie": f"other=1; {cookie}"})[0] == 200
    own = {"Cookie": cookie, "Origin": service.address}
    assert ask(service, "DELETE", "/api/v1/session", own)[0] == 200
    assert ask(service, "GET", "/api/v1/fleet", {"Cookie": cookie})[0] == 401
    assert ask(service, "GET", "/healthz", {"Cookie": cookie})[0] == 200


def test_a_session_begins_with_a_token_and_not_with_another_session(service: HttpService) -> None:
    cookie = log_in(service)
    assert ask(service, "POST", "/api/v1/session", {"Cookie": cookie, "Origin": service.address})[0] == 403
    assert ask(service, "POST", "/api/v1/session")[0] == 401


def test_a_session_ends_with_its_token(service: HttpService) -> None:
    token = service.token_for("alice", Role.VIEWER)
    cookie = log_in(service, token)
    assert ask(service, "GET", "/api/v1/fleet", {"Cookie": cookie})[2]["you"]["user"] == "alice"
    service.book.revoke(token.split("_")[1])
    assert ask(service, "GET", "/api/v1/fleet", {"Cookie": cookie})[0] == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"Origin": "{own}"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "{own}"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Origin": "{own}"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": PAGE}, 403),
    ],
)
def test_with_a_cookie_only_our_own_pages_change_anything(
    service: HttpService, headers: dict[str, str], status: int
) -> None:
    sent = {
        name: value.replace("{own}", service.address).replace("{port}", str(service.port))
        for name, value in headers.items()
    }
    sent["Cookie"] = log_in(service)
    assert ask(service, "POST", "/api/v1/queue/owner/nobody/pause", sent)[0] == status
    assert ask(service, "POST", "/api/v1/ticket", sent)[0] == status


@pytest.mark.parametrize("query", ["token={token}", "access_token=x", "Token=", "anything={token}", "a=1&auth=x"])
def test_a_token_in_the_address_is_refused_with_a_sentence(service: HttpService, query: str) -> None:
    path = f"/api/v1/fleet?{query.replace('{token}', service.token)}"
    for headers in ({}, {"Authorization": f"Bearer {service.token}"}):
        status, _, output = ask(service, "GET", path, headers)
        assert status == 400
        assert output["code"] == "BAD_REQUEST"
        assert service.token not in str(output)


@pytest.mark.parametrize("header", ["Basic abc", "Bearer", "Bearer ", "rmcs_a_b", "Bearer \xff"])
def test_invalid_bearer_token(service: HttpService, header: str) -> None:
    status, headers, output = ask(service, "GET", "/api/v1/fleet", {"Authorization": header})
    assert (status, headers["www-authenticate"], output["error"]) == (401, "Bearer", "NotAllowedError")


def test_nothing_that_a_token_opened_lasts_longer_than_the_token(service: HttpService) -> None:
    bearer = {"Authorization": f"Bearer {service.token_for('ann', Role.VIEWER, expires_at=time.time() + 20)}"}
    status, headers, output = ask(service, "POST", "/api/v1/session", bearer)
    assert status == 200
    assert 10 < output["expires_in"] <= 20
    most = next(one for one in headers["set-cookie"].split("; ") if one.startswith("Max-Age="))
    assert 10 <= int(most.partition("=")[2]) <= 20
    assert 10 < ask(service, "POST", "/api/v1/ticket", bearer)[2]["expires_in"] <= 20
    _, headers, output = ask(service, "POST", "/api/v1/session", {"Authorization": f"Bearer {service.token}"})
    assert output["expires_in"] == 43200
    assert "Max-Age=43200" in headers["set-cookie"]


def test_a_ticket_is_for_streams_only(service: HttpService) -> None:
    bearer = {"Authorization": f"Bearer {service.token}"}
    status, headers, output = ask(service, "POST", "/api/v1/ticket", bearer)
    assert (status, output["expires_in"], headers["cache-control"]) == (200, 30.0, "no-store")
    assert ask(service, "GET", f"/api/v1/fleet?ticket={output['ticket']}")[0] == 403
    assert ask(service, "GET", f"/api/v1/events/none?ticket={output['ticket']}")[0] not in (401, 403)
    assert ask(service, "GET", f"/api/v1/events/none?ticket={output['ticket']}")[0] == 401, "it was used"


def scope(kind: str = "websocket", path: str = "/api/v1/ws", query: str = "", **headers: str) -> dict[str, Any]:
    return {
        "type": kind,
        "path": path,
        "method": "GET",
        "scheme": "ws" if kind == "websocket" else "http",
        "query_string": query.encode(),
        "headers": [
            (b"host", b"127.0.0.1:8000"),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ],
    }


def test_a_web_socket_takes_a_ticket_once_or_a_session_of_our_own_page(service: HttpService) -> None:
    access = Access(service.book)
    auth = AuthMiddleware(lambda *_: None, access)  # type: ignore[arg-type, return-value]  # it is not called
    caller = service.book.check(service.token)
    assert isinstance(caller, Caller)
    ticket, session = access.tickets.make(caller), access.sessions.make(caller)
    assert auth.caller(scope(query=f"ticket={ticket}")) == caller
    for one in (
        scope(query=f"ticket={ticket}"),
        scope(query="ticket=nonsense"),
        scope(),
        scope(cookie="rmcs_session=nonsense"),
    ):
        found = auth.caller(one)
        assert isinstance(found, Denial)
        assert found.status == 401
    cookie = f"rmcs_session={session}"
    found = auth.caller(scope(cookie=cookie, origin="http://127.0.0.1:8000"))
    assert found == caller._replace(session=hash_of(session))
    for origin in ("http://evil.example", "http://127.0.0.1:8001", "null"):
        found = auth.caller(scope(cookie=cookie, origin=origin))
        assert isinstance(found, Denial)
        assert found.status == 403
    assert auth.caller(scope(authorization=f"Bearer {service.token}")) == caller


async def test_a_web_socket_that_is_refused_is_never_opened(service: HttpService) -> None:
    async def never(*_: object) -> None:
        raise AssertionError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    access = Access(service.book)
    guarded = OriginGuard(AuthMiddleware(never, access), access)
    await guarded(scope(), never, send)  # type: ignore[arg-type]  # nothing is received
    assert [one["type"] for one in sent] == ["websocket.close"]
    sent.clear()
    await guarded({**scope(), "extensions": {"websocket.http.response": {}}}, never, send)  # type: ignore[arg-type]  # as above
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 401)
    sent.clear()
    await guarded({**scope(origin="http://evil.example")}, never, send)  # type: ignore[arg-type]  # as above
    assert [one["type"] for one in sent] == ["websocket.close"]


def test_stream_detection() -> None:
    assert is_stream(scope())
    assert is_stream(scope("http", "/api/v1/events"))
    assert is_stream(scope("http", "/api/v1/events/telemetry"))
    assert not is_stream(scope("http", "/api/v1/eventsx"))
    assert not is_stream({**scope("http", "/api/v1/events"), "method": "POST"})
    assert not same_origin(scope("http", "/"))


def test_passes_are_for_a_while_and_for_as_long_as_their_token() -> None:
    now, good = [0.0], [True]
    sessions = SessionStore(30.0, lambda _: good[0], lambda: now[0])
    first, second, third = (sessions.make(ALICE) for _ in range(3))
    assert sessions.use(first) == ALICE
    assert sessions.use(first) is None
    now[0] = 29.0
    assert sessions.check(second) == ALICE
    good[0] = False
    assert sessions.check(second) is None
    good[0], now[0] = True, 30.0
    assert sessions.check(third) is None
    sessions.make(ALICE)
    assert len(sessions._sessions) == 1


def test_pages_of_the_cors_origins_are_let_in_and_no_others(service: HttpService) -> None:
    """As the setting cors_origins says."""
    preflight = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    status, headers, _ = ask(service, "OPTIONS", "/api/v1/items", {"Origin": PAGE, **preflight})
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (204, PAGE, "Origin")
    assert "Authorization" in headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in headers
    for origin in ("https://evil.example", "http://fleet.example", f"{PAGE}:444", "null", "http://127.0.0.1:3000"):
        status, headers, _ = ask(service, "OPTIONS", "/api/v1/items", {"Origin": origin, **preflight})
        assert status >= 400
        assert "access-control-allow-origin" not in headers
    bearer = {"Authorization": f"Bearer {service.token}"}
    status, headers, _ = ask(service, "GET", "/api/v1/fleet", {"Origin": PAGE, **bearer})
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE)
    status, headers, _ = ask(service, "GET", "/api/v1/fleet", {"Origin": PAGE})
    assert (status, headers["access-control-allow-origin"]) == (401, PAGE), "it may read why"
    assert ask(service, "GET", "/api/v1/fleet", {"Origin": "https://evil.example", **bearer})[0] == 403


def test_the_whole_door_costs_microseconds(service: HttpService) -> None:
    auth = AuthMiddleware(lambda *_: None, Access(service.book))  # type: ignore[arg-type, return-value]  # it is not called
    asked = scope("http", "/api/v1/items", authorization=f"Bearer {service.token}", content_type="application/json")
    best = 1.0
    for _ in range(50):  # short ones: others want the processor, too
        began = time.perf_counter()
        for _ in range(100):
            auth.caller(asked)
        best = min(best, (time.perf_counter() - began) / 100)
    assert best < 20e-6


def ended(service: HttpService, cookie: str) -> None:
    assert ask(service, "DELETE", "/api/v1/session", {"Cookie": cookie, "Origin": service.address})[0] == 200


def test_the_end_of_a_session_ends_the_streams_that_came_with_it(service: HttpService) -> None:
    cookie, other = log_in(service), log_in(service)
    own = {"Cookie": cookie, "Origin": service.address}
    ticket = ask(service, "POST", "/api/v1/ticket", own)[2]["ticket"]
    by_cookie = EventReader(service.port, "/api/v1/events", {"Cookie": cookie})
    by_ticket = EventReader(service.port, f"/api/v1/events?ticket={ticket}")
    others = EventReader(service.port, "/api/v1/events", {"Cookie": other})
    with connect(f"ws://127.0.0.1:{service.port}/api/v1/ws", additional_headers=own) as line:
        until(lambda: len(service.plane.runtime.event_publisher.hub) == 4)
        ended(service, cookie)
        with pytest.raises(ConnectionClosed, match="1008"):
            line.recv(timeout=30)
    for reader in (by_cookie, by_ticket):
        with pytest.raises(EOFError):
            reader.next()
        reader.close()
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 1)
    others.close()
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 0)


def test_a_ticket_of_a_session_that_is_over_opens_nothing(service: HttpService) -> None:
    cookie = log_in(service)
    own = {"Cookie": cookie, "Origin": service.address}
    ticket = ask(service, "POST", "/api/v1/ticket", own)[2]["ticket"]
    ended(service, cookie)
    assert ask(service, "GET", f"/api/v1/events?ticket={ticket}")[0] == 401


def test_the_end_of_a_session_ends_its_long_poll(service: HttpService) -> None:
    cookie, answers = log_in(service), list[int]()
    own = {"Cookie": cookie, "Origin": service.address, "Content-Type": "application/json"}

    def poll() -> None:
        first = service.post("/api/v1/wait", {"client": "poll", "timeout": 0})
        output = json.dumps({"client": "poll", "mailbox": first["mailbox"], "timeout": 20}).encode()
        answers.append(service.ask("POST", "/api/v1/wait", data=output, token="", headers=own)[0])

    polling = threading.Thread(target=poll)
    polling.start()
    time.sleep(0.3)
    ended(service, cookie)
    polling.join(60)
    assert answers == [401]


def test_a_session_that_is_too_old_does_not_last() -> None:
    now = [0.0]
    sessions = SessionStore(10.0, lambda _: True, lambda: now[0])
    name = hash_of(sessions.make(ALICE))
    assert sessions.is_valid(name)
    assert sessions.is_valid(None)
    now[0] = 10.0
    assert not sessions.is_valid(name)


def test_one_token_does_not_take_the_sessions_of_all() -> None:
    sessions, ended = SessionStore(10.0, lambda _: True), list[bytes]()
    sessions.on_ended(ended.append)
    bob = sessions.make(Caller("bob", frozenset({Role.VIEWER}), "t2"))
    first, *others = [sessions.make(ALICE) for _ in range(MAX_PER_TOKEN + 1)]
    assert (sessions.check(first), ended) == (None, [hash_of(first)])
    assert all(sessions.check(one) for one in (bob, *others))


def test_one_token_does_not_take_the_readers_of_all(service: HttpService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "READERS_PER_TOKEN", 2)
    token, other = service.token_for("alice", Role.VIEWER), service.token_for("bob", Role.VIEWER)
    bearer = {"Authorization": f"Bearer {token}"}
    readers = [EventReader(service.port, "/api/v1/events", bearer) for _ in range(2)]
    status, _, output = ask(service, "GET", "/api/v1/events", bearer)
    assert status == 503
    assert "has 2 readers of events, and gets no more" in output["message"]
    with pytest.raises(InvalidStatus, match="503"):
        connect(f"ws://127.0.0.1:{service.port}/api/v1/ws", additional_headers=bearer)
    readers.append(EventReader(service.port, "/api/v1/events", {"Authorization": f"Bearer {other}"}))
    assert readers[-1].response.status == 200
    assert len(service.plane.runtime.event_publisher.hub) == 3
    for reader in readers:
        reader.close()
    until(lambda: len(service.plane.runtime.event_publisher.hub) == 0 and not service.app.state.access.event_readers)
