"""The lock file of an agent: free when the agent and all its workers are dead, and not before."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
from ray_multicluster_scheduler.scheduler.connection.gateway.worker.channel import WorkerChannel
from tests.support.eventually import eventually
from tests.unit.connection.agent_side import agent_side

PROCESS = """
import sys, time
from ray_multicluster_scheduler.scheduler.connection.gateway.worker import process_lock
made, path = sys.argv[1:]
print(process_lock.create(path) if made == "create" else process_lock.hold(path), flush=True)
time.sleep(600)
"""


class Process:
    """A process that makes or holds the lock file."""

    def __init__(self, what: str, path: object) -> None:
        command = [sys.executable, "-c", PROCESS, what, str(path)]
        self._popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._popen.stdout is not None
        self.said = self._popen.stdout.readline().strip()

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def kill(self) -> None:
        self._popen.kill()
        self._popen.communicate()


def test_the_file_is_free_when_the_last_process_is_dead(tmp_path: Path) -> None:
    agent = Process("create", tmp_path)
    workers = [Process("hold", agent.said) for _ in range(2)]
    assert [one.said for one in workers] == ["True", "True"]
    assert not process_lock.is_free(agent.said)
    agent.kill()
    workers[0].kill()
    workers[1].signal(signal.SIGSTOP)  # it could go on at any time
    assert not process_lock.is_free(agent.said)
    workers[1].kill()
    assert process_lock.is_free(agent.said)


def test_a_removed_file_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Process("create", tmp_path)
    agent.kill()
    opened = process_lock._open(agent.said)
    process_lock.remove(agent.said)
    process_lock.remove(agent.said)  # again
    assert not process_lock.is_free(agent.said)
    assert not process_lock.hold(agent.said)
    monkeypatch.setattr(process_lock, "_open", lambda _: opened)  # it was opened just before it was removed
    assert not process_lock.is_free(agent.said)


def test_a_file_of_another_machine_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a shared file system, or behind a forwarded port."""
    agent = Process("create", tmp_path)
    agent.kill()
    monkeypatch.setattr(process_lock, "_BOOT_ID", tmp_path / "none")  # as on macOS
    assert not process_lock.is_free(agent.said)
    assert not process_lock.hold(agent.said)
    here = process_lock.create(str(tmp_path))
    assert not process_lock.is_free(here), "this process lives"


@pytest.mark.parametrize("path", ["", "/nowhere/rmcs-agent.lock", "/"])
def test_without_a_file_there_is_no_proof(path: str) -> None:
    assert not process_lock.is_free(path)
    assert not process_lock.hold(path)


def test_nobody_joins_while_the_lock_is_taken_for_the_proof(tmp_path: Path) -> None:
    agent = Process("create", tmp_path)
    agent.kill()
    file = os.open(agent.said, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)
    assert not process_lock.hold(agent.said)
    os.close(file)


async def test_a_worker_has_the_lock_before_it_has_a_lease(tmp_path: Path) -> None:
    lock_file = process_lock.create(str(tmp_path))
    agent = await agent_side(lock_file)
    channel = WorkerChannel(agent.line)
    running = await asyncio.to_thread(channel.begin, "t1", 1, "n1", sent_at=time.time())
    assert os.path.exists(lock_file)
    channel.end(running)
    await eventually(lambda: channel._socket is None)
    agent.disappear()


async def test_the_file_is_removed_before_a_worker_without_the_lock_has_a_lease(tmp_path: Path) -> None:
    lock_file = process_lock.create(str(tmp_path))
    agent = await agent_side(lock_file)
    seen: list[bool] = []
    agent.server._left_s = lambda: seen.append(os.path.exists(lock_file)) or 30.0  # type: ignore[func-returns-value]
    channel = WorkerChannel(agent.line._replace(lock_file=f"{lock_file}.on-another-machine"))
    running = await asyncio.to_thread(channel.begin, "t1", 1, "n1", sent_at=time.time())
    assert seen
    assert not any(seen)
    channel.end(running)
    await eventually(lambda: channel._socket is None)
    agent.disappear()
