"""ProgramLeases: ends the items of a client program that has stopped polling, such as after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

_log = get_logger(__name__)


class ProgramLeases:
    """Used on the loop. ``last_poll`` returns when a program last polled, infinity during a poll, None if unknown. No
    timer runs while no program has items."""

    def __init__(self, runtime: ServiceRuntime, last_poll: Callable[[str], float | None]) -> None:
        self._runtime, self._last_poll = runtime, last_poll
        self._lease_s = runtime.settings.program_lease_s
        self._items: dict[str, dict[str, Item]] = {}
        self._since: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start with the items of the previous process: each program gets a full lease to come back."""
        for item in self._runtime.unfinished():
            self.hold(item)

    def hold(self, item: Item) -> None:
        program = item.task.program
        if program is None or item.outcome is not None or item.id in self._items.get(program, ()):
            return
        self._items.setdefault(program, {})[item.id] = item
        self._since.setdefault(program, asyncio.get_running_loop().time())
        item.watch(self._forget_ended)
        self._schedule_check()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _forget_ended(self, item: Item) -> None:
        items = self._items.get(item.task.program or "", {})
        items.pop(item.id, None)
        if not items:
            self._items.pop(item.task.program or "", None)
            self._since.pop(item.task.program or "", None)

    def _schedule_check(self) -> None:
        if self._timer is None and self._items:
            self._timer = asyncio.get_running_loop().call_later(self._lease_s / 4, self._check)

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for program, items in list(self._items.items()):
            polled = self._last_poll(program)
            last = max(self._since[program], polled if polled is not None else 0.0)
            if now - last < self._lease_s or self._runtime.closed:
                continue
            _log.warning("program %s is gone; its items %s are cancelled", program, ", ".join(items))
            for item in list(items.values()):
                self._runtime.kill(item, f"its program has not polled for {self._lease_s:g} s", force=True)
            self._since[program] = now
        self._schedule_check()
