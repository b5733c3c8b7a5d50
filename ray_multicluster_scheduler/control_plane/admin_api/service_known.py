"""ServiceKnown: what a service can tell of items, in progress or in its store."""

from __future__ import annotations

import asyncio
from typing import Any

from ray_multicluster_scheduler.app.client_api.embedded import explanation
from ray_multicluster_scheduler.app.client_api.embedded.job_words import EXPIRED
from ray_multicluster_scheduler.app.client_api.embedded.runtime import Runtime
from ray_multicluster_scheduler.app.client_api.handles.item import Item
from ray_multicluster_scheduler.control_plane.admin_api.store_keeping import StoreKeeping
from ray_multicluster_scheduler.control_plane.admin_api.stored_history import StoredHistory
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.control_plane.store import Wanted as Query

_FORGOTTEN = "it ended long ago and was forgotten"


class ServiceKnown(Runtime):
    """On its loop."""

    store: Store
    history: StoredHistory
    _stored: StoreKeeping

    async def printed(self, item: Item, attempt: int, stream: str | None = None) -> str:
        """What an attempt printed. Raises ResultLostError if that was forgotten."""
        text = self.output.text(item.id, attempt, stream)
        if text or not 0 < attempt <= item.attempt or (attempt == item.attempt and not item.done()):
            return text
        return await asyncio.to_thread(self._stored.printed.stored_text, item.id, attempt, stream)

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

    async def explained(self, item_id: str) -> dict[str, Any]:
        """Why it is where it is, or how it ended. Raises UnknownItemError."""
        known = self.item(item_id) is not None or self.record(item_id) is not None
        if known or explanation.gang_of(self, item_id) is not None:
            return explanation.story(self, item_id)
        stored = await asyncio.to_thread(self.store.item, item_id)
        if stored is None:
            story = await asyncio.to_thread(self.history.story_of_member, item_id)
            if story is not None:
                return story
            if await asyncio.to_thread(self.store.expired, item_id):
                return {"id": item_id, "state": EXPIRED, "code": EXPIRED, "sentence": _FORGOTTEN}
            raise explanation.unknown_item(item_id)
        return await asyncio.to_thread(self.history.story, stored)

    async def job(self, job_id: str) -> dict[str, Any]:
        """A job's face. Raises UnknownItemError."""
        if self.item(job_id) is not None or self.record(job_id) is not None:
            return explanation.job_row(self, job_id)
        stored = await asyncio.to_thread(self.store.item, job_id)
        if stored is None:
            if await asyncio.to_thread(self.store.expired, job_id):
                return {"job_id": job_id, "status": EXPIRED, "message": _FORGOTTEN}
            raise explanation.unknown_item(job_id)
        return await asyncio.to_thread(self.history.job, stored, self.jobs.ray_id)

    async def all_jobs(self, owner: str | None = None) -> list[dict[str, Any]]:
        """Every job that is remembered, of everybody or of this owner, oldest first."""
        rows: list[dict[str, Any]] = []
        after: int | None = None
        while True:
            query = Query(kind="job", owner=owner, after=after, limit=1000)
            page = await asyncio.to_thread(self.store.items, query)
            rows += [await self.job(one.new.id) for one in page.items]
            after = page.after
            if after is None:
                return rows[::-1]
