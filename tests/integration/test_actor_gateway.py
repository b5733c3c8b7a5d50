"""Actors on a real cluster, through a bare link: call order, ends, and lifetimes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ray_multicluster_scheduler.common import pickling
from ray_multicluster_scheduler.common.model import FailureClass
from ray_multicluster_scheduler.local_fleet import LocalFleet
from tests.support.bare_link import BareLink, bare_link, method, task
from tests.support.eventually import eventually


@pytest.fixture
async def line(fleet: LocalFleet) -> AsyncIterator[BareLink]:
    async with bare_link(Path(fleet.config_path), "mac") as one:
        yield one


def counter() -> type:
    """Defined in a function, so that it is pickled by value."""

    class Counter:
        def __init__(self, first: int = 0) -> None:
            self.seen: list[Any] = [first]
            print("made")

        def add(self, value: Any) -> int:
            self.seen.append(value if isinstance(value, int) else len(value))
            return len(self.seen)

        def all(self) -> list[Any]:
            return self.seen

        def pid(self) -> int:
            return os.getpid()

        def in_main_thread(self) -> bool:
            import threading

            return threading.current_thread() is threading.main_thread()

        def who(self) -> tuple[str, int, int]:
            from ray_multicluster_scheduler import current

            item = current()
            return item.id, item.attempt, item.fence

        def say(self, text: str) -> None:
            print(text)

        def fail(self) -> None:
            raise KeyError("no such thing")

        def big(self) -> bytes:
            return b"x" * 5_000_000

        def sleep(self, seconds: float) -> str:
            import time

            print("asleep")
            time.sleep(seconds)
            return "slept"

        def leave(self, how: str) -> None:
            import ray

            if how == "exit_actor":
                ray.actor.exit_actor()
            sys.exit(3)

    return Counter


async def asleep(line: BareLink) -> None:
    await eventually(lambda: "asleep" in line.printed("a1"), timeout=60)


async def test_methods_run_in_the_order_of_their_numbers(line: BareLink) -> None:
    line.make("a1", counter(), 7)
    line.submit(method("m0", "a1", "add", 0, 1), method("m1", "a1", "add", 1, b"x" * 5_000_000))
    line.submit(*(method(f"m{number}", "a1", "add", number, number) for number in range(2, 6)))
    line.submit(method("m7", "a1", "all", 7))
    line.submit(method("m6", "a1", "add", 6, 6))
    assert await line.value("m7") == [7, 1, 5_000_000, 2, 3, 4, 5, 6]
    assert [await line.value(f"m{number}") for number in range(7)] == [2, 3, 4, 5, 6, 7, 8]
    assert line.received.kinds_of("a1")[:2] == ["accepted", "output"] or "started" in line.received.kinds_of("a1")
    assert line.received.kinds_of("m1") == ["finished"]


async def test_methods_of_a_later_process_run_after_those_of_the_earlier(line: BareLink) -> None:
    line.make("a1", counter())
    line.submit(method("m0", "a1", "add", 0, 1), method("m2", "a1", "add", 2, b"x" * 5_000_000))
    line.submit(method("m4", "a1", "add", 4, 4))  # 1 and 3 were lost with their sender
    owed = line.link._calls._pending
    await eventually(lambda: all(debt.call is None for _, debt in owed.items()), timeout=30)  # all of them have come
    line.link.adopt_method("m1", ("a1", 1), ("a1", 1))
    lost = await line.result("m1")
    assert (lost.failure, lost.actor_id) == (FailureClass.CLUSTER, "a1")
    line.submit(method("n1", "a1", "all", 1, life=2), method("n0", "a1", "add", 0, 5, life=2))
    assert await line.value("n1") == [0, 1, 5_000_000, 4, 5]
    assert [await line.value(name) for name in ("m0", "m2", "m4", "n0")] == [2, 3, 4, 5]


async def test_context_output_and_exception_of_a_method(line: BareLink) -> None:
    line.make("a1", counter(), attempt=3)
    await line.started("a1", 3)
    calls = ("who", "in_main_thread", "fail", "big")
    line.submit(*(method(f"m{number}", "a1", name, number, attempt=3) for number, name in enumerate(calls)))
    assert await line.value("m0") == ("a1", 3, 3)
    assert await line.value("m1") is True, "as in Ray"
    error = await line.result("m2")
    assert (error.status, error.failure, error.error_type) == ("failed", FailureClass.USER, "KeyError")
    assert isinstance(pickling.loads(error.payload or b""), KeyError)
    assert "in fail" in error.traceback
    assert len(await line.value("m3")) == 5_000_000
    assert {result.actor_id for result in line.received.results()} == {"a1"}
    for number in range(20):
        line.submit(method(f"s{number}", "a1", "say", 4 + number, f"line {number}", attempt=3))
    took = await line.result("s19")
    assert took.took is not None
    assert took.took < 20
    assert line.printed("a1") == "made\n" + "".join(f"line {number}\n" for number in range(20))
    assert line.printed("s0") == ""


async def test_a_raising_constructor_fails_the_actor_and_leaves_no_process(line: BareLink) -> None:
    class Broken:
        def __init__(self, path: str) -> None:
            with open(path, "w") as file:
                file.write(str(os.getpid()))
            raise ValueError("not today")

        def f(self) -> None: ...

    path = Path(os.environ["RMCS_HOME"]) / "broken"
    line.make("a1", Broken, str(path))
    line.submit(method("m0", "a1", "f", 0))
    result = await line.result("a1")
    assert (result.status, result.failure, result.error_type) == ("failed", FailureClass.USER, "ValueError")
    assert isinstance(pickling.loads(result.payload or b""), ValueError)
    assert "started" not in line.received.kinds_of("a1")
    late = await line.result("m0")
    assert (late.error_type, late.code, late.failure) == ("ActorDiedError", "ACTOR_DIED", FailureClass.CRASH)
    assert "not today" in late.message
    await eventually(lambda: not psutil.pid_exists(int(path.read_text())))


@pytest.mark.parametrize("how", ["exit_actor", "sys.exit"])
async def test_an_actor_that_exits_has_succeeded_and_later_calls_fail(line: BareLink, how: str) -> None:
    line.make("a1", counter())
    line.submit(method("m0", "a1", "leave", 0, how), method("m1", "a1", "all", 1))
    own = await line.result("a1")
    assert own.status == "succeeded", own
    line.submit(method("m2", "a1", "all", 2))
    for late in ("m0", "m1", "m2"):
        result = await line.result(late)
        assert (result.error_type, result.code) == ("ActorDiedError", "ACTOR_DIED")
        assert "left by itself" in result.message or "does not have it" in result.message


async def test_a_killed_actor_is_cancelled_and_its_name_is_free_for_the_next_attempt(line: BareLink) -> None:
    line.make("a1", counter(), ray_name="one-name")
    line.submit(method("m0", "a1", "pid", 0), method("m1", "a1", "sleep", 1, 600.0))
    first = await line.value("m0")
    line.link.cancel("a1", 1, force=False)
    assert (await line.result("a1")).status == "cancelled"
    assert "it was killed" in (await line.result("m1")).message
    line.make("a1", counter(), attempt=2, ray_name="one-name")
    line.submit(method("m2", "a1", "pid", 0, attempt=2))
    assert await line.value("m2") != first


async def test_a_crash_fails_the_actor_and_its_running_calls_with_the_cause(line: BareLink) -> None:
    line.make("a1", counter(), ray_name="crashing")
    line.submit(method("m0", "a1", "pid", 0))
    pid = await line.value("m0")
    line.submit(method("m1", "a1", "sleep", 1, 600.0), method("m2", "a1", "all", 2))
    await asleep(line)
    os.kill(pid, signal.SIGKILL)
    for late in ("m1", "m2"):
        result = await line.result(late)
        assert (result.failure, result.code, result.error_type) == (FailureClass.CRASH, "ACTOR_DIED", "ActorDiedError")
        assert "a1" in result.message
        assert "died" in result.message
    own = await line.result("a1")
    assert (own.status, own.failure, own.code) == ("failed", FailureClass.CRASH, "ACTOR_DIED")
    line.make("a1", counter(), attempt=2, ray_name="crashing")
    await line.started("a1", 2)


async def test_the_crash_of_an_idle_actor_is_noticed(line: BareLink) -> None:
    line.make("a1", counter())
    line.submit(method("m0", "a1", "pid", 0))
    os.kill(await line.value("m0"), signal.SIGKILL)
    assert (await line.result("a1")).code == "ACTOR_DIED"


async def test_queued_methods_can_be_cancelled(line: BareLink) -> None:
    line.make("a1", counter())
    line.submit(method("m0", "a1", "sleep", 0, 3.0), method("m1", "a1", "add", 1, 1), method("m3", "a1", "all", 3))
    await asleep(line)
    for late in ("m0", "m1", "m3"):
        line.link.cancel(late, 1, force=True)
    assert (await line.result("m3")).status == "cancelled", "it waited for its number"
    line.submit(method("m2", "a1", "all", 2), method("m4", "a1", "add", 4, 9))
    running = await line.result("m0")
    assert running.status == "succeeded"
    assert "cannot be interrupted" in running.message
    assert (await line.result("m1")).status == "cancelled"
    assert await line.value("m2") == [0], "the cancelled one did not run"
    assert await line.value("m4") == 2


async def test_an_async_actor_runs_methods_concurrently(line: BareLink) -> None:
    class Gate:
        def __init__(self) -> None:
            import asyncio

            self.open = asyncio.Event()

        async def enter(self) -> str:
            await self.open.wait()
            return "in"

        def unlock(self) -> None:
            self.open.set()

        async def forever(self) -> None:
            import asyncio

            await asyncio.sleep(600)

        async def leave(self) -> None:
            sys.exit(0)

    line.make("a1", Gate, asynchronous=True)
    line.submit(method("m0", "a1", "enter", 0), method("m1", "a1", "enter", 1), method("m2", "a1", "unlock", 2))
    assert [await line.value(one) for one in ("m0", "m1")] == ["in", "in"]
    line.submit(method("m3", "a1", "forever", 3))
    await asyncio.sleep(0.3)
    line.link.cancel("m3", 1, force=False)
    assert (await line.result("m3")).status == "cancelled", "a coroutine can be interrupted"
    line.submit(method("m4", "a1", "leave", 4))
    assert (await line.result("a1")).status == "succeeded"


async def test_max_concurrency_runs_several_threads(line: BareLink) -> None:
    class Pair:
        def __init__(self) -> None:
            import threading

            self.barrier = threading.Barrier(2)

        def meet(self) -> int:
            return self.barrier.wait(30)

    line.make("a1", Pair, max_concurrency=2)
    line.submit(method("m0", "a1", "meet", 0), method("m1", "a1", "meet", 1))
    assert sorted([await line.value("m0"), await line.value("m1")]) == [0, 1]


async def test_other_code_of_the_cluster_can_use_an_actor_natively(line: BareLink) -> None:
    def use(name: str) -> tuple[int, str]:
        import ray

        shell = ray.get_actor(name, namespace="rmcs")
        length = ray.get(shell.native_call.remote("add", (), 5))
        try:
            ray.get(shell.native_call.remote("fail", ()))
        except KeyError as error:
            return length, type(error).__name__
        return length, "no error"

    name = line.make("a1", counter())
    await line.started("a1")
    line.submit(task("t1", use, name))
    length, error = await line.value("t1")
    assert length == 2
    assert "KeyError" in error


async def test_a_method_of_an_unknown_actor_fails(line: BareLink) -> None:
    line.submit(method("m0", "nobody", "f", 0))
    result = await line.result("m0")
    assert (result.code, result.error_type, result.actor_id) == ("ACTOR_DIED", "ActorDiedError", "nobody")
    line.make("a1", counter(), adopt=True, ray_name="nobody-has-this-name")
    missing = await line.result("a1")
    assert (missing.failure, missing.code) == (FailureClass.PERMANENT, "ACTOR_NOT_FOUND")


async def test_a_detached_actor_lives_on_and_is_adopted_by_the_next_agent(fleet: LocalFleet) -> None:
    config = Path(fleet.config_path)
    async with bare_link(config, "mac") as first:
        name = first.make("a1", counter(), 1, detached=True)
        first.make("plain", counter())
        first.submit(method("m0", "a1", "pid", 0), method("p0", "plain", "pid", 0))
        pid, plain = await first.value("m0"), await first.value("p0")
    await eventually(lambda: not psutil.pid_exists(plain), timeout=60)
    assert psutil.pid_exists(pid)
    async with bare_link(config, "mac") as second:
        second.make("b1", counter(), adopt=True, detached=True, ray_name=name, attempt=4)
        await second.started("b1", 4)
        second.submit(method("m0", "b1", "pid", 0, attempt=4), method("m1", "b1", "who", 1, attempt=4))
        second.submit(method("m2", "b1", "say", 2, "to the new one", attempt=4))
        assert await second.value("m0") == pid
        assert await second.value("m1") == ("b1", 4, 4)
        await second.value("m2")
        await eventually(lambda: "to the new one" in second.printed("b1"))
        os.kill(pid, signal.SIGKILL)
        assert (await second.result("b1", 4)).code == "ACTOR_DIED"
        second.make("c1", counter(), ray_name=name)
        await second.started("c1")


async def test_an_idle_actor_ends_when_its_lease_expires(fleet: LocalFleet) -> None:
    """Its agent is stopped, so it gets no messages; a detached actor lives on."""
    lease = {"heartbeat_s": 0.5, "lease_s": 6.0, "lost_after_s": 60.0}
    async with bare_link(Path(fleet.config_path), "mac", **lease) as line:
        line.make("a1", counter())
        line.make("d1", counter(), detached=True)
        line.submit(task("t1", os.getppid), method("m0", "a1", "pid", 0), method("m1", "d1", "pid", 0))
        idle, detached = await line.value("m0"), await line.value("m1")
        agents = [pid for pid in fleet.processes("mac") if _is_agent(pid, line)]
        for pid in agents:
            os.kill(pid, signal.SIGSTOP)
        try:
            await eventually(lambda: not psutil.pid_exists(idle), timeout=40)
            assert psutil.pid_exists(detached)
        finally:
            os.kill(detached, signal.SIGKILL)
            for pid in agents:
                os.kill(pid, signal.SIGCONT)


def _is_agent(pid: int, line: BareLink) -> bool:
    try:
        process = psutil.Process(pid)
        own = any("connection.gateway" in word for word in process.cmdline())
        return own and line.link.agent in str(process.environ())  # type: ignore[attr-defined]  # an AgentLink
    except psutil.Error:
        return False
