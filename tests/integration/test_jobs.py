"""Jobs on real clusters: one id and a status from submission to the end, also over retries."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler import (
    ConfigurationError,
    JobsFailedError,
    RemoteError,
    UnifiedScheduler,
    UnknownItemError,
    get_job_logs,
    get_job_status,
    list_jobs,
    stop_job,
    submit_job,
    submit_job_async,
    wait_for_all_jobs,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.eventually import until


@pytest.fixture
def jobs_only(fleet: LocalFleet) -> Iterator[UnifiedScheduler]:
    """A separate scheduler, as in a program that submits only jobs."""
    with UnifiedScheduler(fleet.config_path) as scheduler:
        yield scheduler


def test_a_program_that_only_submits_jobs_starts_no_agent(jobs_only: UnifiedScheduler) -> None:
    handle = jobs_only.submit_job_async("echo no agent needed")
    assert handle.result(90) == "SUCCEEDED"
    assert "no agent needed" in handle.logs()
    mine = jobs_only._control_plane
    runtime, _ = jobs_only._started()
    for cluster in ("linux", "mac"):
        names = [job["submission_id"] for job in runtime.run(runtime.clients.client(cluster).list_jobs())]
        assert not [name for name in names if name and name.startswith(f"rmcs-agent-{mine}")]


@pytest.mark.usefixtures("scheduler")
class TestOneId:
    def test_a_queued_job_has_a_status_and_keeps_its_id(self, scheduler: UnifiedScheduler) -> None:
        """Three jobs that each need a whole cluster, on two clusters: the third waits with a reason, then runs."""
        ids = [submit_job("sleep 3; echo done", resource_requirements={"CPU": 2}) for _ in range(3)]
        third = scheduler.job_info(ids[2])
        assert third["status"] == "QUEUED"
        assert third["cluster"] is None
        assert scheduler.explain(ids[2])["code"] in {"NO_CAPACITY", "CLUSTER_UNKNOWN", "STALE_SNAPSHOT"}
        assert get_job_logs(ids[2]) == ""
        assert wait_for_all_jobs(ids, timeout=120) == dict.fromkeys(ids, "SUCCEEDED")
        assert "done" in get_job_logs(ids[2])
        assert {row["job_id"] for row in list_jobs("SUCCEEDED")} >= set(ids)

    def test_the_same_submission_id_again_is_the_same_job(self, tmp_path: Path) -> None:
        mark = tmp_path / "runs"
        job = f"echo x >> {mark}"
        name = f"mine-{os.getpid()}-{time.time_ns()}"
        assert submit_job(job, submission_id=name) == name
        assert submit_job(job, submission_id=name) == name
        assert wait_for_all_jobs([name], timeout=90) == {name: "SUCCEEDED"}
        assert submit_job(job, submission_id=name) == name, "also when it is over"
        assert mark.read_text() == "x\n"

    def test_an_unknown_id_is_an_error(self) -> None:
        with pytest.raises(UnknownItemError, match="job-nobody"):
            get_job_status("job-nobody")


@pytest.mark.usefixtures("scheduler")
class TestWhatReachesTheCluster:
    def test_environment_paths_and_markers_of_the_chosen_cluster(self, scheduler: UnifiedScheduler) -> None:
        """The same job on two clusters that differ sees each one's own home and name."""
        script = str(Path.home() / "x.py")
        homes = {cluster.name: cluster.home_dir for cluster in scheduler.config.clusters}
        for cluster in ("linux", "mac"):
            handle = submit_job_async(
                f"""echo "$RMCS_CLUSTER $RMCS_TASK_ID $RMCS_ATTEMPT $COLOUR {script}" """,
                preferred_cluster=cluster,
                runtime_env={"env_vars": {"COLOUR": "blue"}},
            )
            handle.result(90)
            assert f"{cluster} {handle.id} 1 blue {homes[cluster]}/x.py" in handle.logs()
            explanation = handle.explain()
            assert explanation["converted_paths"] == [[script, f"{homes[cluster]}/x.py"]]
            assert explanation["runtime_env"]["env_vars"]["RMCS_CLUSTER"] == cluster

    def test_the_working_dir_is_shipped(self, tmp_path: Path) -> None:
        (tmp_path / "main.py").write_text("import helper; print('helper says', helper.WORD, helper.left_out())\n")
        (tmp_path / "helper.py").write_text(
            "import os\nWORD = 'hello'\ndef left_out(): return not os.path.exists('big.pkl')\n"
        )
        (tmp_path / "big.pkl").write_bytes(b"x")
        handle = submit_job_async("python main.py", runtime_env={"working_dir": str(tmp_path), "excludes": ["*.pkl"]})
        assert handle.result(90) == "SUCCEEDED"
        assert "helper says hello True" in handle.logs()

    def test_entrypoint_resources_are_the_entrypoints_own(self, scheduler: UnifiedScheduler) -> None:
        """A job that requires a whole cluster reserves no resources for its entrypoint."""
        code = "import ray; ray.init(); print('free', ray.available_resources().get('CPU'))"
        handle = submit_job_async(f'python -c "{code}"', resource_requirements={"CPU": 2})
        assert handle.result(90) == "SUCCEEDED"
        assert "free 2.0" in handle.logs()


@pytest.mark.usefixtures("scheduler")
class TestEnds:
    def test_a_failed_job_raises_and_does_not_stop_the_others(self) -> None:
        bad = submit_job_async("echo oops; exit 7")
        good = submit_job_async("sleep 1")
        with pytest.raises(RemoteError, match="7") as caught:
            bad.result(90)
        assert caught.value.task_id == bad.id
        with pytest.raises(JobsFailedError) as failed:
            wait_for_all_jobs([bad.id, good.id], timeout=90)
        assert failed.value.statuses == {bad.id: "FAILED", good.id: "SUCCEEDED"}
        assert wait_for_all_jobs([bad.id, good.id], raise_on_failure=False) == failed.value.statuses

    def test_the_others_are_stopped_on_request(self) -> None:
        bad, long = submit_job("exit 1"), submit_job("sleep 300")
        with pytest.raises(JobsFailedError) as failed:
            wait_for_all_jobs([bad, long], timeout=90, stop_on_failure=True)
        assert failed.value.statuses == {bad: "FAILED", long: "STOPPED"}

    def test_stop_works_queued_and_running(self) -> None:
        ids = [submit_job("sleep 300", resource_requirements={"CPU": 2}) for _ in range(3)]
        assert stop_job(ids[2])
        assert get_job_status(ids[2]) == "STOPPED", "a queued one is over at once"
        assert all(stop_job(job_id) for job_id in ids[:2])
        assert wait_for_all_jobs(ids, timeout=60) == dict.fromkeys(ids, "STOPPED")
        assert not stop_job(ids[0]), "it is over"

    def test_a_failed_job_is_retried_under_the_same_id(self, tmp_path: Path) -> None:
        mark = tmp_path / "attempts"
        handle = submit_job_async(f"echo $RMCS_ATTEMPT >> {mark}; test $RMCS_ATTEMPT = 2", retries=1)
        assert handle.result(120) == "SUCCEEDED"
        assert mark.read_text() == "1\n2\n"
        assert handle.attempt == 2

    def test_logs_can_be_followed(self) -> None:
        job_id = submit_job("for i in 1 2 3; do echo line $i; sleep 0.5; done")
        text = "".join(get_job_logs(job_id, follow=True))
        assert [line for line in text.splitlines() if line.startswith("line")] == ["line 1", "line 2", "line 3"]
        assert wait_for_all_jobs([job_id], timeout=60) == {job_id: "SUCCEEDED"}

    def test_wrong_arguments(self) -> None:
        with pytest.raises(ConfigurationError, match="entrypoint is ''"):
            submit_job("")
        with pytest.raises(ConfigurationError, match="did you mean priority"):
            submit_job("x", prioriti=3)
        with pytest.raises(ConfigurationError, match="pass a list of job ids"):
            wait_for_all_jobs("job-1")


PROGRAM = """
    import sys, time
    from ray_multicluster_scheduler import *

    @graceful_shutdown_on_keyboard_interrupt
    def main():
        initialize_scheduler_environment(sys.argv[1])
        done = submit_job("echo quick")
        wait_for_all_jobs([done])
        running = [submit_job(f"echo $$ > {sys.argv[2]}-{n}; exec sleep 300", resource_requirements={"CPU": 2})
                   for n in range(2)]
        queued = submit_job("sleep 300", resource_requirements={"CPU": 2})
        while any(get_job_status(job) != "RUNNING" for job in running):
            time.sleep(0.1)
        print("READY", done, *running, queued, flush=True)
        HOW

    main()
    print("not reached")
"""


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGINT, "wait_for_all_jobs([*running, queued], check_interval=1)"),
        (signal.SIGTERM, "time.sleep(300)"),
    ],
)
def test_ctrl_c_stops_the_programs_jobs(fleet: LocalFleet, tmp_path: Path, how: str, number: signal.Signals) -> None:
    """One finished, two running and one queued job."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).replace("HOW", how))
    process = subprocess.Popen(
        [sys.executable, str(program), str(fleet.config_path), str(tmp_path / "pid")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline().split()
    assert line[:1] == ["READY"], process.communicate()[1]
    done, *running, queued = line[1:]
    pids = [tmp_path / f"pid-{n}" for n in range(2)]
    until(lambda: all(pid.exists() and pid.read_text() != "" for pid in pids), 60)  # they run, and have begun
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "not reached" not in out
    assert f"{done} was" not in err, "what was over is left alone"
    for job in running:
        assert f"{job} was RUNNING" in err
    assert f"{queued} was QUEUED: CANCELLED" in err
    assert err.count(": CANCELLED") == 3
    assert "Traceback" not in err
    for pid in pids:
        _gone(int(pid.read_text()))


def _gone(pid: int, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} of a stopped job still runs"
        time.sleep(0.1)
