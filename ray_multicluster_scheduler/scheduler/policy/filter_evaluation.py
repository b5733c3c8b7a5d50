"""Asking filters. One that raises is named in the error."""

from __future__ import annotations

from collections.abc import Iterable

from ray_multicluster_scheduler.common.model import Rejection, TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView
from ray_multicluster_scheduler.scheduler.policy.interfaces import Filter
from ray_multicluster_scheduler.scheduler.policy.policy_errors import evaluation_error


def collect_rejections(filters: Iterable[Filter], task: TaskDescription, view: ClusterView) -> dict[str, Rejection]:
    """What those of them that say no say, by their names."""
    rejections = {}
    for one in filters:
        rejection = _verdict(one, task, view)
        if rejection is not None:
            rejections[one.name] = rejection
    return rejections


def _verdict(one: Filter, task: TaskDescription, view: ClusterView) -> Rejection | None:
    try:
        return one.check(task, view)
    except Exception as error:
        raise evaluation_error(f"the filter {one.name!r}", task, view, error) from error
