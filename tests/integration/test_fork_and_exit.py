"""Programs that submit after a fork, or at interpreter exit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import psutil

from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.eventually import until

FORK = """
    import os, sys
    from ray_multicluster_scheduler import *

    def square(x):
        return x * x

    initialize_scheduler_environment(sys.argv[1])
    print("parent", submit_task(square, (2,)), flush=True)
    unfinished = submit_task_async(lambda: __import__("time").sleep(3))
    child = os.fork()
    if child == 0:
        print("child", submit_task(square, (3,)), flush=True)
        try:
            unfinished.result(5)
        except SchedulerError as error:
            print("child:", error, flush=True)
        shutdown()
        os._exit(0)
    os.waitpid(child, 0)
    print("parent again", submit_task(square, (4,)), flush=True)
"""

AT_EXIT = """
    import atexit, sys
    from ray_multicluster_scheduler import *

    def late():
        try:
            submit_task(len, ("x",))
        except SchedulerError as error:
            print("late:", error, flush=True)

    atexit.register(late)
    initialize_scheduler_environment(sys.argv[1])
    print(submit_task(len, ("abc",)), flush=True)
"""


CANCELLED = """
    import sys, time
    from pathlib import Path
    from ray_multicluster_scheduler import *

    class Waiter:
        def wait(self):
            import time
            time.sleep(1000)

    def run(path, how):
        import ctypes, os, time
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        if how == "sleeps":
            time.sleep(1000)
        elif how == "blocks Python":
            ctypes.PyDLL(None).sleep(1000)
        while True:
            try:
                time.sleep(0.1)
            except BaseException:
                pass

    scheduler = initialize_scheduler_environment(sys.argv[1])
    folder, handles = Path(sys.argv[2]), []
    for number, how in enumerate(["sleeps", "blocks Python", "ignores it"]):
        handles.append(submit_task_async(run, (str(folder / f"pid{number}"), how)))
    call = submit_actor(Waiter, resource_requirements={"CPU": 0}).wait.remote()
    job = scheduler.handle(submit_job(f"echo $$ > {folder}/new; mv {folder}/new {folder}/pid3; exec sleep 1000"))
    while len(list(folder.glob("pid?"))) < 4:
        time.sleep(0.1)
    print([handle.cancel() for handle in handles[:2]], cancel(handles[2].id), call.cancel(), job.cancel())
"""


FULL = """
    import sys
    from ray_multicluster_scheduler import *
    from ray_multicluster_scheduler.control_plane.config import load_config

    scheduler = UnifiedScheduler(FleetConfig(
        settings=Settings(max_queue=3, resource_threshold=1),
        clusters=load_config(sys.argv[1]).clusters,
    ))

    def hold(path):
        import os, time
        while not os.path.exists(path):
            time.sleep(0.05)

    def fail(number):
        raise ValueError(f"number {number}")

    while scheduler.fleet_resources()["free"].get("CPU") != 4:
        pass  # an earlier program may still be shown as using some, or a busy dashboard does not answer in time

    handles, refused = [], 0
    for number in range(30):
        try:
            handles.append(scheduler.submit_task_async(hold, (sys.argv[2],)))
        except QueueFullError:
            refused += 1
    print(len(handles), refused, flush=True)
    open(sys.argv[2], "w").close()
    scheduler.get(handles)
    print(*[scheduler.submit_task_async(fail, (number,), resource_requirements={"CPU": 0}).id for number in range(2)])
"""

UNSENT = """
    import sys
    from ray_multicluster_scheduler import initialize_scheduler_environment, submit_task_async

    def note(path):
        with open(path, "a") as file:
            file.write("x")

    initialize_scheduler_environment(sys.argv[1])
    handles = [submit_task_async(note, (sys.argv[2],)) for _ in range(4)]
"""


def completed(program: str, fleet: LocalFleet, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(path), str(fleet.config_path), *more], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def run(program: str, fleet: LocalFleet, folder: Path, *more: str) -> str:
    return completed(program, fleet, folder, *more).stdout


def test_a_forked_child_gets_a_control_plane_of_its_own(fleet: LocalFleet, tmp_path: Path) -> None:
    out = run(FORK, fleet, tmp_path)
    assert "parent 4\n" in out
    assert "child 9\n" in out
    assert "was submitted by the process that this one was forked from" in out
    assert "parent again 16\n" in out


def test_submitting_at_exit_is_refused_with_a_sentence(fleet: LocalFleet, tmp_path: Path) -> None:
    out = run(AT_EXIT, fleet, tmp_path)
    assert out.startswith("3\nlate: The interpreter is shutting down")


def test_the_exit_does_not_wait_for_what_was_cancelled(fleet: LocalFleet, tmp_path: Path) -> None:
    """However it reacts to the interrupt, its process ends soon after."""
    (tmp_path / "pids").mkdir()
    done = completed(CANCELLED, fleet, tmp_path, str(tmp_path / "pids"))
    assert done.stdout == "[True, True] True True True\n"
    assert "waiting for" not in done.stderr
    pids = [int(path.read_text()) for path in (tmp_path / "pids").iterdir()]
    until(lambda: not [pid for pid in pids if psutil.pid_exists(pid)], 60)


def test_items_queued_at_program_end_are_run(fleet: LocalFleet, tmp_path: Path) -> None:
    """Independently of its imports; no link was up at that time."""
    notes = tmp_path / "notes"
    run(UNSENT, fleet, tmp_path, str(notes))
    assert notes.read_text() == "xxxx"


def test_over_max_queue_submissions_raise_and_failures_that_nobody_asked_for_are_reported(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    """Four tasks start at once on the two clusters and three wait."""
    done = completed(FULL, fleet, tmp_path, str(tmp_path / "go"))
    counts, ids = done.stdout.splitlines()
    assert counts == "7 23", done.stderr
    reported = [line for line in done.stderr.splitlines() if " fail failed: " in line]
    assert sorted(line.split(": ")[1].strip() for line in reported) == sorted(ids.split())
    assert all("number " in line for line in reported)
