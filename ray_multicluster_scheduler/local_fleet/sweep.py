"""Remove processes and files of fleets whose owner and supervisors were killed before they could clean up.

It also runs at every normal stop, for processes of a supervisor that was killed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from ray_multicluster_scheduler.common.exception import ClusterConnectionError
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.layout import (
    PREFIX,
    ClusterRecord,
    FleetRecord,
    cluster_dir,
    remove_config,
    remove_tree,
)

_log = logging.getLogger(__name__)

_ABANDONED_AFTER_S = 600.0


def sweep_stale(base: Path) -> list[Path]:
    """Kill and remove every abandoned fleet of this user under ``base``; returns their folders."""
    swept = []
    for root in sorted(base.glob(f"{PREFIX}*")):
        try:
            ours = root.is_dir() and not root.is_symlink() and processes.owned_by_us(root)
            if ours and _sweep_if_stale(root):
                swept.append(root)
        except (ClusterConnectionError, OSError) as error:
            _log.warning("The remains of a killed local fleet in %s cannot be removed: %s", root, error)
    return swept


def sweep_fleet(root: Path, fleet: FleetRecord) -> None:
    """Kill the processes of a fleet and remove its files. Raises ClusterConnectionError if a process survives."""
    for index in range(fleet.clusters):
        folder = cluster_dir(root, index)
        record = ClusterRecord.read(folder.record)
        _kill_cluster(fleet.marker(index), record, folder.root)
    remove_config(Path(fleet.config_path), fleet.fleet_id)
    remove_tree(root)


def _sweep_if_stale(root: Path) -> bool:
    fleet = FleetRecord.read(root)
    if fleet is None:
        # Just created, or its owner died before it wrote the record: then it is an empty folder.
        with suppress(OSError):
            if time.time() - root.stat().st_mtime > _ABANDONED_AFTER_S:
                root.rmdir()
                return True
        return False
    records = (ClusterRecord.read(cluster_dir(root, index).record) for index in range(fleet.clusters))
    if fleet.owner.alive() or any(record.supervisor.alive() for record in records if record):
        return False
    sweep_fleet(root, fleet)
    return True


def _kill_cluster(marker: str, record: ClusterRecord | None, folder: Path) -> None:
    def find() -> list[psutil.Process]:
        found = list(processes.marked(marker))
        if record is not None:
            found += processes.recorded(record.members)
        if record is not None and record.head is not None:
            found += _session_members(record.head, folder)
        return processes.living(found)

    files = processes.shared_memory_files(find())
    left = processes.end_all(find)
    if left:
        raise ClusterConnectionError(
            f"Processes {[p.pid for p in left]} of the local cluster in {folder} survive SIGKILL.",
            next_step="check their state with ps: a process in state D waits for the kernel.",
        )
    processes.remove_unused_shared_memory(files)


def _session_members(head: processes.Identity, folder: Path) -> Iterable[psutil.Process]:
    """Processes of the head's session that use the cluster's folder, since the session number may have been reused.

    The marker does not find all: a Ray process that sets its title overwrites its environment.
    """
    if head.reused():  # an id is not reused while its session exists, so that session has ended
        return []
    return [process for process in processes.in_session(head.pid) if _uses_folder(process, f"{folder}{os.sep}")]


def _uses_folder(process: psutil.Process, folder: str) -> bool:
    with suppress(psutil.Error):
        if any(folder in argument for argument in process.cmdline()):
            return True
    with suppress(psutil.Error):
        if f"{process.cwd()}{os.sep}".startswith(folder):
            return True
    with suppress(psutil.Error):
        return any(file.path.startswith(folder) for file in process.open_files())
    return False
