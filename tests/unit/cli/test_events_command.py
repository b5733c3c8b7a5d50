"""`rmcs events`: the past, and what comes, with a service behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler.cli.commands import events
from ray_multicluster_scheduler.cli.service.client import Service
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(service: HttpService) -> HttpService:
    service.submit("t1")
    service.submit("t2")
    until(lambda: service.get("/api/v1/items/t2")["state"] == "RUNNING")
    return service


def events_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_past(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "--id", "t1", "--types", "transition", "-o", "json")
    assert done.code == 0
    received = events_in(done.out)
    assert list(dict.fromkeys(one["state"] for one in received)) == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING"]
    assert received[0]["at"].endswith("Z")
    after = rmcs("events", "--id", "t1", "--types", "transition", "-o", "json", "--since", str(received[1]["number"]))
    assert events_in(after.out) == received[2:]
    documents = yaml.safe_load_all(rmcs("events", "--id", "t1", "--types", "transition", "-o", "yaml").out)
    assert list(documents) == received
    nothing = rmcs("events", "--last", "0")
    assert (nothing.code, nothing.out, nothing.err) == (0, "", ""), "that was asked for"


def test_unknown_filter_values_are_rejected_and_ids_may_be_short(service: HttpService, rmcs: Rmcs) -> None:
    for option, word in (("--types", "bogus"), ("--state", "bogus"), ("--kind", "bogus")):
        done = rmcs("events", option, word)
        assert (done.code, done.out) == (2, "")
        assert "bogus" in done.err
    assert {
        one["id"] for one in events_in(rmcs("events", "--id", "last", "--types", "transition", "-o", "json").out)
    } == {"t2"}
    done = rmcs("events", "--id", "gone-long-ago")
    assert (done.code, done.out) == (102, "")
    assert "gone-long-ago" in done.err


def test_the_last_of_one_item_however_much_came_since(service: HttpService, rmcs: Rmcs) -> None:
    before = events_in(rmcs("events", "--id", "t1", "-o", "json").out)
    for at in range(60):
        service.submit(f"x{at}", cpus=0)
    until(lambda: service.get("/api/v1/items/x59")["state"] == "RUNNING")
    assert events_in(rmcs("events", "--id", "t1", "-o", "json").out) == before
    assert events_in(rmcs("events", "--id", "t1", "--last", "2", "-o", "json").out) == before[-2:]


def test_numbers_that_are_gone_are_not_counted(service: HttpService, rmcs: Rmcs) -> None:
    service.plane.end(CallResult("t2", 1, "succeeded"))
    until(lambda: service.get("/api/v1/items/t2")["state"] == "SUCCEEDED")
    until(lambda: service.ask("DELETE", "/api/v1/items/t2")[0] == 200)  # something of it may be still to be done
    for count in (1, 2, 3):
        assert len(events_in(rmcs("events", "--last", str(count), "-o", "json").out)) == count


class TestSinceATime:
    def test_what_came_since(self, service: HttpService, rmcs: Rmcs) -> None:
        received = events_in(rmcs("events", "--last", "100", "-o", "json").out)
        for at in {one["at"] for one in received}:
            after = events_in(rmcs("events", "--since", at, "-o", "json").out)
            assert after == [one for one in received if one["at"] >= at]
        assert events_in(rmcs("events", "--since", "12h", "-o", "json").out) == received
        assert events_in(rmcs("events", "--since", "12h", "--id", "t2", "-o", "json").out) == [
            one for one in received if one.get("id") == "t2"
        ]
        later = rmcs("events", "--since", "2100-01-01")
        assert (later.code, later.out) == (0, "")
        assert "there is no event after number " in later.err

    def test_bisection_needs_few_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where most numbers are gone, and some events do not say when they came."""
        known = {number: None if number % 7 == 0 else float(number) for number in range(1, 100_001) if number % 3}
        asked: list[int] = []

        def past(_: object, begin: int, newest: int, wanted: object) -> Iterator[dict[str, Any]]:
            asked.append(begin)
            yield from ({"number": one, "at": known[one]} for one in range(begin + 1, newest + 1) if one in known)

        monkeypatch.setattr(events, "between", past)
        unavailable: Any = None
        for moment in (0.0, 1.0, 500.5, 77_777.0, 99_999.5, 200_000.0):
            asked.clear()
            begin = events._number_before(unavailable, moment, 100_000)
            old, new = ([one["at"] for one in past(None, *at, None)] for at in ((0, begin), (begin, 100_000)))
            assert all(at is None or at < moment for at in old)
            assert all(at is None or at >= moment for at in new)
            assert len(asked) < 25

    @pytest.mark.parametrize("text", ["soon", "-1", "12x", ""])
    def test_invalid_since_values(self, rmcs: Rmcs, text: str) -> None:
        done = rmcs("events", f"--since={text}")
        assert done.code == 2
        assert "no number of an event, and no time; write 1234, 12h or 2031-05-01T08:00." in " ".join(done.err.split())


def test_no_matching_event_prints_a_message(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "--since", "999999")
    assert (done.code, done.out) == (0, "")
    assert "there is no event after number 999999: the newest one is number " in done.err
    done = rmcs("events", "--state", "FAILED")
    assert (done.code, done.out) == (0, "")
    assert "no event matches" in done.err


def test_telemetry_alone_has_no_past(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "--types", "telemetry")
    assert (done.code, done.out) == (0, "")
    assert "no event matches" in done.err


def test_events_during_replay_are_printed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the newest event that was asked about is another one's."""

    def frames(_: object, query: dict[str, Any], timeout_s: float) -> Iterator[tuple[int, dict[str, Any] | None]]:
        yield from ((one, {"number": one}) for one in (90, 95, 103, 110) if one > query["since"])
        yield 112, None
        if timeout_s == events._HEARTBEAT_TIMEOUT_S:
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_frames", frames)
    service: Any = None
    numbers = [one["number"] for one in events.latest(service, 50, 100, {"id": "x"})]
    changes = (one["number"] for one in events._following(service, 100, {"id": "x"}))
    with pytest.raises(KeyboardInterrupt):
        numbers.extend(changes)
    assert numbers == [90, 95, 103, 110]


def test_incomplete_replay_is_an_error(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, first = events._frames, True

    def slow(*asked: Any) -> Iterator[tuple[int | None, dict[str, Any] | None]]:
        nonlocal first
        if first:  # that asks for the newest number
            first = False
            yield from whole(*asked)
        yield 2, None
        raise TimeoutError

    monkeypatch.setattr(events, "_frames", slow)
    done = rmcs("events", "--id", "t1")
    assert (done.code, done.out) == (1, "")
    assert "sent events up to number 2 of " in done.err
    assert "get the others with --since 2" in done.err


def test_silent_event_stream_is_an_error(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> Iterator[tuple[int | None, dict[str, Any] | None]]:
        yield None, None
        raise TimeoutError

    monkeypatch.setattr(events, "_frames", silent)
    done = rmcs("events")
    assert (done.code, done.out) == (1, "")
    assert f"{service.address} accepts connections, but sent no answer within 60 s." in done.err


def test_lines_for_people(service: HttpService, rmcs: Rmcs) -> None:
    lines = rmcs("events").out.splitlines()
    assert any("t1 QUEUED: " in line for line in lines)
    assert any("t1 decided on mac" in line for line in lines)


def test_followed_until_ctrl_c(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = events._print

    def received(event: dict[str, Any], output: Any) -> None:
        tell(event, output)
        if event["state"] == "DISPATCHING" and event["id"] == "t2":
            service.submit("t3")
        if event["id"] == "t3":
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_print", received)
    done = rmcs("events", "-f", "--types", "transition", "--since", "0", "--owner", "", "-o", "json")
    assert done.code == 130
    assert events_in(done.out)[-1]["id"] == "t3"
    assert [one["number"] for one in events_in(done.out)] == sorted({one["number"] for one in events_in(done.out)})


def test_a_service_that_is_started_again_is_waited_for(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []

    def received(event: dict[str, Any], _: object) -> None:
        numbers.append(event["number"])
        if len(numbers) == 3:
            service.restart()
            service.submit("t3")
        if event.get("id") == "t3":
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_print", received)
    done = rmcs("events", "-f", "--since", "0")
    assert done.code == 130
    assert numbers == sorted(set(numbers))


def test_an_event_of_which_only_the_number_came_is_not_missed(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the service is killed between two packets."""
    whole, cut = Service.stream, []

    def broken(self: Service, path: str, **query: Any) -> Iterator[bytes]:
        for piece in whole(self, path, **query):
            before, sign, _ = piece.partition(b"id: 3\n")
            if sign and "since" in query and not cut:
                cut.append(piece)
                yield before + sign
                raise ServiceUnavailableError("The connection was lost.")
            yield piece

    def received(event: dict[str, Any], _: object) -> None:
        numbers.append(event["number"])
        if len(numbers) == 6:
            raise KeyboardInterrupt

    numbers: list[int] = []
    monkeypatch.setattr(Service, "stream", broken)
    monkeypatch.setattr(events, "_print", received)
    assert rmcs("events", "-f", "--since", "0").code == 130
    assert cut
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_a_token_that_is_revoked_meanwhile_ends_it(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[dict[str, Any]] = []

    def tell(event: dict[str, Any], _: object) -> None:
        if not received:
            service.book.revoke(service.token.split("_")[1], force=True)
        received.append(event)

    monkeypatch.setattr(events, "_print", tell)
    done = rmcs("events", "-f", "--since", "0")
    assert done.code == 1
    assert "rejects the token" in done.err
    assert "continues when it is back" not in done.err


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"type": "missed", "from": 3, "to": 9}, "events 3 to 9 were missed; request them with --since 2"),
        ({"type": "cluster", "number": 7, "at": None, "name": "mac", "state": "UP"}, "7  cluster name=mac state=UP"),
        (
            {"type": "cluster", "cluster": "mac", "state": "UP", "sentence": "", "paused": "new disks"},
            "cluster mac is UP, paused: its queue is paused: new disks",
        ),
    ],
)
def test_other_words(event: dict[str, Any], line: str) -> None:
    assert events.event_line(event).strip() == line


def test_usage_errors(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "-f", "--types", "odd")
    assert done.code == 2
    assert "odd" in done.err
