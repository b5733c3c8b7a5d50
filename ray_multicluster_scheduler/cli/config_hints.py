"""Where no clusters are configured, and a local fleet is up whose file only has to be named."""

from __future__ import annotations

from pathlib import Path

from ray_multicluster_scheduler.common.exception import SchedulerError
from ray_multicluster_scheduler.control_plane.config.missing_config import NothingConfiguredError


def next_step_of(error: SchedulerError) -> str:
    """What to do about an error, as it stands on this machine."""
    said = error.next_step or ""
    path = _local_fleet() if isinstance(error, NothingConfiguredError) else None
    if path is None:
        return said
    return f"a local fleet is up, so name its file: export RMCS_CONFIG={path}"


def _local_fleet() -> Path | None:
    from ray_multicluster_scheduler.local_fleet.fleet_home import FleetHome

    home = FleetHome()
    known = home.read()
    return home.config_path if known is not None and known.holder.alive() else None
