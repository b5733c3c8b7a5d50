"""ActorNames: the living actors of a service by their names, for all its programs."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from ray_multicluster_scheduler.common.digest import digest_of
from ray_multicluster_scheduler.common.exception import NotAllowedError, SchedulerError, UnknownItemError
from ray_multicluster_scheduler.common.model import ActorDescription, TaskDescription
from ray_multicluster_scheduler.control_plane.runtime import detached_actors
from ray_multicluster_scheduler.control_plane.runtime.item import Item
from ray_multicluster_scheduler.control_plane.runtime.service.named_locks import NamedLocks
from ray_multicluster_scheduler.control_plane.runtime.submission_checks import name_taken

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.runtime.service.service_queries import Check
    from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime


class ActorNames:
    """On the loop of the service. The name of one that was killed is free at once, though its end takes a while."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._items: dict[str, Item] = {}
        self._killed: dict[str, Item] = {}
        self._locks = NamedLocks()

    def lock(self, name: str) -> asyncio.Lock:
        """Whoever makes or finds an actor of this name holds it."""
        return self._locks.of(name)

    def note(self, item: Item) -> None:
        """It is accepted, and has its name until its end."""
        actor = item.task.actor
        if actor is not None and actor.public_name is not None and item.outcome is None:
            self._items[actor.public_name] = item
            item.watch(self._over)

    def killed(self, item_id: str) -> None:
        """Its end was asked for."""
        for name, item in list(self._items.items()):
            if item.id == item_id and item.outcome is None:
                self._killed[item_id] = item
                del self._items[name]

    def living(self, name: str) -> Item | None:
        return self._items.get(name)

    async def claim(
        self, task: TaskDescription, *, get_if_exists: bool, check: Check | None = None
    ) -> Item | TaskDescription:
        """The living actor that has the name, if that is wanted, or what is to be submitted: the task, or one that
        takes over a detached actor which another program left behind; with a ``check`` neither one whose owner it does
        not like, nor one that only a cluster knows of, which may be anybody's. Raises ConfigurationError."""
        actor = task.actor
        assert actor is not None
        name = actor.public_name or ""
        there = self.living(name)
        if there is not None and check is not None:
            try:
                check(there.task.owner, there.id)
            except (NotAllowedError, UnknownItemError):
                raise name_taken(name, "somebody else's", None) from None
        if there is not None and get_if_exists:
            return there
        if there is not None:
            raise name_taken(name, f"{there.task.name} {there.id}", there.cluster)
        if not actor.detached or actor.adopt:
            return task
        found, silent = await self._search(name, detached_actors.LOOK_PATIENCE_S)
        if found and get_if_exists and check is None:
            return _adopting(task, name, detached_actors.one_of(name, found, task.preferred_cluster))
        if found:
            raise name_taken(name, "a detached one", found[0])
        detached_actors.warn_of(silent, name)
        return task

    async def find(self, name: str, cluster: str | None) -> Item:
        """A living actor: one of ours, or a detached one on any cluster. Raises UnknownItemError."""
        there = self.living(name)
        if there is not None:
            return there
        found, silent = await self._search(name, None)
        if not found:
            missed = f" (no answer from {'; '.join(silent)})" if silent else ""
            known = f"known names: {', '.join(sorted(self._items))}" if self._items else "no living one has a name"
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
        from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import (  # noqa: PLC0415 - it imports us
            Wanted,
        )

        task = _adopting(blank, name, detached_actors.one_of(name, found, cluster))
        (taken,) = await self._runtime.take([Wanted(task, get_if_exists=True)], {digest_of(b""): b""})
        if isinstance(taken, SchedulerError):
            raise taken
        return taken

    async def _search(self, name: str, patience: float | None) -> tuple[list[str], list[str]]:
        dying = {
            item.cluster
            for item in self._killed.values()
            if item.task.actor is not None and item.task.actor.ray_name == name
        }
        return await detached_actors.search(self._runtime, name, dying, patience)

    def _over(self, item: Item) -> None:
        self._killed.pop(item.id, None)
        for name, one in list(self._items.items()):
            if one is item:
                del self._items[name]


def _adopting(task: TaskDescription, name: str, cluster: str) -> TaskDescription:
    """It exists already, detached on this cluster, and is only looked up."""
    actor = ActorDescription(ray_name=name, public_name=name, lifetime="detached", adopt=True)
    return replace(task, actor=actor, requirements={}, preferred_cluster=cluster, fallback="wait", program=None)
