"""Re-export of ClusterMetadata at its public path; it is defined in ``common.model``."""

from __future__ import annotations

from ray_multicluster_scheduler.common.model.cluster_metadata import Carrier, ClusterMetadata

__all__ = ["Carrier", "ClusterMetadata"]
