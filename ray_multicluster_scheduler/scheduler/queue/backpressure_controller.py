"""BackpressureController: decides by the usage threshold whether a cluster accepts new top-level work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ray_multicluster_scheduler.common.model import Resources, TaskDescription
from ray_multicluster_scheduler.control_plane.config.settings import Settings
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView, NodeView

_ROUNDING = 1e-9
_RAY_NAMES = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}


@dataclass(frozen=True, slots=True)
class ExceededThreshold:
    """A resource above its threshold. ``use`` is None if the usage is unknown."""

    resource: str
    use: float | None
    limit: float


class BackpressureController:
    """Compares usage with ``resource_threshold``, per cluster, never over an average of all clusters.

    The usage *before* the item is added counts. CPU and memory count wherever a cluster has them; GPUs only for items
    that ask for one, since busy GPUs are no reason to reject CPU work. Custom resources have no threshold.
    """

    def __init__(self, settings: Settings) -> None:
        threshold = settings.resource_threshold
        limits = {"cpu": threshold.cpu, "gpu": threshold.gpu, "memory": threshold.memory}
        self._limits = [(name, _RAY_NAMES[name], limit) for name, limit in limits.items() if limit < 1]
        self._basis = settings.threshold_on

    def exceeded_threshold(self, task: TaskDescription, cluster: ClusterView) -> ExceededThreshold | None:
        """The first resource above its limit, or None when the cluster accepts the item."""
        total = cluster.total
        for resource, name, limit in self._limits:
            if not total.get(name) or (resource == "gpu" and not task.placement.get(name)):
                continue
            use = self._use(resource, name, cluster)
            if use is None or use > limit + _ROUNDING:
                return ExceededThreshold(resource, use, limit)
        return None

    def headroom(
        self, task: TaskDescription, nodes: Iterable[NodeView], observed: Resources | None
    ) -> dict[str, float] | None:
        """The amount of each limited resource that may still be used on these nodes; negative above the limit. None:
        the observed usage is above the limit, and it is unknown whether the end of an item helps."""
        spare = {}
        known = [node for node in nodes if node.free is not None]
        for resource, name, limit in self._limits:
            total = sum(node.total.get(name, 0.0) for node in known)
            if not total or (resource == "gpu" and not task.placement.get(name)):
                continue
            seen = None if self._basis == "reserved" else (observed or {}).get(resource)
            if seen is not None and seen > limit + _ROUNDING:
                return None
            if seen is None or self._basis == "max":
                left = sum((node.free or {}).get(name, 0.0) - node.overcommitted.get(name, 0.0) for node in known)
                spare[name] = left - (1.0 - limit - _ROUNDING) * total
        return spare

    def _use(self, resource: str, name: str, cluster: ClusterView) -> float | None:
        """Share in use, on the basis of ``threshold_on``; reserved use replaces an observation that is missing."""
        reserved = cluster.use.get(name)
        observed = (cluster.observed or {}).get(resource)
        if self._basis == "reserved" or observed is None:
            return reserved
        if self._basis == "observed" or reserved is None:
            return observed
        return max(reserved, observed)
