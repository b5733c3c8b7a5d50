"""Pools as configured and as the scheduler has them, and their rows for users, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_fleet


def pool_of(config: PoolConfig) -> Pool:
    """The pool that this entry of ``pools:`` describes."""
    values = config.model_dump()
    return Pool.from_dict({**values, "place_quota": values["cluster_quota"]})


def check_stored_pools(store: Store, configured: Iterable[PoolConfig]) -> None:
    """Raises ConfigurationError if the pools of this configuration cannot be together with those that were created or
    changed at run time."""
    changed = {row.name: row.pool for row in decode_fleet(store.fleet())[2]}
    pools = {**{one.name: pool_of(one) for one in configured}, **changed}
    check_cohorts(pool for pool in pools.values() if pool is not None)


def definition_of(pool: Pool) -> dict[str, Any]:
    """The keys of ``pools:`` that describe this pool."""
    values = {**asdict(pool), "cluster_quota": pool.place_quota, "owners": list(pool.owners)}
    return {name: values[name] for name in PoolConfig.model_fields}


def pool_uses(machine: SchedulerMachine, name: str | None) -> list[dict[str, Any]]:
    """Quota, use, lent and borrowed amounts of a pool, by resource and cluster; empty for an unknown pool."""
    pool = None if name is None else machine.pools.ledger.pools.get(name)
    uses = () if pool is None else machine.pools.ledger.uses(pool)
    rows = [asdict(one) for one in uses]
    return [{"cluster": row.pop("place") or None, **row} for row in rows]


def pool_rows(machine: SchedulerMachine) -> dict[str, dict[str, Any]]:
    """On the loop: all pools by name, with their use and their numbers of items."""
    running = Counter(
        machine.record(item).wanted.pool
        for cluster in machine.registry.names()
        for item in machine.clusters.items_on(cluster)
    )
    return {
        name: {
            **definition_of(pool),
            "source": machine.pools.source(name),
            "draining": pool.draining,
            "waiting": max(0, machine.pools.unfinished[name] - running[name]),
            "running": running[name],
            "use": pool_uses(machine, name),
        }
        for name, pool in sorted(machine.pools.ledger.pools.items())
    }


def changed_pools(before: Mapping[str, Pool], after: Mapping[str, Pool]) -> Iterable[tuple[str, dict[str, Any]]]:
    """The name and the event document of each pool that differs."""
    for name in {**before, **after}:
        pool = after.get(name)
        if pool != before.get(name):
            shown = {} if pool is None else {key: value for key, value in definition_of(pool).items() if key != "name"}
            change = "deleted" if pool is None else "changed" if name in before else "created"
            yield name, {"change": "draining" if pool is not None and pool.draining else change, **shown}
