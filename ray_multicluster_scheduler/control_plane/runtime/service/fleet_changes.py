"""FleetChanges: applies a changed cluster configuration (SIGHUP, ``rmcs clusters apply``) while the service runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.common.notices import shorten
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, load_config
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import store_addresses
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.lifecycle.events import ClusterChanged, CordonChanged

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Changes:
    """The result of a new configuration, or its preview, as names of clusters. ``not_applied``: changed settings,
    and ``pools`` if these differ: they take effect at the next start. ``not_empty``: clusters that must be drained
    before it can be applied."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    not_applied: tuple[str, ...] = ()
    not_empty: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items()}


class FleetChanges:
    """Used on the loop; one change at a time. A change holds until the next start, which reads the file again."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._one_at_a_time = asyncio.Lock()

    def reload_soon(self) -> None:
        """Reload on SIGHUP; the result is logged."""
        self._runtime.spawn(self._reload_and_log())

    async def _reload_and_log(self) -> None:
        try:
            changes = await self.reload()
        except SchedulerError as error:
            _log.error("the configuration was not changed: %s", error)
            return
        _log.info("the configuration was read again: %s", changes.to_dict())
        shown = {name: ", ".join(value) for name, value in changes.to_dict().items() if name != "unchanged"}
        self._runtime.audit("SIGHUP", None, "reload", self._runtime.config.source, shown)

    async def reload(self) -> Changes:
        """Apply the configuration file. Raises ConfigurationError, and as :meth:`apply`."""
        return await self.apply(await self.read_again())

    def compare(self, wanted: FleetConfig) -> Changes:
        """Preview of :meth:`apply`."""
        now, new = self._entries(), {one.name: one for one in wanted.clusters}
        changed = tuple(name for name in new if name in now and new[name] != now[name])
        before, after = self._runtime.config.settings, wanted.settings
        return Changes(
            tuple(name for name in new if name not in now),
            changed,
            tuple(name for name in now if name not in new),
            tuple(name for name in new if name in now and name not in changed),
            (
                *(name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)),
                *(("pools",) if wanted.pools != self._runtime.config.pools else ()),
            ),
            tuple(name for name in self._must_be_empty(now, new) if self._items_on(name)),
        )

    async def read_again(self) -> FleetConfig:
        """Load the file that the configuration came from. Raises ConfigurationError."""
        path = Path(self._runtime.config.source)
        if not path.is_absolute() or not await asyncio.to_thread(path.is_file):
            raise ConfigurationError(
                f"The configuration came from {self._runtime.config.source}, which cannot be read again.",
                next_step="send the clusters themselves, or start the service with --config FILE",
            )
        return await asyncio.to_thread(load_config, path)

    async def apply(self, wanted: FleetConfig) -> Changes:
        """Replace the clusters, all or nothing. Raises SchedulerError if one that is removed, or becomes another
        cluster, is not empty."""
        async with self._one_at_a_time:
            now, new = self._entries(), {one.name: one for one in wanted.clusters}
            changes = self.compare(wanted)
            closed = await self._close(self._must_be_empty(now, new))
            await asyncio.to_thread(store_addresses, self._runtime.store, wanted.clusters)
            await self._use({**now, **new})
            self._runtime.config = self._runtime.config.model_copy(update={"clusters": wanted.clusters})
            post = self._runtime.manager.post
            for name in (*changes.added, *changes.changed):
                post(ClusterChanged(name, new[name].metadata(), False if name in closed else None))
            for name in changes.removed:
                post(ClusterChanged(name, None))
            await self._runtime.until_durable()
            others = [name for name in changes.changed if not new[name].reached_like(now[name])]
            for name in (*others, *changes.removed):
                if name in changes.removed or not self._items_on(name):
                    await self._runtime.links.close_link(name, "its entry in the configuration was changed")
            await self._use(new)
            # The known state belongs to the old entries: check the new ones now.
            self._runtime.spawn(self._runtime.health.check_queryable((*changes.added, *changes.changed)))
        return replace(changes, not_empty=())

    def _items_on(self, cluster: str) -> list[str]:
        return self._runtime.machine.clusters.items_on(cluster)

    def _entries(self) -> dict[str, ClusterConfig]:
        return {one.name: one for one in self._runtime.config.clusters}

    @staticmethod
    def _must_be_empty(now: dict[str, ClusterConfig], new: dict[str, ClusterConfig]) -> list[str]:
        """Clusters that are removed, and those that become another cluster of the same name."""
        moved = [name for name in new if name in now and _identity(now[name]) != _identity(new[name])]
        return [*(name for name in now if name not in new), *moved]

    async def _use(self, clusters: dict[str, ClusterConfig]) -> None:
        """Update links, packages and job clients; at first with removed clusters, which the scheduler may still use."""
        self._runtime.links.update(clusters)
        self._runtime.preparation.update(clusters)
        await self._runtime.clients.update(clusters)

    async def _close(self, names: Iterable[str]) -> list[str]:
        """Cordon these; returns those that were open. Raises SchedulerError, and restores them, if one is not empty."""
        runtime = self._runtime
        closed = [name for name in names if not runtime.machine.registry.state(name).cordoned]
        for name in closed:
            runtime.manager.post(CordonChanged(name, cordoned=True))
        await runtime.until_durable()
        busy = {name: items for name in names if (items := self._items_on(name))}
        if not busy:
            return closed
        for name in closed:
            runtime.manager.post(CordonChanged(name, cordoned=False))
        await runtime.until_durable()
        listed = "; ".join(f"{name}: {shorten(items)}" for name, items in busy.items())
        raise SchedulerError(
            f"Clusters that would be removed or replaced are not empty ({listed}).",
            cluster=next(iter(busy)),
            next_step=f"drain {', '.join(busy)} first (POST /api/v1/clusters/NAME/drain), or declare it dead",
        )


def _identity(cluster: ClusterConfig) -> tuple[object, ...]:
    """An entry of the same name with another identity is another cluster."""
    return cluster.dashboard, cluster.head_address, cluster.carrier
