"""Real local Ray clusters for `rmcs demo`, `rmcs fleet`, tests and benchmarks.

`LocalFleet` (`fleet.py`) starts one supervisor process per cluster (`supervisor.py`), which owns a Ray head
(`ray_head.py`) and the TCP forwarders in front of it; `background.py` is the fleet of `rmcs fleet`. Start reading at
`fleet.py`. The command line, the demo, tests and benchmarks may import this package; it imports `control_plane.config`
and `common`, and never `ray` itself.
"""

from __future__ import annotations

from ray_multicluster_scheduler.local_fleet.fleet import LocalFleet
from ray_multicluster_scheduler.local_fleet.layout import Addresses
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster

__all__ = ["Addresses", "LocalCluster", "LocalFleet"]
