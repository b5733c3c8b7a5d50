"""Actors that are restarted by Ray itself, or left without their program; and calls that are cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler import (
    ActorDiedError,
    ConfigurationError,
    TaskCancelledError,
    TaskState,
    UnifiedScheduler,
    cancel,
    explain,
)
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.mac_cluster import config_of_mac, until

NOTHING = {"CPU": 0}
QUICK = {"heartbeat_s": 0.5, "lease_s": 6, "lost_after_s": 16, "breaker_recovery_s": 1}


def tally() -> Any:
    """A class that is pickled by value."""

    class Tally:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def add(self, what: Any) -> int:
            self.seen.append(what)
            return len(self.seen)

        def pid(self) -> int:
            import os

            return os.getpid()

        def until_reported(self, number: int) -> str:
            """Runs until its process was asked to leave out so many calls: only then they are sure not to run."""
            import gc
            import time

            from ray_multicluster_scheduler.scheduler.connection.gateway.worker.actor_channel import ActorChannel

            print("begun")
            channel = next(one for one in gc.get_objects() if type(one) is ActorChannel)
            while len(channel._cancelled) < number:
                time.sleep(0.01)
            return "went on"

    return Tally


def test_a_detached_actor_may_not_move(scheduler: UnifiedScheduler) -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        scheduler.submit_actor(tally(), lifetime="detached", name="both", restart_elsewhere=True)


def test_a_detached_actor_is_restarted_by_ray(scheduler: UnifiedScheduler) -> None:
    name = f"restarted-{os.getpid()}"
    actor = scheduler.submit_actor(
        tally(), resource_requirements=NOTHING, lifetime="detached", name=name, max_restarts=1
    )
    try:
        assert actor.add.remote(1).result(30) == 1
        first = actor.pid.remote().result(30)
        os.kill(first, signal.SIGKILL)

        def again() -> int | None:
            """A call that comes too early fails; it is never repeated for the caller."""
            call = actor.pid.remote()
            error = call.exception(30)
            assert error is None or isinstance(error, ActorDiedError), error
            return None if error is not None else call.result()

        until(lambda: again() not in (None, first), 60)
        assert actor.add.remote("again").result(30) == 1, "without its state"
        assert (actor.state, actor.attempt) == (TaskState.RUNNING, 1), "it is Ray's restart, not ours"
        os.kill(actor.pid.remote().result(30), signal.SIGKILL)
        until(lambda: actor.state is TaskState.FAILED, 60)
    finally:
        actor.kill()


class TestCancelledCalls:
    def test_cancel_calls_of_a_sequential_actor(self, scheduler: UnifiedScheduler) -> None:
        """Queued calls never run; the running one continues, as in Ray."""
        actor = scheduler.submit_actor(tally(), resource_requirements=NOTHING)
        running = actor.until_reported.remote(3)
        until(lambda: "begun" in actor.logs())
        sent = [actor.add.remote(number) for number in range(3)]
        until(lambda: all(call.explain()["code"] == "SENT" for call in sent))
        argument = scheduler.submit_task_async(lambda: __import__("time").sleep(600))
        unsent, after = actor.add.remote(argument), actor.add.remote("after")
        assert (explain(unsent.id)["code"], explain(unsent.id)["calls_before"]) == ("WAITS", 4)
        unsent.cancel()
        with pytest.raises(TaskCancelledError, match=unsent.id):
            unsent.result(30)
        argument.cancel()
        assert not running.done()
        running.cancel()
        sent[0].cancel()
        cancel(sent[1].id)
        for call in sent[:2]:
            with pytest.raises(TaskCancelledError, match=call.id):
                call.result(30)
            assert call.state is TaskState.CANCELLED
        assert running.result(30) == "went on"
        assert (sent[2].result(30), after.result(30)) == (1, 2), "without those that were cancelled"
        actor.kill()

    def test_cancel_calls_of_an_async_actor(self, scheduler: UnifiedScheduler) -> None:
        class Meeting:
            def __init__(self) -> None:
                self.reported: list[str] = []

            async def wait(self) -> None:
                import asyncio

                self.reported.append("began")
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    self.reported.append("cancelled")
                    raise

            async def so_far(self) -> list[str]:
                return self.reported

        actor = scheduler.submit_actor(Meeting, resource_requirements=NOTHING)
        call, other = actor.wait.remote(), actor.wait.remote()
        until(lambda: actor.so_far.remote().result(30) == ["began", "began"])
        call.cancel()
        with pytest.raises(TaskCancelledError, match=call.id):
            call.result(30)
        until(lambda: actor.so_far.remote().result(30) == ["began", "began", "cancelled"])
        assert not other.done()
        other.cancel()
        with pytest.raises(TaskCancelledError):
            other.result(30)
        actor.kill()


PROGRAM = """
    import sys
    from ray_multicluster_scheduler import initialize_scheduler_environment

    class Alone:
        def pid(self):
            import os

            return os.getpid()

    scheduler = initialize_scheduler_environment(sys.argv[1])
    own = scheduler.submit_actor(Alone, resource_requirements={"CPU": 0})
    left = scheduler.submit_actor(Alone, resource_requirements={"CPU": 0}, lifetime="detached", name=sys.argv[2])
    print(own.pid.remote().result(60), left.pid.remote().result(60), flush=True)
    sys.stdin.read()
"""


def test_actors_end_with_their_killed_program(fleet: LocalFleet, tmp_path: Path) -> None:
    """Except detached ones, which have no lease."""
    program, name, config = tmp_path / "program.py", f"left-{os.getpid()}", config_of_mac(fleet, tmp_path, **QUICK)
    program.write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen(
        [sys.executable, str(program), str(config), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            own, left = (psutil.Process(int(word)) for word in process.stdout.readline().split())
        finally:
            process.kill()
    began = time.monotonic()
    until(lambda: not own.is_running(), 60)
    assert time.monotonic() - began > QUICK["lease_s"] / 2, "it lasted as long as the lease, not less"
    assert left.is_running()
    with UnifiedScheduler(config) as scheduler:
        found = scheduler.get_actor(name)
        assert found.pid.remote().result(60) == left.pid
        found.kill()
        until(lambda: not left.is_running())
