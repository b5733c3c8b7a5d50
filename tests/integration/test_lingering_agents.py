"""Two programs in a row on a real cluster: the second uses the agent of the first, and nothing of its work."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ray_multicluster_scheduler import UnifiedScheduler
from ray_multicluster_scheduler.local_fleet import LocalFleet
from ray_multicluster_scheduler.scheduler.connection import ray_client_pool
from tests.support.mac_cluster import agents_of_mac, config_of_mac, until

Agent = tuple[str, psutil.Process]


@pytest.fixture(autouse=True)
def _default_linger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RMCS_AGENT_LINGER_S")
    monkeypatch.setenv("RMCS_HOME", str(tmp_path / "home"))


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an agent needs longer than usual until it can be taken over."""
    monkeypatch.setattr(ray_client_pool, "_TAKE_OVER_S", 60.0)


@pytest.fixture
def before(fleet: LocalFleet) -> Iterator[set[psutil.Process]]:
    """The agents of other tests. Those that the test leaves are ended after it."""
    others = set(agents_of_mac(fleet))
    yield others
    for agent in set(agents_of_mac(fleet)) - others:
        agent.kill()
    until(lambda: set(agents_of_mac(fleet)) <= others)


def agent_of(scheduler: UnifiedScheduler) -> str:
    """The submission id of its agent."""
    runtime, _ = scheduler._started()
    link = runtime.links.existing_link("mac")
    assert link is not None
    name: str = link.agent
    return name


def run(config: Path, fleet: LocalFleet, before: set[psutil.Process]) -> tuple[str, psutil.Process, psutil.Process]:
    """A program with one task; returns its agent's name, the one agent that runs, and the worker of the task."""
    with UnifiedScheduler(config) as scheduler:
        pid = scheduler.submit_task(os.getpid)
        (process,) = set(agents_of_mac(fleet)) - before
        return agent_of(scheduler), process, psutil.Process(pid)


@pytest.mark.usefixtures("patience")
def test_the_next_program_uses_the_agent_and_not_its_workers(
    fleet: LocalFleet, tmp_path: Path, before: set[psutil.Process]
) -> None:
    config = config_of_mac(fleet, tmp_path)
    name, process, first_worker = run(config, fleet, before)
    until(lambda: not first_worker.is_running())
    for _ in range(2):
        again, same, other_worker = run(config, fleet, before)
        assert (again, same) == (name, process)
        assert other_worker != first_worker


@pytest.mark.usefixtures("patience")
def test_what_still_runs_ends_with_its_program(fleet: LocalFleet, tmp_path: Path, before: set[psutil.Process]) -> None:
    class Counter:
        def pid(self) -> int:
            import os

            return os.getpid()

    def sleep(path: str) -> None:
        import os
        import time

        with open(path, "w") as file:
            file.write(str(os.getpid()))
        time.sleep(600)

    config, mark = config_of_mac(fleet, tmp_path), tmp_path / "pid"
    with UnifiedScheduler(config) as scheduler:
        actor = scheduler.submit_actor(Counter, resource_requirements={"CPU": 0})
        running = [psutil.Process(scheduler.get(actor.pid.remote()))]
        handle = scheduler.submit_task_async(sleep, (str(mark),))
        until(lambda: mark.exists() and mark.read_text() != "", 60, handle.explain)
        running.append(psutil.Process(int(mark.read_text())))
        name = agent_of(scheduler)
        scheduler.shutdown()
    until(lambda: not any(one.is_running() for one in running))
    assert run(config, fleet, before)[0] == name


def test_an_agent_that_no_program_needs_ends(fleet: LocalFleet, tmp_path: Path, before: set[psutil.Process]) -> None:
    config = config_of_mac(fleet, tmp_path, agent_linger_s=1.5)
    _, process, _ = run(config, fleet, before)
    until(lambda: not process.is_running())


@pytest.mark.usefixtures("patience")
def test_two_programs_at_once_do_not_share_an_agent(
    fleet: LocalFleet, tmp_path: Path, before: set[psutil.Process]
) -> None:
    config = config_of_mac(fleet, tmp_path)
    name, _, _ = run(config, fleet, before)
    with UnifiedScheduler(config) as second, UnifiedScheduler(config) as third:
        handles = [second.submit_task_async(os.getpid), third.submit_task_async(os.getpid)]
        assert all(handle.result(60) for handle in handles)
        names = {agent_of(second), agent_of(third)}
        assert len(names) == 2
        assert name in names


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_frozen_agent_is_replaced(
    fleet: LocalFleet, tmp_path: Path, before: set[psutil.Process], what: signal.Signals
) -> None:
    config = config_of_mac(fleet, tmp_path)
    name, process, _ = run(config, fleet, before)
    os.kill(process.pid, what)
    with UnifiedScheduler(config) as second:
        assert second.submit_task(os.getpid)
        assert agent_of(second) != name
        until(lambda: not process.is_running(), 60)
