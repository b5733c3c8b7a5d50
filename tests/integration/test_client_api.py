"""Schedulers and handles on real clusters that are reused, dropped, or no longer read."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from ray_multicluster_scheduler import UnifiedScheduler, get_job_logs, stop_job, submit_job
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.eventually import until


def test_a_reused_scheduler_runs_new_work(fleet: LocalFleet, tmp_path: Path) -> None:
    """One scheduler is started three times: each job and task runs once."""
    scheduler = UnifiedScheduler(fleet.config_path)

    def number(value: int) -> int:
        return value

    marks = [tmp_path / str(life) for life in range(3)]
    handles = []
    for life, mark in enumerate(marks):
        job = scheduler.submit_job_async(f"echo life {life} | tee -a {mark}")
        task = scheduler.submit_task_async(number, (life,), idempotency_key="the same each time")
        assert (job.result(90), task.result(90)) == ("SUCCEEDED", life)
        assert f"life {life}" in job.logs()
        handles += [job, task]
        scheduler.shutdown()
    assert [mark.read_text() for mark in marks] == ["life 0\n", "life 1\n", "life 2\n"]
    assert len({handle.id for handle in handles}) == 6
    assert all(handle.explain()["state"] == "SUCCEEDED" for handle in handles)
    assert scheduler._runtime is None, "asking the handles started nothing"


def test_an_abandoned_log_reader_leaves_no_resources(scheduler: UnifiedScheduler) -> None:
    job_id = submit_job("while true; do echo tick; sleep 0.2; done")
    before = threading.active_count()
    try:
        for _ in range(3):
            for piece in get_job_logs(job_id, follow=True):
                assert piece
                break
        runtime, _ = scheduler._started()
        deadline = time.monotonic() + 60
        while left := runtime.call_and_wait(
            lambda: [str(one) for one in runtime._loop._asyncgens if "tail" in str(one)]
        ):
            assert time.monotonic() < deadline, left
            time.sleep(0.05)
        until(lambda: threading.active_count() <= before)
    finally:
        assert stop_job(job_id)
    began = time.monotonic()
    assert "tick" in "".join(get_job_logs(job_id, follow=True))
    assert time.monotonic() - began < 90


def test_the_output_of_a_task_is_followed_over_its_attempts(scheduler: UnifiedScheduler) -> None:
    def flaky() -> None:
        from ray_multicluster_scheduler import current

        print("attempt", current().attempt)
        if current().attempt == 1:
            raise OSError("once")

    handle = scheduler.submit_task_async(flaky, retries=1)
    assert "".join(handle.follow_logs()) == "attempt 1\nattempt 2\n"


def test_work_continues_after_the_program_drops_its_scheduler(fleet: LocalFleet, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import sys
            from ray_multicluster_scheduler import UnifiedScheduler

            UnifiedScheduler(sys.argv[1]).submit_job_async(f"sleep 1; echo done > {sys.argv[2]}")
        """)
    )
    mark = tmp_path / "mark"
    done = subprocess.run(
        [sys.executable, str(program), str(fleet.config_path), str(mark)], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "waiting for job-" in done.stderr
    assert mark.read_text() == "done\n"
