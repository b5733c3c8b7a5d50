"""clusters.yaml and settings, as validated and frozen models."""

from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig, Tls
from ray_multicluster_scheduler.control_plane.config.fleet_config import FleetConfig
from ray_multicluster_scheduler.control_plane.config.loader import ConfigArgument, load_config, rmcs_home
from ray_multicluster_scheduler.control_plane.config.settings import RetryBackoff, Settings, Threshold

__all__ = [
    "ClusterConfig",
    "ConfigArgument",
    "FleetConfig",
    "RetryBackoff",
    "Settings",
    "Threshold",
    "Tls",
    "load_config",
    "rmcs_home",
]
