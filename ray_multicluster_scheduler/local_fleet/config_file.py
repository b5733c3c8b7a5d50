"""The clusters.yaml of a local fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.local_fleet.description import LocalCluster
from ray_multicluster_scheduler.local_fleet.layout import ClusterDir, write_private
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK

CONFIG_NAME = "clusters.yaml"
_HEADER = "# Written by local fleet "


@dataclass(frozen=True)
class Addresses:
    """Where a local cluster is reached, in the form clusters.yaml has."""

    head_address: str
    dashboard: str

    @classmethod
    def on_loopback(cls, *, client: int, dashboard: int) -> Addresses:
        return cls(f"{LOOPBACK}:{client}", f"http://{LOOPBACK}:{dashboard}")


def write_config(
    path: Path,
    fleet_id: str,
    settings: Mapping[str, Any],
    clusters: Sequence[tuple[LocalCluster, Addresses, ClusterDir]],
) -> None:
    """Write it with mode 0600; the tokens stay in files of their own."""
    document = {"settings": dict(settings)} if settings else {}
    entries = {"clusters": [_entry(*each) for each in clusters]}
    header = f"{_HEADER}{fleet_id}, which removes it when it stops.\n"
    write_private(path, header + yaml.safe_dump({**document, **entries}, sort_keys=False))


def check_replaceable(path: Path) -> None:
    """Raises ConfigurationError if there is a file that no local fleet wrote."""
    if path.exists() and not _first_line(path).startswith(_HEADER):
        raise ConfigurationError(
            f"{path} exists and was not written by a local fleet.",
            next_step="move it away, or give the fleet another state_dir.",
        )


def remove_config(path: Path, fleet_id: str) -> None:
    """Remove the file if it is still this fleet's."""
    if _first_line(path).startswith(f"{_HEADER}{fleet_id},"):
        path.unlink(missing_ok=True)


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.readline()
    except FileNotFoundError:
        return ""


def _entry(cluster: LocalCluster, addresses: Addresses, folder: ClusterDir) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": cluster.name,
        "head_address": addresses.head_address,
        "dashboard": addresses.dashboard,
        "prefer": cluster.prefer,
        "weight": cluster.weight,
        "tags": list(cluster.tags),
        "home_dir": str(cluster.home_dir or folder.home),
        "auth_token_path": str(folder.token),
    }
    if not cluster.with_dashboard:
        del entry["dashboard"]
    if cluster.runtime_env:
        entry["runtime_env"] = dict(cluster.runtime_env)
    return {**entry, **cluster.config}
