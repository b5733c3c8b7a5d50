"""Ctrl+C and SIGTERM: everything this program submitted is stopped, on whichever scheduler; then it ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ray_multicluster_scheduler.app.client_api import program as this_program
from ray_multicluster_scheduler.app.client_api.interrupt import graceful_shutdown_on_keyboard_interrupt
from ray_multicluster_scheduler.app.client_api.unified_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.common.model import TaskState

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def silent_port() -> Iterator[str]:
    """A listener that never answers: submissions wait."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _uninterrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_program, "_interrupted", threading.Event())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_all_schedulers_of_the_program_are_stopped(silent_port: str, number: signal.Signals, code: int) -> None:
    handles = []

    @graceful_shutdown_on_keyboard_interrupt
    def program() -> None:
        for _ in range(2):
            own = UnifiedScheduler(clusters=[{"name": "mac", "dashboard": silent_port}])
            handles.append(own.submit_job_async("ls"))
        os.kill(os.getpid(), number)
        threading.Event().wait(60)

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught:
        program()
    assert caught.value.code == code
    assert [handle.state for handle in handles] == [TaskState.CANCELLED] * 2
    assert signal.getsignal(number) is before


def test_a_value_and_an_error_pass() -> None:
    @graceful_shutdown_on_keyboard_interrupt
    def half(number: int) -> float:
        """Halves."""
        return 1 / number

    before = signal.getsignal(signal.SIGINT)
    assert half(2) == 0.5
    with pytest.raises(ZeroDivisionError):
        half(0)
    assert (half.__name__, half.__doc__) == ("half", "Halves.")
    assert signal.getsignal(signal.SIGINT) is before


def test_off_the_main_thread_no_handler_is_set() -> None:
    seen = []

    @graceful_shutdown_on_keyboard_interrupt
    def program() -> None:
        seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=program)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    thread.join()
    assert seen == [before]


PROGRAM = """
    import os, signal, sys, threading, time
    from ray_multicluster_scheduler import *

    def when_main_thread_is_in(function, deed):
        def look():
            while function not in functions_of(sys._current_frames()[threading.main_thread().ident]):
                time.sleep(0.01)
            time.sleep(0.5)  # it says first that it waits
            deed()
        threading.Thread(target=look, daemon=True).start()

    def functions_of(frame):
        while frame is not None:
            yield frame.f_code.co_name
            frame = frame.f_back

    def submit():
        return UnifiedScheduler(clusters=[{"name": "mac", "dashboard": sys.argv[1]}]).submit_job_async("ls")
"""
INTERRUPTED = """
    @graceful_shutdown_on_keyboard_interrupt
    def main():
        submit()
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(30)

    try:
        main()
    finally:
        submit()  # too late: nobody waits for this one
"""
WAITING = """
    initialize_scheduler_environment(FleetConfig(clusters=[ClusterConfig(name="mac", dashboard=sys.argv[1])]))
    shared = submit_job("ls")
    submit()
    when_main_thread_is_in("wait_for_all_jobs", lambda: os.kill(os.getpid(), signal.SIGINT))
    wait_for_all_jobs([shared])
"""
LEFT = """
    handle = submit()
    handle.add_done_callback(lambda handle: print(handle.state, flush=True))
    when_main_thread_is_in("_end_with_the_program", handle.cancel)
"""


def run(tmp_path: Path, program: str, port: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM) + textwrap.dedent(program))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(path), port], capture_output=True, text=True, timeout=120, env=environment, check=False
    )


def test_an_interrupted_program_does_not_wait_at_its_exit(tmp_path: Path, silent_port: str) -> None:
    done = run(tmp_path, INTERRUPTED, silent_port)
    assert done.returncode == 130, done.stderr
    assert done.stderr.count(": CANCELLED") == 2
    assert "waiting for" not in done.stderr


def test_ctrl_c_in_wait_for_all_jobs_stops_everything(tmp_path: Path, silent_port: str) -> None:
    done = run(tmp_path, WAITING, silent_port)
    assert done.returncode not in (0, 1), done.stderr
    assert done.stderr.count(": CANCELLED") == 2, done.stderr
    assert "KeyboardInterrupt" in done.stderr


def test_an_interrupt_is_reported_once_whoever_handles_it(tmp_path: Path, silent_port: str) -> None:
    """wait_for_all_jobs stops what runs and raises it again for the decorator."""
    decorated = "def main():\n" + textwrap.indent(textwrap.dedent(WAITING).strip(), "    ") + "\nmain()\n"
    done = run(tmp_path, "@graceful_shutdown_on_keyboard_interrupt\n" + decorated, silent_port)
    assert done.returncode == 130, done.stderr
    assert done.stderr.count("interrupted\n") == 1, done.stderr
    assert done.stderr.count(": CANCELLED") == 2, done.stderr


def test_a_program_that_ends_waits_for_its_work_also_if_it_holds_no_scheduler(tmp_path: Path, silent_port: str) -> None:
    done = run(tmp_path, LEFT, silent_port)
    assert done.returncode == 0, done.stderr
    assert "waiting for job-" in done.stderr
    assert done.stdout == "CANCELLED\n"


def test_at_its_end_a_program_still_has_thread_pools() -> None:
    """Imported first: work that is drained then needs them."""
    program = """
        from ray_multicluster_scheduler.app.client_api import program
        from concurrent.futures import ThreadPoolExecutor

        class Scheduler:
            def _leave(self, drain):
                print(ThreadPoolExecutor(1).submit(lambda: "drained").result())

        program.running.add(Scheduler())
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("drained\n", "")
