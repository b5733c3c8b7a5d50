"""Checks at start-up whether the dashboard of a cluster with unfinished jobs has moved since the last run.

A job that its dashboard does not know is considered dead, since its cluster was restarted. If the address was edited
meanwhile, another cluster may answer while the job still runs. So the operator must state that it is the same cluster
(``--moved``). Agents need no such check: they dial in and hold a lease.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.notices import shorten
from ray_multicluster_scheduler.control_plane.config import ClusterConfig
from ray_multicluster_scheduler.control_plane.store import Change, Store
from ray_multicluster_scheduler.control_plane.store.records import ItemQuery
from ray_multicluster_scheduler.scheduler.lifecycle.transitions import LIVE

_DASHBOARD = "dashboard:"


def check_moved(store: Store, clusters: Iterable[ClusterConfig], moved: Collection[str] = ()) -> None:
    """Raises ConfigurationError for unfinished jobs of a cluster whose address has changed, unless it is listed in
    ``moved``; and for an unknown cluster in ``moved``."""
    clusters, known = list(clusters), _known(store)
    unknown = [name for name in moved if name not in {one.name for one in clusters}]
    if unknown:
        raise ConfigurationError(
            f"There is no cluster {unknown[0]!r} that could have moved.",
            next_step=f"use one of: {', '.join(one.name for one in clusters)}",
        )
    for one in clusters:
        before = known.get(one.name)
        if one.name in moved or before in (None, one.dashboard or ""):
            continue
        jobs = [item.new.id for item in store.items(ItemQuery(tuple(LIVE), "job", cluster=one.name, limit=1000)).items]
        if jobs:
            have, them, they = ("has", "it", "it") if len(jobs) == 1 else ("have", "them", "they")
            raise ConfigurationError(
                f"The dashboard of cluster {one.name!r} was {before or 'not configured'} when the service ran last, "
                f"and is {one.dashboard or 'not configured'} now, but {shorten(jobs)} {have} not ended there. Another "
                f"cluster would not know {them}, and {they} might run twice.",
                cluster=one.name,
                next_step=f"put the old address back until {they} {have} ended; or, if it is the same cluster at "
                f"another address, or no job runs at the old one any more, `rmcs up --moved {one.name}`",
            )


def store_addresses(store: Store, clusters: Iterable[ClusterConfig]) -> None:
    """Remember the current addresses for the next start; durable when this returns."""
    known = _known(store)
    now = {one.name: one.dashboard or "" for one in clusters}
    new: dict[str, bytes | None] = {
        f"{_DASHBOARD}{name}": where.encode() for name, where in now.items() if known.get(name) != where
    }
    if new:
        store.write(Change(settings=new)).result()


def _known(store: Store) -> dict[str, str]:
    found = store.settings(_DASHBOARD).items()
    return {key.removeprefix(_DASHBOARD): where.decode() for key, where in found}
