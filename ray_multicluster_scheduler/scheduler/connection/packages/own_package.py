"""Our own package, as it is shipped into clusters: for agents, and for jobs that use the verbs there."""

from __future__ import annotations

from pathlib import Path

import ray_multicluster_scheduler
from ray_multicluster_scheduler.scheduler.connection.packages.runtime_env_upload import PackageCache, PackageStore

FOLDER = Path(ray_multicluster_scheduler.__file__).parent
NOT_SHIPPED = ("*.pyc", "*.typed", "*.md")


async def ship_own_package(packages: PackageCache, store: PackageStore) -> str:
    """The URI of our package, which is in ``store`` afterwards. Raises TaskSubmissionError, DashboardProblem."""
    return await packages.ship(FOLDER, "py_module", NOT_SHIPPED, store)
