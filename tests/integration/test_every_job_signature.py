"""All options, attributes and states of jobs, each once, on two real clusters."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    NoFeasibleClusterError,
    RemoteError,
    TaskCancelledError,
    TaskState,
    TaskTimeoutError,
    UnifiedScheduler,
    explain,
    get,
    get_job_info,
    get_job_logs,
    get_job_status,
    graceful_shutdown_on_keyboard_interrupt,
    list_jobs,
    stop_job,
    submit_job,
    submit_job_async,
    submit_task,
    wait_for_all_jobs,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection.dashboard.dashboard_client import DashboardClient
from tests.support.mac_cluster import config_of_mac, until

ON_MAC: dict[str, Any] = {"preferred_cluster": "mac", "fallback": "wait"}
FREE = """python -c 'import ray; ray.init(); print("free", ray.available_resources().get("CPU"))'"""


@pytest.mark.usefixtures("scheduler")
class TestWhatIsSaid:
    def test_options_are_passed_to_ray(self, scheduler: UnifiedScheduler) -> None:
        """The entrypoint holds its requested resources; name and metadata are visible in Ray."""
        handle = submit_job_async(
            FREE, name="weather", metadata={"team": "north"}, entrypoint_resources={"CPU": 1}, **ON_MAC
        )
        assert handle.result(90) == "SUCCEEDED"
        assert "free 1.0" in handle.logs()
        assert explain(handle.id)["name"] == "weather"
        info = get_job_info(handle.id)
        runtime, _ = scheduler._started()
        in_ray = runtime.run(runtime.clients.client("mac").job_info(info["ray_submission_id"]))
        assert in_ray is not None
        assert in_ray["metadata"]["team"] == "north"
        assert in_ray["entrypoint"] == info["entrypoint"] == FREE
        assert info["submitted_at"] <= info["started_at"] <= info["finished_at"]
        assert (info["job_id"], info["status"], info["attempt"]) == (handle.id, "SUCCEEDED", 1)

    def test_defaults_need_no_resources(self, scheduler: UnifiedScheduler, tmp_path: Path) -> None:
        """It runs on a full cluster, while a job that needs a CPU waits."""
        go = tmp_path / "go"
        needs = submit_job(f"until test -e {go}; do sleep 0.05; done", resource_requirements={"CPU": 2}, **ON_MAC)
        until(lambda: get_job_status(needs) == "RUNNING", 60)
        waits = submit_job("true", resource_requirements={"CPU": 1}, **ON_MAC)
        late = submit_job_async("true", resource_requirements={"CPU": 1}, queue_timeout=0.5, **ON_MAC)
        assert submit_job_async("true", **ON_MAC).result(90) == "SUCCEEDED"
        assert get_job_status(waits) == "QUEUED"
        assert explain(waits)["code"] == "NO_CAPACITY"
        with pytest.raises(TaskTimeoutError, match=late.id):
            late.result(30)
        assert (late.attempt, get_job_status(late.id)) == (0, "FAILED")
        go.touch()
        assert wait_for_all_jobs([needs, waits], timeout=90) == dict.fromkeys([needs, waits], "SUCCEEDED")

    def test_the_same_key_is_the_same_job(self, tmp_path: Path) -> None:
        mark = tmp_path / "runs"
        ids = {submit_job(f"echo x >> {mark}", idempotency_key=f"key of {tmp_path}") for _ in range(2)}
        assert len(ids) == 1
        assert set(wait_for_all_jobs(list(ids), timeout=90).values()) == {"SUCCEEDED"}
        assert mark.read_text() == "x\n"

    def test_cluster_constraints(self) -> None:
        jobs = [
            submit_job_async("true", require_tags=["arm64"]),
            submit_job_async("true", deny_clusters=["mac"]),
            submit_job_async("true", allow_clusters=["mac"], tags=["x86_64", "a label"]),
        ]
        assert get(jobs, timeout=90) == ["SUCCEEDED"] * 3
        assert [job.cluster for job in jobs] == ["mac", "linux", "mac"]
        with pytest.raises(NoFeasibleClusterError, match="sparc"):
            submit_job("true", require_tags=["sparc"])

    def test_run_timeout(self) -> None:
        handle = submit_job_async("sleep 300", run_timeout=0.5, retries=2)
        with pytest.raises(TaskTimeoutError, match=handle.id):
            handle.result(60)
        assert (handle.state, handle.attempt, get_job_status(handle.id)) == (TaskState.FAILED, 1, "FAILED")

    def test_its_handle_and_other_verbs(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        go = tmp_path / "go"
        handle = submit_job_async(f"echo begun; until test -e {go}; do sleep 0.05; done; exit 3", **ON_MAC)
        until(lambda: handle.state is TaskState.RUNNING, 60)
        assert repr(handle) == f"<JobHandle {handle.id} RUNNING on 'mac'>"
        assert (handle.accepted(), handle.done(), handle.cluster, handle.attempt) == (True, False, "mac", 1)
        with pytest.raises(TaskTimeoutError, match=rf"1 of 1 jobs .* 0.3 s: {handle.id} \(RUNNING\)"):
            wait_for_all_jobs([handle.id], check_interval=0.1, timeout=0.3)
        assert f"waiting for {handle.id} (RUNNING)" in capsys.readouterr().err
        rows = {row["job_id"]: row["status"] for row in list_jobs("RUNNING")}
        assert (rows[handle.id], set(rows.values())) == ("RUNNING", {"RUNNING"})
        over = threading.Event()
        handle.add_done_callback(lambda _: over.set())
        go.touch()
        assert over.wait(60)
        assert isinstance(handle.exception(), RemoteError)
        assert "begun" in "".join(handle.follow_logs())
        assert handle.id in [row["job_id"] for row in list_jobs()]
        assert submit_task(lambda word: word + "!", (submit_job_async("true"),)) == "SUCCEEDED!", "as an argument"


class TestStatusWords:
    def test_stop_while_retrying(self, fleet: LocalFleet, tmp_path: Path) -> None:
        config = config_of_mac(fleet, tmp_path, retry_backoff={"base_s": 600, "max_s": 600})
        with UnifiedScheduler(config) as scheduler:
            handle = scheduler.submit_job_async("exit 1", retries=1)
            until(lambda: scheduler.job_info(handle.id)["status"] == "RETRYING", 60)
            scheduler.cancel(handle.id)
            with pytest.raises(TaskCancelledError):
                handle.result(30)
            assert scheduler.job_info(handle.id)["status"] == "STOPPED"

    def test_a_temporarily_silent_cluster(self, fleet: LocalFleet, tmp_path: Path) -> None:
        """Polls fail without an effect on the job: LOST, then its former state."""
        mark, go = tmp_path / "runs", tmp_path / "go"
        quick = {"heartbeat_s": 0.5, "lease_s": 2, "lost_after_s": 12, "snapshot_interval_s": 0.5}
        with UnifiedScheduler(config_of_mac(fleet, tmp_path, breaker_recovery_s=1, **quick)) as scheduler:
            handle = scheduler.submit_job_async(f"echo x >> {mark}; until test -e {go}; do sleep 0.1; done")
            until(lambda: handle.state is TaskState.RUNNING, 60)
            fleet.cut("mac")
            try:
                until(lambda: scheduler.job_info(handle.id)["status"] == "LOST", 60)
            finally:
                fleet.restore_network("mac")
            until(lambda: scheduler.job_info(handle.id)["status"] == "RUNNING", 60)
            go.touch()
            assert (handle.result(60), handle.attempt, mark.read_text()) == ("SUCCEEDED", 1, "x\n")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The first upload of a package does not arrive, as if the cluster had dropped it before the job began."""
    sent: list[str] = []
    real = DashboardClient.upload_package

    async def upload(self: DashboardClient, uri: str, source: Path | bytes) -> None:
        sent.append(uri)
        if len(sent) > 1:
            await real(self, uri, source)

    monkeypatch.setattr(DashboardClient, "upload_package", upload)
    return sent


def test_a_package_dropped_by_the_cluster_is_uploaded_again(
    scheduler: UnifiedScheduler, tmp_path: Path, forgetful: list[str]
) -> None:
    (tmp_path / "main.py").write_text(f"print('there', {str(tmp_path)!r})\n")
    handle = submit_job_async("python main.py", runtime_env={"working_dir": str(tmp_path)}, **ON_MAC)
    assert handle.result(120) == "SUCCEEDED", handle.explain()["history"]
    assert f"there {tmp_path}" in get_job_logs(handle.id)
    assert handle.attempt == 2
    assert "PACKAGE_MISSING" in [step["code"] for step in handle.explain()["history"]]
    assert forgetful[1] == forgetful[0].replace(".zip", "-2.zip"), "Ray would not try the old name again"


INTERRUPTED = """
    import sys, threading, time
    from ray_multicluster_scheduler import *

    initialize_scheduler_environment(sys.argv[1])
    jobs = [submit_job(f"echo $$ > {sys.argv[2]}; exec sleep 300", preferred_cluster="mac", fallback="wait")]
    jobs.append(submit_job("true", require_tags=["arm64"], resource_requirements={"CPU": 2}))
    wait_for_all_jobs(jobs[1:])
    while get_job_status(jobs[0]) != "RUNNING":
        time.sleep(0.05)
    def functions(frame):
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back

    def say_when_it_waits():
        while "wait_for_all_jobs" not in functions(sys._current_frames()[threading.main_thread().ident]):
            time.sleep(0.05)
        time.sleep(1)
        print("READY", *jobs, flush=True)

    threading.Thread(target=say_when_it_waits, daemon=True).start()
    wait_for_all_jobs(jobs)
"""


@contextmanager
def program(text: str, config: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a program and wait until it prints READY; the caller reads its further output."""
    path, mark = folder / "program.py", folder / "mark"
    path.write_text(textwrap.dedent(text))
    with subprocess.Popen(
        [sys.executable, str(path), str(config), str(mark)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()


def test_ctrl_c_while_waiting_stops_running_jobs(fleet: LocalFleet, tmp_path: Path) -> None:
    """Without the decorator, the program gets the KeyboardInterrupt, and its jobs are stopped."""
    with program(INTERRUPTED, fleet.config_path, tmp_path) as (process, pid):
        assert process.stdout is not None
        word, running, over = process.stdout.readline().split()
        assert word == "READY"
        until(lambda: pid.exists() and pid.read_text() != "", 60)
        process.send_signal(signal.SIGINT)
        _, reported = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert f"{running} was RUNNING on mac: CANCELLED" in reported
    _, _, after = reported.partition("rmcs: interrupted")
    assert over not in after, "what was over is left alone"
    assert after.rstrip().endswith("KeyboardInterrupt")
    until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())


STUBBORN = """
    import os, sys, time
    from ray_multicluster_scheduler import *

    def stubborn(path):
        import time

        while True:
            try:
                open(path + ".begun", "a").close()
                time.sleep(0.1)
            except KeyboardInterrupt:
                with open(path, "a") as file:
                    file.write("no")

    @graceful_shutdown_on_keyboard_interrupt
    def main():
        initialize_scheduler_environment(sys.argv[1])
        handle = submit_task_async(stubborn, (sys.argv[2],))
        while handle.state != "RUNNING" or not os.path.exists(sys.argv[2] + ".begun"):
            time.sleep(0.05)  # before its loop nothing would refuse
        print("READY", handle.id, flush=True)
        handle.result()

    main()
"""


def test_a_second_ctrl_c_forces(fleet: LocalFleet, tmp_path: Path) -> None:
    with program(STUBBORN, fleet.config_path, tmp_path) as (process, refused):
        assert process.stdout is not None
        word, task = process.stdout.readline().split()
        assert word == "READY"
        process.send_signal(signal.SIGINT)
        until(refused.exists, 30)
        process.send_signal(signal.SIGINT)
        _, reported = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"rmcs: forcing: {task} (RUNNING)" in reported
    assert f"{task} was RUNNING on" in reported
    assert ": CANCELLED" in reported
    assert "Traceback" not in reported


def test_no_signal_handler_off_the_main_thread(fleet: LocalFleet) -> None:
    """There a KeyboardInterrupt, from wherever it comes, has the same effect."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    seen: list[Any] = []

    @graceful_shutdown_on_keyboard_interrupt
    def main() -> None:
        seen.append((signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    assert seen == [before]
    with UnifiedScheduler(fleet.config_path) as own:
        handle = own.submit_job_async("sleep 300")
        until(lambda: handle.state is TaskState.RUNNING, 60)
        began = time.monotonic()
        own.shutdown()
        assert time.monotonic() - began < 90
        assert handle.state is TaskState.CANCELLED
        with pytest.raises(TaskCancelledError):
            handle.result()


def test_stop_returns_whether_the_job_was_live(scheduler: UnifiedScheduler) -> None:
    job = submit_job("sleep 300")
    assert stop_job(job)
    assert wait_for_all_jobs([job], timeout=60) == {job: "STOPPED"}
    assert not stop_job(job)
