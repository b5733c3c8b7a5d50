"""Faults under a mixed load: all work that is guaranteed to survive does, and none runs twice.

Each item writes a line to a file, so that repetitions are detected.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ray_multicluster_scheduler import (
    ActorDiedError,
    ClusterLostError,
    TaskState,
    UnifiedScheduler,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import agents_of_mac, config_of_mac, line_to_mac, until


def by_value() -> Any:
    def run(path: str, what: str, seconds: float = 0.0) -> str:
        import time

        with open(path, "a") as file:
            file.write(what + "\n")
        time.sleep(seconds)
        return what

    return run


def counter() -> type:
    class Counter:
        def __init__(self, path: str) -> None:
            self.path = path
            self.calls = 0

        def add(self, number: int, seconds: float = 0.0) -> int:
            import time

            with open(self.path, "a") as file:
                file.write(f"call {number}\n")
            time.sleep(seconds)
            self.calls += 1
            return self.calls

    return Counter


def lines(path: Path) -> Counter[str]:
    return Counter(path.read_text().splitlines()) if path.exists() else Counter()


class Everything:
    """Short tasks, a longer one, large values, and an actor that is called continuously."""

    def __init__(self, scheduler: UnifiedScheduler, folder: Path) -> None:
        self.file = folder / "lines"
        self.actor = scheduler.submit_actor(counter(), (str(self.file),), resource_requirements={"CPU": 0})
        run, path = by_value(), str(self.file)
        self.tasks = {f"task {n}": scheduler.submit_task_async(run, (path, f"task {n}", 0.02)) for n in range(80)}
        self.tasks["long"] = scheduler.submit_task_async(run, (path, "long", 4.0))
        self.big = scheduler.submit_task_async(lambda data: data + b"!", (b"x" * 20_000_000,))
        self.calls = [self.actor.add.remote(number, 0.03) for number in range(100)]

    def all_survived(self) -> None:
        for what, handle in self.tasks.items():
            assert handle.result(120) == what
            explanation = handle.explain()["history"]
            # What was sent ahead and had to wait is taken back before it begins: that is no attempt that was lost.
            taken_back = sum(step["code"] == "TAKEN_BACK" and step["state"] is TaskState.QUEUED for step in explanation)
            assert handle.attempt - taken_back == 1, "\n".join(map(str, explanation))
        assert len(self.big.result(60)) == 20_000_001
        assert [call.result(60) for call in self.calls] == list(range(1, 101)), "in order, each once"
        expected = Counter([*self.tasks, *(f"call {number}" for number in range(100))])
        assert lines(self.file) == expected, "nothing twice, nothing left out"

    def all_repeated(self) -> None:
        """The guarantee that remains when Ray itself has ended the agent: every task runs, once per attempt."""
        for what, handle in self.tasks.items():
            assert handle.result(120) == what
            assert 1 <= lines(self.file)[what] <= handle.attempt
        assert len(self.big.result(60)) == 20_000_001

    def ended_by_ray(self) -> bool:
        """Ray's own watch over jobs can fail while all processes wake up; it then ends the job, here the agent."""
        histories = [handle.explain()["history"] for handle in self.tasks.values()]
        ends = [row["sentence"] for history in histories for row in history if "has ended: " in row["sentence"]]
        assert not any("it ended itself" in end or "it was rejected" in end for end in ends), ends
        return bool(ends)


def test_a_temporary_cut_of_the_connection(fleet: LocalFleet, tmp_path: Path) -> None:
    with line_to_mac(fleet, tmp_path) as scheduler:
        work = Everything(scheduler, tmp_path)
        for _ in range(3):
            time.sleep(0.4)
            fleet.cut("mac")
            time.sleep(0.7)
            fleet.restore_network("mac")
        work.all_survived()


def test_a_cluster_paused_for_twenty_seconds(fleet: LocalFleet, tmp_path: Path) -> None:
    with UnifiedScheduler(config_of_mac(fleet, tmp_path)) as scheduler:
        assert scheduler.submit_task(len, ("warm",)) == 4
        work = Everything(scheduler, tmp_path)
        until(lambda: lines(work.file)["call 3"] == 1)
        fleet.pause("mac")
        try:
            until(lambda: scheduler.list_clusters()[0]["state"] == "CLUSTER_SUSPECT", 25)
            assert scheduler.explain(work.tasks["long"].id)["sentence"]
            time.sleep(20 - 15)
        finally:
            fleet.resume("mac")
        for handle in work.tasks.values():
            handle.result(120)
        if work.ended_by_ray():
            work.all_repeated()
        else:
            work.all_survived()


PROGRAM = """
    import sys, time
    import ray_multicluster_scheduler as rmcs
    sys.path.insert(0, sys.argv[3])
    from tests.integration.test_cut_and_resume import Everything
    from pathlib import Path

    scheduler = rmcs.UnifiedScheduler(sys.argv[1])
    scheduler.submit_task(len, ("warm",))
    work = Everything(scheduler, Path(sys.argv[2]))
    print("READY", flush=True)
    work.all_survived()
    scheduler.shutdown(drain=True)
    print("SURVIVED", flush=True)
"""


def test_a_program_paused_for_twenty_seconds(fleet: LocalFleet, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, str(program), str(config_of_mac(fleet, tmp_path)), str(tmp_path), str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(150, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "READY\n"
            until(lambda: lines(tmp_path / "lines")["call 3"] == 1)
            process.send_signal(signal.SIGSTOP)
            time.sleep(20)
            process.send_signal(signal.SIGCONT)
            assert process.stdout.readline() == "SURVIVED\n"
            assert process.wait(60) == 0
        finally:
            watchdog.cancel()
            process.kill()


def test_a_killed_agent_ends_only_its_own_work(fleet: LocalFleet, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with UnifiedScheduler(config_of_mac(fleet, tmp_path, heartbeat_s=1)) as scheduler:
        name = f"kept-{os.getpid()}"
        own = scheduler.submit_actor(counter(), (str(file),), resource_requirements={"CPU": 0})
        kept = scheduler.submit_actor(
            counter(), (str(tmp_path / "kept"),), resource_requirements={"CPU": 0}, lifetime="detached", name=name
        )
        assert kept.add.remote(1).result(30) == 1
        long = scheduler.submit_task_async(by_value(), (str(file), "long", 2.0))
        never = scheduler.submit_task_async(by_value(), (str(file), "never again", 30.0), lost_retries=0)
        calls = [own.add.remote(number, 0.5) for number in range(100)]  # more than get their turn here
        until(
            lambda: lines(file)["call 1"] == 1 and long.state is TaskState.RUNNING and lines(file)["never again"] == 1
        )
        for agent in agents_of_mac(fleet):
            agent.kill()
        assert long.result(60) == "long"
        assert long.attempt == 2
        with pytest.raises(ClusterLostError, match="mac"):
            never.result(60)
        errors = [call.exception(60) for call in calls]
        failed = errors[errors.index(next(error for error in errors if error is not None)) :]
        assert all(isinstance(error, (ActorDiedError, ClusterLostError)) for error in failed), failed
        until(lambda: own.state is TaskState.FAILED)
        again = scheduler.get_actor(name)
        assert again.add.remote(2).result(60) == 2, "it kept its state"
        again.kill()
    output = lines(file)
    assert output["long"] == 2, "one for each attempt"
    assert output["never again"] == 1
    assert max(output[f"call {number}"] for number in range(100)) == 1, "no call twice"
