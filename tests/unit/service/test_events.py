"""What happens is reported over HTTP when it is durable: in order, without gaps, also to a returning reader."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from ray_multicluster_scheduler.common.clock import SystemClock
from ray_multicluster_scheduler.control_plane.admin_api.events import event_socket
from ray_multicluster_scheduler.control_plane.runtime.event_publisher import ClusterChangeDetector
from ray_multicluster_scheduler.scheduler.lifecycle import events
from ray_multicluster_scheduler.scheduler.scheduler_core.events import event_hub
from tests.unit.client_api.control_plane import until
from tests.unit.service.event_reader import EventReader
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HttpService]:
    with HttpService(tmp_path) as running:
        yield running


class Read(Protocol):
    def __call__(self, path: str, headers: dict[str, str] | None = None) -> EventReader: ...


@pytest.fixture
def read(service: HttpService) -> Iterator[Read]:
    readers = []

    def opened(path: str, headers: dict[str, str] | None = None) -> EventReader:
        readers.append(EventReader(service.port, path, headers))
        return readers[-1]

    yield opened
    for one in readers:
        one.close()


def listening(service: HttpService, number: int) -> None:
    """Until so many readers are known."""
    until(lambda: len(service.plane.runtime.event_publisher.hub) == number)


def finish(service: HttpService, task_id: str) -> None:
    until(lambda: task_id in [one.task_id for one in service.plane.placed])
    item = service.plane.runtime.item(task_id)
    assert item is not None
    service.plane.finish(item)
    until(lambda: service.get(f"/api/v1/items/{task_id}")["state"] == "SUCCEEDED")


def socket(service: HttpService, query: str = "") -> ClientConnection:
    return connect(f"ws://127.0.0.1:{service.port}/api/v1/ws{query}", open_timeout=10)


def test_all_events_of_an_item_are_published_in_order_and_without_gaps(service: HttpService, read: Read) -> None:
    reader = read("/api/v1/events")
    assert reader.response.status == 200
    assert reader.response.headers["content-type"] == "text/event-stream; charset=utf-8"
    listening(service, 1)
    service.submit("t1")
    finish(service, "t1")
    reported = reader.until(state="SUCCEEDED")
    of_item = [one for one in reported if one.get("id") == "t1"]
    states = [one["state"] for one in of_item if one["type"] == "transition"]
    assert list(dict.fromkeys(states)) == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING", "SUCCEEDED"]
    assert [one["step"] for one in of_item if one["type"] == "transition"] == list(range(1, len(states) + 1))
    decisions = [one for one in of_item if one["type"] == "decision"]
    assert [one["cluster"] for one in decisions] == ["mac"]
    assert [one["cluster"] for one in decisions[0]["candidates"]] == ["mac"]
    numbers = [one["number"] for one in reported]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert of_item[0]["number"] < decisions[0]["number"] < of_item[-1]["number"]
    reader.close()
    listening(service, 0)


def test_event_reader_resumes_after_its_last_id(service: HttpService, read: Read) -> None:
    service.submit("t1")
    finish(service, "t1")
    everything = read("/api/v1/events?since=0").until(state="SUCCEEDED")
    half = everything[len(everything) // 2]["number"]
    reader = read("/api/v1/events", {"Last-Event-ID": str(half)})
    number, first = reader.next()
    assert number == first["number"] == half + 1
    rest = [first, *reader.until(state="SUCCEEDED")]
    assert rest == [one for one in everything if one["number"] > half]
    service.submit("t2")
    assert reader.until(id="t2")[-1]["number"] > rest[-1]["number"]


def test_numbers_go_on_after_a_restart_and_so_does_a_reader(service: HttpService, read: Read) -> None:
    service.submit("t1")
    finish(service, "t1")
    reader = read("/api/v1/events?since=0")
    before = reader.until(state="SUCCEEDED")
    service.restart()
    service.submit("t2")
    finish(service, "t2")
    last = before[-1]["number"]
    after = read("/api/v1/events", {"Last-Event-ID": str(last)}).until(id="t2", state="SUCCEEDED")
    assert [one["number"] for one in after] == list(range(last + 1, last + 1 + len(after)))
    again = read("/api/v1/events?since=0").until(id="t2", state="SUCCEEDED")
    assert again == [*before, *after]


def test_more_than_one_page_of_the_past_is_sent_whole(
    service: HttpService, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray_multicluster_scheduler.control_plane.runtime import event_publisher

    monkeypatch.setattr(event_publisher, "_PAGE_SIZE", 7)
    for number in range(12):
        service.submit(f"t{number}")
        finish(service, f"t{number}")
    reported = read("/api/v1/events?since=0").until(id="t11", state="SUCCEEDED")
    assert [one["number"] for one in reported] == list(range(1, len(reported) + 1))


def test_only_what_is_wanted_is_sent(service: HttpService, read: Read) -> None:
    reader = read("/api/v1/events?types=transition&owner=ann,eve&state=QUEUED,SUCCEEDED")
    listening(service, 1)
    service.submit("t1", owner="bob")
    service.submit("t2", owner="ann")
    finish(service, "t1")
    finish(service, "t2")
    reported = [reader.next()[1] for _ in range(2)]
    assert [(one["id"], one["state"]) for one in reported] == [("t2", "QUEUED"), ("t2", "SUCCEEDED")]


def test_no_number_comes_before_the_snapshot(service: HttpService, read: Read) -> None:
    """A reader that is cut off in between would come back with it, and get no snapshot."""
    service.submit("t")
    reader = read("/api/v1/events?snapshot=true")
    lines = [reader.response.readline() for _ in range(3)]
    assert [line.partition(b":")[0] for line in lines] == [b"retry", b"id", b"data"]
    assert json.loads(lines[2][6:])["type"] == "snapshot"
    number = int(lines[1][4:])
    again = read("/api/v1/events?snapshot=true&types=action", {"Last-Event-ID": str(number)})
    assert [again.response.readline() for _ in range(2)][1] == f"id: {number}\n".encode()


def test_a_snapshot_comes_first_and_then_what_changes(service: HttpService, read: Read) -> None:
    service.submit("t1", cpus=8)
    until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
    service.submit("t2", cpus=8)
    until(lambda: service.get("/api/v1/items/t2")["state"] == "QUEUED")
    reader = read("/api/v1/events?snapshot=true")
    number, first = reader.next()
    assert (first["type"], number) == ("snapshot", first["number"])
    assert first["counts"] == {"RUNNING": 1, "QUEUED": 1}
    assert [(one["id"], one["state"]) for one in first["items"]] == [("t2", "QUEUED"), ("t1", "RUNNING")]
    assert [one["name"] for one in first["clusters"]] == ["mac"]
    listening(service, 1)
    finish(service, "t1")
    reported = reader.until(id="t2", state="RUNNING")
    assert reported[0]["number"] == first["number"] + 1


def test_agents_of_other_control_planes_are_reported_once(service: HttpService, read: Read) -> None:
    reader, links = read("/api/v1/events?types=cluster"), service.plane.runtime.links
    listening(service, 1)
    assert service.get("/api/v1/clusters/mac")["notes"] == []
    service.plane.runtime.call_and_wait(lambda: links._launcher.others.update(mac=("cp7", "cp9")))
    for _ in range(3):
        service.post("/api/v1/clusters/mac/check")
    note = "agents of other control planes ran there when ours was started (cp7, cp9); each keeps its own limits only"
    reported = service.get("/api/v1/clusters/mac")
    assert (reported["notes"], reported["other_control_planes"], reported["state"]) == ([note], ["cp7", "cp9"], "UP")
    received = reader.until(other_control_planes=["cp7", "cp9"])[-1:]
    service.post("/api/v1/clusters/mac/cordon")
    received += reader.until(cordoned=True)
    assert [(one["cordoned"], one["sentence"]) for one in received] == [(False, note), (True, note)]


def test_changes_of_a_cluster_are_published_and_kept(service: HttpService, read: Read) -> None:
    reader = read("/api/v1/events?types=cluster")
    listening(service, 1)
    service.post("/api/v1/clusters/mac/cordon")
    reported = reader.until(cordoned=True)[-1]
    assert (reported["type"], reported["cluster"]) == ("cluster", "mac")
    service.plane.post(events.SnapshotFailed("mac", "CLUSTER_UNREACHABLE", "nobody answers"))
    gone = reader.until(cordoned=True, type="cluster")[-1]
    assert (gone["before"], gone["state"]) == (reported["state"], "CLUSTER_UNREACHABLE")
    service.post("/api/v1/clusters/mac/uncordon")
    reader.until(cordoned=False)
    numbers = [one["number"] for one in read("/api/v1/events?types=cluster&since=0").until(cordoned=False)]
    assert numbers == sorted(numbers)
    assert len(numbers) >= 3


def test_a_cluster_that_nobody_queries_is_no_event(service: HttpService) -> None:
    """Its data is old after some time, and new after a query; only an answer that is missing is an event."""
    facts: dict[str, Any] = {"state": "UP", "sentence": "", "stale": False, "cordoned": False, "paused": None}
    old = facts | {"state": "STALE_SNAPSHOT", "sentence": "its last snapshot is 16 s old", "stale": True}
    missing = old | {"sentence": "its last snapshot is 16 s old: connection refused", "stale": False}
    rows = [facts, old, facts, old, old | {"cordoned": True}, old, missing, facts]
    noted: list[dict[str, Any]] = []
    changes = ClusterChangeDetector(
        lambda: {"mac": rows[0]}, lambda note: noted.append(json.loads(note.document)), SystemClock()
    )
    while len(rows) > 1:
        rows.pop(0)
        changes.check()
    assert [(one["before"], one["state"], one["cordoned"]) for one in noted] == [
        ("UP", "UP", True),
        ("UP", "UP", False),
        ("UP", "STALE_SNAPSHOT", False),
        ("STALE_SNAPSHOT", "UP", False),
    ]
    assert "stale" not in noted[0]


def test_a_probe_of_a_cluster_whose_breaker_is_open_is_an_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"breaker_failures": 1, "breaker_recovery_s": 0.5, "snapshot_interval_s": 0.2}
    with HttpService(tmp_path / "state", **settings) as service:
        service.submit("t1", cpus=8)
        until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
        monkeypatch.setattr(service.plane, "refresh", lambda _: None)
        service.submit("t2", cpus=8)
        failed = events.SnapshotFailed("mac", "CLUSTER_UNREACHABLE", "nobody answers")
        service.plane.post(events.LinkClosed("mac", "it ended"))
        service.plane.post(failed)
        reader = EventReader(service.port, "/api/v1/events?types=cluster&since=0")
        try:
            probed = reader.until(state="BREAKER_HALF_OPEN")[-1]
            assert probed["before"] == "BREAKER_OPEN"
            assert "is being tried again" in probed["sentence"]
            assert service.get("/api/v1/clusters/mac?refresh=false")["state"] == "BREAKER_HALF_OPEN"
            service.plane.post(failed)
            assert reader.until(before="BREAKER_HALF_OPEN")[-1]["state"] == "BREAKER_OPEN"
        finally:
            reader.close()


def test_load_is_published_without_a_number_and_is_not_repeated(service: HttpService, read: Read) -> None:
    reader = read("/api/v1/events?types=telemetry")
    listening(service, 1)
    service.get("/api/v1/clusters?refresh=true")
    number, reported = reader.next()
    assert number is None
    assert (reported["type"], reported["cluster"], reported["total"]["CPU"]) == ("telemetry", "mac", 8)


def test_a_reader_that_does_not_read_slows_nobody_and_learns_what_it_missed(
    service: HttpService, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_hub, "MAX_PENDING", 50)
    frozen = read("/api/v1/events")
    quick = read("/api/v1/events?types=action")
    listening(service, 2)
    hub = service.plane.runtime.event_publisher.hub
    note = {"action": "test", "text": "x" * 200_000}

    def tell(count: int) -> None:
        from ray_multicluster_scheduler.control_plane.store import OperationRecord

        document = json.dumps(note).encode()
        for _ in range(count):
            service.plane.runtime.event_publisher.note(OperationRecord("action", "x", 1.0, "ann", document))

    for _ in range(30):
        before = hub.number
        service.plane.runtime.call_soon(tell, 20)
        for _ in range(20):
            assert quick.next()[1]["action"] == "test"
        assert hub.number == before + 20
    reported = [frozen.next()[1] for _ in range(5)]
    assert reported[0]["action"] == "test"
    while reported[-1]["type"] != "missed":
        reported.append(frozen.next()[1])
    missed = reported[-1]
    assert missed["from"] == reported[-2]["number"] + 1
    assert frozen.next()[1]["number"] == missed["to"] + 1


def test_beyond_the_limit_readers_are_refused(service: HttpService, read: Read) -> None:
    service.plane.runtime.event_publisher.hub.most = 1
    read("/api/v1/events")
    listening(service, 1)
    refused = read("/api/v1/events")
    assert refused.response.status == 503
    assert json.loads(refused.response.read())["error"] == "ServiceUnavailableError"
    with pytest.raises(InvalidStatus, match="503"):
        socket(service)
    assert len(service.plane.runtime.event_publisher.hub) == 1


@pytest.mark.parametrize(
    ("query", "word"),
    [("types=x", "types"), ("state=x", "state"), ("since=x", "since"), ("snapshot=x", "snapshot")],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(service: HttpService, read: Read, query: str, word: str) -> None:
    status, answer = service.ask("GET", f"/api/v1/events?{query}")
    assert status == 422
    assert word in answer["message"]
    with pytest.raises(InvalidStatus, match="422"):
        socket(service, f"?{query}")
    assert len(service.plane.runtime.event_publisher.hub) == 0


def test_a_number_of_the_future_is_reported_and_it_goes_on(service: HttpService, read: Read) -> None:
    service.submit("t1")
    finish(service, "t1")
    reader = read("/api/v1/events?since=100000")
    number, first = reader.next()
    assert first["type"] == "reset"
    assert number == first["number"] < 100
    service.submit("t2")
    assert reader.until(id="t2")[0]["number"] == number + 1


@pytest.mark.parametrize("digits", [21, 5_000])
def test_a_number_with_very_many_digits_is_one_that_nobody_has_had(
    service: HttpService, read: Read, digits: int
) -> None:
    long = "9" * digits
    assert read("/api/v1/events", {"Last-Event-ID": long}).next()[1]["type"] == "reset"
    with socket(service, f"?since={long}") as line:
        assert message_in(line)["type"] == "reset"


async def test_a_handshake_that_fails_leaves_no_reader(service: HttpService) -> None:
    hub = service.plane.runtime.event_publisher.hub

    class Gone:
        def __init__(self) -> None:
            self.app, self.scope = service.app, {"caller": service.app.state.access.local_user}

        async def accept(self) -> None:
            raise OSError("gone")

    line = event_socket.EventSocket(Gone(), service.plane.runtime, None)  # type: ignore[arg-type]  # as far as it gets
    service.plane.runtime.call_and_wait(lambda: line.begin({}))
    assert len(hub) == 1
    with pytest.raises(OSError, match="gone"):
        await asyncio.wrap_future(service.plane.runtime.start(line.run()))
    assert len(hub) == 0


def test_a_number_that_is_none_is_refused(service: HttpService, read: Read) -> None:
    assert read("/api/v1/events", {"Last-Event-ID": "x"}).response.status == 422


# ---- over a WebSocket


def message_in(line: ClientConnection) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line.recv(timeout=20))
    return answer


def test_a_socket_sends_the_same_and_answers_ping(service: HttpService, read: Read) -> None:
    with socket(service, "?since=0&types=transition") as line:
        line.send("ping")
        assert message_in(line) == {"type": "pong"}
        service.submit("t1")
        reported = [message_in(line) for _ in range(2)]
        assert [(one["id"], one["state"]) for one in reported] == [("t1", "PENDING"), ("t1", "QUEUED")]
    listening(service, 0)


def test_a_socket_may_change_what_it_wants_and_goes_on_from_a_number(service: HttpService, read: Read) -> None:
    with socket(service, "?types=action") as line:
        service.submit("t1")
        finish(service, "t1")
        line.send(json.dumps({"type": "subscribe", "id": ["t1"], "types": ["transition"], "since": 0, "batch": True}))
        reported = message_in(line)
        assert reported["type"] == "events"
        assert [one["state"] for one in reported["events"]][-1] == "SUCCEEDED"
        line.send(json.dumps({"type": "subscribe", "snapshot": True}))
        assert message_in(line)["type"] == "snapshot"
        assert len(service.plane.runtime.event_publisher.hub) == 1


def test_nonsense_over_a_socket_is_answered_and_changes_nothing(service: HttpService, read: Read) -> None:
    with socket(service, "?types=transition") as line:
        for text in (
            "what",
            "[]",
            '{"type": "subscribe", "types": ["x"]}',
            '{"type": "subscribe", "since": -1}',
            "{" * 50_000,
        ):
            line.send(text)
            answer = message_in(line)
            assert answer["type"] == "error"
            assert answer["next_step"]
        service.submit("t1")
        assert message_in(line)["id"] == "t1"


def test_a_socket_hears_that_all_is_well(service: HttpService, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_socket, "HEARTBEAT_S", 0.1)
    with socket(service) as line:
        assert message_in(line) == {"type": "heartbeat", "number": service.plane.runtime.event_publisher.hub.number}


def test_readers_are_let_go_when_the_service_stops(service: HttpService, read: Read) -> None:
    reader = read("/api/v1/events")
    with socket(service) as line:
        listening(service, 2)
        began = time.monotonic()
        service.stop()
        with pytest.raises(EOFError):
            reader.until(id="never")
        with pytest.raises(ConnectionClosed):
            line.recv(timeout=30)
        assert time.monotonic() - began < 30
    service.start()
