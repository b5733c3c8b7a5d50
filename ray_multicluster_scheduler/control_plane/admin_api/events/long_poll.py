"""MailboxRegistry: what happens to items, for clients that wait for many of them with one question at a time."""

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
"""A mailbox that nobody asks for so long is dropped; whoever comes back after that names all his items again."""
ANSWERS_KEPT_S = 3600.0
"""The same for one with answers to calls that were not heard: they are nowhere else."""
MOST_AT_ONCE = 500
MOST_BYTES = 4 * 2**20
STEPS_LATER_S = 0.2
"""Steps are told together, and not before; an end is told at once."""


class Mailbox:
    """Of one client. An item stays in it until the client says that it has heard of its end. Lives on the loop."""

    def __init__(self, heard: Callable[[str], object] = lambda _: None) -> None:
        """``heard`` is told of each call whose answer the client has, or will never ask for."""
        self._tell_heard = heard
        self.name = secrets.token_hex(8)
        """No two have the same: whoever finds another one than before has to name all his items again."""
        self._items: dict[str, Promise] = {}
        self._news: dict[str, None] = {}
        self._ends: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._asked = 0
        self.asked_at = 0.0
        self.closed = False
        self.asking = 0

    def find(self, item_id: str) -> Promise | None:
        """What it has under this id, over or not."""
        return self._items.get(item_id)

    def watch(self, item: Promise) -> None:
        """An item, or a call of an actor's method, of which only the end is told."""
        if item.id in self._items:
            return
        self._items[item.id] = item
        if isinstance(item, Item):
            item.watch_steps(self._hear)
            self._hear(item)
        else:
            item.watch(self._hear)

    def drop(self, item_ids: Iterable[str]) -> None:
        for item_id in item_ids:
            item = self._items.pop(item_id, None)
            if item is not None:
                if isinstance(item, Item):
                    item.unwatch_steps(self._hear)
                else:
                    item.unwatch(self._hear)
                    item.watch(self._call_over)
                self._ends.pop(item_id, None)
                self._news.pop(item_id, None)

    def _call_over(self, call: Promise) -> None:
        """It is not in here any more, and answered, now or some day."""
        self._tell_heard(call.id)

    @property
    def has_answers(self) -> bool:
        """Are there answers to calls in it that were not heard?"""
        return any(not isinstance(self._items[one], Item) for one in self._ends)

    def drop_all(self) -> None:
        self.drop(list(self._items))

    def close(self) -> None:
        """Whoever waits is answered with what there is."""
        self.closed = True
        self._wake.set()

    async def news(
        self, timeout: float, tell: Callable[[Promise], dict[str, Any]] = wire.status_to_wire
    ) -> list[dict[str, Any]]:
        """What is new of any of them, or nothing after so long. An end is told again until it is dropped.

        Whoever asked before and still waits is gone: a client asks one question at a time. It gets nothing.
        """
        self._asked += 1
        turn = self._asked
        self._wake.set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while turn == self._asked and not self._ends and not self.closed:
            if self._news:
                deadline = min(deadline, loop.time() + STEPS_LATER_S)
            self._wake.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._wake.wait()
            except TimeoutError:
                break
        return self._take(tell) if turn == self._asked else []

    def _hear(self, item: Promise) -> None:
        if item.id in self._items:
            if item.outcome is not None:
                self._ends[item.id] = None
                self._news.pop(item.id, None)
            else:
                self._news[item.id] = None
            self._wake.set()

    def _take(self, tell: Callable[[Promise], dict[str, Any]]) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        size = 0
        for item_id in [*self._ends, *self._news]:
            if len(told) >= MOST_AT_ONCE or size > MOST_BYTES:
                break
            status = tell(self._items[item_id])
            size += len((status.get("outcome", {}).get("result") or {}).get("payload", ""))
            told.append(status)
            self._news.pop(item_id, None)
        return told


class MailboxRegistry:
    """One for each client that waits."""

    def __init__(self, runtime: ServiceRuntime, heard: Callable[[str], object] = lambda _: None) -> None:
        """``heard`` is told of each call whose answer its client has, or will never ask for."""
        self._runtime, self._heard = runtime, heard
        self._boxes: dict[tuple[str, str], Mailbox] = {}
        """By user and client: nobody finds somebody else's by calling himself so."""
        self._closed = False
        self._sweeping: asyncio.TimerHandle | None = None

    def box(self, client: str, user: str = "") -> Mailbox:
        """The client's, made anew if there is none (any more)."""
        self._sweep()
        box = self._boxes.get((user, client))
        if box is None:
            box = self._boxes[user, client] = Mailbox(self._heard)
            self._sweep_later()
        box.asked_at = asyncio.get_running_loop().time()
        if self._closed:
            box.close()
        return box

    def last_heard(self, client: str) -> float | None:
        """When a client last asked, in the loop's time; infinity if it does now."""
        heard = [math.inf if box.asking else box.asked_at for (_, name), box in self._boxes.items() if name == client]
        return max(heard, default=None)

    async def ask(
        self,
        client: str,
        known: str | None,
        add: Iterable[str],
        heard: Iterable[str],
        timeout: float,
        *,
        user: str = "",
        tell: Callable[[Promise], dict[str, Any]] = wire.status_to_wire,
        check: OwnershipCheck | None = None,
    ) -> dict[str, Any]:
        """What is new for a client, in the words of ``tell``. Answered at once if items are unknown or refused by
        ``check``, each with why, or if the mailbox is not the one that the client knows: then it may not have all that
        he waits for."""
        box = self.box(client, user)
        box.drop(heard)
        problems = {}
        add = list(add)
        nowhere = await self._nowhere(add)
        for item_id in add:
            try:
                if item_id in nowhere and self._runtime.item(item_id) is None:
                    raise unknown_item(item_id)
                item = await self._runtime.find_item(item_id)
                if item is not None and check is not None:
                    check(item.task.owner, item_id)
            except SchedulerError as error:
                problems[item_id] = wire.problem_to_wire(error)
                continue
            if item is None:
                problems[item_id] = {"error": "UnknownItemError", "message": f"{item_id} was forgotten long ago."}
            else:
                box.watch(item)
        box.asking += 1
        try:
            items = await box.news(0.0 if problems or box.name != known else timeout, tell)
        finally:
            box.asking -= 1
            box.asked_at = asyncio.get_running_loop().time()
        if items:
            crash_point("before told")
        return {"mailbox": box.name, "items": items, "problems": problems}

    async def _nowhere(self, item_ids: Iterable[str]) -> set[str]:
        """Which of these are neither in memory nor in the store, with one question for all of them."""
        absent = {one for one in item_ids if self._runtime.item(one) is None}
        return (
            absent - await asyncio.to_thread(self._runtime.store.known_ids, list(absent)) if len(absent) > 1 else set()
        )

    def close(self) -> None:
        """The service ends: nobody is kept waiting."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for box in self._boxes.values():
            box.close()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for client, box in list(self._boxes.items()):
            kept = ANSWERS_KEPT_S if box.has_answers else KEPT_S
            if box.asked_at < now - kept and not box.asking:
                box.drop_all()
                del self._boxes[client]
        self._sweep_later()

    def _sweep_later(self) -> None:
        """Also when no client comes any more: an agent is kept for answers that nobody has heard."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        again = None if self._closed or not self._boxes else asyncio.get_running_loop().call_later
        self._sweeping = None if again is None else again(KEPT_S, self._sweep)
