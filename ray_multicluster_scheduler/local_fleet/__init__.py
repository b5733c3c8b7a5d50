"""Real local Ray clusters for the demo, the tests and people's laptops."""

from __future__ import annotations

from ray_multicluster_scheduler.local_fleet.config_file import Addresses
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.fleet import LocalFleet

__all__ = ["Addresses", "LocalCluster", "LocalFleet"]
