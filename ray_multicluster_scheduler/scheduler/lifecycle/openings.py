"""Openings: what a walk over the queue may look for, as rooms for each bay of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ray_multicluster_scheduler.common.model import ActorDescription, JobDescription, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.policy_engine import PolicyEngine
from ray_multicluster_scheduler.scheduler.queue.need_index import Need, amounts_of
from ray_multicluster_scheduler.scheduler.queue.shape import Bay

BARE = {
    "task": TaskDescription("", "task", ""),
    "actor": TaskDescription("", "actor", "", actor=ActorDescription("")),
    "job": TaskDescription("", "job", "", job=JobDescription("")),
}
"""An item of each kind that asks for nothing: what is closed for it is closed for all of its kind."""


def anything(bay: Bay) -> None:
    """Look at everybody."""


class Openings:
    """Rooms on some clusters. Coarse: who finds one is still judged by every filter."""

    def __init__(self, engine: PolicyEngine, views: Iterable[ClusterView]) -> None:
        self._engine = engine
        self._views = [view.plain or view for view in views]
        self._known: dict[Bay, Sequence[Need]] = {}

    def rooms(self, bay: Bay) -> Sequence[Need]:
        known = self._known.get(bay)
        if known is None:
            known = self._known[bay] = [
                amounts_of(room, bay.names) for view in self._open_for(bay) for room in view.rooms(bay.kind)
            ]
        return known

    def _open_for(self, bay: Bay) -> list[ClusterView]:
        """Clusters that take this kind now; a gang is looked at wherever it might go."""
        bare = BARE.get(bay.kind)
        return [
            view
            for view in self._views
            if bay.cluster in (None, view.name)
            and (bare is None or not self._engine.is_closed(bare, view, retry=bay.retry))
        ]
