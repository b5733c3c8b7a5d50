"""ServiceKnown: what a service can tell of items, in progress or in its store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import explanation
from ray_multicluster_scheduler.control_plane.runtime.explanation import CurrentWaitReasons
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.job_status import EXPIRED
from ray_multicluster_scheduler.control_plane.runtime.runtime import Runtime
from ray_multicluster_scheduler.control_plane.runtime.service.store_persistence import StorePersistence
from ray_multicluster_scheduler.control_plane.runtime.service.stored_history import StoredHistory
from ray_multicluster_scheduler.control_plane.store import Store, StoredItem
from ray_multicluster_scheduler.scheduler.scheduler_core.stored.stored_rows import task_of

_FORGOTTEN = "it ended long ago and was forgotten"
_MOST_REPETITIONS = 20


Check = Callable[[str, str], object]
"""Given the owner and the id of an item, at the moment it was found: raises NotAllowedError if whoever asks may not use
it. None where everybody's may be used."""


class Named(NamedTuple):
    """What an id stands for: the item ``id``, or with ``at`` this member of the gang ``id``. ``stored`` is None for
    what is in memory."""

    id: str
    owner: str
    at: int | None = None
    stored: StoredItem | None = None


class ServiceKnown(Runtime):
    """On its loop."""

    store: Store
    history: StoredHistory
    _stored: StorePersistence

    async def printed(self, item: Item, attempt: int, stream: str | None = None) -> str:
        """What an attempt printed. Raises ResultLostError if that was forgotten."""
        text = self.output.text(item.id, attempt, stream)
        if text or not 0 < attempt <= item.attempt or (attempt == item.attempt and not item.done()):
            return text
        return await asyncio.to_thread(self._stored.printed.stored_text, item.id, attempt, stream)

    def owner_now(self, item_id: str) -> str | None:
        """Of an item that is in progress."""
        known = self.item(item_id) or self.record(item_id)
        return None if known is None else known.task.owner

    async def named(self, item_id: str) -> Named | None:
        """What is called so; an item of this id, wherever it is, comes before a gang's member. Whoever asks whose an
        id is and whoever then uses it both ask here: there is no other way to read one."""
        for name, at in explanation.readings(item_id):
            known = self.item(name) or self.record(name)
            stored = None if known is not None else await asyncio.to_thread(self.store.item, name)
            if known is None and stored is None:
                continue
            if at is not None:
                task = task_of(stored)[0] if stored is not None else known.task if known is not None else None
                if task is None or not explanation.is_member(task, item_id):
                    continue
            if stored is not None:
                return Named(name, stored.new.owner, at, stored)
            return Named(name, known.task.owner if known is not None else "", at)
        return None

    def check_that_no_member_is_called_so(self, task: TaskDescription) -> None:
        """Raises ConfigurationError: one id would stand for an item and for a gang's member."""
        for name, at in explanation.readings(task.id):
            known = None if at is None else self.item(name) or self.record(name)
            stored = None if at is None or known is not None else self.store.item(name)
            gang = known.task if known is not None else None if stored is None else task_of(stored)[0]
            if gang is not None and explanation.is_member(gang, task.id):
                raise ConfigurationError(
                    f"{task.id} is how a member of the gang {name} is called.",
                    task_id=task.id,
                    next_step="use another id",
                )
        members = [member_id(task.id, at) for at in range(len(task.gang.members))] if task.gang else []
        taken = [one for one in members if self.item(one) is not None] or (members and [*self.store.known_ids(members)])
        if taken:
            raise ConfigurationError(
                f"A member of the gang {task.id} would be called {min(taken)}, and something else is.",
                task_id=task.id,
                next_step="use another id",
            )

    async def look(self, item_id: str) -> Item | None:
        """An item, wherever it is: in progress, or in the store. Raises UnknownItemError; None: EXPIRED."""
        item = self.item(item_id)
        if item is not None:
            return item
        stored = await asyncio.to_thread(self.store.item, item_id)
        if stored is not None:
            return await asyncio.to_thread(self.history.item, stored)
        if await asyncio.to_thread(self.store.expired, item_id):
            return None
        raise explanation.unknown_item(item_id)

    async def explained(self, item_id: str, check: Check | None = None) -> dict[str, Any]:
        """Why it is where it is, or how it ended. Raises UnknownItemError, and as ``check`` does."""
        named = await self.named(item_id)
        if named is None:
            if await asyncio.to_thread(self.store.expired, item_id):
                return {"id": item_id, "state": EXPIRED, "code": EXPIRED, "sentence": _FORGOTTEN}
            raise explanation.unknown_item(item_id)
        if check is not None:
            check(named.owner, item_id)
        again = await self.repetitions(named.id)
        if named.stored is None:
            return {**explanation.story(self, item_id), **again}
        if named.at is None:
            return {**await asyncio.to_thread(self.history.story, named.stored), **again}
        return {**await asyncio.to_thread(self.history.story_of_member, named.stored, item_id), **again}

    async def repetitions(self, item_id: str) -> dict[str, list[str]]:
        """The newest retries of an item, if there are any; one that goes on has none."""
        item = self.item(item_id)
        if item is not None and not item.done():
            return {}
        found = await asyncio.to_thread(self.store.retries_of, item_id, _MOST_REPETITIONS)
        return {"repeated_by": found} if found else {}

    async def job(
        self, job_id: str, check: Check | None = None, reasons: CurrentWaitReasons | None = None
    ) -> dict[str, Any]:
        """A job's face. ``reasons`` are those of the answer that it is a part of. Raises UnknownItemError, and as
        ``check`` does."""
        known = self.item(job_id) or self.record(job_id)
        stored = None if known is not None else await asyncio.to_thread(self.store.item, job_id)
        if check is not None and (known is not None or stored is not None):
            check(known.task.owner if known is not None else stored.new.owner if stored is not None else "", job_id)
        if known is not None:
            return explanation.job_row(self, job_id, reasons)
        if stored is None:
            if await asyncio.to_thread(self.store.expired, job_id):
                return {"job_id": job_id, "status": EXPIRED, "message": _FORGOTTEN}
            raise explanation.unknown_item(job_id)
        return await asyncio.to_thread(self.history.job, stored, self.jobs.ray_id)
