"""The link agent on a real cluster, when the connection or one of its ends fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from ray_multicluster_scheduler import TaskState, UnifiedScheduler, get
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import AGENT, agents_of_mac, config_of_mac, line_to_mac, until

LEASE = {"heartbeat_s": 0.5, "lease_s": 6, "lost_after_s": 16}


def _config(fleet: LocalFleet, folder: Path, **settings: object) -> Path:
    return config_of_mac(fleet, folder, **{**LEASE, **settings})


def _line(fleet: LocalFleet, folder: Path, **settings: object) -> AbstractContextManager[UnifiedScheduler]:
    return line_to_mac(fleet, folder, **{**LEASE, **settings})


@pytest.fixture
def line(fleet: LocalFleet, tmp_path: Path) -> Iterator[UnifiedScheduler]:
    with _line(fleet, tmp_path) as scheduler:
        yield scheduler


def test_a_cut_connection_without_loss_or_repetition(line: UnifiedScheduler, fleet: LocalFleet, tmp_path: Path) -> None:
    def note(path: str, number: int) -> int:
        import time

        with open(path, "a") as file:
            file.write(f"{number} ")
        time.sleep(0.3)
        return number

    path = tmp_path / "done"
    handles = [line.submit_task_async(note, (str(path), number)) for number in range(20)]
    for _ in range(2):
        until(lambda: any(handle.state is TaskState.RUNNING for handle in handles))
        fleet.cut("mac")
        time.sleep(1)
        fleet.restore_network("mac")
        time.sleep(1)
    assert get(handles, timeout=60) == list(range(20))
    assert sorted(map(int, path.read_text().split())) == list(range(20)), "each ran exactly once"
    assert all(handle.attempt == 1 for handle in handles)


@pytest.mark.slow
def test_a_task_that_starts_during_a_cut_is_not_recalled(fleet: LocalFleet, tmp_path: Path) -> None:
    """Its start and output are reported after the reconnect, before start_grace_s has passed."""

    def note(path: str) -> str:
        import time

        with open(path, "a") as file:
            file.write("ran ")
        print("said during the cut", flush=True)
        time.sleep(12)
        return "done"

    path = tmp_path / "runs"
    with _line(fleet, tmp_path, start_grace_s=8, lease_s=20, lost_after_s=40) as scheduler:
        # A new environment needs a new worker process, so the call waits over there for a second or more.
        handle = scheduler.submit_task_async(note, (str(path),), runtime_env={"env_vars": {"NEW": str(tmp_path)}})
        until(lambda: handle.state is TaskState.DISPATCHING)
        time.sleep(0.3)
        fleet.cut("mac")
        try:
            assert not path.exists(), "it started too early for this test to show anything"
            until(path.exists, 15)
            time.sleep(0.5)
            assert handle.state is not TaskState.RUNNING
        finally:
            fleet.restore_network("mac")
        assert handle.result(60) == "done"
        assert (handle.attempt, path.read_text()) == (1, "ran "), handle.explain()["history"]
        assert "said during the cut" in handle.logs()


def test_a_frozen_connection_is_detected_and_work_continues_after_it(line: UnifiedScheduler, fleet: LocalFleet) -> None:
    """No byte passes, but the connection stays open. Three missed heartbeats make the cluster suspect."""
    handle = line.submit_task_async(lambda: __import__("time").sleep(4) or "slept")
    until(lambda: handle.state is TaskState.RUNNING)
    fleet.freeze("mac")
    try:
        until(lambda: line.list_clusters()[0]["state"] != "UP", 30)
    finally:
        fleet.restore_network("mac")
    assert handle.result(40) == "slept"
    assert handle.attempt == 1
    assert line.submit_task(len, ("again",)) == 5


def test_a_killed_agent_is_replaced(fleet: LocalFleet, tmp_path: Path) -> None:
    """Its running task is lost with it, known to be dead, and retried."""

    def slow(path: str) -> int:
        import time

        from ray_multicluster_scheduler import current

        with open(path, "a") as file:
            file.write(f"{current().attempt} ")
        time.sleep(3)
        return current().attempt

    path = tmp_path / "attempts"
    with UnifiedScheduler(_config(fleet, tmp_path)) as scheduler:
        handle = scheduler.submit_task_async(slow, (str(path),))
        until(lambda: handle.state is TaskState.RUNNING)
        os.kill(_agent_process(scheduler).pid, signal.SIGKILL)
        assert handle.result(60) == 2
        assert path.read_text() == "1 2 "
        codes = [step["code"] for step in handle.explain()["history"]]
        assert "CLUSTER_LOST" in codes


def test_an_unneeded_agent_ends(fleet: LocalFleet, tmp_path: Path) -> None:
    with UnifiedScheduler(_config(fleet, tmp_path, agent_idle_s=1)) as scheduler:
        assert scheduler.submit_task(len, ("abc",)) == 3
        agent = _agent_process(scheduler)
        until(lambda: not agent.is_running(), 60)
        assert scheduler.submit_task(len, ("ab",)) == 2, "the next task starts a new one"


PROGRAM = """
    import sys, time
    from ray_multicluster_scheduler import *

    def busy(path):
        import os, time
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)

    initialize_scheduler_environment(sys.argv[1])
    handle = submit_task_async(busy, (sys.argv[2],))
    while handle.state != "RUNNING":
        time.sleep(0.05)
    print("READY", flush=True)
    time.sleep(600)
"""


def test_no_orphans_after_kill_9_of_the_program(fleet: LocalFleet, tmp_path: Path) -> None:
    """The agent gets no message: its lease expires, and it ends its task and itself."""
    program, mark = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(textwrap.dedent(PROGRAM))
    others = set(agents_of_mac(fleet))
    process = subprocess.Popen(
        [sys.executable, str(program), str(_config(fleet, tmp_path)), str(mark)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "READY\n"
    until(lambda: mark.exists() and mark.read_text() != "")
    worker = psutil.Process(int(mark.read_text()))
    agents = set(agents_of_mac(fleet)) - others
    assert agents
    process.kill()
    process.communicate()
    began = time.monotonic()
    until(lambda: not worker.is_running() and not any(agent.is_running() for agent in agents), 60)
    assert time.monotonic() - began > LEASE["lease_s"] / 2, "it lasted as long as the lease, not less"


def _agent_process(scheduler: UnifiedScheduler) -> psutil.Process:
    runtime, _ = scheduler._started()
    link = runtime.links.existing_link("mac")
    assert link is not None
    marked = [
        process
        for process in psutil.process_iter(["cmdline"])
        if AGENT in (process.info["cmdline"] or [])
        and link.agent in process.environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR", "") + str(process.environ())
    ]
    assert len(marked) == 1, marked
    return marked[0]
