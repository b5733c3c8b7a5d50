"""The code that runs inside a cluster: the agent without a cluster, then tasks and a stopped agent on a real one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection.links import agent_link
from ray_multicluster_scheduler.scheduler.connection.links.agent_link import resource_snapshot
from tests.support.mac_cluster import agents_of_mac, config_of_mac, until

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "check",
    [
        "a_call_without_its_function_is_asked_for_again",
        "a_function_that_cannot_be_stored_is_that_calls_answer",
        "a_cancel_that_ray_refuses_ends_nothing_else",
        "a_message_that_cannot_be_handled_costs_the_connection_only",
        "a_result_that_is_too_large_is_a_failure_with_a_sentence",
        "events_during_a_cut_are_reported_after_it",
        "a_repeated_call_is_reported_as_it_is",
        "old_bytes_do_not_renew_a_lease_that_is_over",
        "an_answer_renews_the_lease_from_when_it_was_asked_for",
        "a_gang_whose_places_cannot_be_asked_for_is_answered_and_leaves_none",
        "a_gang_that_ray_refuses_is_answered",
        "methods_of_two_processes_are_given_in_order_and_nobody_waits_for_what_never_comes",
        "a_method_that_comes_after_those_of_a_later_process_is_refused",
        "a_method_of_a_process_that_is_gone_waits_for_nobody_and_its_answer_is_repeated",
        "an_interrupt_beside_the_users_code_is_an_end_after_the_start",
    ],
)
def test_the_agent_without_a_cluster(ray_python: Path, check: str) -> None:
    """Each is written in agent_checks.py, for an interpreter that has Ray but neither pytest nor a cluster."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_ENABLE_AUTO_CONNECT": "0"}
    done = subprocess.run(
        [str(ray_python), str(Path(__file__).with_name("agent_checks.py")), check],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(f"{check}\n")


def test_standard_output_of_a_task_is_a_full_text_stream(scheduler: UnifiedScheduler) -> None:
    def talk() -> tuple[bool, int]:
        import sys

        sys.stdout.reconfigure(line_buffering=True)
        sys.stdout.buffer.write(b"bytes for the worker's log\n")
        sys.stdout.buffer.flush()
        print("text for everybody")
        return sys.stdout.line_buffering, sys.stderr.buffer.fileno()

    handle = scheduler.submit_task_async(talk)
    line_buffering, number = handle.result(60)
    assert line_buffering
    assert number >= 0
    assert handle.logs() == "text for everybody\n"


def test_snapshots_have_the_usage_of_a_single_node_cluster(
    fleet: LocalFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[dict[str, Any]] = []

    def keep(info: Any, head: dict[str, Any], now: float) -> Any:
        heads.append(head)
        return resource_snapshot(info, head, now)

    monkeypatch.setattr(agent_link, "resource_snapshot", keep)
    with UnifiedScheduler(config_of_mac(fleet, tmp_path)) as scheduler:
        assert scheduler.submit_task(len, ("abc",)) == 3
        until(lambda: any("cpu" in (head["observed"] or {}) for head in heads), 20)
    seen = next(head["observed"] for head in heads if "cpu" in (head["observed"] or {}))
    assert 0 <= seen["cpu"] <= 1
    assert 0 < seen["memory"] < 1


@pytest.mark.slow
def test_a_resumed_agent_keeps_at_most_one_live_attempt(fleet: LocalFleet, tmp_path: Path) -> None:
    """Its workers end by their leases; another agent takes over; the first one ends when it is resumed."""

    def count(path: str) -> None:

        from ray_multicluster_scheduler import current

        for _ in range(1000):
            with open(path, "a") as file:
                file.write(f"{current().attempt} ")
            time.sleep(0.1)

    path = tmp_path / "attempts"

    def attempts() -> list[str]:
        return path.read_text().split() if path.exists() else []

    config = config_of_mac(fleet, tmp_path, heartbeat_s=0.5, lease_s=4, lost_after_s=14)
    before = {agent.pid for agent in agents_of_mac(fleet)}
    with UnifiedScheduler(config) as scheduler:
        handle = scheduler.submit_task_async(count, (str(path),))
        until(lambda: handle.state is TaskState.RUNNING and bool(attempts()))
        (agent,) = [process for process in agents_of_mac(fleet) if process.pid not in before]
        agent.send_signal(signal.SIGSTOP)
        try:
            until(lambda: "2" in attempts(), 60)
        finally:
            if agent.is_running():
                agent.send_signal(signal.SIGCONT)
        until(lambda: not agent.is_running() or agent.status() == psutil.STATUS_ZOMBIE, 15)
        seen = attempts()
        until(lambda: len(attempts()) > len(seen) + 10, 15)
        assert attempts() == sorted(attempts()), "the first attempt wrote nothing after the second one began"
        handle.cancel(force=True)
