"""`$RMCS_HOME/fleet`: the record of a user's background fleet, its lock, its log, and the status of its clusters."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home
from ray_multicluster_scheduler.local_fleet import processes
from ray_multicluster_scheduler.local_fleet.layout import (
    CONFIG_NAME,
    Addresses,
    ClusterDir,
    ClusterRecord,
    write_private,
)
from ray_multicluster_scheduler.local_fleet.processes import Identity
from ray_multicluster_scheduler.local_fleet.ray_head import fetch


@dataclass(frozen=True)
class BackgroundCluster:
    """One cluster of the background fleet."""

    name: str
    tags: Sequence[str]
    addresses: Addresses
    folder: str
    num_cpus: int | None = None
    """None if an older version recorded the fleet."""


@dataclass(frozen=True)
class BackgroundFleet:
    """The record that the daemon of the background fleet writes."""

    holder: Identity
    root: str
    clusters: Sequence[BackgroundCluster]

    @classmethod
    def parse(cls, text: str) -> BackgroundFleet:
        data = json.loads(text)
        clusters = [
            BackgroundCluster(**{**each, "addresses": Addresses(**each["addresses"])}) for each in data["clusters"]
        ]
        return cls(Identity(**data["holder"]), data["root"], clusters)


@dataclass(frozen=True)
class ClusterStatus:
    """The current status of a cluster."""

    name: str
    state: str
    head_address: str
    dashboard: str
    tags: Sequence[str]
    pids: Sequence[int]


class FleetHome:
    """The folder ``$RMCS_HOME/fleet``."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or rmcs_home().absolute() / "fleet"
        self.config_path = self.root / CONFIG_NAME
        self.log_path = self.root / "fleet.log"
        self._record = self.root / "fleet.json"

    def make(self) -> None:
        """Create the folder, and its parent if missing, for this user only. Raises ConfigurationError."""
        try:
            self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.root.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The folder {self.root} cannot be made: {error.strerror}.",
                next_step="set RMCS_HOME to a folder that you can write to.",
            ) from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock of the background fleet. Raises ConfigurationError if another process holds it."""
        self.make()
        with (self.root / "lock").open("w", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"Another process holds the local fleet of {self.root}.",
                    next_step="see `rmcs fleet status`, or end it with `rmcs fleet down`.",
                ) from None
            yield

    def write(self, fleet: BackgroundFleet) -> None:
        write_private(self._record, json.dumps(asdict(fleet)))

    def read(self) -> BackgroundFleet | None:
        """The record; None if there is none or it cannot be read."""
        try:
            return BackgroundFleet.parse(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def forget(self) -> None:
        self._record.unlink(missing_ok=True)


def cluster_status(cluster: BackgroundCluster) -> ClusterStatus:
    """Determine the status from its processes, and from its dashboard at the published address."""
    folder = ClusterDir(Path(cluster.folder))
    record = ClusterRecord.read(folder.record)
    supervised = record is not None and record.supervisor.alive()
    found = processes.living(processes.descendants(record.supervisor.pid)) if record and supervised else []
    return ClusterStatus(
        name=cluster.name,
        state=_state(cluster, folder, found) if supervised else "lost",
        head_address=cluster.addresses.head_address,
        dashboard=cluster.addresses.dashboard,
        tags=list(cluster.tags),
        pids=sorted(process.pid for process in found),
    )


def _state(cluster: BackgroundCluster, folder: ClusterDir, found: Sequence[psutil.Process]) -> str:
    if not found:
        return "down"
    if all(processes.is_stopped(process) for process in found):
        return "paused"
    try:
        fetch(f"{cluster.addresses.dashboard}/api/version", folder.token.read_text(encoding="utf-8"))
    except OSError:
        return "not answering"
    return "up"
