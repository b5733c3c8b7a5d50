"""ActorNames: the service's registry of named actors, shared by all its clients."""

from __future__ import annotations

import asyncio
import secrets
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.blob_names import digest_of
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import fleet_control
from ray_multicluster_scheduler.control_plane.runtime.input_checks import name_taken
from ray_multicluster_scheduler.control_plane.runtime.item import Item

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import OwnershipCheck, ServiceRuntime


class NamedLocks:
    """One asyncio lock per name; a lock is dropped when it is neither held nor awaited."""

    def __init__(self) -> None:
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def of(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def __len__(self) -> int:
        return len(self._locks)


class ActorNames:
    """Used on the loop only. The name of a killed actor is free at once, although the actor takes a while to end."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._items: dict[str, Item] = {}
        self._killed: dict[str, Item] = {}
        self._locks = NamedLocks()

    def lock(self, name: str) -> asyncio.Lock:
        """To be held while an actor of this name is made or looked up."""
        return self._locks.of(name)

    def add(self, item: Item) -> None:
        """Register an accepted actor under its name until its end."""
        actor = item.task.actor
        if actor is not None and actor.public_name is not None and item.outcome is None:
            self._items[actor.public_name] = item
            item.watch(self._forget_ended)

    def killed(self, item_id: str) -> None:
        """Release the name of an actor whose cancellation was requested."""
        for name, item in list(self._items.items()):
            if item.id == item_id and item.outcome is None:
                self._killed[item_id] = item
                del self._items[name]

    def living(self, name: str) -> Item | None:
        return self._items.get(name)

    async def claim(
        self, task: TaskDescription, *, get_if_exists: bool, check: OwnershipCheck | None = None
    ) -> Item | TaskDescription:
        """The living actor of this name, with ``get_if_exists``; else the task to submit, which may adopt a detached
        actor that another program left behind. With a ``check`` neither an actor that it rejects nor a detached one
        (whose owner is unknown) is handed out. Raises ConfigurationError if the name is taken."""
        actor = task.actor
        assert actor is not None
        name = actor.public_name or ""
        living = self.living(name)
        if living is not None and check is not None:
            try:
                check(living.task.owner, living.id)
            except (NotAllowedError, UnknownItemError):
                raise name_taken(name, "one of another user", None) from None
        if living is not None and get_if_exists:
            return living
        if living is not None:
            raise name_taken(name, f"{living.task.name} {living.id}", living.cluster)
        if not actor.detached or actor.adopt:
            return task
        found, unanswered = await self._search(name, fleet_control.SEARCH_TIMEOUT_S)
        if found and get_if_exists and check is None:
            return _adopting(task, name, fleet_control.choose_cluster(name, found, task.preferred_cluster))
        if found:
            raise name_taken(name, "a detached one", found[0])
        fleet_control.warn_unreachable(unanswered, name)
        return task

    async def find(self, name: str, cluster: str | None) -> Item:
        """A living actor of this service, or a detached one on any cluster. Raises UnknownItemError."""
        living = self.living(name)
        if living is not None:
            return living
        found, unanswered = await self._search(name, None)
        if not found:
            missed = f" (no answer from {'; '.join(unanswered)})" if unanswered else ""
            known = f"known names: {', '.join(sorted(self._items))}" if self._items else "no living actor has a name"
            raise UnknownItemError(
                f"There is no living actor {name!r}, neither of this service nor detached on a cluster{missed}; "
                f"{known}.",
                next_step="make it with name=…, or correct the name",
            )
        blank = TaskDescription(
            id=f"actor-{self._runtime.control_plane}-found-{secrets.token_hex(4)}",
            kind="actor",
            name=name,
            actor=ActorDescription(ray_name=name),
            function_digest=digest_of(b""),
            arguments_digest=digest_of(b""),
        )
        from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import (  # noqa: PLC0415 - circular import
            SubmitRequest,
        )

        task = _adopting(blank, name, fleet_control.choose_cluster(name, found, cluster))
        (answer,) = await self._runtime.accept([SubmitRequest(task, get_if_exists=True)], {digest_of(b""): b""})
        if isinstance(answer, SchedulerError):
            raise answer
        return answer

    async def _search(self, name: str, patience: float | None) -> tuple[list[str], list[str]]:
        ending = {
            item.cluster
            for item in self._killed.values()
            if item.task.actor is not None and item.task.actor.ray_name == name
        }
        return await fleet_control.find_detached_actor(self._runtime, name, ending, patience)

    def _forget_ended(self, item: Item) -> None:
        self._killed.pop(item.id, None)
        for name, one in list(self._items.items()):
            if one is item:
                del self._items[name]


def _adopting(task: TaskDescription, name: str, cluster: str) -> TaskDescription:
    """A task that takes over the detached actor of this name on this cluster instead of making one."""
    actor = ActorDescription(ray_name=name, public_name=name, lifetime="detached", adopt=True)
    return replace(task, actor=actor, requirements={}, preferred_cluster=cluster, fallback="wait", program=None)
