"""FleetChanges: clusters come, change and go while the service runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError, SchedulerError
from ray_multicluster_scheduler.common.logging import get_logger
from ray_multicluster_scheduler.control_plane.config import ClusterConfig, FleetConfig, load_config
from ray_multicluster_scheduler.control_plane.runtime import fleet_control
from ray_multicluster_scheduler.control_plane.runtime.service.address_changes import note_places
from ray_multicluster_scheduler.control_plane.runtime.service.service_runtime import ServiceRuntime
from ray_multicluster_scheduler.scheduler.lifecycle.events import ClusterChanged, CordonChanged

_log = get_logger(__name__)
_PLACE = ("dashboard", "head_address", "carrier")
"""Who changes one of these means another cluster by the same name."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What came of a new configuration, or would, by the names of clusters. ``not_applied`` are settings that are
    others there: they hold from the next start on. ``not_empty``: what keeps it from being applied."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    not_applied: tuple[str, ...] = ()
    not_empty: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {name: list(value) for name, value in asdict(self).items()}


class FleetChanges:
    """On the loop of the service; one change at a time. What is applied holds until the next start, which reads the
    file again."""

    def __init__(self, runtime: ServiceRuntime) -> None:
        self._runtime = runtime
        self._one_at_a_time = asyncio.Lock()
        self._reloading: set[asyncio.Task[Changes | None]] = set()

    def reload_soon(self) -> None:
        """As SIGHUP asks for; what comes of it is in the log."""
        task = asyncio.get_running_loop().create_task(self._reload_and_say())
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload_and_say(self) -> Changes | None:
        try:
            changes = await self.reload()
        except SchedulerError as error:
            _log.error("the configuration is as it was: %s", error)
            return None
        _log.info("the configuration was read again: %s", changes.to_dict())
        told = {name: ", ".join(value) for name, value in changes.to_dict().items() if name != "unchanged"}
        self._runtime.audit("SIGHUP", None, "reload", self._runtime.config.source, told)
        return changes

    async def reload(self) -> Changes:
        """Read the file again that it came from. Raises ConfigurationError, and as :meth:`apply`."""
        return await self.apply(await self.read_again())

    def compare(self, wanted: FleetConfig) -> Changes:
        """What :meth:`apply` would do as it is now."""
        now, new = self._entries(), {one.name: one for one in wanted.clusters}
        changed = tuple(name for name in new if name in now and new[name] != now[name])
        return Changes(
            tuple(name for name in new if name not in now),
            changed,
            tuple(name for name in now if name not in new),
            tuple(name for name in new if name in now and name not in changed),
            _other_settings(self._runtime.config, wanted),
            tuple(name for name in self._must_be_empty(now, new) if fleet_control.items_on(self._runtime, name)),
        )

    async def read_again(self) -> FleetConfig:
        """The file that the configuration came from. Raises ConfigurationError."""
        path = Path(self._runtime.config.source)
        if not path.is_absolute() or not await asyncio.to_thread(path.is_file):
            raise ConfigurationError(
                f"The configuration came from {self._runtime.config.source}, which cannot be read again.",
                next_step="send the clusters themselves, or start the service with --config FILE",
            )
        return await asyncio.to_thread(load_config, path)

    async def apply(self, wanted: FleetConfig) -> Changes:
        """From now on these are the clusters. All of it, or nothing: one that goes, or is another from now on, must be
        empty. Raises SchedulerError if it is not."""
        async with self._one_at_a_time:
            now, new = self._entries(), {one.name: one for one in wanted.clusters}
            changes = self.compare(wanted)
            closed = await self._close(self._must_be_empty(now, new))
            await asyncio.to_thread(note_places, self._runtime.store, wanted.clusters)
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
                if name in changes.removed or not fleet_control.items_on(self._runtime, name):
                    await self._runtime.links.close_link(name, "its entry in the configuration was changed")
            await self._use(new)
            # What was known of them was known of other entries: whoever looks next is to see these.
            self._runtime.leave(self._runtime.health.check_queryable((*changes.added, *changes.changed)))
        return replace(changes, not_empty=())

    def _entries(self) -> dict[str, ClusterConfig]:
        return {one.name: one for one in self._runtime.config.clusters}

    @staticmethod
    def _must_be_empty(now: dict[str, ClusterConfig], new: dict[str, ClusterConfig]) -> list[str]:
        """Those that go, and those that are others by the same name from then on."""
        moved = [name for name in new if name in now and any(_differ(now[name], new[name], key) for key in _PLACE)]
        return [*(name for name in now if name not in new), *moved]

    async def _use(self, clusters: dict[str, ClusterConfig]) -> None:
        """Tell all hands; first also of those that go, since the brain may still name them."""
        self._runtime.links.update(clusters)
        self._runtime.preparation.update(clusters)
        await self._runtime.clients.update(clusters)

    async def _close(self, names: Iterable[str]) -> list[str]:
        """Nothing new goes there; returns those that were open. Raises SchedulerError, with all as it was, if something
        is there."""
        runtime = self._runtime
        closed = [name for name in names if not runtime.machine.registry.state(name).cordoned]
        for name in closed:
            runtime.manager.post(CordonChanged(name, cordoned=True))
        await runtime.until_durable()
        busy = {name: items for name in names if (items := fleet_control.items_on(runtime, name))}
        if not busy:
            return closed
        for name in closed:
            runtime.manager.post(CordonChanged(name, cordoned=False))
        await runtime.until_durable()
        told = "; ".join(f"{name}: {', '.join(items[:5])}{' …' if items[5:] else ''}" for name, items in busy.items())
        raise SchedulerError(
            f"Clusters that would go, or be others, are not empty ({told}).",
            cluster=next(iter(busy)),
            next_step=f"drain {', '.join(busy)} first (POST /api/v1/clusters/NAME/drain), or declare it dead",
        )


def _differ(before: ClusterConfig, after: ClusterConfig, key: str) -> bool:
    return bool(getattr(before, key) != getattr(after, key))


def _other_settings(now: FleetConfig, wanted: FleetConfig) -> tuple[str, ...]:
    before, after = now.settings, wanted.settings
    return tuple(name for name in type(before).model_fields if getattr(before, name) != getattr(after, name))
