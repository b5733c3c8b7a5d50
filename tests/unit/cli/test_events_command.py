"""`rmcs events`: the past, and what comes, with a service behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler.cli import events
from ray_multicluster_scheduler.cli.service import Service
from ray_multicluster_scheduler.common.exception import ServiceUnavailableError
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


@pytest.fixture
def service(service: HttpService) -> HttpService:
    service.submit("t1")
    service.submit("t2")
    until(lambda: service.get("/api/v1/items/t2")["state"] == "RUNNING")
    return service


def told(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_past(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "--id", "t1", "--types", "transition", "-o", "json")
    assert done.code == 0
    heard = told(done.out)
    assert list(dict.fromkeys(one["state"] for one in heard)) == ["PENDING", "QUEUED", "DISPATCHING", "RUNNING"]
    assert heard[0]["at"].endswith("Z")
    after = rmcs("events", "--id", "t1", "--types", "transition", "-o", "json", "--since", str(heard[1]["number"]))
    assert told(after.out) == heard[2:]
    documents = yaml.safe_load_all(rmcs("events", "--id", "t1", "--types", "transition", "-o", "yaml").out)
    assert list(documents) == heard
    assert rmcs("events", "--last", "0").out == ""


def test_what_there_is_not_is_refused_and_ids_may_be_short(service: HttpService, rmcs: Rmcs) -> None:
    for option, word in (("--types", "bogus"), ("--state", "bogus"), ("--kind", "bogus")):
        done = rmcs("events", option, word)
        assert (done.code, done.out) == (2, "")
        assert "bogus" in done.err
    assert {one["id"] for one in told(rmcs("events", "--id", "last", "--types", "transition", "-o", "json").out)} == {
        "t2"
    }
    assert rmcs("events", "--id", "gone-long-ago").code == 0


def test_lines_for_people(service: HttpService, rmcs: Rmcs) -> None:
    lines = rmcs("events").out.splitlines()
    assert any("t1 QUEUED: " in line for line in lines)
    assert any("t1 decided on mac" in line for line in lines)


def test_followed_until_ctrl_c(service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = events._tell

    def heard(event: dict[str, Any], output: Any) -> None:
        tell(event, output)
        if event["state"] == "DISPATCHING" and event["id"] == "t2":
            service.submit("t3")
        if event["id"] == "t3":
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_tell", heard)
    done = rmcs("events", "-f", "--types", "transition", "--since", "0", "--owner", "", "-o", "json")
    assert done.code == 130
    assert told(done.out)[-1]["id"] == "t3"
    assert [one["number"] for one in told(done.out)] == sorted({one["number"] for one in told(done.out)})


def test_a_service_that_is_started_again_is_waited_for(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []

    def heard(event: dict[str, Any], _: object) -> None:
        numbers.append(event["number"])
        if len(numbers) == 3:
            service.restart()
            service.submit("t3")
        if event.get("id") == "t3":
            raise KeyboardInterrupt

    monkeypatch.setattr(events, "_tell", heard)
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

    def heard(event: dict[str, Any], _: object) -> None:
        numbers.append(event["number"])
        if len(numbers) == 6:
            raise KeyboardInterrupt

    numbers: list[int] = []
    monkeypatch.setattr(Service, "stream", broken)
    monkeypatch.setattr(events, "_tell", heard)
    assert rmcs("events", "-f", "--since", "0").code == 130
    assert cut
    assert numbers == [1, 2, 3, 4, 5, 6]


def test_a_token_that_is_revoked_meanwhile_ends_it(
    service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[dict[str, Any]] = []

    def tell(event: dict[str, Any], _: object) -> None:
        if not heard:
            service.book.revoke(service.token.split("_")[1], force=True)
        heard.append(event)

    monkeypatch.setattr(events, "_tell", tell)
    done = rmcs("events", "-f", "--since", "0")
    assert done.code == 1
    assert "does not take the token" in done.err
    assert "goes on when it is back" not in done.err


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"type": "missed", "from": 3, "to": 9}, "events 3 to 9 were missed; ask for them with --since 2"),
        ({"type": "cluster", "number": 7, "at": None, "name": "mac", "state": "UP"}, "7  cluster name=mac state=UP"),
    ],
)
def test_other_words(event: dict[str, Any], line: str) -> None:
    assert events.event_line(event).strip() == line


def test_what_is_wrong_is_said(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("events", "-f", "--types", "odd")
    assert done.code == 2
    assert "odd" in done.err
