"""The part of an AsyncScheduler that asks and steers: items, queues, clusters, events."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from ray_multicluster_scheduler.app.client_api.async_jobs import AsyncJobs
from ray_multicluster_scheduler.app.client_api.opening_events import OpeningEvents

if TYPE_CHECKING:
    from ray_multicluster_scheduler.app.client_api.actors.actor_handle import ActorHandle
    from ray_multicluster_scheduler.app.client_api.handles.handle import Handle, JobHandle, TaskHandle
    from ray_multicluster_scheduler.app.client_api.options import LimitOptions
    from ray_multicluster_scheduler.common.model import SchedulingDecision
    from ray_multicluster_scheduler.control_plane.runtime.event_iterator import EventCallback, EventListener
    from ray_multicluster_scheduler.control_plane.runtime.item import Item


class AsyncVerbs(AsyncJobs):
    """Each is the verb of the same name of a UnifiedScheduler, with its arguments and errors."""

    # Items ----------------------------------------------------------------------------------------------

    async def cancel(self, item: str | Handle | ActorHandle, *, force: bool = False, recursive: bool = True) -> None:
        """Ask for the end of an item; an actor is killed."""
        await self._threads.call(self._scheduler.cancel, item, force=force, recursive=recursive)

    async def explain(self, item_id: str | Handle | ActorHandle) -> dict[str, Any]:
        """Why an item is where it is, as data that prints itself."""
        return await self._threads.call(self._scheduler.explain, item_id)

    async def plan(
        self, resource_requirements: Mapping[str, Any] | None = None, *, kind: str = "task", **options: Any
    ) -> SchedulingDecision:
        """Where a task, an actor or a job would go now, and why; nothing is submitted."""
        return await self._threads.call(self._scheduler.plan, resource_requirements, kind=kind, **options)

    async def handle(self, item_id: str) -> TaskHandle | JobHandle | ActorHandle:
        """The handle of an item in progress."""
        return await self._threads.call(self._scheduler.handle, item_id)

    async def unfinished(self) -> list[Item]:
        """What this program submitted and is not over."""
        return await self._threads.call(self._scheduler.unfinished)

    async def hold(self, item: str | Handle | ActorHandle, reason: str = "") -> None:
        """Let an item not start before it is released."""
        await self._threads.call(self._scheduler.hold, item, reason)

    async def release(self, item: str | Handle | ActorHandle) -> None:
        """The end of :meth:`hold`."""
        await self._threads.call(self._scheduler.release, item)

    async def set_priority(self, item: str | Handle | ActorHandle, priority: int) -> None:
        """From now on it waits with this priority."""
        await self._threads.call(self._scheduler.set_priority, item, priority)

    # Actors ---------------------------------------------------------------------------------------------

    async def get_actor(self, name: str, namespace: str | None = None) -> ActorHandle:
        """A living actor by its name."""
        return await self._threads.call(self._scheduler.get_actor, name, namespace)

    async def kill(self, actor: ActorHandle, *, no_restart: bool = True) -> None:
        """End an actor now."""
        await self._threads.call(self._scheduler.kill, actor, no_restart=no_restart)

    async def list_actors(self) -> list[dict[str, Any]]:
        """Every actor of this program that was not forgotten, oldest first."""
        return await self._threads.call(self._scheduler.list_actors)

    # Queues and clusters --------------------------------------------------------------------------------

    async def pause_queue(self, cluster: str | None = None, owner: str | None = None, reason: str = "") -> None:
        """Send nothing new to a cluster, or start nothing new of an owner."""
        await self._threads.call(self._scheduler.pause_queue, cluster, owner, reason)

    async def resume_queue(self, cluster: str | None = None, owner: str | None = None) -> None:
        """The end of :meth:`pause_queue`."""
        await self._threads.call(self._scheduler.resume_queue, cluster, owner)

    async def owner_limits(self, owner: str) -> dict[str, Any]:
        """What an owner may have now."""
        return await self._threads.call(self._scheduler.owner_limits, owner)

    async def set_owner_limits(self, owner: str, **limits: Unpack[LimitOptions]) -> None:
        """From now on these limits hold for an owner, all of them."""
        await self._threads.call(self._scheduler.set_owner_limits, owner, **limits)

    async def reset_owner_limits(self, owner: str) -> None:
        """The end of :meth:`set_owner_limits`."""
        await self._threads.call(self._scheduler.reset_owner_limits, owner)

    async def cordon(self, cluster: str) -> None:
        """Close a cluster for new work."""
        await self._threads.call(self._scheduler.cordon, cluster)

    async def uncordon(self, cluster: str) -> None:
        """The end of :meth:`cordon` and :meth:`drain`."""
        await self._threads.call(self._scheduler.uncordon, cluster)

    async def drain(self, cluster: str, timeout: float | None = None) -> bool:
        """Close a cluster for new work and wait until nothing is there any more."""
        return await self._threads.alone(self._scheduler.drain, cluster, timeout)

    async def declare_dead(self, cluster: str, reason: str = "", *, force: bool = False) -> list[str]:
        """Say that a cluster is dead: what was there is settled now."""
        return await self._threads.call(self._scheduler.declare_dead, cluster, reason, force=force)

    async def list_clusters(self, *, refresh: bool = False) -> list[dict[str, Any]]:
        """One row per cluster."""
        return await self._threads.call(self._scheduler.list_clusters, refresh=refresh)

    async def cluster_info(self, name: str) -> dict[str, Any]:
        """One cluster, asked now."""
        return await self._threads.call(self._scheduler.cluster_info, name)

    async def fleet_resources(self) -> dict[str, dict[str, float]]:
        """Total and free over all clusters that answer now."""
        return await self._threads.call(self._scheduler.fleet_resources)

    async def cluster_resources(self) -> dict[str, float]:
        """What all clusters that answer now have together."""
        return (await self.fleet_resources())["total"]

    async def available_resources(self) -> dict[str, float]:
        """What is free of it."""
        return (await self.fleet_resources())["free"]

    async def nodes(self) -> list[dict[str, Any]]:
        """Every node of the clusters that answer now, in Ray's words."""
        return await self._threads.call(self._scheduler.nodes)

    async def use_runtime_env(self, runtime_env: Mapping[str, Any]) -> None:
        """For everything that is submitted from now on."""
        await self._threads.call(self._scheduler.use_runtime_env, runtime_env)

    # Events ---------------------------------------------------------------------------------------------

    def events(self, **wanted: Any) -> OpeningEvents:
        """What happens, as it happens: ``async for event in scheduler.events(types="cluster")``. Awaited, it is there
        from then on."""
        return OpeningEvents(partial(self._threads.call, self._scheduler.events, **wanted))

    async def on_event(self, hear: EventCallback, *, since: int | None = None, **wanted: Any) -> EventListener:
        """Call it, or await what it returns, with each event that is wanted."""
        return await self._threads.call(self._scheduler.on_event, hear, since=since, **wanted)
