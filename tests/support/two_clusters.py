"""The fleet of the long runs: two local clusters of two CPUs each, "linux" and "mac"."""

from __future__ import annotations

import os
from pathlib import Path

from ray_multicluster_scheduler.local_fleet import LocalCluster, LocalFleet

_ROOT = Path(__file__).resolve().parents[2]


def two_clusters() -> LocalFleet:
    """To be started by ``with``. RMCS_RAY_PYTHON names another Python than that of .venv-ray."""
    ray_python = Path(os.environ.get("RMCS_RAY_PYTHON") or _ROOT / ".venv-ray" / "bin" / "python")
    settings = {"submission_interval_s": 0, "resource_threshold": 1}
    clusters = [LocalCluster("linux", num_cpus=2), LocalCluster("mac", num_cpus=2)]
    return LocalFleet(*clusters, settings=settings, ray_python=ray_python)
