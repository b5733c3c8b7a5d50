"""The files of a local fleet: folders, records of its processes, and the clusters.yaml that it writes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.local_fleet.local_cluster import LocalCluster
from ray_multicluster_scheduler.local_fleet.ports import LOOPBACK
from ray_multicluster_scheduler.local_fleet.processes import Identity

PREFIX = "rmcs-fl-"
FLEET_RECORD = "fleet.json"
_SOCKET_ROOM = 68
"""Ray's longest socket name below a cluster's temp dir: session_<date>_<pid>/sockets/<name>."""
_SOCKET_LIMIT = 103
"""Of a Unix socket's path: 107 on Linux, 103 on macOS."""


class ClusterDir:
    """The folder of one cluster."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.token, self.record = root / "token", root / "cluster.json"
        self.home, self.tmp, self.ray = root / "home", root / "tmp", root / "ray"
        self.log, self.supervisor_log = root / "ray.log", root / "supervisor.log"

    def make(self, token: str) -> None:
        """Create it with a home, a temp dir and the token, all private."""
        for folder in (self.root, self.home, self.tmp):
            folder.mkdir(mode=0o700)
        write_private(self.token, token)


@dataclass(frozen=True)
class ClusterRecord:
    """The processes of one cluster, recorded by its supervisor so that a sweep finds them if it is killed."""

    supervisor: Identity
    head: Identity | None = None
    members: Sequence[Identity] = ()

    def write(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ClusterRecord | None:
        """None if it does not exist or cannot be read."""
        data = _read_json(path)
        try:
            head = data.get("head")
            members = tuple(Identity(**each) for each in data["members"])
            return cls(Identity(**data["supervisor"]), Identity(**head) if head else None, members)
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class FleetRecord:
    """The owner of a fleet, its number of clusters, and the clusters.yaml that is removed with it."""

    fleet_id: str
    owner: Identity
    clusters: int
    config_path: str

    def write(self, root: Path) -> None:
        write_private(root / FLEET_RECORD, json.dumps(asdict(self)))

    @classmethod
    def read(cls, root: Path) -> FleetRecord | None:
        """None if it does not exist or cannot be read."""
        data = _read_json(root / FLEET_RECORD)
        try:
            owner = Identity(**data["owner"])
            return cls(str(data["fleet_id"]), owner, int(data["clusters"]), str(data["config_path"]))
        except (KeyError, TypeError, ValueError):
            return None

    def marker(self, index: int) -> str:
        """The value of the environment variable that marks every process of that cluster."""
        return f"{self.fleet_id}/{index}"


def cluster_dir(fleet_root: Path, index: int) -> ClusterDir:
    return ClusterDir(fleet_root / str(index))


def base_dir() -> Path:
    """The folder for fleets: the temp dir, or /tmp if Ray's socket paths would be too long in it.

    Raises ConfigurationError."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # also raised when the disk is full
        raise ConfigurationError(
            f"No folder for temporary files can be written; /tmp: {_folder_problem('/tmp')}.",  # nosec B108 # it is only named
            next_step="free space there, or set TMPDIR to a folder with a short path that you can write to.",
        ) from error
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):  # nosec B108 # mkdtemp follows
        if len(str(base / f"{PREFIX}xxxxxxxx/00/ray/")) + _SOCKET_ROOM <= _SOCKET_LIMIT and os.access(base, os.W_OK):
            return base
    raise ConfigurationError(
        f"No writable temp dir with a short path for Ray's sockets ({tempfile.gettempdir()} is not).",
        next_step="set TMPDIR to a writable folder with a path of at most 8 characters, such as /tmp.",
    )


def _folder_problem(folder: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"-")
    except OSError as error:
        return error.strerror or str(error)
    return "it can be written now"


def write_private(path: Path, text: str) -> None:
    """Atomically write a file that only this user can read."""
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)
    except OSError as error:  # the error of a full disk does not name the file
        os.unlink(scratch)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        os.unlink(scratch)
        raise


def remove_tree(root: Path, timeout_s: float = 5.0) -> None:
    """Remove a folder; retries if a file appears in it during the removal. Raises OSError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            shutil.rmtree(root)
            return
        except FileNotFoundError:
            if not root.exists():
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


CONFIG_NAME = "clusters.yaml"
_HEADER = "# Written by local fleet "


@dataclass(frozen=True)
class Addresses:
    """The addresses of a local cluster, as in clusters.yaml."""

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
    """Write the clusters.yaml of a fleet with mode 0600; the tokens stay in their own files."""
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
    """Remove the clusters.yaml, unless another fleet has replaced it."""
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
