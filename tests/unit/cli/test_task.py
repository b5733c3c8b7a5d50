"""`rmcs task`: list, show, logs, cancel, retry, hold, release, priority, with a service behind it."""

from __future__ import annotations

import errno
import io
import json
import threading

import pytest
import yaml
from rich.console import Console

from ray_multicluster_scheduler.cli.commands import task
from ray_multicluster_scheduler.cli.layout import output
from ray_multicluster_scheduler.cli.layout.item_tables import item_facts
from ray_multicluster_scheduler.cli.service import item_wait
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.control_plane.admin_api.access.permissions import Role
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from tests.unit.cli.conftest import Rmcs
from tests.unit.cli.openapi import schema_violations
from tests.unit.client_api.control_plane import until
from tests.unit.service.http_service import HttpService

ITEM = "/api/v1/items/{item_id}"
TRACEBACK = """\
Traceback (most recent call last):
  File "/home/ann/a/folder/with/a/long/name/train.py", line 12, in train
    return int(row["age"]), 'what follows makes this line longer than most terminals are wide', [row, row]
           ^^^^^^^^^^^^^^^
ValueError: no
"""


@pytest.fixture
def two(service: HttpService) -> HttpService:
    """One that runs, and one for which there is no room."""
    service.submit("alpha-1", 8, name="first")
    until(lambda: state(service, "alpha-1") == "RUNNING")
    service.submit("alpha-2", 8, name="second")
    until(lambda: state(service, "alpha-2") == "QUEUED")
    return service


def state(service: HttpService, item_id: str) -> str:
    return str(service.get(f"/api/v1/items/{item_id}")["state"])


def end(service: HttpService, item_id: str, how: str = "succeeded") -> None:
    failed = {"failure": FailureClass.USER, "error_type": "ValueError", "message": "no"} if how == "failed" else {}
    service.plane.end(CallResult(item_id, 1, how, **failed))  # type: ignore[arg-type]  # one of its three words
    until(lambda: state(service, item_id) not in ("RUNNING", "QUEUED"))


class TestList:
    def test_a_table_newest_first(self, two: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("task", "list")
        assert done.code == 0
        title, second, first = done.out.splitlines()
        assert title.split() == ["ID", "KIND", "NAME", "OWNER", "STATE", "CLUSTER", "ATTEMPT", "SUBMITTED", "RAN"]
        assert second.split()[:3] == ["alpha-2", "task", "second"]
        assert "RUNNING" in first
        assert "ago" in first
        assert (second.split()[-1], first.split()[-1][-1]) == ("–", "s"), (
            "one has not run, the other has for some seconds"
        )

    def test_start_time_is_shown(self, two: HttpService, rmcs: Rmcs) -> None:
        second, first = two.get("/api/v1/items")["items"]
        assert (second["started_at"], first["finished_at"]) == (None, None)
        assert first["submitted_at"] <= first["started_at"]

    def test_json_matches_the_schema_with_iso_times(self, two: HttpService, rmcs: Rmcs) -> None:
        rows = json.loads(rmcs("task", "list", "-o", "json").out)
        assert [row["id"] for row in rows] == ["alpha-2", "alpha-1"]
        assert schema_violations(two, "/api/v1/items", rows, "items") == []
        assert yaml.safe_load(rmcs("task", "list", "-o", "yaml").out) == rows

    def test_chosen(self, two: HttpService, rmcs: Rmcs) -> None:
        def chosen(*words: str) -> list[str]:
            return [row["id"] for row in json.loads(rmcs("task", "list", "-o", "json", *words).out)]

        assert chosen("--state", "running") == ["alpha-1"]
        assert chosen("--state", "QUEUED", "--state", "RUNNING") == ["alpha-2", "alpha-1"]
        assert chosen("--kind", "job") == []
        assert chosen("--cluster", "mac") == ["alpha-1"]
        assert chosen("--name", "second") == ["alpha-2"]
        assert chosen("--since", "1h") == ["alpha-2", "alpha-1"]
        assert chosen("--owner", "nobody") == []

    def test_there_may_be_more(self, two: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("task", "list", "--limit", "1")
        assert "alpha-1" not in done.out
        assert "--limit" in done.err

    @pytest.mark.parametrize(("words", "answer"), [(["--state", "ODD"], "ODD"), (["--since", "soon"], "15m, 12h")])
    def test_usage_errors(self, two: HttpService, rmcs: Rmcs, words: list[str], answer: str) -> None:
        done = rmcs("task", "list", *words)
        assert (done.code, done.out) == (2, "")
        assert answer in done.err


class TestShow:
    @pytest.mark.parametrize(("how", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103)])
    def test_its_end_is_the_exit_code(self, service: HttpService, rmcs: Rmcs, how: str, code: int) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        assert rmcs("task", "show", "t1").code == 101
        if how == "cancelled":
            assert rmcs("task", "cancel", "t1").code == 0
            until(lambda: state(service, "t1") == "CANCELLED")
        else:
            end(service, "t1", how)
        done = rmcs("task", "show", "t1")
        assert done.code == code
        assert done.out.splitlines()[0].split() == ["id", "t1"]

    def test_the_traceback_of_the_cluster_stands_at_the_end(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        reported = {
            "failure": FailureClass.USER,
            "error_type": "ValueError",
            "message": "ValueError: no\x1b[2J\nreally",
        }
        service.plane.end(CallResult("t1", 1, "failed", b"not a pickle", traceback=TRACEBACK, **reported))  # type: ignore[arg-type]  # they are its fields
        until(lambda: state(service, "t1") == "FAILED")
        service.restart()
        done = rmcs("task", "show", "t1")
        assert done.code == 100
        assert done.out.endswith(f"\n\nAttempt 1 on mac:\n{TRACEBACK}")
        assert "\nreally\n" in done.out
        monkeypatch.setattr(output, "console", lambda **_: Console(width=40, color_system=None))
        assert rmcs("task", "show", "t1").out.endswith(TRACEBACK), "also on a narrow terminal"
        as_json = json.loads(rmcs("task", "show", "t1", "-o", "json").out)
        assert schema_violations(service, ITEM, as_json) == []
        assert as_json["outcome"]["result"]["traceback"] == TRACEBACK

    def test_it_may_be_that_of_another(self) -> None:
        """Of the one whose value it was to have as an argument."""
        first = {"task_id": "t1", "attempt": 2, "traceback": TRACEBACK}
        end = {"completion": {"task_id": "t1", "cluster": "mac"}, "result": first, "origin": None}
        done = {"task_id": "t2", "cluster": None, "message": "t1 failed", "next_step": "look at t1"}
        reported = {"id": "t2", "state": "FAILED", "outcome": {"completion": done, "result": None, "origin": end}}
        screen = Console(width=80, color_system=None, file=io.StringIO())
        screen.print(item_facts(reported, 0.0), crop=False)
        shown = screen.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO of above
        facts = [" ".join(line.split()) for line in shown.splitlines()]
        assert facts[2:4] == ["error t1 failed", "what to do look at t1"]
        assert shown.endswith(f"Attempt 2 of t1 on mac:\n{TRACEBACK}")

    def test_json(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        service.plane.end(CallResult("t1", 1, "succeeded", b"pickled"))
        until(lambda: state(service, "t1") == "SUCCEEDED")
        reported = json.loads(rmcs("task", "show", "t1", "-o", "json").out)
        assert schema_violations(service, ITEM, reported) == []
        assert reported["at"].endswith("Z")
        assert reported["outcome"]["completion"]["state"] == "SUCCEEDED"
        assert "payload" not in json.dumps(reported)


class TestSelectors:
    def test_last_and_the_beginning_of_an_id(self, two: HttpService, rmcs: Rmcs) -> None:
        assert "alpha-2" in rmcs("task", "show", "last").out
        two.submit("beta-1", 8)
        assert "beta-1" in rmcs("task", "show", "be").out

    def test_several_that_begin_so(self, two: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("task", "show", "alpha")
        assert done.code == 2
        assert "alpha-2, alpha-1" in done.err

    def test_an_empty_id_is_102(self, service: HttpService, rmcs: Rmcs) -> None:
        for words in (("task", "show"), ("task", "cancel"), ("job", "status"), ("explain",), ("clusters", "show")):
            done = rmcs(*words, "")
            assert done.code == 102, words
            assert "empty" in done.err

    def test_missing_permission_is_reported(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service.submit("t1")
        monkeypatch.setenv("RMCS_TOKEN", service.token_for("vera", Role.VIEWER))
        done = rmcs("task", "cancel", "t1")
        assert done.code != 0
        assert "does not answer" not in done.err
        assert "the token of vera has viewer" in done.err
        monkeypatch.setenv("RMCS_TOKEN", "rubbish")
        done = rmcs("task", "list")
        assert "rejects the token" in done.err
        assert "More: rmcs explain NOT_ALLOWED" in done.err

    @pytest.mark.parametrize("command", ["show", "logs", "cancel", "hold", "release", "retry", "priority"])
    def test_none_is_102(self, service: HttpService, rmcs: Rmcs, command: str) -> None:
        more = ["5"] if command == "priority" else []
        done = rmcs("task", command, "nothing", *more)
        assert (done.code, done.out) == (102, "")
        assert "There is no item 'nothing'" in done.err
        assert "What to do" in done.err
        assert rmcs("task", command, "last", *more).code == 102

    def test_all_means_unfinished_items(self, two: HttpService, rmcs: Rmcs) -> None:
        end(two, "alpha-1")
        two.submit("beta-1", 8)
        done = rmcs("task", "cancel", "all", "--reason", "enough")
        assert done.code == 0
        assert done.out.splitlines() == ["beta-1", "alpha-2"]
        until(lambda: state(two, "alpha-2") == state(two, "beta-1") == "CANCELLED")
        assert state(two, "alpha-1") == "SUCCEEDED"
        again = rmcs("task", "cancel", "all")
        assert (again.code, again.out) == (0, "")
        assert "no item is in a state that allows this" in again.err
        assert "no item is in a state that allows this" in rmcs("task", "cancel", "all", "-o", "json").err


class TestOrders:
    def test_cancel_prints_the_outcome(self, two: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("task", "cancel", "alpha-2").err == "rmcs: alpha-2 is cancelled\n", "it waited"
        end(two, "alpha-1")
        assert rmcs("task", "cancel", "alpha-1").err == "rmcs: alpha-1 has already ended: SUCCEEDED\n"
        released = rmcs("task", "release", "alpha-1")
        assert (released.code, "What to do: `rmcs task retry alpha-1 --anyway`" in released.err) == (1, True)
        assert rmcs("task", "retry", "alpha-1", "--anyway").code == 0, "as it says"

    def test_hold_and_release(self, two: HttpService, rmcs: Rmcs) -> None:
        done = rmcs("task", "hold", "alpha-2", "--reason", "later", "-o", "json")
        assert done.code == 0
        assert json.loads(done.out) == [{"id": "alpha-2", "state": "QUEUED", "held": True, "changed": True}]
        assert "later" in two.get("/api/v1/items/alpha-2/explain")["sentence"]
        end(two, "alpha-1")
        assert state(two, "alpha-2") == "QUEUED"
        assert rmcs("task", "release", "alpha-2").out == "alpha-2\n"
        until(lambda: state(two, "alpha-2") == "RUNNING")

    def test_a_repeated_change_is_reported_as_such(self, two: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("task", "release", "alpha-2").err == "rmcs: alpha-2 was not held\n"
        assert rmcs("task", "hold", "alpha-2").err == "rmcs: alpha-2 is held\n"
        assert rmcs("task", "hold", "alpha-2").err == "rmcs: alpha-2 is held already\n"
        assert rmcs("task", "hold", "alpha-2", "--reason", "later").err == "rmcs: alpha-2 is held\n", (
            "for another reason"
        )
        assert rmcs("task", "release", "alpha-2").err == "rmcs: alpha-2 may start\n"
        assert rmcs("task", "cancel", "alpha-2").err == "rmcs: alpha-2 is cancelled\n"
        end(two, "alpha-1")
        for item_id, how in (("alpha-2", "CANCELLED"), ("alpha-1", "SUCCEEDED")):
            done = rmcs("task", "cancel", item_id)
            assert (done.code, done.out, done.err) == (0, f"{item_id}\n", f"rmcs: {item_id} has already ended: {how}\n")
        for verb in ("hold", "release"):
            done = rmcs("task", verb, "alpha-1")
            assert (done.code, done.out) == (1, "")
            assert "alpha-1 has ended: SUCCEEDED." in done.err
            assert "rmcs task retry" in done.err

    def test_what_runs_is_neither_held_nor_does_it_wait(self, two: HttpService, rmcs: Rmcs) -> None:
        goes_on = "rmcs: alpha-1 is RUNNING and continues; if it is retried, it is held\n"
        assert rmcs("task", "hold", "alpha-1").err == goes_on
        counts = "rmcs: alpha-1 has priority 5 now, which counts if it is retried: it is RUNNING\n"
        assert rmcs("task", "priority", "alpha-1", "5").err == counts

    @pytest.mark.parametrize("name", ["../../tokens", "..", "a/b", "x" * 100_000])
    def test_what_no_item_is_called_leads_nowhere_else(self, two: HttpService, rmcs: Rmcs, name: str) -> None:
        done = rmcs("task", "show", name)
        assert (done.code, done.out) == (102, "")
        assert done.err.startswith("rmcs: error: Nothing here is called ")
        assert len(done.err) < 300

    def test_priority(self, two: HttpService, rmcs: Rmcs) -> None:
        two.submit("beta-1", 8)
        done = rmcs("task", "priority", "beta", "5")
        assert (done.code, done.out, done.err) == (0, "beta-1\n", "rmcs: beta-1 has priority 5 now\n")
        assert rmcs("task", "priority", "beta-1", "5").err == "rmcs: beta-1 has priority 5 already\n"
        reported = json.loads(rmcs("task", "priority", "alpha-2", "-3", "-o", "json").out)
        assert (reported[0]["priority"], reported[0]["changed"]) == (-3, True)
        assert schema_violations(two, f"{ITEM}/priority", reported[0], method="post") == []
        end(two, "alpha-1")
        until(lambda: state(two, "beta-1") == "RUNNING")
        assert state(two, "alpha-2") == "QUEUED", "it was there before"
        over = rmcs("task", "priority", "alpha-1", "1")
        assert (over.code, over.out) == (1, "")
        assert "alpha-1 has ended" in over.err
        assert rmcs("task", "priority", "beta-1", "high").code == 2

    def test_a_priority_with_a_fraction(self, two: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("task", "priority", "alpha-2", "2.5").err == "rmcs: alpha-2 has priority 2.5 now\n"
        assert rmcs("task", "priority", "alpha-2", "3.0").err == "rmcs: alpha-2 has priority 3 now\n"
        assert "3" in rmcs("queue").out.splitlines()[-1].split()
        refused = rmcs("task", "priority", "alpha-2", "nan")
        assert (refused.code, refused.out) == (2, "")
        assert "priority is nan" in refused.err

    def test_the_fields_of_pools(self, two: HttpService, rmcs: Rmcs) -> None:
        two.submit("t1", labels={"team": "nlp", "cost": ""}, pool="nlp", preemptible=True, min_runtime_s=90.0)
        facts = {"labels": "team=nlp, cost=", "pool": "nlp", "preemptible": "yes", "runs at least": "90 s"}
        shown = [" ".join(line.split()) for line in rmcs("task", "show", "t1").out.splitlines()]
        assert {f"{name} {value}" for name, value in facts.items()} <= set(shown)
        explained = rmcs("explain", "t1").out.splitlines()
        assert {f"  {name}: {value}" for name, value in facts.items()} <= set(explained)
        for words in (("task", "show", "t1"), ("explain", "t1")):
            reported = json.loads(rmcs(*words, "-o", "json").out)
            assert (reported["labels"], reported["preemptible"]) == ({"team": "nlp", "cost": ""}, True)
        (row,) = (one for one in json.loads(rmcs("task", "list", "-o", "json").out) if one["id"] == "t1")
        assert (row["pool"], row["min_runtime_s"]) == ("nlp", 90.0)
        assert not {"labels", "pool"} & json.loads(rmcs("task", "show", "alpha-2", "-o", "json").out).keys()


class TestRetry:
    def failed(self, service: HttpService, *ids: str) -> None:
        for item_id in ids:
            service.submit(item_id)
            until(lambda item_id=item_id: state(service, item_id) == "RUNNING")  # type: ignore[misc]  # bound at once
            end(service, item_id, "failed")

    def test_it_is_another_item(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        done = rmcs("task", "retry", "t1")
        assert (done.code, done.out) == (1, "")
        assert "t1 has not ended: RUNNING." in done.err
        end(service, "t1", "failed")
        again = rmcs("task", "retry", "t1")
        assert again.code == 0
        assert state(service, again.out.strip()) in ("PENDING", "QUEUED", "DISPATCHING", "RUNNING")
        assert again.err == f"rmcs: t1 is retried as {again.out.strip()}\n"

    def test_not_twice_by_mistake(self, service: HttpService, rmcs: Rmcs) -> None:
        self.failed(service, "t1")
        second = rmcs("task", "retry", "t1").out.strip()
        until(lambda: state(service, second) == "RUNNING")
        done = rmcs("task", "retry", "t1")
        assert (done.code, done.out) == (1, "")
        assert f"t1 was already retried as {second}, which is RUNNING." in done.err
        assert f"rmcs task show {second}" in done.err
        end(service, second, "failed")
        done = rmcs("task", "retry", "t1")
        assert f"which is FAILED.\nWhat to do: retry that one: rmcs task retry {second}" in done.err
        third = rmcs("task", "retry", "t1", "--anyway")
        assert third.code == 0
        until(lambda: state(service, third.out.strip()) == "RUNNING")
        assert f"as {third.out.strip()}, which is RUNNING" in rmcs("task", "retry", "t1").err, "the newest one"

    def test_two_at_once_repeat_it_once(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each has looked before the other one gave the order; or one does it again, as its answer was lost."""
        self.failed(service, "t1")
        monkeypatch.setattr(task, "earlier_retries", lambda *_: {})
        first, second = rmcs("task", "retry", "t1"), rmcs("task", "retry", "t1")
        assert (first.code, second) == (0, first)
        assert service.get("/api/v1/items/t1")["repeated_by"] == [first.out.strip()]
        monkeypatch.setattr(task, "earlier_retries", lambda *_: {"t1": first.out.strip()})
        third, fourth = rmcs("task", "retry", "t1", "--anyway"), rmcs("task", "retry", "t1", "--anyway")
        assert (third.code, fourth) == (0, third)
        assert service.get("/api/v1/items/t1")["repeated_by"] == [first.out.strip(), third.out.strip()]

    def test_concurrent_retry_of_the_same_item(
        self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After we looked, and by no command: without the key that a command would use."""
        self.failed(service, "t1")
        other = service.post("/api/v1/items/t1/retry")["id"]
        monkeypatch.setattr(task, "earlier_retries", lambda *_: {})
        done = rmcs("task", "retry", "t1")
        assert (done.code, done.out) == (1, "")
        assert f"as {other}, which is " in done.err
        assert service.get("/api/v1/items/t1")["repeated_by"] == [other]

    def test_what_succeeded(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        end(service, "t1")
        done = rmcs("task", "retry", "t1")
        assert (done.code, done.out) == (1, "")
        assert "t1 succeeded." in done.err
        assert "--anyway" in done.err
        assert rmcs("task", "retry", "t1", "--anyway").code == 0

    def test_all(self, service: HttpService, rmcs: Rmcs) -> None:
        none = rmcs("task", "retry", "all")
        assert (none.code, none.out, none.err) == (0, "", "rmcs: nothing is retried: nothing has failed\n")
        self.failed(service, "t1", "t2")
        done = rmcs("task", "retry", "all")
        assert (done.code, len(done.out.splitlines())) == (0, 2)
        assert done.err.splitlines()[-1] == "rmcs: 2 are retried"
        again = rmcs("task", "retry", "all", "-o", "json")
        assert (again.code, json.loads(again.out)) == (0, [])
        assert "nothing is retried: what failed (2) was retried before; --anyway" in again.err
        self.failed(service, "t3")
        assert rmcs("task", "retry", "all").err.splitlines()[-1] == (
            "rmcs: 1 is retried; 2 of those that failed were before"
        )
        assert rmcs("task", "retry", "all", "--anyway").err.splitlines()[-1] == "rmcs: 3 are retried"

    def test_one_that_is_refused_does_not_stop_the_others(self, two: HttpService, rmcs: Rmcs) -> None:
        two.submit("t3")
        assert rmcs("task", "cancel", "alpha-1").code == 0
        until(lambda: state(two, "alpha-1") == "CANCELLED")
        until(lambda: state(two, "alpha-2") == "RUNNING")
        done = rmcs("task", "retry", "alpha-2", "alpha-1", "-o", "json")
        assert done.code == 1
        assert [one["repeats"] for one in json.loads(done.out)] == ["alpha-1"]
        assert schema_violations(two, f"{ITEM}/retry", json.loads(done.out)[0], method="post") == []
        assert "alpha-2" in done.err


class TestLogs:
    def printed(self, service: HttpService, text: str) -> None:
        runtime = service.plane.runtime
        runtime.call_and_wait(lambda: runtime.collector.output("mac", "t1", 1, "stdout", text))

    def test_what_it_printed(self, service: HttpService, rmcs: Rmcs) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        self.printed(service, "one\n")
        assert rmcs("task", "logs", "t1").out == "one\n"

    @pytest.mark.parametrize(("how", "code"), [("succeeded", 0), ("failed", 100)])
    def test_followed_to_its_end(self, service: HttpService, rmcs: Rmcs, how: str, code: int) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        self.printed(service, "one\n")

        def rest() -> None:
            self.printed(service, "two ü\n")
            end(service, "t1", how)

        later = threading.Timer(0.5, rest)
        later.start()
        done = rmcs("task", "logs", "-f", "last")
        later.join()
        assert (done.code, done.out) == (code, "one\ntwo ü\n")

    def test_waiting_items_show_the_reason(self, two: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        say, answer = output.notify, threading.Event()

        def received(text: str) -> None:
            say(text)
            if "alpha-2 is QUEUED: mac" in text:
                answer.set()

        def go() -> None:
            answer.wait(60)
            end(two, "alpha-1")
            until(lambda: state(two, "alpha-2") == "RUNNING")
            end(two, "alpha-2")

        monkeypatch.setattr(output, "notify", received)
        later = threading.Thread(target=go)
        later.start()
        done = rmcs("task", "logs", "-f", "alpha-2")
        later.join()
        assert done.code == 0
        assert "alpha-2 is QUEUED: mac" in done.err

    def test_the_end_of_it(self, service: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
        service.submit("t1")
        until(lambda: state(service, "t1") == "RUNNING")
        self.printed(service, "one\ntwo\r2\nthree\n")
        assert rmcs("task", "logs", "t1", "--tail", "2").out == "two\r2\nthree\n"
        assert rmcs("task", "logs", "t1", "--tail", "0").out == ""
        assert rmcs("task", "logs", "t1", "--tail", "9").out == "one\ntwo\r2\nthree\n"

        shown = threading.Event()

        def show(text: str) -> None:
            output.to_stdout(text)
            shown.set()

        def rest() -> None:
            shown.wait(60)
            self.printed(service, "four\n")
            end(service, "t1")

        monkeypatch.setattr(item_wait, "to_stdout", show)
        later = threading.Thread(target=rest)
        later.start()
        done = rmcs("task", "logs", "-f", "--tail", "1", "t1")
        later.join()
        assert (done.code, done.out) == (0, "three\nfour\n")

    def test_usage(self, two: HttpService, rmcs: Rmcs) -> None:
        assert rmcs("task", "logs", "-f", "--attempt", "1", "alpha-1").code == 2


def test_changes_continue_if_stdout_is_closed(two: HttpService, rmcs: Rmcs, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `rmcs task cancel all | head -1`."""

    def unavailable(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "nobody reads")

    monkeypatch.setattr("ray_multicluster_scheduler.cli.service.items.typer.echo", unavailable)
    done = rmcs("task", "cancel", "all")
    assert done.code != 0
    assert done.err.count("rmcs: alpha-") == 2
    until(lambda: (state(two, "alpha-1"), state(two, "alpha-2")) == ("CANCELLED", "CANCELLED"))


@pytest.mark.parametrize(
    "words", [["task", "show"], ["task", "list", "--name"], ["owner", "show"], ["explain"], ["clusters", "show"]]
)
def test_invalid_utf8_is_replaced(service: HttpService, rmcs: Rmcs, words: list[str]) -> None:
    done = rmcs(*words, "\udcff\udcfe")
    assert done.code in (2, 102)
    assert "Traceback" not in done.err
    assert "\\udcff" in done.err
