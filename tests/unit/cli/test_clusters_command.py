"""`rmcs clusters list`, `show`, `check` and what steers a cluster, with a service behind them."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import pytest
import yaml

from ray_multicluster_scheduler.cli.commands import clusters as clusters_command
from ray_multicluster_scheduler.cli.commands.clusters import rejection
from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ONE = "/api/v1/clusters/{name}"


@pytest.fixture
def busy(service: HttpService) -> HttpService:
    """One item is on mac."""
    service.submit("t1")
    until(lambda: service.get("/api/v1/items/t1")["state"] == "RUNNING")
    return service


def finish(service: HttpService, item_id: str) -> None:
    item = service.plane.runtime.item(item_id)
    assert item is not None
    service.plane.finish(item)


def cordoned(service: HttpService) -> bool:
    return bool(service.get("/api/v1/clusters/mac?refresh=false")["cordoned"])


class TestList:
    def test_of_the_service(self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        assert rmcs("clusters", "list").out.splitlines()[1].split()[:2] == ["mac", "UP"]
        rows = json.loads(rmcs("clusters", "list", "-o", "json").out)
        assert schema_violations(service, "/api/v1/clusters", rows, "clusters") == []
        monkeypatch.delenv("RMCS_ADDRESS")
        named = rmcs("clusters", "list", "-o", "yaml", "--address", service.address)
        assert [row["name"] for row in yaml.safe_load(named.out)] == ["mac"]

    @pytest.mark.parametrize(("reason", "answer"), [("new disks", ": new disks"), ("one\ntwo", ": one"), ("", "")])
    def test_pause_reason_is_shown(self, service: HttpService, rmcs: Rmcs, reason: str, answer: str) -> None:
        service.post("/api/v1/queue/cluster/mac/pause", {"reason": reason})
        assert rmcs("clusters").out.splitlines()[2:] == [f"mac: its queue is paused{answer}"]
        (mac,) = [line for line in rmcs("status").out.splitlines() if line.startswith("mac ")]
        assert mac.rstrip().endswith(f"its queue is paused{answer}")

    def test_as_they_were_last_seen(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "list", "--no-refresh")
        assert done.out.splitlines()[1].split()[:2] == ["mac", "CLUSTER_UNKNOWN"]


class TestShow:
    def test_for_people(self, busy: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "show", "mac")
        assert done.code == 0
        facts = dict(line.split(maxsplit=1) for line in done.out.splitlines())
        assert (facts["name"].strip(), facts["state"].strip()) == ("mac", "UP")
        assert facts["items"].strip() == "1 there, 0 prefetched"
        assert "cordoned" not in facts

    def test_one_that_is_silent(self, busy: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        runtime = busy.plane.runtime
        monkeypatch.setattr(busy.plane, "refresh", lambda cluster, **_: runtime._loop.create_future())
        busy.plane.post(events.LinkDown("mac", "it was cut"))
        breaker = runtime.machine.registry.state("mac").breaker
        for _ in range(4):
            runtime.call_and_wait(lambda: breaker.record_failure(runtime.clock.now()))
        busy.plane.post(events.SnapshotFailed("mac", "DASHBOARD_DOWN", "nobody answers", permanent=False))
        until(lambda: "5 times" in busy.get("/api/v1/clusters/mac?refresh=false")["sentence"])
        done = rmcs("clusters", "show", "mac", "--no-refresh")
        facts = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in done.out.splitlines())
        assert facts["state"] == "CLUSTER_SUSPECT"
        assert "the last time, the snapshot request failed: nobody answers" in facts["why"]
        assert re.fullmatch(r"OPEN after 5 failures in a row, tried again in (60|59|5\d)s", facts["breaker"])
        assert re.fullmatch(r"1/8 as of \ds ago", facts["CPU"])
        row = rmcs("clusters", "list", "--no-refresh").out.splitlines()[1].split()
        assert row[:7] == ["mac", "CLUSTER_SUSPECT", "http", "–", "–", "–", "–"]

    def test_a_paused_queue_is_shown_once(self, service: HttpService, rmcs: Rmcs) -> None:
        service.post("/api/v1/queue/cluster/mac/pause", {"reason": "new disks"})
        facts = dict(re.split(r"  +", line, maxsplit=1) for line in rmcs("clusters", "show", "mac").out.splitlines())
        assert facts["paused"].strip() == "new disks"
        assert "why" not in facts

    def test_one_that_others_use_as_well(self, service: HttpService, rmcs: Rmcs) -> None:
        assert "notes" not in rmcs("clusters", "show", "mac").out
        others = service.plane.runtime.links._launcher.others
        service.plane.runtime.call_and_wait(lambda: others.update(mac=("cp7",)))
        facts = dict(re.split(r"  +", line, maxsplit=1) for line in rmcs("clusters", "show", "mac").out.splitlines())
        assert "(cp7); " in facts["notes"]

    def test_for_programs(self, busy: HttpService, rmcs: Rmcs) -> None:
        reported = json.loads(rmcs("clusters", "show", "mac", "-o", "json").out)
        assert schema_violations(busy, ONE, reported) == []
        assert reported["in_flight"] == 1

    def test_an_unknown_name(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "show", "mars")
        assert (done.code, done.out) == (102, "")
        assert "There is no cluster 'mars'; the configured ones are: mac." in done.err


class TestCheck:
    def test_it_takes_work(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "check", "mac")
        assert (done.code, done.out) == (0, "mac takes work\n")
        reported = json.loads(rmcs("clusters", "check", "mac", "-o", "json").out)
        assert schema_violations(service, f"{ONE}/check", reported, method="post") == []

    def test_it_is_closed(self, service: HttpService, rmcs: Rmcs) -> None:
        service.post("/api/v1/queue/cluster/mac/pause", {"reason": "until Monday"})
        done = rmcs("clusters", "check", "mac")
        assert (done.code, done.out) == (
            100,
            "mac takes no work: QUEUE_PAUSED, the queue of mac is paused: until Monday\n",
        )
        service.post("/api/v1/clusters/mac/cordon")
        done = rmcs("clusters", "check", "mac", "-o", "json")
        assert (done.code, json.loads(done.out)["cluster"]["cordoned"]) == (100, True)
        assert "CORDONED" in rmcs("clusters", "check", "mac").out

    @pytest.mark.parametrize(
        ("concerns", "code"),
        [
            (["everything"], "X"),
            (["jobs"], None),
            (["tasks and actors"], None),
            (["tasks and actors", "jobs"], "X"),
            ([], None),
        ],
    )
    def test_half_of_it_is_enough(self, concerns: list[str], code: str | None) -> None:
        problems = [{"concerns": one, "code": "X", "sentence": "no"} for one in concerns]
        cluster = {"name": "mac", "cordoned": False, "paused": None, "troubles": problems}
        why = rejection({"answered": True, "reason": "", "cluster": cluster})
        assert (None if why is None else why[0]) == code

    def test_it_does_not_answer(self) -> None:
        cluster: dict[str, Any] = {"name": "mac", "cordoned": False, "paused": None, "troubles": []}
        assert rejection({"answered": False, "reason": "no route", "cluster": cluster}) == (
            "CLUSTER_UNREACHABLE",
            "no route",
        )

    def test_an_unknown_name(self, service: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("clusters", "check", "mars").code == 102


class TestSteering:
    def test_cordon_and_uncordon(self, busy: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "cordon", "mac")
        assert (done.code, done.out) == (0, "mac takes no new work; t1 is still there\n")
        assert cordoned(busy)
        done = rmcs("clusters", "uncordon", "mac", "-o", "json")
        assert json.loads(done.out) == {"items": ["t1"], "changed": True}
        assert schema_violations(busy, f"{ONE}/uncordon", json.loads(done.out), method="post") == []
        assert not cordoned(busy)

    def test_declare_dead(self, busy: HttpService, rmcs: Rmcs) -> None:
        refused = rmcs("clusters", "declare-dead", "mac")
        assert (refused.code, refused.out) == (1, "")
        assert "was not declared dead" in refused.err
        done = rmcs("clusters", "declare-dead", "mac", "--force", "--reason", "sold")
        assert (done.code, done.out) == (0, "mac is declared dead; t1 was there (see `rmcs explain ID`)\n")

    def test_a_repeated_change_is_reported_as_such(self, busy: HttpService, rmcs: Rmcs) -> None:
        for verb, reported in (
            ("uncordon", "mac was not cordoned; t1 is there\n"),
            ("cordon", "mac takes no new work; t1 is still there\n"),
            ("cordon", "mac is cordoned already; t1 is still there\n"),
            ("uncordon", "mac is not cordoned any more; t1 is there\n"),
        ):
            done = rmcs("clusters", verb, "mac")
            assert (done.code, done.out) == (0, reported)
        answer = json.loads(rmcs("clusters", "cordon", "mac", "-o", "json").out)
        assert schema_violations(busy, f"{ONE}/cordon", answer, method="post") == []
        assert answer == {"items": ["t1"], "changed": True}

    def test_the_reason_of_a_cordon_is_shown_and_kept(self, busy: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("clusters", "cordon", "mac", "--reason", "new disk").code == 0
        assert rmcs("clusters", "cordon", "mac").out == "mac is cordoned already; t1 is still there\n"
        assert "mac: it is cordoned: new disk" in rmcs("clusters").out
        assert "yes, and not empty yet: new disk" in rmcs("clusters", "show", "mac").out
        assert "it is cordoned: new disk" in rmcs("status").out
        assert "it is cordoned: new disk" in rmcs("events", "--types", "cluster", "--since", "0").out
        busy.submit("t2", cpus=1)
        assert "it is cordoned: new disk" in rmcs("explain", "t2").out
        busy.restart()
        assert busy.get("/api/v1/clusters/mac")["cordon_reason"] == "new disk"
        done = rmcs("clusters", "drain", "mac", "--timeout", "0", "--reason", "a newer disk")
        assert done.code == 101
        assert busy.get("/api/v1/clusters/mac")["cordon_reason"] == "a newer disk"
        assert rmcs("clusters", "uncordon", "mac").code == 0
        assert busy.get("/api/v1/clusters/mac")["cordon_reason"] is None

    @pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "declare-dead"])
    def test_an_unknown_name(self, service: HttpService, rmcs: Rmcs, verb: str) -> None:
        done = rmcs("clusters", verb, "macc", "--address", service.address)
        assert (done.code, done.out) == (102, "")
        assert "There is no cluster 'macc'" in done.err
        assert "What to do: did you mean 'mac'?" in done.err

    @pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain", "declare-dead"])
    def test_without_a_service_programs_get_the_request(
        self, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, verb: str
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path))
        done = rmcs("clusters", verb, "mac")
        assert done.code == 2
        assert "No program of yours with a scheduler runs now" in done.err
        assert rmcs("clusters", verb, "mac", "-o", "json").code == 2


class TestDrain:
    @pytest.fixture(autouse=True)
    def _look_often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(clusters_command, "POLL_S", 0.05)

    def test_an_empty_one(self, service: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "drain", "mac", "-o", "json")
        assert (done.code, json.loads(done.out)) == (0, {"drained": True, "items": []})
        assert schema_violations(service, f"{ONE}/drain", json.loads(done.out), method="post") == []

    def test_drain_waits_and_lists_items(self, busy: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        say, answer = output.notify, threading.Event()

        def received(text: str) -> None:
            say(text)
            answer.set()

        def a_while_after_the_report() -> None:
            assert answer.wait(30)
            time.sleep(0.4)
            finish(busy, "t1")

        monkeypatch.setattr(output, "notify", received)
        other = threading.Thread(target=a_while_after_the_report)
        other.start()
        done = rmcs("clusters", "drain", "mac")
        other.join()
        assert (done.code, done.out) == (0, "mac takes no new work; nothing is there any more\n")
        assert done.err == "rmcs: mac takes no new work; t1 is still there\n", "once, as long as nothing changes"

    def test_the_last_one_ends_between_two_questions(
        self, busy: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ask = clusters_command._items_on

        def asked_late(service: Any, name: str) -> list[str]:
            finish(busy, "t1")
            until(lambda: ask(service, name) == [], 30)
            return ask(service, name)

        monkeypatch.setattr(clusters_command, "_items_on", asked_late)
        done = rmcs("clusters", "drain", "mac")
        assert (done.code, done.out) == (0, "mac takes no new work; nothing is there any more\n")
        assert done.err == "rmcs: mac takes no new work; t1 is still there\n"

    def test_not_for_ever(self, busy: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("clusters", "drain", "mac", "--timeout", "0.1", "-o", "json")
        assert (done.code, json.loads(done.out)) == (101, {"drained": False, "items": ["t1"]})
        assert cordoned(busy)

    def test_ctrl_c_leaves_it_cordoned(self, busy: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(_: object) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(clusters_command, "retry_while_away", interrupted)
        done = rmcs("clusters", "drain", "mac")
        assert (done.code, done.out) == (130, "")
        assert "mac stays cordoned; open it again with `rmcs clusters uncordon mac`" in done.err
        assert cordoned(busy)

    def test_drain_fails_if_the_cluster_is_uncordoned(self, busy: HttpService, rmcs: Rmcs) -> None:
        def open_it() -> None:
            until(lambda: cordoned(busy))
            busy.post("/api/v1/clusters/mac/uncordon")

        other = threading.Thread(target=open_it)
        other.start()
        done = rmcs("clusters", "drain", "mac")
        other.join()
        assert done.code == 1
        assert "was not drained" in done.err
