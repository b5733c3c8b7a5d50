"""Orders to all items, however many there are."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import typer
from rich.console import Console

from ray_multicluster_scheduler.cli.arguments.selectors import find_items
from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.cli.layout.output import Format
from ray_multicluster_scheduler.cli.service import items
from ray_multicluster_scheduler.cli.service.client import Service, connect
from ray_multicluster_scheduler.cli.service.items import change_each, earlier_retries
from ray_multicluster_scheduler.common.exception import SchedulerError, ServiceUnavailableError
from ray_multicluster_scheduler.control_plane.runtime import wire
from tests.unit.cli.conftest import Rmcs
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService
from tests.unit.service.service_plane import BLOBS, a_task

IDS = [f"t{number}" for number in range(items.SEQUENTIAL_MAX + 50)]


def submit(service: HttpService, ids: list[str]) -> None:
    tasks = [{"task": a_task(one).to_dict()} for one in ids]
    service.post("/api/v1/items/batch", {"items": tasks, "blobs": wire.bytes_to_wire(BLOBS)})


def done(one: str) -> dict[str, Any]:
    return {"id": one, "state": "CANCELLED"}


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a person sees who watches stderr."""
    seen = io.StringIO()
    monkeypatch.setattr(output, "is_terminal", lambda **_: True)
    monkeypatch.setattr(output, "console", lambda **_: Console(file=seen, force_terminal=True, width=80))
    return seen


def test_all_are_more_than_ten_thousand(service: HttpService) -> None:
    ids = [f"t{number}" for number in range(10_001)]
    submit(service, ids[:10_000])
    submit(service, ids[10_000:])
    assert find_items(connect(), ["all"]) == ids[::-1]


def test_many_are_cancelled(service: HttpService, rmcs: Rmcs) -> None:
    submit(service, IDS)
    ended = rmcs("task", "cancel", "all")
    assert (ended.code, ended.out.splitlines()) == (0, IDS[::-1]), "newest first"
    assert ended.err.splitlines()[0] == "rmcs: 150 items; Ctrl+C stops, and what was done until then stays done"
    until(lambda: service.get("/api/v1/items?state=RUNNING,QUEUED")["items"] == [])


class TestSideBySide:
    """A barrier lets nobody through before as many are there."""

    def test_many_orders(self, capsys: pytest.CaptureFixture[str]) -> None:
        two = threading.Barrier(2, timeout=30)

        def order(one: str) -> dict[str, Any]:
            two.wait()
            return done(one)

        change_each(IDS, order, Format.json, str)
        shown = capsys.readouterr()
        assert [one["id"] for one in json.loads(shown.out)] == IDS
        assert shown.err == ""

    def test_a_few_are_done_in_their_order(self) -> None:
        began: list[str] = []

        def order(one: str) -> dict[str, Any]:
            began.append(one)
            assert threading.current_thread() is threading.main_thread()
            return done(one)

        change_each(IDS[: items.SEQUENTIAL_MAX], order, Format.json, str)
        assert began == IDS[: items.SEQUENTIAL_MAX]

    def test_what_was_repeated(self) -> None:
        two = threading.Barrier(2, timeout=30)

        class Answers:
            def get(self, path: str) -> dict[str, Any]:
                two.wait()
                return {"repeated_by": ["a", "b"]} if path.endswith("/t3") else {}

        assert earlier_retries(cast("Service", Answers()), ["t1", "t2", "t3", "t4"]) == {"t3": "b"}


def output_of_failed_change(order: Callable[[str], dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> Any:
    with pytest.raises(typer.Exit) as ended:
        change_each(IDS, order, Format.json, str)
    shown = capsys.readouterr()
    assert ended.value.exit_code == 1
    return shown


def test_a_refusal_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def order(one: str) -> dict[str, Any]:
        if one == "t7":
            raise SchedulerError("It is over.")
        return done(one)

    shown = output_of_failed_change(order, capsys)
    assert len(json.loads(shown.out)) == len(IDS) - 1
    assert "t7: It is over." in shown.err


def test_the_rest_of_many_is_not_asked_of_a_service_that_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def order(one: str) -> dict[str, Any]:
        asked.append(one)
        if int(one[1:]) >= 20:
            raise ServiceUnavailableError("It does not answer.")
        return done(one)

    shown = output_of_failed_change(order, capsys)
    assert [one["id"] for one in json.loads(shown.out)] == IDS[:20], "what was done is reported"
    assert len(asked) < 30
    left = len(IDS) - len(asked)
    assert shown.err.splitlines()[-1] == f"rmcs: {left} more are unchanged: the service went away"
    assert shown.err.count("It does not answer.") == len(asked) - 20


def test_a_person_sees_how_far_it_is(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    change_each(IDS, done, Format.json, str)
    assert "150 of 150" in screen.getvalue()
    assert len(json.loads(capsys.readouterr().out)) == 150, "data is where data belongs"


def test_lines_of_a_table_are_not_drawn_into_a_spinner(screen: io.StringIO, capsys: pytest.CaptureFixture[str]) -> None:
    change_each(IDS, done, Format.table, lambda _: "is cancelled")
    assert screen.getvalue() == ""
    assert capsys.readouterr().out.splitlines() == IDS
