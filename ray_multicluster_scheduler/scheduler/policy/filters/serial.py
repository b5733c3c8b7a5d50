"""SerialFilter: in serial mode, no other item of ours runs there."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.reasons import SERIAL


class SerialFilter:
    """At most one top-level item per cluster when ``execution_mode`` is serial; an actor counts until it is ready."""

    name = "serial"
    by_kind = True

    def __init__(self, settings: Settings) -> None:
        self._serial = settings.execution_mode == "serial"

    def check(self, task: TaskDescription, cluster: ClusterView) -> Rejection | None:
        if not self._serial or cluster.in_flight <= cluster.ready_actors:
            return None
        return Rejection(SERIAL, "it runs one item at a time (execution_mode is serial) and has one")
