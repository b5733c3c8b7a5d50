"""PoolFilter: the pool of the item has quota left on this cluster."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import POOL_NOT_HERE
from ray_multicluster_scheduler.scheduler.pools.quota_ledger import QuotaLedger


class PoolFilter:
    """Checks pools with a quota for each cluster. A quota of the whole fleet is no reason against one cluster, so the
    scheduling pass checks it."""

    name = "pool"

    def __init__(self, quota: QuotaLedger) -> None:
        self._quota = quota

    def concerns(self, task: TaskDescription) -> bool:
        return task.pool is not None

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        pool = None if task.pool is None else self._quota.pools.get(task.pool)
        if pool is None or not pool.place_quota or task.connects_only:
            return None
        refusal = self._quota.refusal(pool.name, task.placement, cluster.name, item=task.id)
        return None if refusal is None else Rejection(*refusal, permanent=refusal.code == POOL_NOT_HERE)
