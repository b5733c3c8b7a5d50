"""FreeSlots: per group of items with the same eligible clusters, the free resources of those clusters; the queue is
searched with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ray_multicluster_scheduler.common.model import ActorDescription, JobDescription, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.queue.need_index import Need, amounts_of
from ray_multicluster_scheduler.scheduler.queue.shape import NO_CONSTRAINTS, ClusterConstraints, EligibilityClass

_CACHE_SIZE = 1000

EMPTY_ITEMS = {
    "task": TaskDescription("", "task", ""),
    "actor": TaskDescription("", "actor", "", actor=ActorDescription("")),
    "job": TaskDescription("", "job", "", job=JobDescription("")),
}
"""An item without needs of each kind: a cluster that is closed for it is closed for all of its kind."""


class FreeSlots:
    """Free amounts of some clusters. Coarse: every item that is found still passes all filters."""

    def __init__(self, engine: PolicyEngine, views: Iterable[ClusterView]) -> None:
        self._engine = engine
        self._views = [view.without_reservation or view for view in views]
        self._open: dict[tuple[str, bool], list[ClusterView]] = {}
        self._amounts: dict[EligibilityClass, Sequence[Need]] = {}

    def amounts(self, eligibility: EligibilityClass) -> Sequence[Need]:
        known = self._amounts.get(eligibility)
        if known is None:
            kind, retry, names, demands = eligibility
            views = self._open_for(kind, retry)
            if demands is not NO_CONSTRAINTS:
                views = [view for view in views if self._meets_constraints(demands, view)]
            known = self._amounts[eligibility] = [
                amounts_of(room, names) for view in views for room in view.max_free(kind)
            ]
        return known

    def _open_for(self, kind: str, retry: bool) -> list[ClusterView]:
        """Clusters that accept this kind of item now; for a gang all of them."""
        known = self._open.get((kind, retry))
        if known is None:
            bare = EMPTY_ITEMS.get(kind)
            known = self._open[kind, retry] = [
                view for view in self._views if bare is None or not self._engine.is_closed(bare, view, retry=retry)
            ]
        return known

    def _meets_constraints(self, demands: ClusterConstraints, view: ClusterView) -> bool:
        known: bool | None = view.stable_cache.get(demands)
        if known is None:
            if len(view.stable_cache) > _CACHE_SIZE:
                view.stable_cache.clear()
            known = view.stable_cache[demands] = not self._engine.violates_constraints(
                _task_with_constraints(demands), view
            )
        return known


@lru_cache(maxsize=1000)
def _task_with_constraints(demands: ClusterConstraints) -> TaskDescription:
    """An empty task with these constraints."""
    return replace(
        EMPTY_ITEMS["task"],
        preferred_cluster=demands.only,
        fallback="any" if demands.only is None else "wait",
        require_tags=demands.require_tags,
        allow_clusters=demands.allow_clusters,
        deny_clusters=demands.deny_clusters,
    )
