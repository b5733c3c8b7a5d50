"""`rmcs top`: which rows are asked for, and what is reported where not all of them are known."""

from __future__ import annotations

import io
import os
import time
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.commands.top import RowCounts, _Poller, fetch, lacks_rows
from ray_multicluster_scheduler.cli.service.client import connect
from ray_multicluster_scheduler.cli.top.screen import TopScreen
from ray_multicluster_scheduler.cli.top.state import AHEAD, MAX_ROWS, rows_needed, rows_wanted
from ray_multicluster_scheduler.control_plane.admin_api.metrics import queue_counts as counted_waiting
from tests.unit.cli.golden import NOW
from tests.unit.cli.golden_data import waiting
from tests.unit.cli.test_top import SEEN, pressed
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


def queue_of(depth: int, known: int, asked: int) -> dict[str, Any]:
    """As a service tells of the first ones of so many; some of those that were asked for may have begun meanwhile."""
    rows = [waiting(f"t{number:04}", 5000 - number, "it is full", number + 1) for number in range(known)]
    return {
        **SEEN,
        "queue": rows,
        "counts": {"queue": depth, "running": "0"},
        "asked": {"queue": asked, "running": AHEAD},
        "more": {"queue": True, "running": False},
    }


def text_of(picture: TopScreen, height: int = 20) -> str:
    screen = Console(file=io.StringIO(), record=True, width=110, height=height)
    screen.print(picture, end="")
    return screen.export_text()


def test_fetched_rows(service: HttpService) -> None:
    service.submit("t0", 8)
    until(lambda: service.get("/api/v1/items/t0")["state"] == "RUNNING")
    service.submit("t1", 8)
    until(lambda: service.get("/api/v1/queue")["depth"] == 1)
    seen = fetch(connect(service.address))
    assert [one["id"] for one in seen["running"]] == ["t0"]
    assert [one["id"] for one in seen["queue"]] == ["t1"]
    assert [one["name"] for one in seen["clusters"]] == ["mac"]
    screen = Console(file=io.StringIO(), width=100, height=10)
    for pane in "1234":
        screen.print(TopScreen(pressed(pane), seen, time.time(), 10))


class TestWhatIsAskedFor:
    @pytest.mark.parametrize(
        ("keys", "rows"),
        [
            ("", 116),
            ("2", 1),
            ("4", 1),
            ("3", 116),
            ("3a", 1000),
            ("3\x1b[6~", 126),
            ("3\x1b[F", 1000),
            ("3/bob", 1000),
            ("3s", 1000),
            ("3c", 1000),
            ("3aa", 1000),
        ],
    )
    def test_no_more_than_is_shown(self, keys: str, rows: int) -> None:
        assert rows_wanted(pressed(keys), 16) == rows

    def test_known_rows_are_not_fetched_again_while_paused(self) -> None:
        seen = queue_of(5000, 116, 116)
        for keys, missing in (("3", False), ("3" + "\x1b[6~" * 10, False), ("3" + "\x1b[6~" * 11, True), ("4", False)):
            assert lacks_rows(seen, RowCounts(rows_needed(pressed(keys), 16), 0)) is missing, keys
        assert lacks_rows(seen, RowCounts(rows_needed(pressed("3/bob"), 16), 0))
        assert not lacks_rows(queue_of(5000, 999, 1000), RowCounts(rows_needed(pressed("3/bob"), 16), 0))

    def test_the_total_is_shown_for_hidden_panes(self, service: HttpService) -> None:
        for number in range(7):
            service.submit(f"t{number}", 3)
        until(lambda: service.get("/api/v1/queue")["depth"] == 5)
        seen = fetch(connect(service.address), RowCounts(waiting=2, running=1))
        assert (len(seen["queue"]), seen["counts"]) == (2, {"queue": 5, "running": "2"})
        assert seen["more"] == {"queue": True, "running": True}
        shown = text_of(TopScreen(pressed("3"), seen, time.time(), 5), 5)
        assert "1-1 of 5" in shown
        assert " Running 2 " in shown
        all_of_it = fetch(connect(service.address), RowCounts(waiting=5, running=2))
        assert all_of_it["more"] == {"queue": False, "running": False}

    def test_an_older_service_does_not_count_what_runs(
        self, service: HttpService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted = counted_waiting.depths

        def uncounted(*words: Any) -> dict[str, Any]:
            return {key: value for key, value in counted(*words).items() if key != "on_clusters"}

        monkeypatch.setattr(counted_waiting, "depths", uncounted)
        for number in range(2):
            service.submit(f"t{number}")
        until(lambda: len(service.get("/api/v1/items?state=RUNNING")["items"]) == 2)
        for most, reported in ((2, "2+"), (3, "2")):
            assert fetch(connect(service.address), RowCounts(running=most))["counts"]["running"] == reported


class TestALongQueue:
    END, UP, PAGE_UP = "\x1b[F", "\x1b[A", "\x1b[5~"
    AWAY = ("refused", NOW - 12)

    def scrolled(self, seen: dict[str, Any], *keys: str, problem: tuple[str, float] | None = None) -> TopScreen:
        """The picture after these keys, each of which was seen before the next."""
        picture = TopScreen(pressed("3"), seen, NOW, 20, problem)
        for key in keys:
            picture = TopScreen(pressed(key, picture.view), seen, NOW, 20, problem)
        return picture

    @pytest.mark.parametrize(("depth", "last"), [(161, 161), (5000, 1000)])
    def test_its_end_is_asked_for_and_one_can_go_up_from_there(self, depth: int, last: int) -> None:
        seen = queue_of(depth, 100, 116)
        assert self.scrolled(seen, self.END).view.first == last - 16
        assert self.scrolled(seen, self.END, self.UP).view.first == last - 17
        assert f"85-100 of {depth}" in text_of(self.scrolled(seen, self.END)), "as far as it is known"
        assert lacks_rows(seen, RowCounts(rows_needed(self.scrolled(seen, self.END).view, 16), 0))

    def test_while_the_service_is_away_known_rows_scroll(self) -> None:
        seen = queue_of(5000, 100, 116)
        assert self.scrolled(seen, self.END, problem=self.AWAY).view.first == 84
        up = self.scrolled(seen, self.END, self.PAGE_UP, problem=self.AWAY)
        assert "75-90 of 5000" in text_of(up)

    def test_some_have_begun_meanwhile(self) -> None:
        seen = queue_of(5000, 999, 1000)
        assert "984-999 of 999" in text_of(self.scrolled(seen, self.END))
        assert "983-998 of 999" in text_of(self.scrolled(seen, self.END, self.UP))

    def test_a_filter_names_the_number_of_searched_rows(self) -> None:
        for known, asked in ((100, 116), (1000, 1000)):
            output = text_of(TopScreen(pressed("3/t4999"), queue_of(5000, known, asked), NOW, 20))
            assert f"None of the first {known} rows of 5000 contains 't4999'." in output
            assert "No row" not in output
        assert "1-16 of 100" in text_of(TopScreen(pressed("3/full"), queue_of(5000, 100, 116), NOW, 20))

    def test_older_rows_show_their_age(self) -> None:
        seen = {**queue_of(5000, 100, 1), "queue_at": NOW - 600}
        assert "  as of 10m ago  by position" in text_of(TopScreen(pressed("3"), seen, NOW, 20))
        assert " ago" not in text_of(TopScreen(pressed("1"), seen, NOW, 20)).splitlines()[1]

    def test_none_of_them_is_known(self) -> None:
        output = text_of(TopScreen(pressed("3"), queue_of(5000, 0, 1), NOW, 20))
        assert "There are 5000, and none was fetched yet." in output


def test_while_it_is_paused_no_pane_loses_what_it_had(service: HttpService) -> None:
    for number in range(7):
        service.submit(f"t{number}", 3)
    until(lambda: service.get("/api/v1/queue")["depth"] == 5)
    asked = connect(service.address)
    poller = _Poller(asked, 60, fetch(asked, RowCounts(waiting=1, running=1)))
    try:
        poller.paused = True
        assert not poller._is_due()
        for pane, wanted in (("4", (1, MAX_ROWS)), ("3", (AHEAD + 16, MAX_ROWS))):
            poller.want(pressed(pane), 16)
            assert poller._is_due()
            poller._poll()
            assert tuple(poller.data["asked"].values()) == wanted
        assert len(poller.data["queue"]) == 5
        poller.want(pressed("4"), 16)
        assert not poller._is_due()
    finally:
        os.close(poller.updated)
        os.close(poller._update)
