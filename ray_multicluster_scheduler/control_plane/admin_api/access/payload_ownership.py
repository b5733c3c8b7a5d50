"""OwnPayloads: a payload is named by its digest, and that is no secret; so nobody may name what is not his."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ray_multicluster_scheduler.control_plane.admin_api.access.recent_activity import Lately
from ray_multicluster_scheduler.control_plane.store import Store


class OwnPayloads:
    """His is what he has put, and what an item of his has. Who has had a payload once may always name it: he knows what
    is in it. What is here for others only is answered in the words for what is not here. On the loop."""

    def __init__(self, store: Store) -> None:
        self._store, self._known = store, Lately()

    def note(self, user: str | None, digests: Iterable[str]) -> None:
        """He has just brought these."""
        if user is not None:
            for digest in digests:
                self._known.note(user, digest)

    async def is_his(self, user: str | None, digest: str) -> bool:
        """None is somebody who may use everybody's."""
        if user is None or self._known.has(user, digest):
            return True
        if not await asyncio.to_thread(self._store.names_blob, user, digest):
            return False
        self._known.note(user, digest)
        return True

    async def missing(self, user: str | None, digests: Sequence[str]) -> list[str]:
        """Those that are not here for him; the others are held until the change that names them is written."""
        his = [one for one in digests if user is None or await self.is_his(user, one)]
        lacking = {*digests}.difference(his).union(self._store.hold(his))
        return [one for one in digests if one in lacking] if lacking else []
