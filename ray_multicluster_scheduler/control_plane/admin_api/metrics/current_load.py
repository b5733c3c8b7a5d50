"""How much waits and is taken, and which clusters are up, from what is known anyway; nobody is asked for it."""

from __future__ import annotations

from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.lifecycle.machine import SchedulerMachine
from ray_multicluster_scheduler.scheduler.policy import reasons


def waiting_by_queue(machine: SchedulerMachine) -> dict[str, int]:
    """How many items wait in the queue of tasks and in that of jobs."""
    depths = {"task": 0, "job": 0}
    for lane, waiting in machine.queue_depths().items():
        depths[lane.queue] = depths.get(lane.queue, 0) + waiting
    return depths


def is_up(view: ClusterView) -> bool | None:
    """Does it take work, as far as is known? None before it was asked for the first time. One that nobody had a reason
    to ask lately is as it was then: nothing is known to be wrong with it."""
    trouble = view.problem
    if trouble is None:
        return True
    return None if trouble.code == reasons.CLUSTER_UNKNOWN else trouble.being_asked


def share_taken(view: ClusterView, what: str) -> float | None:
    """Which part of a resource is taken, to two decimals; None if it has none, or that is not known, as of a cluster
    that does not answer."""
    if not is_up(view):
        return None
    nodes = (view.without_reservation or view).nodes
    total = sum(node.total.get(what, 0.0) for node in nodes)
    if total <= 0 or any(node.free is None for node in nodes):
        return None
    return round(1 - sum((node.free or {}).get(what, 0.0) for node in nodes) / total, 2)
