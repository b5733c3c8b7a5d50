"""The configuration: ``clusters.yaml`` and settings, validated and frozen.

Every layer above ``common`` may import it; it imports only ``common``. Start with ``cluster_config.py`` and
``settings.py`` for what can be configured, and with ``loader.py`` for where it comes from. Each exported name is loaded
when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray_multicluster_scheduler.control_plane.config.cluster_config import ClusterConfig, Tls
    from ray_multicluster_scheduler.control_plane.config.fleet_config import FleetConfig
    from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
    from ray_multicluster_scheduler.control_plane.config.loader import ConfigArgument, load_config
    from ray_multicluster_scheduler.control_plane.config.settings import RetryBackoff, Settings, Threshold
else:
    from ray_multicluster_scheduler.common.lazy_imports import lazy_attributes

    __getattr__ = lazy_attributes(
        __name__,
        {
            "cluster_config": "ClusterConfig Tls",
            "fleet_config": "FleetConfig",
            "home": "rmcs_home",
            "loader": "ConfigArgument load_config",
            "settings": "RetryBackoff Settings Threshold",
        },
    )

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
