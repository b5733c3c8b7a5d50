"""Long poll: per-client mailboxes that report state changes and results of many items in one answer."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.common.process import crash_point
from ray_multicluster_scheduler.control_plane.runtime import wire
from ray_multicluster_scheduler.control_plane.runtime.explanation import unknown_item
from ray_multicluster_scheduler.control_plane.runtime.item import Item, Promise
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import OwnershipCheck, ServiceRuntime

KEPT_S = 120.0
"""A mailbox without a poll for this long is dropped; its client must then name all its items again."""
RESULTS_KEPT_S = 3600.0
"""The same for a mailbox with unacknowledged results of calls, which are stored nowhere else."""
MAX_AT_ONCE = 500
MAX_BYTES = 4 * 2**20
STEPS_LATER_S = 0.2
"""Delay that collects state changes into one answer; an end is reported at once."""


class Mailbox:
    """The watched items of one client, each until the client acknowledges its end. Used on the loop only."""

    def __init__(self, acknowledge: Callable[[str], object] = lambda _: None) -> None:
        """``acknowledge`` is called with each call whose result the client has, or will never request."""
        self._acknowledge = acknowledge
        self.name = secrets.token_hex(8)
        """Unique; a client that finds another name than before must name all its items again."""
        self._items: dict[str, Promise] = {}
        self._changes: dict[str, None] = {}
        self._ends: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._polls = 0
        self.polled_at = 0.0
        self.closed = False
        self.active_polls = 0

    def find(self, item_id: str) -> Promise | None:
        """The watched item or call of this id."""
        return self._items.get(item_id)

    def watch(self, item: Promise) -> None:
        """Watch an item, or a call, of which only the end is reported."""
        if item.id in self._items:
            return
        self._items[item.id] = item
        if isinstance(item, Item):
            item.watch_transitions(self._changed)
            self._changed(item)
        else:
            item.watch(self._changed)

    def drop(self, item_ids: Iterable[str]) -> None:
        for item_id in item_ids:
            item = self._items.pop(item_id, None)
            if item is not None:
                if isinstance(item, Item):
                    item.unwatch_transitions(self._changed)
                else:
                    item.unwatch(self._changed)
                    item.watch(self._call_over)
                self._ends.pop(item_id, None)
                self._changes.pop(item_id, None)

    def _call_over(self, call: Promise) -> None:
        """A call that was dropped from the mailbox has its result."""
        self._acknowledge(call.id)

    @property
    def has_call_results(self) -> bool:
        """Does it hold unacknowledged results of calls?"""
        return any(not isinstance(self._items[one], Item) for one in self._ends)

    def drop_all(self) -> None:
        self.drop(list(self._items))

    def close(self) -> None:
        """Answer a poll in progress at once."""
        self.closed = True
        self._wake.set()

    async def poll(
        self, timeout: float, status_of: Callable[[Promise], dict[str, Any]] = wire.status_to_wire
    ) -> list[dict[str, Any]]:
        """Changes of the watched items, or none after ``timeout``. Ends are repeated until dropped. An earlier poll of
        the client that still waits returns empty."""
        self._polls += 1
        number = self._polls
        self._wake.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while number == self._polls and not self._ends and not self.closed:
            if self._changes:
                deadline = min(deadline, loop.time() + STEPS_LATER_S)
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                break
        return self._take(status_of) if number == self._polls else []

    def _changed(self, item: Promise) -> None:
        if item.id in self._items:
            if item.outcome is not None:
                self._ends[item.id] = None
                self._changes.pop(item.id, None)
            else:
                self._changes[item.id] = None
            self._wake.set()

    def _take(self, status_of: Callable[[Promise], dict[str, Any]]) -> list[dict[str, Any]]:
        statuses: list[dict[str, Any]] = []
        size = 0
        for item_id in [*self._ends, *self._changes]:
            if len(statuses) >= MAX_AT_ONCE or size > MAX_BYTES:
                break
            status = status_of(self._items[item_id])
            size += len((status.get("outcome", {}).get("result") or {}).get("payload", ""))
            statuses.append(status)
            self._changes.pop(item_id, None)
        return statuses


class MailboxRegistry:
    """The mailboxes of all clients."""

    def __init__(self, runtime: ServiceRuntime, acknowledge: Callable[[str], object] = lambda _: None) -> None:
        """``acknowledge`` is called with each call whose result its client has, or will never request."""
        self._runtime, self._acknowledge = runtime, acknowledge
        self._boxes: dict[tuple[str, str], Mailbox] = {}
        """By user and client name, so that a user cannot open another user's mailbox."""
        self._closed = False
        self._sweeping: asyncio.TimerHandle | None = None

    def box(self, client: str, user: str = "") -> Mailbox:
        """The client's mailbox, made if it does not exist."""
        self._sweep()
        box = self._boxes.get((user, client))
        if box is None:
            box = self._boxes[user, client] = Mailbox(self._acknowledge)
            self._schedule_sweep()
        box.polled_at = asyncio.get_running_loop().time()
        if self._closed:
            box.close()
        return box

    def last_poll(self, client: str) -> float | None:
        """The loop time of a client's last poll; infinity during one."""
        polls = [
            math.inf if box.active_polls else box.polled_at for (_, name), box in self._boxes.items() if name == client
        ]
        return max(polls, default=None)

    async def ask(
        self,
        client: str,
        known: str | None,
        add: Iterable[str],
        heard: Iterable[str],
        timeout: float,
        *,
        user: str = "",
        status_of: Callable[[Promise], dict[str, Any]] = wire.status_to_wire,
        check: OwnershipCheck | None = None,
    ) -> dict[str, Any]:
        """One poll: watch the items in ``add``, drop those in ``heard``, return the changes as ``status_of`` gives
        them. Answers at once if items are unknown or refused by ``check`` (with the errors), or if the mailbox is not
        the one that the client knows and so may lack items."""
        box = self.box(client, user)
        box.drop(heard)
        problems = {}
        add = list(add)
        unknown = await self._unknown_ids(add)
        for item_id in add:
            try:
                if item_id in unknown and self._runtime.item(item_id) is None:
                    raise unknown_item(item_id)
                item = await self._runtime.find_item(item_id)
                if item is not None and check is not None:
                    check(item.task.owner, item_id)
            except SchedulerError as error:
                problems[item_id] = wire.problem_to_wire(error)
                continue
            if item is None:
                problems[item_id] = {"error": "UnknownItemError", "message": f"{item_id} was deleted long ago."}
            else:
                box.watch(item)
        box.active_polls += 1
        try:
            items = await box.poll(0.0 if problems or box.name != known else timeout, status_of)
        finally:
            box.active_polls -= 1
            box.polled_at = asyncio.get_running_loop().time()
        if items:
            crash_point("before report")
        return {"mailbox": box.name, "items": items, "problems": problems}

    async def _unknown_ids(self, item_ids: Iterable[str]) -> set[str]:
        """Those that are neither in memory nor in the store, by one query."""
        absent = {one for one in item_ids if self._runtime.item(one) is None}
        return (
            absent - await asyncio.to_thread(self._runtime.store.known_ids, list(absent)) if len(absent) > 1 else set()
        )

    def close(self) -> None:
        """Answer all polls, because the service stops."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for box in self._boxes.values():
            box.close()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for client, box in list(self._boxes.items()):
            kept = RESULTS_KEPT_S if box.has_call_results else KEPT_S
            if box.polled_at < now - kept and not box.active_polls:
                box.drop_all()
                del self._boxes[client]
        self._schedule_sweep()

    def _schedule_sweep(self) -> None:
        """Also when no client polls any more: unacknowledged results keep their agents running."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        again = None if self._closed or not self._boxes else asyncio.get_running_loop().call_later
        self._sweeping = None if again is None else again(KEPT_S, self._sweep)
