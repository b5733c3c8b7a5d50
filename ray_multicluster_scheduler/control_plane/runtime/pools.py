"""Pools as configured and as the scheduler has them, and their rows for users, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ray_multicluster_scheduler.common.model import SchedulingDecision
from ray_multicluster_scheduler.common.model.resources import describe
from ray_multicluster_scheduler.control_plane.config.pool_config import PoolConfig
from ray_multicluster_scheduler.control_plane.store import Store
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy.reasons import BORROW_LIMIT, POOL_FULL, POOL_NOT_HERE, POOL_TOO_SMALL
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, check_cohorts
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaUse
from ray_multicluster_scheduler.scheduler.scheduler_core.record_codec import decode_fleet

QUOTA_CODES = frozenset({BORROW_LIMIT, POOL_FULL, POOL_NOT_HERE, POOL_TOO_SMALL})


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
    rows = [(one, asdict(one)) for one in uses]
    return [{"cluster": row.pop("place") or None, **row, "sentence": _sentence(one)} for one, row in rows]


def _sentence(use: QuotaUse) -> str:
    amounts = (use.used + use.reserved, use.borrowed, use.lent, use.available)
    used, borrowed, lent, available = (describe({use.resource: one} if one else {}) for one in amounts)
    where = f" on {use.place}" if use.place else ""
    quota = describe({use.resource: use.quota})
    return f"{used} of {quota} used{where}, {borrowed} borrowed, {lent} lent, {available} available"


def with_pool_use(machine: SchedulerMachine, decision: SchedulingDecision, pool: str | None) -> SchedulingDecision:
    """The decision, with the use of this pool if the item waits for its quota."""
    found = {decision.code, *(one.code for row in decision.candidates for one in row.rejections)}
    waits = decision.cluster is None and not found.isdisjoint(QUOTA_CODES)
    return replace(decision, pool_use=pool_uses(machine, pool)) if waits else decision


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
