"""Explanations, dependencies and queue verbs, on two real clusters, from Python and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ray_multicluster_scheduler as rmcs
from ray_multicluster_scheduler import (
    TaskState,
    TaskSubmissionError,
    UnifiedScheduler,
    get,
    hold,
    release,
    set_priority,
    submit_job_async,
    submit_task_async,
)
from ray_multicluster_scheduler.cli.layout.times import with_iso_times
from tests.support.by_value_functions import WHOLE, all_idle, full, noting, where
from tests.support.mac_cluster import until

pytestmark = pytest.mark.usefixtures("scheduler")
ON_MAC: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}
ROOT = Path(__file__).resolve().parents[2]


def rmcs_cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ray_multicluster_scheduler", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


class TestExplanations:
    def test_a_waiting_item_shows_position_and_expected_start(self, tmp_path: Path) -> None:
        def nap(go: str = "") -> None:
            import os
            import time

            time.sleep(2)
            while go and not os.path.exists(go):
                time.sleep(0.05)

        go = tmp_path / "go"  # until then they are asked about
        needs = {"resource_requirements": WHOLE, **ON_MAC}
        get([submit_task_async(nap, **needs) for _ in range(2)], timeout=60)  # type: ignore[arg-type]
        handles = [submit_task_async(nap, (str(go),), **needs) for _ in range(3)]  # type: ignore[arg-type]
        until(lambda: handles[0].state is TaskState.RUNNING, 60)
        until(lambda: handles[2].explain()["code"] == "NO_CAPACITY", 60)
        explanation = handles[2].explain()
        assert (explanation["state"], explanation["code"]) == ("QUEUED", "NO_CAPACITY")
        assert explanation["queue"]["position"] == 2
        assert [one["id"] for one in explanation["queue"]["ahead"]] == [handles[1].id]
        assert explanation["unblocked_by"]
        estimate = explanation["estimate"]
        assert 0.5 < estimate["likely_s"] < 8
        assert estimate["earliest_s"] <= estimate["likely_s"] <= estimate["latest_s"]
        reported = rmcs_cli("explain", handles[2].id)
        assert (reported.returncode, reported.stderr) == (0, "")
        assert "may start: in about " in reported.stdout
        assert "mac" in reported.stdout
        go.touch()
        get(handles, timeout=60)

    def test_a_placed_item_shows_its_decision_and_attempts(self, tmp_path: Path) -> None:
        def fails_once(path: str) -> str:
            import os

            if os.path.exists(path):
                return "second"
            open(path, "w").close()
            raise OSError("first")

        handle = submit_task_async(
            fails_once, (str(tmp_path / "seen"),), retries=1, runtime_env={"env_vars": {"A": "b"}}, **ON_MAC
        )
        assert handle.result(90) == "second"
        explanation = handle.explain()
        assert [(one["cluster"], one["ended_as"]) for one in explanation["attempts"]] == [
            ("mac", "failed"),
            ("mac", "succeeded"),
        ]
        assert explanation["attempts"][0]["fence"] < explanation["attempts"][1]["fence"]
        assert all(one["sent_at"] <= one["started_at"] <= one["ended_at"] for one in explanation["attempts"])
        rows = {row["cluster"]: row for row in explanation["decision"]["candidates"]}
        assert rows["linux"]["rejections"][0]["code"] == "PREFERRED_ONLY"
        assert rows["mac"]["scores"]
        assert explanation["runtime_env"]["env_vars"]["A"] == "•••"
        as_json = json.loads(rmcs_cli("explain", handle.id, "-o", "json").stdout)
        assert as_json["attempts"] == with_iso_times(explanation["attempts"])

    def test_an_unknown_id(self, scheduler: UnifiedScheduler) -> None:
        scheduler.submit_task(len, ("abc",))  # so that there is a program to query
        reported = rmcs_cli("explain", "task-0000-1")
        assert reported.returncode == 102
        assert "programs queried: process " in reported.stderr

    def test_a_plan_for_each_kind_from_the_command_line(self, config_path: Path, scheduler: UnifiedScheduler) -> None:
        all_idle(scheduler)
        for kind in ("task", "actor", "job"):

            def mac_is_chosen(kind: str = kind) -> bool:
                reported = rmcs_cli(
                    "plan", "--kind", kind, "--cpus", "1", "--tag", "arm64", "--config", str(config_path)
                )
                assert reported.returncode == 0, reported.stderr
                return "chosen" in next(line for line in reported.stdout.splitlines() if line.startswith("mac"))

            until(mac_is_chosen, 60)  # what a dashboard shows may be some seconds old
        never = rmcs_cli("plan", "--cpus", "64", "-o", "json", "--config", str(config_path))
        decision = json.loads(never.stdout)
        assert (never.returncode, decision["cluster"]) == (100, None)
        assert {one["code"] for row in decision["candidates"] for one in row["rejections"]} >= {"TOO_BIG"}


class TestOneAfterTheOther:
    def test_a_task_after_a_job_after_a_task(self, tmp_path: Path) -> None:
        lines = tmp_path / "lines"
        first = submit_task_async(noting(), (str(lines), "first"))
        second = submit_job_async(f"echo second >> {lines}", after=[first], **ON_MAC)
        third = submit_task_async(noting(), (str(lines), "third"), after=[second.id], start_after=0.1)
        assert third.result(120) == "third"
        assert lines.read_text().split() == ["first", "second", "third"]

    def test_a_failure_propagates_to_dependants(self) -> None:
        def fail() -> None:
            raise ValueError("no data")

        first = submit_task_async(fail)
        second = submit_task_async(where(), after=[first])
        error = second.exception(60)
        assert isinstance(error, TaskSubmissionError)
        assert first.id in str(error)
        assert "no data" in str(error)
        assert second.explain()["attempts"] == []


class TestTheQueue:
    def test_hold_release_and_another_priority(self, tmp_path: Path) -> None:
        lines = tmp_path / "lines"
        with full(tmp_path) as go:
            held, late, early = (
                submit_task_async(noting(), (str(lines), name), None, WHOLE, **ON_MAC)
                for name in ("held", "late", "early")
            )
            hold(held, "not yet")
            set_priority(early.id, 7)
            until(lambda: held.explain()["code"] == "HELD", 10)
            assert "not yet" in held.explain()["sentence"]
            go.touch()
            get([late, early], timeout=60)
            assert held.state is TaskState.QUEUED
            release(held)
            assert held.result(60) == "held"
        assert lines.read_text().split() == ["early", "late", "held"]

    def test_a_paused_cluster_gets_no_new_items(self) -> None:
        rmcs.pause_queue(cluster="mac", reason="it moves house")
        try:
            waits = submit_task_async(where(), **ON_MAC)
            assert submit_task_async(where(), tags=["arm64"]).result(60) == "linux"
            assert "it moves house" in waits.explain()["sentence"]
        finally:
            rmcs.resume_queue(cluster="mac")
        assert waits.result(60) == "mac"
