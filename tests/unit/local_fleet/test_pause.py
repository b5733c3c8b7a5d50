"""A pause stops all processes of a cluster, including one that is starting a child."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster
from ray_multicluster_scheduler.local_fleet.ray_head import RayHead
from tests.unit.client_api.control_plane import until

STARTS_ANOTHER = """
import os, sys, time
opens = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], os.environ, file_actions=opens)
time.sleep(600)
"""


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[psutil.Process]:
    """A process that waits in the kernel for its child, which waits for a writer of `pipe` before it execs."""
    os.mkfifo(tmp_path / "pipe")
    process = subprocess.Popen([sys.executable, "-c", STARTS_ANOTHER, str(tmp_path / "pipe")])
    found = psutil.Process(process.pid)
    until(lambda: bool(found.children()) and found.status() == psutil.STATUS_DISK_SLEEP, 30)
    yield found
    for one in [*found.children(), found]:
        one.kill()
    process.wait(10)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux waits in the kernel for a starting child")
def test_a_process_that_is_starting_a_child_is_stopped(starting: psutil.Process, tmp_path: Path) -> None:
    def find() -> list[psutil.Process]:
        return [starting, *starting.children()]

    assert processes.signal_all(find, signal.SIGSTOP, timeout_s=20)
    (child,) = starting.children()
    assert processes.is_stopped(child)
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        time.sleep(0.3)
        assert starting.status() == psutil.STATUS_DISK_SLEEP, "it goes on as little as what it waits for"
        assert processes.signal_all(find, signal.SIGCONT, timeout_s=20)
        until(lambda: starting.status() == psutil.STATUS_SLEEPING, 30)
        assert processes.signal_all(find, signal.SIGSTOP, timeout_s=20)
        assert all(processes.is_stopped(one) for one in find())
    finally:
        os.close(pipe)
        processes.signal_all(find, signal.SIGCONT)


async def test_a_failed_pause_resumes_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[signal.Signals] = []

    def not_all(_: object, number: signal.Signals) -> bool:
        sent.append(number)
        return number == signal.SIGCONT

    monkeypatch.setattr(processes, "signal_all", not_all)
    head = RayHead(LocalCluster("mac"), Path(sys.executable), ClusterDir(tmp_path), "marker")
    with pytest.raises(ClusterConnectionError, match="Not every process of local cluster 'mac' took SIGSTOP"):
        await head.pause()
    assert sent == [signal.SIGSTOP, signal.SIGCONT]
    assert not head.paused
