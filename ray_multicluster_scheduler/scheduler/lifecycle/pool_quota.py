"""PoolQuota: the pools of the fleet, which item belongs to which, and what items on clusters use of their quota."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.control_plane.config.validation_errors import did_you_mean
from ray_multicluster_scheduler.scheduler.lifecycle import codes
from ray_multicluster_scheduler.scheduler.lifecycle.record import TaskRecord
from ray_multicluster_scheduler.scheduler.lifecycle.rows import PoolRow
from ray_multicluster_scheduler.scheduler.policy import reasons
from ray_multicluster_scheduler.scheduler.pools.pool import Pool, find_pool
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger


class PoolQuota:
    """Configured pools, with the changes made at run time, which win. An item belongs to its pool from its acceptance
    to its end, and holds quota while it has an attempt."""

    def __init__(self, ledger: QuotaLedger, configured: Iterable[Pool]) -> None:
        self.ledger = ledger
        self._configured = {pool.name: pool for pool in configured}
        self._changed: dict[str, Pool | None] = {}
        """Pools that were created or changed at run time; None: deleted."""
        self.unfinished: Counter[str] = Counter()
        """The number of unfinished items of each pool."""
        self.freed: set[str] = set()
        """Pools with more quota than at the last scan of the queue; so have the others of their cohorts."""
        ledger.set_pools(configured)

    # ---- pools

    def change(self, name: str, pool: Pool | None) -> bool:
        """Create or replace a pool, or delete it if ``pool`` is None: one with unfinished items drains first. False if
        nothing changed. Raises ConfigurationError for pools that cannot be one cohort."""
        before = self.ledger.pools.get(name)
        if pool is None and before is not None and self.unfinished[name]:
            pool = replace(before, draining=True)
        if pool == before:
            return False
        others = [other for other in self.ledger.pools.values() if other.name != name]
        self.ledger.set_pools([*others, pool] if pool is not None else others)
        self._changed[name] = pool
        if self._configured.get(name) == pool:
            del self._changed[name]
        return True

    def source(self, name: str) -> Literal["configured", "changed", "created"]:
        """Whether a pool is as configured, differs from its configuration, or was created at run time."""
        if name not in self._changed:
            return "configured"
        return "changed" if name in self._configured else "created"

    def rows(self) -> tuple[PoolRow, ...]:
        """What differs from the configuration."""
        return tuple(PoolRow(name, pool) for name, pool in sorted(self._changed.items()))

    def restore(self, rows: Iterable[PoolRow]) -> None:
        self._changed = {row.name: row.pool for row in rows}
        pools = {**self._configured, **self._changed}
        self.ledger.set_pools(pool for pool in pools.values() if pool is not None)

    # ---- items

    def accepted(self, record: TaskRecord) -> None:
        """Count an unfinished item of its pool."""
        if record.wanted.pool is not None:
            self.unfinished[record.wanted.pool] += 1

    def item_ended(self, record: TaskRecord) -> bool:
        """Returns whether that was the last item of a pool that is being deleted."""
        name = record.wanted.pool
        if name is None:
            return False
        self.unfinished -= Counter([name])  # drops a count of 0
        pool = self.ledger.pools.get(name)
        return pool is not None and pool.draining and not self.unfinished[name]

    def assigned(self, task: TaskDescription) -> TaskDescription:
        """The item with its pool, and with the priority that it gets from it."""
        if not self.ledger.pools:
            return task
        if task.pool is not None:
            pool = self.ledger.pools.get(task.pool)
        else:
            pool = find_pool(self.ledger.pools.values(), task.labels, task.owner)
        return task if pool is None else replace(task, pool=pool.name, priority=task.priority or pool.priority)

    def inadmissible(self, task: TaskDescription) -> tuple[str, str, str] | None:
        """Why the item cannot be accepted: code, sentence and next step; None if it can."""
        if task.pool is None:
            return None
        pool = self.ledger.pools.get(task.pool)
        if pool is None:
            hint = did_you_mean(task.pool, self.ledger.pools)
            names = ", ".join(sorted(self.ledger.pools)) or "none"
            return reasons.POOL_UNKNOWN, f"there is no pool {task.pool!r}{hint}", f"use one of the pools: {names}"
        if not pool.may_be_used_by(task.owner):
            whose = f"{task.owner or 'its owner'} may not use pool {pool.name}"
            return reasons.POOL_FORBIDDEN, whose, "use another pool, or let an administrator add the owner to it"
        if pool.draining:
            return codes.POOL_DRAINING, f"pool {pool.name} is being deleted", "use another pool"
        return None

    def refusal(self, task: TaskDescription, cluster: str | None = None) -> tuple[str, str] | None:
        """Why the item may not start anywhere now (or on this cluster), by the quota of its pool."""
        if task.pool is None or task.connects_only:
            return None
        pool = self.ledger.pools.get(task.pool)
        if pool is None:
            return reasons.POOL_UNKNOWN, f"there is no pool {task.pool!r} any more"
        if not pool.may_be_used_by(task.owner):
            return reasons.POOL_FORBIDDEN, f"{task.owner or 'its owner'} may not use pool {pool.name} any more"
        if pool.place_quota and cluster is None:
            return None
        refusal = self.ledger.refusal(pool.name, task.placement, cluster or "", item=task.id)
        return None if refusal is None else (refusal.code, refusal.sentence)

    def with_more_quota(self) -> set[str]:
        """The pools whose items may start although they could not at the last scan."""
        freed = [self.ledger.pools[name] for name in self.freed if name in self.ledger.pools]
        return {other.name for pool in freed for other in self.ledger.cohort_of(pool)}

    def dispatched(self, record: TaskRecord) -> None:
        """The item has got an attempt."""
        task = record.wanted
        if task.pool is not None and not task.connects_only:
            self.ledger.reserve(task.id, task.pool, task.placement, record.cluster or "")

    def claim(self, record: TaskRecord, cluster: str) -> None:
        """Room is freed for the item: what leaves is for it."""
        if record.wanted.pool is not None:
            self.ledger.reserve(record.task.id, record.wanted.pool, record.wanted.placement, cluster, claim=True)

    def is_preemptible(self, task: TaskDescription) -> bool:
        """As it was submitted, or as its pool says; nothing in a protected pool is."""
        pool = self.ledger.pools.get(task.pool or "")
        if pool is not None and pool.protected:
            return False
        return task.preemptible if task.preemptible is not None else pool is not None and pool.preemptible

    def started(self, record: TaskRecord) -> None:
        """Its attempt runs: an actor then holds less than while it started."""
        if record.wanted.pool is not None:
            self.ledger.commit(record.task.id, record.task.requirements if record.task.runs_actors else None)
            if record.task.runs_actors:
                self.freed.add(record.wanted.pool)

    def attempt_ended(self, record: TaskRecord) -> None:
        booking = self.ledger.release(record.task.id) if record.wanted.pool is not None else None
        if booking is not None:
            self.freed.add(booking.pool)
