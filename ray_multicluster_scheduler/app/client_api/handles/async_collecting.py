"""``get`` and ``wait`` as coroutines that block no thread while waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ray_multicluster_scheduler.app.client_api.blocking_call_threads import BlockingCallThreads
from ray_multicluster_scheduler.app.client_api.handles import collecting
from ray_multicluster_scheduler.app.client_api.handles.handle import Handle
from ray_multicluster_scheduler.app.client_api.handles.progress import counted
from ray_multicluster_scheduler.control_plane.runtime.item import Countdown, Promise

H = TypeVar("H", bound=Handle)


async def get(
    handles: Handle | Sequence[Handle], timeout: float | None, progress: bool | None, threads: BlockingCallThreads
) -> Any:
    """As :func:`collecting.get`. Values are unpickled on ``threads``, and fetched there if they are elsewhere."""
    timeout = collecting._seconds(timeout)
    many = [handles] if isinstance(handles, Handle) else collecting._checked(handles, "get")
    until = None if timeout is None else time.monotonic() + timeout
    items = [one._item for one in many]
    missing = next((one for one in many if not one.done()), None)
    if missing is not None:
        missing._check_process()
    with counted(progress, "get", items, see_it_drawn=False):
        await wait_for_some(items, len(items), timeout, or_failure=True)
    failed = any(one.outcome is not None and not one.outcome.succeeded for one in items)
    late = None if failed else next((one for one in many if not one.done()), None)
    if late is not None:
        raise await threads.call(late._still_going, timeout)
    left = None if until is None else max(until - time.monotonic(), 0.0)
    return await threads.call(collecting.get, handles if isinstance(handles, Handle) else many, left)


async def wait(
    handles: Sequence[H], num_returns: int, timeout: float | None, progress: bool | None
) -> tuple[list[H], list[H]]:
    """As :func:`collecting.wait`."""
    timeout = collecting._seconds(timeout)
    many = collecting._checked(handles, "wait")
    over, rest = collecting.wait(many, num_returns, 0.0)  # also validates the arguments
    if len(over) == num_returns or not rest:
        return over, rest
    items = [one._item for one in dict.fromkeys(many)]
    with counted(progress, "wait", items, num_returns, see_it_drawn=False):
        await wait_for_some(items, num_returns, timeout)
    return collecting.wait(many, num_returns, 0.0)


async def wait_for_some(
    promises: Sequence[Promise], enough: int, timeout: float | None, *, or_failure: bool = False
) -> None:
    """Wait until ``enough`` are done, one has failed (``or_failure``), or the timeout expires."""
    if enough <= 0:
        return
    loop, gate = asyncio.get_running_loop(), asyncio.Event()

    def open_gate() -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(gate.set)

    countdown = Countdown(enough, or_failure, open_gate)
    for promise in promises:
        promise.watch(countdown)  # called at once for a finished one
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await gate.wait()
    finally:
        for promise in promises:
            if promise.outcome is None:
                promise.unwatch(countdown)
