"""Shared-memory files that killed processes leave behind (Ray unlinks its own; user code may not)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

SHM = Path("/dev/shm")  # nosec B108 # looked at, not written to


def used_by(processes: Iterable[psutil.Process]) -> set[Path]:
    """Files under /dev/shm that these processes have mapped; none where the system has no such folder."""
    if not SHM.is_dir():
        return set()
    return {path for process in processes for path in _mapped(process.pid)}


def remove_unused(paths: Iterable[Path]) -> None:
    """Remove those that are ours and that no living process has mapped."""
    left = {path for path in paths if _ours(path)}
    if not left:
        return
    for path in left - used_by(psutil.process_iter()):
        path.unlink(missing_ok=True)


def _mapped(pid: int) -> set[Path]:
    found = set()
    with suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            parts = line.rstrip("\n").split(maxsplit=5)
            if len(parts) > 5 and parts[5].startswith(f"{SHM}/") and not parts[5].endswith(" (deleted)"):
                found.add(Path(parts[5]))
    return found


def _ours(path: Path) -> bool:
    with suppress(OSError):
        return path.lstat().st_uid == os.getuid()
    return False
