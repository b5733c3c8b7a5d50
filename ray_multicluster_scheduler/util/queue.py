"""Queue, with the interface of ray.util.queue.Queue: between a program, its tasks and its actors."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ray_multicluster_scheduler


class Empty(queue.Empty):
    """There is no item, or there are not so many."""


class Full(queue.Full):
    """There is no room."""


class Queue:
    """A queue in an actor of its own, which holds no CPU. Can be passed to tasks and actors; those run on its cluster.

    ``maxsize`` 0 means unbounded. ``actor_options`` are those of ``.options()`` of a class.
    """

    def __init__(self, maxsize: int = 0, actor_options: Mapping[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        remote_class = ray_multicluster_scheduler.remote(_QueueActor).options(**(actor_options or {}))
        self.actor = remote_class.remote(maxsize)

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """The number of items."""
        return int(self.actor.qsize.remote().result())

    qsize = size

    def empty(self) -> bool:
        """Is there no item?"""
        return self.size() == 0

    def full(self) -> bool:
        """Is there no room?"""
        return 0 < self.maxsize <= self.size()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item; waits for room, ``timeout`` seconds at most. Raises Full."""
        self._put(item, block, timeout).result()

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """As :meth:`put`."""
        await self._put(item, block, timeout)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Remove and return the first item; waits for one, ``timeout`` seconds at most. Raises Empty."""
        return self._get(block, timeout).result()

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """As :meth:`get`."""
        return await self._get(block, timeout)

    def put_nowait(self, item: Any) -> None:
        """Add an item. Raises Full."""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """Remove and return the first item. Raises Empty."""
        return self.get(block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Add all items in order, or none. Raises Full."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        self.actor.put_nowait_batch.remote(list(items)).result()

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Remove and return the first ``num_items`` items. Raises Empty if there are fewer."""
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        return list(self.actor.get_nowait_batch.remote(num_items).result())

    def shutdown(self, force: bool = False, grace_period_s: float = 5) -> None:
        """End the actor, with the calls that wait in it; ``force`` and ``grace_period_s`` have no effect."""
        if self.actor is not None:
            self.actor.kill()
        self.actor = None

    def _put(self, item: Any, block: bool, timeout: float | None) -> Any:
        _check_timeout(block, timeout)
        return self.actor.put.remote(item, timeout) if block else self.actor.put_nowait_batch.remote([item])

    def _get(self, block: bool, timeout: float | None) -> Any:
        _check_timeout(block, timeout)
        return self.actor.get.remote(timeout) if block else self.actor.get_nowait.remote()


def _check_timeout(block: bool, timeout: float | None) -> None:
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")


class _QueueActor:
    """Its methods are coroutines, so that any number of calls can wait in it."""

    def __init__(self, maxsize: int) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue(maxsize)

    async def qsize(self) -> int:
        return self._queue.qsize()

    async def put(self, item: Any, timeout: float | None = None) -> None:
        await _within(timeout, self._queue.put, Full, item)

    async def get(self, timeout: float | None = None) -> Any:
        return await _within(timeout, self._queue.get, Empty)

    async def put_nowait_batch(self, items: list[Any]) -> None:
        room = self._queue.maxsize - self._queue.qsize()
        if self._queue.maxsize > 0 and room < len(items):
            raise Full(f"There is room for {room} of {len(items)} items; maxsize is {self._queue.maxsize}.")
        for item in items:
            self._queue.put_nowait(item)

    async def get_nowait(self) -> Any:
        return (await self.get_nowait_batch(1))[0]

    async def get_nowait_batch(self, num_items: int) -> list[Any]:
        if num_items > self._queue.qsize():
            raise Empty(f"There are {self._queue.qsize()} items, not {num_items}.")
        return [self._queue.get_nowait() for _ in range(num_items)]


async def _within(timeout: float | None, call: Callable[..., Any], problem: type[Exception], *args: Any) -> Any:
    try:
        async with asyncio.timeout(timeout):
            return await call(*args)
    except TimeoutError:
        raise problem(f"Nothing changed within {timeout} s.") from None
