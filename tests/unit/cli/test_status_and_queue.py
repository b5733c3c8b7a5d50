"""`rmcs status` and `rmcs queue`, with a service behind them."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from rich.console import Console

from ray_multicluster_scheduler.cli.commands import status
from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.cli.terminal import Terminal
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService


@pytest.fixture
def full(service: HttpService) -> HttpService:
    """One runs, and six wait."""
    service.submit("t0", 8)
    until(lambda: service.get("/api/v1/items/t0")["state"] == "RUNNING")
    for number in range(1, 7):
        service.submit(f"t{number}", 8, owner="ann")
    until(lambda: service.get("/api/v1/queue")["depth"] == 6)
    return service


class TestStatus:
    def test_status_refreshes_stale_clusters(self, service: HttpService, rmcs: Rmcs) -> None:
        (unasked,) = service.get("/api/v1/clusters")["clusters"]
        assert (unasked["state"], unasked["stale"]) == ("CLUSTER_UNKNOWN", True)
        assert "request is under way" not in unasked["sentence"]
        (row,) = json.loads(rmcs("status", "-o", "json").out)["clusters"]
        assert (row["state"], row["stale"], row["sentence"]) == ("UP", False, "")

    def test_an_unreachable_cluster_is_not_refreshed_every_time(self, service: HttpService, rmcs: Rmcs) -> None:
        asked: list[str] = []

        def no_answer(cluster: str, **_: object) -> Any:
            asked.append(cluster)
            failed = events.SnapshotFailed(cluster, "CLUSTER_UNREACHABLE", "nobody answers")
            service.plane.post(failed)
            answer = service.plane.runtime._loop.create_future()
            answer.set_result(failed)
            return answer

        service.plane.refresh = no_answer  # type: ignore[method-assign]  # in place of the executor
        until(lambda: service.get("/api/v1/clusters")["clusters"][0]["state"] == "CLUSTER_UNREACHABLE")
        for _ in range(3):
            (row,) = json.loads(rmcs("status", "-o", "json").out)["clusters"]
            assert (row["state"], row["stale"]) == ("CLUSTER_UNREACHABLE", False)
        assert asked == ["mac"]

    def test_at_a_glance(self, full: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("status")
        assert done.code == 0
        lines = done.out.splitlines()
        assert lines[0].endswith(full.address)
        assert [line.split()[:2] for line in lines if line.startswith("mac")] == [["mac", "UP"]]
        assert "1 is on clusters. 6 wait: 6 tasks" in done.out
        assert "and 1 more: rmcs queue" in done.out

    def test_json(self, full: HttpService, rmcs: Rmcs) -> None:
        reported = json.loads(rmcs("status", "-o", "json").out)
        assert schema_violations(full, "/api/v1/clusters", reported["clusters"], "clusters") == []
        assert schema_violations(full, "/api/v1/queue", reported["queue"]) == []

    @pytest.mark.parametrize("words", [[], ["-o", "json"]])
    def test_watched(self, full: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
        looks: list[dict[str, Any]] = []

        def look(service: Any) -> dict[str, Any]:
            if len(looks) == 2:
                raise KeyboardInterrupt
            looks.append(seen(service))
            return looks[-1]

        seen = status.fetch_status
        monkeypatch.setattr(status, "fetch_status", look)
        done = rmcs("status", "--watch", "--every", "0.2", *words)
        assert done.code == 130
        if words:
            assert [json.loads(line)["queue"]["depth"] for line in done.out.splitlines()] == [6, 6]
        else:
            assert done.out.count("6 wait") == 2


class TestQueue:
    def test_queue_shows_waiting_items_with_reasons(self, full: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("queue")
        assert done.code == 0
        assert done.out.startswith("6 wait: 6 tasks\n")
        line = next(line for line in done.out.splitlines() if line.startswith("t6"))
        assert "QUEUED" in line
        assert "mac" in line
        reported = json.loads(rmcs("queue", "-o", "json", "--owner", "ann", "--limit", "2").out)
        assert schema_violations(full, "/api/v1/queue", reported) == []
        assert (reported["depth"], len(reported["waiting"])) == (6, 2)

    def test_position_code_and_how_long(self, full: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("task", "hold", "t2", "--reason", "later").code == 0
        rows = {line.split()[0]: line.split() for line in rmcs("queue").out.splitlines()[1:]}
        assert rows["ID"] == [*["ID", "POSITION", "WAITS", "KIND", "NAME", "OWNER", "PRIORITY", "STATE", "CODE", "WHY"]]
        assert [rows[one][1] for one in ("t1", "t2", "t3", "t6")] == ["1", "–", "2", "5"]
        assert {row[8] for row in (rows["t1"], rows["t2"])} == {"NO_CAPACITY", "HELD"}
        assert all(row[2].removesuffix("s").isdecimal() for name, row in rows.items() if name != "ID")
        reported = full.get("/api/v1/queue")["waiting"]
        for one in reported:
            place = full.get(f"/api/v1/items/{one['id']}/explain")["queue"]
            assert one["position"] == (None if place is None else place["position"])

    def test_the_next_ones_come_first(self, full: HttpService, rmcs: Rmcs) -> None:
        full.submit("urgent", 8, priority=9)
        assert rmcs("task", "hold", "t1").code == 0
        until(lambda: full.get("/api/v1/queue")["depth"] == 7)
        until(lambda: full.get("/api/v1/items/t1/explain")["queue"] is None)
        for words, expected in (
            (["queue"], ["urgent", "t2", "t3", "t4", "t5", "t6", "t1"]),
            (["queue", "--owner", "ann"], ["t2", "t3", "t4", "t5", "t6", "t1"]),
            (["queue", "--limit", "2"], ["urgent", "t2"]),
            (["status"], ["urgent", "t2", "t3", "t4", "t5"]),
        ):
            lines = rmcs(*words).out.splitlines()
            names = {"urgent", *(f"t{number}" for number in range(1, 7))}
            assert [line.split()[0] for line in lines if line and line.split()[0] in names] == expected
        assert full.ask("GET", "/api/v1/queue?order=position&after=1")[0] == 422

    def test_what_ran_waits_since_that_was_over(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1", 8, retries=1)
        until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
        began = service.get("/api/v1/items/t1")["at"]
        service.submit("t2", 8)
        assert rmcs("clusters", "cordon", "mac").code == 0
        service.plane.end(CallResult("t1", 1, "failed", failure=FailureClass.USER, error_type="ValueError"))
        until(lambda: service.get("/api/v1/items/t1")["state"] in ("RETRYING", "QUEUED"))
        first, second = service.get("/api/v1/queue")["waiting"]
        assert first["id"] == "t1"
        assert first["submitted_at"] < began <= first["waiting_since"]
        assert second["waiting_since"] == second["submitted_at"]

    @pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
    @pytest.mark.parametrize("words", ["queue", "status"])
    def test_it_fits_and_no_id_is_cut(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, words: str, width: int
    ) -> None:
        name = "task-0123456789abcdef-1234"
        service.submit("first", 8)
        service.submit(name, 8, name="a name that is much longer than there is room for in a table", owner="somebody")
        until(lambda: service.get("/api/v1/queue")["depth"] == 1)
        monkeypatch.setattr(output, "console", lambda **_: Console(width=width, color_system=None))
        lines = rmcs(words).out.splitlines()
        line = next(line.rstrip() for line in lines if line.startswith(name))
        assert "NO_CAPACITY" in line
        assert len(line) <= max(width, len(name) + len("  NO_CAPACITY"))
        if width >= 80:
            assert line.split()[1] == "1"
            assert "mac: 8 CPU" in line
        if width < 200:
            assert "much longer than" not in line

    def test_empty_queue(self, service: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("queue").out == "Nothing waits.\n"

    def test_a_cluster_that_takes_no_work_is_shown(self, service: HttpService, rmcs: Rmcs) -> None:
        service.plane.runtime.call_and_wait(lambda: service.plane.refresh("mac"))
        assert rmcs("queue", "pause", "--cluster", "mac", "--reason", "disk swap").code == 0
        assert "UP, paused" in rmcs("status").out
        assert rmcs("clusters", "cordon", "mac").code == 0
        for words in (("status",), ("clusters", "list")):
            assert "UP, cordoned, paused" in rmcs(*words).out

    @pytest.mark.parametrize("order", ["pause", "resume"])
    def test_a_name_alone_is_asked_about(self, rmcs: Rmcs, order: str) -> None:
        done = rmcs("queue", order, "mac")
        assert done.code == 2
        assert "Write --cluster mac, or --owner mac." in " ".join(done.err.split())

    @pytest.mark.parametrize(("what", "name"), [("cluster", "mac"), ("owner", "ann")])
    def test_pause_and_resume(self, service: HttpService, rmcs: Rmcs, what: str, name: str) -> None:
        done = rmcs("queue", "pause", f"--{what}", name, "--reason", "until Monday", "-o", "json")
        assert done.code == 0
        assert (
            schema_violations(service, "/api/v1/queue/{what}/{name}/pause", json.loads(done.out), method="post") == []
        )
        service.submit("t1", owner="ann")
        until(lambda: "until Monday" in service.get("/api/v1/items/t1/explain")["sentence"])
        assert rmcs("queue", "resume", f"--{what}", name).code == 0
        until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")

    @pytest.mark.parametrize(("what", "name"), [("cluster", "mac"), ("owner", "ann")])
    def test_a_repeated_change_is_reported_as_such(
        self, service: HttpService, rmcs: Rmcs, what: str, name: str
    ) -> None:
        def answer(*words: str) -> str:
            done = rmcs("queue", *words, f"--{what}", name)
            assert done.code == 0
            return done.err

        assert answer("resume") == f"rmcs: the queue of {what} {name} was not paused\n"
        assert answer("pause") == f"rmcs: the queue of {what} {name} is paused\n"
        assert answer("pause") == f"rmcs: the queue of {what} {name} is paused already\n"
        assert answer("pause", "--reason", "until Monday") == f"rmcs: the queue of {what} {name} is paused\n"
        assert answer("resume") == f"rmcs: the queue of {what} {name} is resumed\n"

    @pytest.mark.parametrize(
        ("words", "code"), [([], 2), (["--cluster", "mac", "--owner", "ann"], 2), (["--cluster", "nowhere"], 102)]
    )
    def test_usage(self, service: HttpService, rmcs: Rmcs, words: list[str], code: int) -> None:
        assert rmcs("queue", "pause", *words).code == code
        assert rmcs("queue", "resume", *words).code == code

    def test_an_option_at_the_wrong_place_is_not_lost(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("queue", "-o", "json", "pause", "--cluster", "mac")
        assert done.code == 2
        assert "behind it" in done.err


@pytest.mark.parametrize("words", [["status", "--watch"], ["top"]])
@pytest.mark.parametrize("every", ["inf", "nan", "86401"])
def test_interval_is_bounded(service: HttpService, rmcs: Rmcs, words: list[str], every: str) -> None:
    done = rmcs(*words, "--every", every)
    assert done.code == 2
    assert "--every" in done.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_watch_that_is_ended_gives_the_screen_back(service: HttpService, number: signal.Signals) -> None:
    terminal = Terminal("status", "--watch", "--every", "0.5")
    terminal.until("\x1b[?1049h")
    terminal.until("on clusters")
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    assert "\x1b[?1049l" in terminal.text
    assert "\x1b[?25h" in terminal.text
