"""What a bug report tells of this machine, with or without a service."""

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

MOST_FILES = 2000
LOG_BYTES = 512 * 1024
_SHOWN = ("RMCS_HOME", "RMCS_ADDRESS", "RMCS_CONFIG")
"""Variables whose values say where something is; of others only that they are set."""


def versions() -> dict[str, Any]:
    """Of us, of Python, of the system and of every package."""
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
    """Room on its disks, CPUs, and which of our variables are set."""
    ours = sorted(name for name in environ if name.startswith(("RMCS_", "RAY_")))
    return {
        "cpus": os.cpu_count(),
        "disks": {str(path): _room(path) for path in (home, _temporary(environ), Path.cwd())},
        "variables": {name: environ[name] if name in _SHOWN else "is set" for name in ours},
        "terminal": {"TERM": environ.get("TERM"), "LANG": environ.get("LANG")},
    }


def _temporary(environ: Mapping[str, str]) -> Path:
    """Python finds none where nothing can be written: a bug report is wanted there all the same."""
    try:
        return Path(tempfile.gettempdir())
    except OSError:
        return Path(environ.get("TMPDIR") or "/tmp")  # nosec B108 # nothing is written there


def _room(path: Path) -> dict[str, int] | str:
    at = next((one for one in (path, *path.absolute().parents) if one.exists()), Path("/"))
    try:
        room = shutil.disk_usage(at)
    except OSError as error:
        return str(error)
    return {"total_bytes": room.total, "free_bytes": room.free}


def listing(home: Path) -> str:
    """Modes, sizes and times of what is in the state folder; never what is in the files. Payloads are only counted."""
    if not home.is_dir():
        return f"{home} is not there.\n"
    lines = [_entry(home, home), *_entries(home)]
    return "".join(f"{line}\n" for line in lines)


def _entries(home: Path) -> Iterator[str]:
    told = 0
    for at, folders, files in os.walk(home):
        folder = Path(at)
        if folder.name == "blobs":
            folders.clear()
            yield f"{'':10} {folder.relative_to(home)}/…: {_payloads(folder)}"
            continue
        folders.sort()
        for name in sorted((*folders, *files)):
            told += 1
            if told > MOST_FILES:
                yield f"and more than these {MOST_FILES:,}"
                return
            yield _entry(folder / name, home)


def _entry(path: Path, home: Path) -> str:
    try:
        about = path.lstat()
    except OSError as error:
        return f"?          {path.relative_to(home)}: {error.strerror}"
    mine = "" if about.st_uid == os.getuid() else f" of user {about.st_uid}"
    name = str(home) if path == home else str(path.relative_to(home))
    return f"{stat.filemode(about.st_mode)} {about.st_size:>12} {iso(about.st_mtime)} {name}{mine}"


def _payloads(folder: Path) -> str:
    count = size = 0
    for at, _, files in os.walk(folder):
        for name in files:
            try:
                size += (Path(at) / name).lstat().st_size
            except OSError:  # it went meanwhile
                continue
            count += 1
    return f"{count:,} payloads, {size:,} bytes"


def tail_of_log(home: Path, address: str) -> str:
    """The end of what the service of this folder writes on stderr, if that is a file. Raises OSError with the reason
    if it is not known to us."""
    from ray_multicluster_scheduler.control_plane.store.state_folder import holder

    said = holder(home)
    if said is None or said.get("address") != address or "pid" not in said:
        raise OSError("the service does not run on this machine with this RMCS_HOME")
    link = Path(f"/proc/{int(said['pid'])}/fd/2")
    if not link.exists():
        raise OSError("where the service writes its log cannot be seen here")
    if not stat.S_ISREG(link.stat().st_mode):
        raise OSError("the service writes its log to no file (a terminal, a pipe or the system's journal)")
    with link.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        text = file.read(LOG_BYTES)
    whole = text if len(text) < LOG_BYTES else text.partition(b"\n")[2]
    return whole.decode("utf-8", "replace")
