"""ProgramLeases: what belongs to a program ends when that is gone, also if it could not say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime

_log = get_logger(__name__)


class ProgramLeases:
    """On the loop of the service. ``last_heard`` tells when a program last asked for news, infinity if it does now, and
    None if nothing is known of it. Where nobody has anything, nobody is looked at."""

    def __init__(self, runtime: ServiceRuntime, last_heard: Callable[[str], float | None]) -> None:
        self._runtime, self._last_heard = runtime, last_heard
        self._lease_s = runtime.settings.program_lease_s
        self._items: dict[str, dict[str, Item]] = {}
        self._since: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """With what the process before ours left: each of its programs has a whole lease to come back."""
        for item in self._runtime.unfinished():
            self.hold(item)

    def hold(self, item: Item) -> None:
        program = item.task.program
        if program is None or item.outcome is not None or item.id in self._items.get(program, ()):
            return
        self._items.setdefault(program, {})[item.id] = item
        self._since.setdefault(program, asyncio.get_running_loop().time())
        item.watch(self._over)
        self._look_later()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _over(self, item: Item) -> None:
        items = self._items.get(item.task.program or "", {})
        items.pop(item.id, None)
        if not items:
            self._items.pop(item.task.program or "", None)
            self._since.pop(item.task.program or "", None)

    def _look_later(self) -> None:
        if self._timer is None and self._items:
            self._timer = asyncio.get_running_loop().call_later(self._lease_s / 4, self._look)

    def _look(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for program, items in list(self._items.items()):
            heard = self._last_heard(program)
            last = max(self._since[program], heard if heard is not None else 0.0)
            if now - last < self._lease_s or self._runtime.closed:
                continue
            _log.warning("program %s is gone; %s end with it", program, ", ".join(items))
            for item in list(items.values()):
                self._runtime.kill(item, f"its program was not heard of for {self._lease_s:g} s", force=True)
            self._since[program] = now
        self._look_later()
