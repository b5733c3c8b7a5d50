"""Shape: everything that placement reads of an item. Items of one shape get the same answer at the same moment."""

from __future__ import annotations

from typing import NamedTuple

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.common.model.gang_description import GangShape
from ray_multicluster_scheduler.common.model.resources import ResourceShape
from ray_multicluster_scheduler.common.model.resources import shape_of as resource_shape


class QueueKey(NamedTuple):
    """The queue of an item: tasks or jobs, and the preferred cluster (None: the global queue)."""

    queue: str
    cluster: str | None


class Shape(NamedTuple):
    """The queue, and everything that a filter, rank or score may read of an item."""

    queue_key: QueueKey
    kind: str
    placement: tuple[tuple[str, float], ...]
    tags: tuple[str, ...]
    require_tags: tuple[str, ...]
    fallback: str
    allow_clusters: tuple[str, ...] | None
    deny_clusters: tuple[str, ...]
    owner: str
    retry: bool
    bundles: GangShape | None = None
    entrypoint: ResourceShape = ()
    pool: str | None = None


class ClusterConstraints(NamedTuple):
    """Constraints on clusters that never change. ``only``: it goes to this cluster or nowhere."""

    only: str | None
    require_tags: tuple[str, ...]
    allow_clusters: tuple[str, ...] | None
    deny_clusters: tuple[str, ...]


NO_CONSTRAINTS = ClusterConstraints(None, (), None, ())


class EligibilityClass(NamedTuple):
    """Groups for which the same clusters are eligible: by kind, retry and constraints; ``names`` are the resources they
    need."""

    kind: str
    retry: bool
    names: tuple[str, ...]
    demands: ClusterConstraints = NO_CONSTRAINTS


def eligibility_class(shape: Shape) -> EligibilityClass:
    only = shape.queue_key.cluster if shape.fallback == "wait" else None
    demands = ClusterConstraints(only, shape.require_tags, shape.allow_clusters, shape.deny_clusters)
    names = tuple([name for name, _ in shape.placement])
    return EligibilityClass(shape.kind, shape.retry, names, NO_CONSTRAINTS if demands == NO_CONSTRAINTS else demands)


def queue_key(task: TaskDescription) -> QueueKey:
    """Actors are queued with the tasks: both use the link."""
    return QueueKey("job" if task.kind == "job" else "task", task.preferred_cluster)


def shape_of(task: TaskDescription, *, retry: bool) -> Shape:
    """``retry``: it was placed before, so it is exempt from the submission interval."""
    return Shape(
        queue_key(task),
        task.kind,
        tuple(sorted(task.placement.items())),
        task.tags,
        task.require_tags,
        task.fallback,
        task.allow_clusters,
        task.deny_clusters,
        task.owner,
        retry,
        task.gang_shape,
        resource_shape(task.entrypoint_resources),
        task.pool,
    )
