"""Where a fleet keeps its files, and what it records there so that a later one can tidy up after it.

<tmp>/rmcs-fl-xxxxxxxx/       one fleet (0700)
    fleet.json                who runs it
    clusters.yaml             0600, unless the fleet was given another folder for it
    0/, 1/, …                 one cluster each, in order
        token                 0600
        cluster.json          its supervisor, its processes
        home/  tmp/  ray/     HOME, TMPDIR and --temp-dir of the cluster
        ray.log               what `ray start` printed
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.local_fleet.processes import Identity

PREFIX = "rmcs-fl-"
FLEET_RECORD = "fleet.json"
_SOCKET_ROOM = 68
"""Ray's longest socket name below a cluster's temp dir: session_<date>_<pid>/sockets/<name>."""
_SOCKET_LIMIT = 103
"""Of a Unix socket's path: 107 on Linux, 103 on macOS."""


@dataclass(frozen=True)
class ClusterDir:
    """The folder of one cluster."""

    root: Path

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def record(self) -> Path:
        return self.root / "cluster.json"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def ray(self) -> Path:
        return self.root / "ray"

    @property
    def log(self) -> Path:
        return self.root / "ray.log"

    @property
    def supervisor_log(self) -> Path:
        return self.root / "supervisor.log"

    def make(self, token: str) -> None:
        """Create it with a home, a temp dir and the token, all private."""
        for folder in (self.root, self.home, self.tmp):
            folder.mkdir(mode=0o700)
        write_private(self.token, token)


@dataclass(frozen=True)
class ClusterRecord:
    """Written by a supervisor, so that what it leaves can be found if it is killed."""

    supervisor: Identity
    head: Identity | None = None
    members: Sequence[Identity] = ()

    def write(self, path: Path) -> None:
        write_private(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ClusterRecord | None:
        """None if there is none, or it cannot be read."""
        data = _read_json(path)
        try:
            head = data.get("head")
            members = tuple(Identity(**each) for each in data["members"])
            return cls(Identity(**data["supervisor"]), Identity(**head) if head else None, members)
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class FleetRecord:
    """Who runs a fleet, how many clusters it has, and a file outside its folder that goes with it."""

    fleet_id: str
    owner: Identity
    clusters: int
    config_path: str

    def write(self, root: Path) -> None:
        write_private(root / FLEET_RECORD, json.dumps(asdict(self)))

    @classmethod
    def read(cls, root: Path) -> FleetRecord | None:
        """None if there is none, or it cannot be read."""
        data = _read_json(root / FLEET_RECORD)
        try:
            owner = Identity(**data["owner"])
            return cls(str(data["fleet_id"]), owner, int(data["clusters"]), str(data["config_path"]))
        except (KeyError, TypeError, ValueError):
            return None

    def marker(self, index: int) -> str:
        return marker(self.fleet_id, index)


def marker(fleet_id: str, index: int) -> str:
    """What every process of that cluster has in its environment."""
    return f"{fleet_id}/{index}"


def cluster_dir(fleet_root: Path, index: int) -> ClusterDir:
    return ClusterDir(fleet_root / str(index))


def base_dir() -> Path:
    """Where fleets live: the temp dir, or /tmp when Ray's socket paths would get too long in it. Raises
    ConfigurationError."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:  # that is all it says of a full disk
        raise ConfigurationError(
            f"No folder for temporary files can be written; /tmp: {_why_not('/tmp')}.",  # nosec B108 # it is only named
            next_step="make room there, or set TMPDIR to a folder with a short path that you can write to.",
        ) from error
    for base in (Path(tempfile.gettempdir()), Path("/tmp")):  # nosec B108 # mkdtemp follows
        if len(str(base / f"{PREFIX}xxxxxxxx/00/ray/")) + _SOCKET_ROOM <= _SOCKET_LIMIT and os.access(base, os.W_OK):
            return base
    raise ConfigurationError(
        f"No writable temp dir with a short path for Ray's sockets ({tempfile.gettempdir()} does not do).",
        next_step="set TMPDIR to a writable folder with a path of at most 8 characters, such as /tmp.",
    )


def _why_not(folder: str) -> str:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"-")
    except OSError as error:
        return error.strerror or str(error)
    return "it can be written by now"


def write_private(path: Path, text: str) -> None:
    """Write a file that only we can read; a reader sees the old text or the new one, never half."""
    handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(scratch, path)
    except OSError as error:  # a full disk is told by no name, only by a number
        os.unlink(scratch)
        raise OSError(error.errno, error.strerror, str(path)) from error
    except BaseException:
        os.unlink(scratch)
        raise


def remove_tree(root: Path, timeout_s: float = 5.0) -> None:
    """Remove a folder; a file that appears meanwhile only makes it try again. Raises OSError."""
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
