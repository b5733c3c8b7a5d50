"""Programs that submit after a fork, or at interpreter exit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from ray_multicluster_scheduler.local_fleet import LocalFleet

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


UNSENT = """
    import sys
    from ray_multicluster_scheduler import initialize_scheduler_environment, submit_task_async

    def note(path):
        with open(path, "a") as file:
            file.write("x")

    initialize_scheduler_environment(sys.argv[1])
    handles = [submit_task_async(note, (sys.argv[2],)) for _ in range(4)]
"""


def run(program: str, fleet: LocalFleet, folder: Path, *more: str) -> str:
    path = folder / "program.py"
    path.write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, str(path), str(fleet.config_path), *more], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_forked_child_gets_a_control_plane_of_its_own(fleet: LocalFleet, tmp_path: Path) -> None:
    out = run(FORK, fleet, tmp_path)
    assert "parent 4\n" in out
    assert "child 9\n" in out
    assert "was submitted by the process that this one was forked from" in out
    assert "parent again 16\n" in out


def test_submitting_at_exit_is_refused_with_a_sentence(fleet: LocalFleet, tmp_path: Path) -> None:
    out = run(AT_EXIT, fleet, tmp_path)
    assert out.startswith("3\nlate: The interpreter is shutting down")


def test_items_queued_at_program_end_are_run(fleet: LocalFleet, tmp_path: Path) -> None:
    """Independently of its imports; no link was up at that time."""
    notes = tmp_path / "notes"
    run(UNSENT, fleet, tmp_path, str(notes))
    assert notes.read_text() == "xxxx"
