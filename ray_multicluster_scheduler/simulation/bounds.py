"""What no scheduler can beat."""

from __future__ import annotations

from ray_multicluster_scheduler.simulation.model import SimulatedFleet
from ray_multicluster_scheduler.simulation.workloads.workload import Item, Workload


def lower_bound(fleet: SimulatedFleet, workload: Workload, resource: str = "CPU") -> float:
    """Seconds that the workload takes at the least, whoever schedules it: the work by all capacity, the work that
    requires a tag by the capacity with that tag, and the longest item where it runs fastest. 0 where nothing can be
    said."""
    bounds = [_by_capacity(workload.work(resource), fleet.capacity(resource))]
    bounds += [
        _by_capacity(workload.work(resource, tag), fleet.capacity(resource, tag)) for tag in workload.required_tags()
    ]
    bounds += [item.run_s / _fastest(fleet, item) for item in workload]
    return max(bounds, default=0.0)


def _by_capacity(work: float, capacity: float) -> float:
    return work / capacity if capacity else 0.0


def _fastest(fleet: SimulatedFleet, item: Item) -> float:
    speeds = [one.speed for one in fleet.clusters if all(tag in one.metadata.tags for tag in item.require_tags)]
    return max(speeds, default=float("inf"))
