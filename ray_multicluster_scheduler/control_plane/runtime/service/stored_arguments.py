"""StoredArguments: resolves the values and actors that a submission names as arguments.

:class:`PayloadOwnership` decides which payloads a user may name: a digest alone must not give access to data of
another user. The service uses both for submissions and for calls of actors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.current_item import member_id
from ray_multicluster_scheduler.common.exception import TaskSubmissionError, UnknownItemError
from ray_multicluster_scheduler.common.model import TaskState
from ray_multicluster_scheduler.common.object_argument import ACTOR, RESULT
from ray_multicluster_scheduler.control_plane.runtime.arguments import Arguments, ItemValue, ValueSource
from ray_multicluster_scheduler.control_plane.runtime.item import Item, MemberItem, Outcome, Promise
from ray_multicluster_scheduler.control_plane.runtime.outcome import is_in_cluster, payload_of
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.connection.links.cluster_link import CallResult
from ray_multicluster_scheduler.scheduler.lifecycle.instructions import Complete

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import OwnershipCheck, ServiceRuntime

MAX_PAIRS = 20_000


class MissingBlobs(TaskSubmissionError):
    """The submission names payloads that the service does not have."""

    def __init__(self, missing: Sequence[str], task_id: str) -> None:
        super().__init__(
            f"Payloads of {task_id} are missing: {', '.join(missing)}.",
            task_id=task_id,
            next_step="send them, then submit it again",
        )
        self.missing = list(missing)


class StoredArguments:
    """Used on the loop."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._members: dict[str, Item] = {}
        self._needs: dict[str, tuple[str, ...]] = {}

    async def arguments(
        self,
        names: Sequence[str],
        blobs: Mapping[str, bytes],
        task_id: str,
        check: OwnershipCheck | None = None,
        user: str | None = None,
    ) -> Arguments:
        """The named values and actors. Raises TaskSubmissionError, ResultLostError for a value that was forgotten, and
        as ``check`` does. ``user``: the owner of the payloads that may be named; None: all payloads."""
        sources: list[ValueSource] = []
        actors: list[_Actor] = []
        for name in names:
            if name.startswith(ACTOR):
                actors.append(_Actor(await self.actor(name.removeprefix(ACTOR), check)))
            elif name.startswith(RESULT):
                sources.append(await self._result(name.removeprefix(RESULT), task_id, check))
            else:
                sources.append(_PutValue(name, await self.blob(name, blobs, task_id, user)))
        return Arguments(b"", sources=tuple(sources), actors=tuple(actors))

    def keep_for(self, item: Item, names: Sequence[str]) -> None:
        """Protect the values that an item needs from retention until it is over: it may be dispatched again."""
        results = tuple(name.removeprefix(RESULT) for name in names if name.startswith(RESULT))
        if results:
            self._needs[item.id] = results
            item.watch(lambda one: self._needs.pop(one.id, None))

    def needed(self) -> set[str]:
        """From any thread: the items whose values unfinished items need."""
        return {name for names in list(self._needs.values()) for name in names}

    async def actor(self, actor_id: str, check: OwnershipCheck | None = None) -> Item:
        """An actor or a member of a gang of actors. Raises UnknownItemError, and as ``check`` does."""
        found = await self._runtime.resolve_id(actor_id)
        if found is not None and check is not None:
            check(found.owner, actor_id)
        item = None if found is None else await self._runtime.find_item(found.id)
        if found is not None and found.at is not None and item is not None and item.task.runs_actors:
            return self._member(item, found.at)
        if item is None or (item.task.actor is None and not item.task.streams):
            raise UnknownItemError(
                f"{actor_id!r} is not a known actor.",
                task_id=actor_id,
                next_step="make it first, through the same service",
            )
        return item

    def _member(self, gang: Item, at: int) -> Item:
        """One object per member for all callers, until the gang is over."""
        name, described = member_id(gang.id, at), gang.task.gang
        known = self._members.get(name)
        if known is not None or described is None:
            return known or gang
        member = MemberItem(gang, at, described.members[at])
        if member.outcome is None:
            self._members[name] = member
            member.watch(lambda one: self._members.pop(one.id, None))
        return member

    async def blob(self, digest: str, blobs: Mapping[str, bytes], task_id: str, user: str | None = None) -> bytes:
        """Raises MissingBlobs for a payload that does not exist, or that this user may not name."""
        data = blobs.get(digest)
        if data is None and await self._runtime.payload_ownership.may_use(user, digest):
            data = await asyncio.to_thread(self._runtime.store.blob, digest)
        if data is None:
            raise MissingBlobs([digest], task_id)
        return data

    async def _result(self, item_id: str, task_id: str, check: OwnershipCheck | None) -> ItemValue:
        item = self._runtime.item(item_id)
        if item is not None and check is not None:
            check(item.task.owner, item_id)
        if item is None:
            stored = await asyncio.to_thread(self._runtime.store.item, item_id)
            if stored is None:
                raise TaskSubmissionError(
                    f"{task_id} was given the value of {item_id}, which is unknown.",
                    task_id=task_id,
                    next_step="submit that one first, to the same service",
                )
            if check is not None:
                check(stored.new.owner, item_id)
            item = await asyncio.to_thread(self._runtime.history.item, stored)
        if item.outcome is not None and item.outcome.succeeded and not is_in_cluster(item.outcome):
            payload_of(item.outcome)  # raises ResultLostError now rather than after all others are ready
        return ItemValue(item)


class _Actor:
    """An actor among arguments; the item must run on its cluster."""

    __slots__ = ("_item",)

    def __init__(self, item: Item) -> None:
        self._item = item


class _PutValue(ItemValue):
    """A value stored by put()."""

    __slots__ = ("_digest",)

    def __init__(self, digest: str, data: bytes) -> None:
        promise = Promise(digest)
        done = Complete(digest, TaskState.SUCCEEDED, 0, None, message="it was put")
        promise.ended(Outcome(done, CallResult(digest, 0, "succeeded", data)))
        super().__init__(promise)
        self._digest = digest

    def _blob(self, outcome: Outcome) -> tuple[str, bytes]:
        return self._digest, (outcome.result.payload or b"") if outcome.result else b""


class RecentPairs:
    """An in-memory set of (user, id) pairs; beyond ``most`` the oldest pair is dropped. Use it on the loop only."""

    def __init__(self, most: int = MAX_PAIRS) -> None:
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
