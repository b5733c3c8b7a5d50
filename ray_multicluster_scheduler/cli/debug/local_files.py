"""Collects what a debug dump has about this machine: versions, disk space, the state folder, the log of the service."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray_multicluster_scheduler.cli.layout.times import iso

MAX_FILES = 2000
LOG_BYTES = 512 * 1024
_SHOWN = ("RMCS_HOME", "RMCS_ADDRESS", "RMCS_CONFIG")
"""Variables whose values are shown; of others only that they are set."""


def versions() -> dict[str, Any]:
    """Versions of rmcs, Python, the system and all packages."""
    from importlib.metadata import distributions

    from ray_multicluster_scheduler import __version__

    found = {f"{one.metadata['Name']} {one.version}" for one in distributions()}
    return {
        "rmcs": __version__,
        "python": sys.version,
        "implementation": platform.python_implementation(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "packages": sorted(found, key=str.lower),
    }


def machine(home: Path, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """CPUs, free disk space, and which of our variables are set."""
    ours = sorted(name for name in environ if name.startswith(("RMCS_", "RAY_")))
    return {
        "cpus": os.cpu_count(),
        "disks": {str(path): _disk_space(path) for path in (home, _temporary(environ), Path.cwd())},
        "variables": {name: environ[name] if name in _SHOWN else "is set" for name in ours},
        "terminal": {"TERM": environ.get("TERM"), "LANG": environ.get("LANG")},
    }


def _temporary(environ: Mapping[str, str]) -> Path:
    """The folder for temporary files, even if it is not writable."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return Path(environ.get("TMPDIR") or "/tmp")  # nosec B108 # nothing is written there


def _disk_space(path: Path) -> dict[str, int] | str:
    at = next((one for one in (path, *path.absolute().parents) if one.exists()), Path("/"))
    try:
        space = shutil.disk_usage(at)
    except OSError as error:
        return str(error)
    return {"total_bytes": space.total, "free_bytes": space.free}


def listing(home: Path) -> str:
    """Modes, sizes and times of the files in the state folder, without contents. Payloads are only counted."""
    if not home.is_dir():
        return f"{home} does not exist.\n"
    lines = [_entry(home, home), *_entries(home)]
    return "".join(f"{line}\n" for line in lines)


def _entries(home: Path) -> Iterator[str]:
    listed = 0
    for at, folders, files in os.walk(home):
        folder = Path(at)
        if folder.name == "blobs":
            folders.clear()
            yield f"{'':10} {folder.relative_to(home)}/…: {_payloads(folder)}"
            continue
        folders.sort()
        for name in sorted((*folders, *files)):
            listed += 1
            if listed > MAX_FILES:
                yield f"and more than these {MAX_FILES:,}"
                return
            yield _entry(folder / name, home)


def _entry(path: Path, home: Path) -> str:
    try:
        info = path.lstat()
    except OSError as error:
        return f"?          {path.relative_to(home)}: {error.strerror}"
    owner = "" if info.st_uid == os.getuid() else f" of user {info.st_uid}"
    name = str(home) if path == home else str(path.relative_to(home))
    return f"{stat.filemode(info.st_mode)} {info.st_size:>12} {iso(info.st_mtime)} {name}{owner}"


def _payloads(folder: Path) -> str:
    count = size = 0
    for at, _, files in os.walk(folder):
        for name in files:
            try:
                size += (Path(at) / name).lstat().st_size
            except OSError:  # it was deleted after it was listed
                continue
            count += 1
    return f"{count:,} payloads, {size:,} bytes"


def tail_of_log(home: Path, address: str) -> str:
    """The end of the log of the service of this folder, if its stderr is a file. Raises OSError with the reason if it
    cannot be found."""
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    running = holder(home)
    if running is None or running.get("address") != address or "pid" not in running:
        raise OSError("the service does not run on this machine with this RMCS_HOME")
    link = Path(f"/proc/{int(running['pid'])}/fd/2")
    if not link.exists():
        raise OSError("the log file of the service cannot be determined on this system")
    if not stat.S_ISREG(link.stat().st_mode):
        raise OSError("the service does not log to a file (but to a terminal, a pipe or the system's journal)")
    with link.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        text = file.read(LOG_BYTES)
    lines = text if len(text) < LOG_BYTES else text.partition(b"\n")[2]
    return lines.decode("utf-8", "replace")
