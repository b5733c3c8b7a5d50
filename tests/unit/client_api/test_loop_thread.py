"""The loop on its thread: nobody is left waiting, whatever interrupts whom."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.runtime.loop_thread import LoopThread
from tests.unit.client_api.control_plane import until

pytestmark = pytest.mark.usefixtures("leak_check")


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    if not loop.loop_ended:
        loop.end_loop()


def test_an_interrupt_at_any_moment_leaves_the_way_in_open(loop: LoopThread) -> None:
    """While the interrupt is handled, its traceback keeps all that was under way alive: no lock may be among it."""
    moments = 0
    with ThreadPoolExecutor(1) as other:
        while True:
            try:
                with _interrupt_after(moments):
                    loop.call_and_wait(lambda: None)
            except KeyboardInterrupt:
                moments += 1
                assert other.submit(loop.call_and_wait, lambda: 42).result(60) == 42, f"after {moments} steps"
            else:
                break
    assert moments > 3


@contextmanager
def _interrupt_after(steps: int) -> Iterator[None]:
    """As if Ctrl+C were pressed when this thread has entered or left so many functions of ours."""
    left, before = steps, sys.gettrace()

    def trace(frame: FrameType, event: str, arg: object) -> object:
        nonlocal left
        frame.f_trace_lines = False
        if Path(frame.f_code.co_filename).name not in ("loop_thread.py", "contextlib.py"):
            return trace  # a threading.Condition, for one, is not safe in this way, and nothing can be done about it
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_values_and_errors_come_back(loop: LoopThread) -> None:
    async def half(number: int) -> float:
        return 1 / number

    assert loop.run(half(2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        loop.run(half(0))
    assert loop.call_and_wait(threading.current_thread).name == "rmcs-control-plane"


def test_the_end_answers_all_waiting_callers(loop: LoopThread) -> None:
    with ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(loop.run, asyncio.sleep(1000)) for _ in range(8)]
        until(lambda: len(loop._pending) == 8)
        loop.end_loop()
        for one in waiting:
            with pytest.raises(SchedulerError, match="was shut down"):
                one.result(60)


def test_after_the_end(loop: LoopThread) -> None:
    loop.end_loop()
    assert loop.call_and_wait(lambda: 42) == 42
    with pytest.raises(KeyError):
        loop.call_and_wait(lambda: {}["x"])
    with pytest.raises(SchedulerError, match="was shut down"):
        loop.run(asyncio.sleep(0))
    loop.spawn(asyncio.sleep(0))


def test_background_work_is_done_and_its_failure_is_logged(loop: LoopThread, caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise ValueError("oops")

    loop.spawn(fail())
    until(lambda: "oops" in caplog.text)


def test_generators_are_closed_at_the_end(loop: LoopThread) -> None:
    closed = []

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    held = numbers()

    async def first() -> int:
        return await anext(held)

    assert loop.run(first()) == 1
    loop.end_loop()
    assert closed == [True]
    gc.collect()
