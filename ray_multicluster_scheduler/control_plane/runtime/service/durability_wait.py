"""until_written(): a wait for the disk that ends when that can be told, or when it cannot be told any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray_multicluster_scheduler.common.exception import ServiceUnavailableError

_LOOK_AGAIN_S = 1.0


async def until_written(
    when_durable: Callable[[Callable[[], object]], object], check: Callable[[], object], every_s: float = _LOOK_AGAIN_S
) -> None:
    """Until all that was said so far is durable. ``check`` is asked now and then, and raises ServiceUnavailableError
    for whoever waits."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    timer: asyncio.TimerHandle | None = None

    def tell() -> None:
        if not done.done():
            done.set_result(None)

    def look() -> None:
        nonlocal timer
        try:
            check()
        except ServiceUnavailableError as error:
            if not done.done():
                done.set_exception(error)
        else:
            timer = loop.call_later(every_s, look)

    when_durable(tell)
    timer = loop.call_later(every_s, look)
    try:
        await done
    finally:
        if timer is not None:
            timer.cancel()
