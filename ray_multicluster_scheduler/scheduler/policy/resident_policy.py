"""ResidentPolicy, registered as ``resident``: a score that prefers permanent clusters to those that cost by use."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model import TaskDescription
from ray_multicluster_scheduler.scheduler.cluster.cluster_view import ClusterView

RESIDENT_TAG = "resident"
ELASTIC_TAG = "elastic"


class ResidentPolicy:
    """1 for a cluster tagged ``resident``, 0 for one tagged ``elastic``, half for neither or both.

    With ``combine: chain`` and ``weights: {resident: 1, load: 1}``, resident clusters are filled up to
    ``resource_threshold`` before elastic ones get anything.
    """

    name = "resident"

    def trait(self, task: TaskDescription) -> None:
        return None

    def score(self, task: TaskDescription, cluster: ClusterView) -> float:
        tags = cluster.metadata.tags
        return (1.0 + (RESIDENT_TAG in tags) - (ELASTIC_TAG in tags)) / 2.0
