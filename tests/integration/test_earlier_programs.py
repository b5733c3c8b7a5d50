"""A program that was written for earlier versions, on real clusters: unchanged but for what returns something else."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
    import sys
    from ray_multicluster_scheduler.app.client_api import initialize_scheduler_environment, submit_actor, submit_task
    from ray_multicluster_scheduler.app.client_api.submit_job import (
        get_job_info, get_job_status, graceful_shutdown_on_keyboard_interrupt, stop_job, submit_job, wait_for_all_jobs)
    from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler, get_unified_scheduler

    class Counter:
        def __init__(self, start):
            self.value = start
        def add(self, number):
            self.value += number
            return self.value

    def double(number):
        return 2 * number

    def outer(number):  # the same calls inside a cluster
        child = submit_job(entrypoint="true", job_id=f"child-{number}")
        wait_for_all_jobs(submission_ids=[child])
        return submit_task(func=double, args=(number,)), get_job_status(submission_id=child)

    @graceful_shutdown_on_keyboard_interrupt
    def main():
        scheduler = initialize_scheduler_environment(config_file_path=sys.argv[1])
        assert isinstance(scheduler, UnifiedScheduler)
        short = submit_job(entrypoint="echo done", job_id="job-001", preferred_cluster="linux")
        assert short == "job-001"
        long = submit_job(entrypoint="sleep 600", job_id="job-002", preferred_cluster="mac")
        assert submit_task(func=double, args=(21,), resource_requirements={"CPU": 1}, tags=["arm64"]) == 42
        assert get_unified_scheduler().submit_task(func=double, args=(2,), preferred_cluster="mac") == 4
        assert submit_task(func=outer, args=(4,)) == (8, "SUCCEEDED")
        counter = submit_actor(actor_class=Counter, kwargs={"start": 1})
        assert counter.add.remote(2).result() == 3
        counter.kill()
        wait_for_all_jobs([short], check_interval=5)
        assert get_job_status(short, "linux") == "SUCCEEDED"
        assert get_job_info(short, "linux")["cluster"] == "linux"
        assert stop_job(long, "mac")
        scheduler.cleanup()
        print("all as before")

    if __name__ == "__main__":
        main()
"""


def test_a_program_for_earlier_versions_runs(config_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(program), str(config_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all as before\n"), done.stderr
