"""`rmcs top`: what keys do, and how it looks."""

from __future__ import annotations

import io
from typing import Any, Literal

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.top.screen import TopScreen
from ray_multicluster_scheduler.cli.top.state import (
    AHEAD,
    View,
    clamp_scroll,
    parse_keys,
    press,
    visible_rows,
)
from tests.unit.cli import test_golden_clusters
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.golden import NOW, compare
from tests.unit.cli.golden_data import GIB, HELD, STATUS, row, waiting
from tests.unit.service.http_service import HttpService

SEEN: dict[str, Any] = {
    "address": STATUS["address"],
    "version": STATUS["version"],
    "clusters": STATUS["clusters"],
    "nodes": [
        {
            "NodeID": f"{number}f" * 14,
            "Alive": True,
            "Cluster": name,
            "Resources": {"CPU": 20.0, "memory": 64 * GIB, **more},
        }
        for number, (name, more) in enumerate([("centos", {"GPU": 2.0}), ("centos", {"H100": 1.0}), ("mac", {})])
    ],
    "queue": [
        HELD,
        waiting("task-9f3c", 12, "centos: 16 CPU are not free on any one node; mac is cordoned", 2),
        *(
            waiting(f"task-{number:04}", 60 - number, "mac is cordoned", number + 1, owner="bob", code="CORDONED")
            for number in range(20)
        ),
    ],
    "running": [row("task-2a11", "RUNNING", 30, cluster="centos"), row("old-1", "DISPATCHING", 7200, owner="bob")],
    "at": NOW,
    "queue_at": NOW,
    "counts": {"queue": 22, "running": "2"},
    "asked": {"queue": AHEAD, "running": AHEAD},
    "more": {"queue": False, "running": False},
}


def pressed(keys: str, view: View | None = None) -> View:
    for key in parse_keys(keys):
        view = press(view or View(), key)
    return view or View()


class TestKeys:
    @pytest.mark.parametrize(
        ("sent", "keys"),
        [
            ("q", ["q"]),
            ("\t\x1b[Z\x1b[C\x1bOD", ["next", "previous", "next", "previous"]),
            ("\x1b[A\x1bOB\x1b[5~\x1b[6~\x1b[H\x1b[4~", ["up", "down", "page up", "page down", "home", "end"]),
            ("/é\r\x7f\x15", ["/", "é", "enter", "backspace", "clear"]),
            ("\x1b", ["escape"]),
            ("\x1b[1;5Cx", ["x"]),
            ("\x1b[15~\x02", []),
        ],
    )
    def test_key_sequences_of_terminals(self, sent: str, keys: list[str]) -> None:
        assert parse_keys(sent) == keys

    def test_panes(self) -> None:
        assert [pressed("\t" * times).pane for times in range(5)] == [
            "clusters",
            "nodes",
            "queue",
            "running",
            "clusters",
        ]
        assert pressed("\x1b[D").pane == "running"
        assert pressed("3").pane == "queue"

    def test_order(self) -> None:
        assert (pressed("s").sort, pressed("a").sort, pressed("sc").sort) == ("state", "age", "cluster")
        assert (pressed("a").backwards, pressed("aa").backwards, pressed("aaa").backwards) == (False, True, False)

    def test_filter(self) -> None:
        typed = pressed("/qpa")
        assert (typed.filter, typed.typing, typed.over) == ("qpa", True, False), "letters are no commands meanwhile"
        assert pressed("/ab\x7f").filter == "a"
        assert pressed("/ab\x15").filter == ""
        kept = pressed("/ab\r")
        assert (kept.filter, kept.typing) == ("ab", False)
        assert pressed("\x1b", kept).filter == ""
        assert pressed("/ab\x1b") == View()
        assert pressed("/a\t").pane == "clusters"

    def test_pause_and_quit(self) -> None:
        assert (pressed("p").paused, pressed("pp").paused) == (True, False)
        assert pressed("q").over
        assert pressed("xyz") == View()

    def test_scrolling_ends_at_both_ends(self) -> None:
        assert pressed("\x1b[A").first == 0
        assert pressed("\x1b[B\x1b[6~").first == 11
        assert clamp_scroll(pressed("\x1b[F"), 22, 10).first == 12
        assert clamp_scroll(pressed("\x1b[B"), 3, 10).first == 0
        assert pressed("\x1b[B\t").first == 0


class TestRows:
    def ids(self, keys: str) -> list[str]:
        found = visible_rows(pressed(keys), SEEN)
        return [str(one.get("id") or one.get("name") or one["NodeID"]) for one in found]

    def test_by_cluster_state_and_age(self) -> None:
        assert self.ids("") == ["attic", "centos", "lab", "mac"]
        assert self.ids("c") == ["mac", "lab", "centos", "attic"]
        assert self.ids("s") == ["attic", "lab", "centos", "mac"]
        assert self.ids("4a") == ["old-1", "task-2a11"]
        assert self.ids("4aa") == ["task-2a11", "old-1"]
        assert self.ids("3a")[0] == "nightly-2026-11-15"
        assert self.ids("a") == ["centos", "mac", "lab", "attic"], "what has no age stays as it comes"

    def test_filtered(self) -> None:
        assert self.ids("3/MONDAY") == ["nightly-2026-11-15"]
        assert len(self.ids("3/bob")) == 20
        assert len(self.ids("2/h100")) == 0, "names of resources are no values"
        assert len(self.ids("2/centos")) == 2


class TestPicture:
    def drawn(
        self,
        keys: str,
        width: int,
        height: int,
        problem: tuple[str, float] | None = None,
        *,
        later_s: float = 0.0,
        colours: Literal["truecolor"] | None = "truecolor",
    ) -> Console:
        screen = Console(
            file=io.StringIO(),
            record=True,
            width=width,
            height=height,
            force_terminal=True,
            color_system=colours,
            highlight=False,
        )
        screen.print(TopScreen(pressed(keys), SEEN, NOW + later_s, height, problem), end="")
        return screen

    @pytest.mark.parametrize(
        ("name", "keys", "width", "height"),
        [
            ("top-clusters", "", 110, 12),
            ("top", "", 110, 16),
            ("top-queue", "3", 80, 16),
            ("top-running", "4a", 50, 8),
            ("top-filter", "3/bob", 60, 10),
            ("top-nodes", "2p", 36, 8),
        ],
    )
    def test_output_equals_the_golden_file(
        self, name: str, keys: str, width: int, height: int, request: pytest.FixtureRequest
    ) -> None:
        compare(name, self.drawn(keys, width, height), request)

    @pytest.mark.parametrize("keys", ["", "2", "3", "4", "3/bob", "3/none", "\x1b[F3p"])
    @pytest.mark.parametrize("width", [1, 7, 20, 41, 80, 200])
    @pytest.mark.parametrize("height", [1, 2, 3, 5, 24, 60])
    def test_it_fits(self, keys: str, width: int, height: int) -> None:
        from rich.cells import cell_len

        lines = self.drawn(keys, width, height).export_text().split("\n")
        assert len(lines) == height
        assert max(map(cell_len, lines)) <= width

    def test_pools_between_clusters_and_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(SEEN, "pools", test_golden_clusters.POOLS)
        shown = self.drawn("", 110, 24).export_text()
        assert shown.index("centos") < shown.index("train") < shown.rindex("Queue 22")
        assert "train" not in self.drawn("2", 110, 24).export_text()
        for height in range(1, 24):
            assert len(self.drawn("", 60, height).export_text().split("\n")) == height

    def test_a_service_that_is_lost(self) -> None:
        for keys, pause in (("", ""), ("p", "PAUSED  ")):
            first = self.drawn(keys, 110, 10, ("it does not answer: refused", NOW - 12)).export_text().splitlines()[0]
            assert first.rstrip() == f"{pause}No answer for 12s; retrying. it does not answer: refused"

    def test_where_there_is_little_room_the_pane_and_the_pause_are_seen(self) -> None:
        lines = self.drawn("4p", 24, 8).export_text().splitlines()
        assert lines[0].startswith("PAUSED  rmcs")
        assert lines[1].startswith(" Running 2  4/4")

    def test_without_styles_the_pane_stands_in_brackets(self) -> None:
        second = self.drawn("2", 80, 8, colours=None).export_text().splitlines()[1]
        assert second.startswith(" Clusters 4 [Nodes 3] Queue 22  Running 2   by cluster")
        narrow = self.drawn("4", 24, 8, colours=None).export_text().splitlines()[1]
        assert narrow.startswith("[Running 2] 4/4")
        assert "[" not in self.drawn("2", 80, 8).export_text().splitlines()[1]

    @pytest.mark.parametrize("pane", ["3", "4"])
    def test_times_of_a_pause_stand_still(self, pane: str) -> None:
        def rows(keys: str, later_s: float) -> list[str]:
            return self.drawn(keys, 110, 12, later_s=later_s).export_text().splitlines()[2:]

        assert rows(f"{pane}p", 0) == rows(f"{pane}p", 100) == rows(pane, 0)
        assert rows(pane, 0) != rows(pane, 100)
        lost = self.drawn(f"{pane}p", 110, 12, ("refused", NOW), later_s=100).export_text()
        assert "No answer for 100s" in lost, "this goes on: it is of now"

    def test_footer_shows_the_position(self) -> None:
        assert "13-22 of 22" in self.drawn("3\x1b[F", 110, 14).export_text()
        assert "No row contains 'xyz'." in self.drawn("3/xyz", 110, 14).export_text()


def test_without_a_terminal(service: HttpService, rmcs: Rmcs) -> None:
    done = rmcs("top")
    assert (done.code, done.out) == (2, "")
    assert "needs a terminal" in done.err
    assert "rmcs status --watch" in done.err
