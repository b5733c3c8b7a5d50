"""What an operator does to clusters: by the verbs, and over the socket with `rmcs clusters …`."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as api
from ray_multicluster_scheduler.app.client_api import execution_context
from ray_multicluster_scheduler.app.client_api.handles.handle import TaskHandle
from ray_multicluster_scheduler.app.client_api.scheduler import UnifiedScheduler
from ray_multicluster_scheduler.cli.service import local_programs
from ray_multicluster_scheduler.common.current_item import CurrentItem, set_current
from ray_multicluster_scheduler.common.exception import ClusterLostError, ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.model import ResourceSnapshot, TaskState
from ray_multicluster_scheduler.control_plane.runtime import fleet_control
from ray_multicluster_scheduler.main import main
from ray_multicluster_scheduler.scheduler.lifecycle import events
from tests.unit.client_api.control_plane import ControlPlane, until
from tests.unit.client_api.verb_parameters import check_same_parameters
from tests.unit.lifecycle.driver import snapshot, task

VERBS = {"declare_dead": ("mac",), "cordon": ("mac",), "uncordon": ("mac",), "drain": ("mac",)}


class SilentPlane(ControlPlane):
    """Its cluster answers only while ``alive``."""

    alive = True

    def refresh(self, cluster: str, *, requested: bool = True) -> None:
        if self.alive:
            super().refresh(cluster)
        else:
            self.post(events.SnapshotFailed(cluster, "SILENT", "nobody answers", requested=requested))

    def fall_silent(self) -> None:
        self.alive = False
        self.post(events.SnapshotFailed("mac", "SILENT", "nobody answers"))


@pytest.fixture
def plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentPlane]:
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))
    with SilentPlane() as control_plane:
        yield control_plane


@pytest.fixture
def scheduler(plane: SilentPlane) -> Iterator[UnifiedScheduler]:
    """The shared one; its control plane is the one that the test moves."""
    scheduler = UnifiedScheduler(plane.runtime.config)
    scheduler._runtime = plane.runtime
    scheduler._submission = plane  # type: ignore[assignment]  # nothing is submitted through it
    before = execution_context.exchange_shared(scheduler)
    yield scheduler
    execution_context.exchange_shared(before)


@pytest.mark.usefixtures("scheduler")
class TestDeclareDead:
    def test_items_of_a_dead_cluster_are_settled(self, plane: SilentPlane) -> None:
        once, again = plane.job("j1"), plane.task("t1")
        plane.fall_silent()
        assert api.declare_dead("mac", "its rack burnt down") == ["j1", "t1"]
        with pytest.raises(ClusterLostError, match="j1 .*an operator declared mac dead: its rack burnt down"):
            once.result(60)
        until(lambda: again.explain()["code"] == "CLUSTER_DEAD")
        assert again.state is TaskState.QUEUED
        (row,) = api.list_clusters()
        assert (row["state"], row["sentence"].partition(";")[0]) == (
            "CLUSTER_DEAD",
            "an operator declared it dead: its rack burnt down",
        )
        plane.alive = True
        plane.refresh("mac")
        until(lambda: again.state is TaskState.RUNNING)
        assert again.attempt == 2

    def test_one_that_answers_is_refused_unless_forced(self, plane: SilentPlane) -> None:
        handle = plane.job("j1")
        with pytest.raises(SchedulerError, match=r"'mac' was not declared dead: it answered \d+ s ago") as caught:
            api.declare_dead("mac")
        assert "force=True" in str(caught.value.next_step)
        assert handle.state is TaskState.RUNNING
        assert api.declare_dead("mac", force=True) == ["j1"]
        assert isinstance(handle.exception(10), ClusterLostError)

    def test_one_without_recent_contact_is_asked(self, plane: SilentPlane, monkeypatch: pytest.MonkeyPatch) -> None:
        async def answers(cluster: str) -> Any:
            return type("Health", (), {"snapshot": object()})

        monkeypatch.setattr(plane.runtime.health, "check", answers)
        with pytest.raises(SchedulerError, match="was not declared dead: it answered just now"):
            api.declare_dead("mac")

    def test_one_that_takes_too_long_to_answer_is_dead(
        self, plane: SilentPlane, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fleet_control, "PROBE_TIMEOUT_S", 0.0)
        assert api.declare_dead("mac") == []
        until(lambda: api.list_clusters()[0]["state"] == "CLUSTER_DEAD")

    @pytest.mark.parametrize(
        ("given", "output"),
        [
            ({"cluster": "mca"}, "There is no cluster 'mca'"),
            ({"cluster": 5}, "cluster is 5"),
            ({"cluster": ""}, "cluster is ''"),
            ({"cluster": "mac", "reason": 5}, "reason is 5"),
        ],
    )
    def test_what_is_no_cluster(self, given: dict[str, Any], output: str) -> None:
        with pytest.raises(ConfigurationError, match=output):
            api.declare_dead(**given)


@pytest.mark.usefixtures("scheduler")
class TestDrain:
    def test_it_waits_until_nothing_is_there_and_nothing_new_goes_there(self, plane: SilentPlane) -> None:
        running = plane.task("t1")
        assert api.drain("mac", timeout=0) is False
        waiting: TaskHandle = plane.submit(plane.with_payload(task("t2")))
        until(lambda: waiting.explain()["code"] == "CORDONED")
        assert running.state is TaskState.RUNNING
        (row,) = api.list_clusters()
        assert (row["state"], row["cordoned"], row["items"]) == ("UP", True, 1)
        threading.Timer(0.05, lambda: plane.finish(running)).start()
        assert api.drain("mac") is True
        assert api.list_clusters()[0]["items"] == 0
        api.uncordon("mac")
        until(lambda: waiting.state is TaskState.RUNNING)
        assert api.list_clusters()[0]["cordoned"] is False

    def test_a_cordon_does_not_wait(self, plane: SilentPlane) -> None:
        running = plane.task("t1")
        api.cordon("mac")
        waiting: TaskHandle = plane.submit(plane.with_payload(task("t2")))
        until(lambda: waiting.explain()["code"] == "CORDONED")
        assert running.state is TaskState.RUNNING

    @pytest.mark.parametrize("timeout", [-1, "soon", True])
    def test_invalid_timeout_is_rejected(self, timeout: Any) -> None:
        with pytest.raises(ConfigurationError, match="timeout is"):
            api.drain("mac", timeout=timeout)

    @pytest.mark.parametrize("verb", ["cordon", "uncordon", "drain"])
    def test_what_is_no_cluster(self, verb: str) -> None:
        for wrong, output in (("mca", "There is no cluster 'mca'"), (5, "cluster is 5")):
            with pytest.raises(ConfigurationError, match=output):
                getattr(api, verb)(wrong)


@pytest.mark.usefixtures("scheduler")
class TestHalfACluster:
    """One of the two ways to it is closed: that is reported, and what it has still counts."""

    def test_only_its_dashboard_is_silent(self, plane: SilentPlane) -> None:
        plane.post(events.LinkUp("mac", "3.11.9", "2.60.0", "s1"))
        plane.refresh("mac")
        plane.post(events.DashboardChecked("mac", "connection refused"))
        until(lambda: api.list_clusters()[0]["state"] == "DASHBOARD_SILENT")
        assert api.list_clusters()[0]["sentence"] == (
            "its dashboard does not accept jobs: connection refused; tasks and actors continue over its link"
        )
        assert api.fleet_resources()["total"] == {"CPU": 8.0}
        assert [node["Cluster"] for node in api.nodes()] == ["mac"]

    def test_only_its_link_cannot_be_made(self, plane: SilentPlane) -> None:
        plane.refresh("mac")
        plane.post(events.LinkFailed("mac", "LINK_FAILED", "the agent did not dial back."))
        until(lambda: api.list_clusters()[0]["state"] == "LINK_FAILED")
        assert api.list_clusters()[0]["sentence"].endswith(" s. Jobs go there.")


@pytest.mark.usefixtures("scheduler")
class TestFreeResources:
    def test_work_that_has_ended_is_free_although_the_report_still_shows_it(self, plane: SilentPlane) -> None:
        first, second = plane.task("t1"), plane.task("t2")
        reported_at = plane.runtime.clock.now()
        report = snapshot("mac", reported_at, {"CPU": 8, "GPU": 1}, source="http").to_dict()
        report["nodes"][0]["free"] = {"CPU": 5.0, "GPU": 1.0}  # two of ours, one of another user
        plane.finish(first)
        plane.post(events.SnapshotTaken(ResourceSnapshot.from_dict(report)))
        until(lambda: api.cluster_info("mac")["snapshot_at"] == reported_at)
        assert api.fleet_resources()["free"] == {"CPU": 6.0, "GPU": 1.0}
        plane.finish(second)
        assert api.fleet_resources()["free"] == {"CPU": 7.0, "GPU": 1.0}
        report["nodes"][0]["free"] = None
        report["taken_at"] = plane.runtime.clock.now()
        plane.post(events.SnapshotTaken(ResourceSnapshot.from_dict(report)))
        until(lambda: api.cluster_info("mac")["snapshot_at"] == report["taken_at"])
        assert api.cluster_info("mac")["free"] is None


class TestCommand:
    def test_drain_reports_what_is_left(self, plane: SilentPlane, capsys: pytest.CaptureFixture[str]) -> None:
        handle = plane.task("t1")
        assert main(["clusters", "drain", "mac"]) == 0
        assert "): mac takes no new work; t1 is still there" in capsys.readouterr().out
        assert main(["clusters", "drain", "mac", "-o", "json"]) == 0
        (reported,) = json.loads(capsys.readouterr().out)["programs"]
        assert (reported["process"], reported["items"]) == (os.getpid(), ["t1"])
        plane.finish(handle)
        assert main(["clusters", "drain", "mac"]) == 0
        assert "): mac is cordoned already; nothing is there any more" in capsys.readouterr().out
        assert main(["clusters", "uncordon", "mac"]) == 0
        assert "): mac is not cordoned any more; nothing is there" in capsys.readouterr().out
        assert main(["clusters", "uncordon", "mac"]) == 0
        assert "): mac was not cordoned; nothing is there" in capsys.readouterr().out
        assert plane.task("t2").state is TaskState.RUNNING

    def test_every_program_is_notified(self, plane: SilentPlane, capsys: pytest.CaptureFixture[str]) -> None:
        handle = plane.job("j1")
        plane.fall_silent()
        assert main(["clusters", "declare-dead", "mac", "--reason", "sold"]) == 0
        line = capsys.readouterr().out
        assert line.startswith(f"process {os.getpid()} (")
        assert "): mac is declared dead; j1 was there" in line
        with pytest.raises(ClusterLostError, match="declared mac dead: sold"):
            handle.result(60)

    def test_a_refusal_says_what_to_do(self, plane: SilentPlane, capsys: pytest.CaptureFixture[str]) -> None:
        handle = plane.job("j1")
        assert main(["clusters", "declare-dead", "mac"]) == 1
        error = capsys.readouterr().err
        assert "was not declared dead: it answered" in error
        assert "What to do: leave it alone, or drain it" in error
        assert "use --force (force=True in a program): " in error
        assert handle.state is TaskState.RUNNING
        assert main(["clusters", "declare-dead", "mac", "--force"]) == 0
        assert isinstance(handle.exception(10), ClusterLostError)

    @pytest.mark.parametrize("words", [["-o", "json"], ["--config", "x.yaml"]])
    def test_options_of_the_table_are_not_theirs(self, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["clusters", *words, "drain", "mac"]) == 2
        assert "write options of drain behind it" in capsys.readouterr().err

    def test_an_unknown_name(self, plane: SilentPlane, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["clusters", "declare-dead", "mca"]) == 102
        assert f"process {os.getpid()}: There is no cluster 'mca'" in capsys.readouterr().err

    def test_without_a_program(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("RMCS_HOME", str(tmp_path / "empty"))
        assert main(["clusters", "declare-dead", "mac"]) == 2
        assert "No program of yours with a scheduler runs now" in capsys.readouterr().err

    def test_a_program_that_does_not_answer_is_named_and_the_others_are_notified(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        items = [f"t{number}" for number in range(12)]
        answers = [(1, {"error": "TimeoutError"}), (2, {"items": items, "program": {"command": "python x.py"}})]
        monkeypatch.setattr(local_programs, "query_all", lambda _: iter(answers))
        assert main(["clusters", "declare-dead", "mac"]) == 1
        reported = capsys.readouterr()
        assert "process 1: no answer" in reported.err
        assert "process 2 (python x.py): mac is declared dead; t0, t1" in reported.out
        assert "t9 and 2 more were there" in reported.out


class TestInsideOfACluster:
    def test_the_verbs_are_refused_with_a_sentence(self) -> None:
        set_current(CurrentItem("task-1", 1, 7, "mac"))
        try:
            for verb, arguments in VERBS.items():
                with pytest.raises(ConfigurationError, match=f"{verb} cannot be used inside cluster 'mac'"):
                    getattr(api, verb)(*arguments)
        finally:
            set_current(None)

    def test_they_are_called_the_same_way_on_both_sides(self) -> None:
        check_same_parameters(VERBS)
