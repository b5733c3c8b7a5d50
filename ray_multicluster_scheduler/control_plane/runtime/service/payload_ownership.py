"""Which user may name which payload: a digest alone must not give access to somebody else's data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from ray_multicluster_scheduler.control_plane.store import Store

MOST_PAIRS = 20_000


class RecentPairs:
    """An in-memory set of (user, id) pairs; beyond ``most`` the oldest pair is dropped. Use it on the loop only."""

    def __init__(self, most: int = MOST_PAIRS) -> None:
        self._most = most
        self._known: dict[tuple[str, str], None] = {}

    def note(self, user: str, what: str) -> None:
        self._known.pop((user, what), None)
        self._known[user, what] = None
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]

    def has(self, user: str, what: str) -> bool:
        return (user, what) in self._known


class PayloadOwnership:
    """A user may name the payloads that the user uploaded and those of the user's items, also later: the user knows
    their content already. Others are reported as missing, exactly like unknown ones. Use it on the loop only."""

    def __init__(self, store: Store) -> None:
        self._store, self._known = store, RecentPairs()

    def note(self, user: str | None, digests: Iterable[str]) -> None:
        """Record that the user has just uploaded these."""
        if user is not None:
            for digest in digests:
                self._known.note(user, digest)

    async def may_use(self, user: str | None, digest: str) -> bool:
        """``user`` None stands for a caller who may use every payload."""
        if user is None or self._known.has(user, digest):
            return True
        if not await asyncio.to_thread(self._store.owns_blob, user, digest):
            return False
        self._known.note(user, digest)
        return True

    async def missing(self, user: str | None, digests: Sequence[str]) -> list[str]:
        """The digests that do not exist for this user; the others are held until a change that names them is
        written."""
        usable = [one for one in digests if user is None or await self.may_use(user, one)]
        lacking = {*digests}.difference(usable).union(self._store.pin_blobs(usable))
        return [one for one in digests if one in lacking] if lacking else []
