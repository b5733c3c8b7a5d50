"""``$RMCS_HOME/run``: one socket for each control plane that lives now, named by its process."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ray_multicluster_scheduler.common.process import is_alive
from ray_multicluster_scheduler.control_plane.config.home import rmcs_home

SUFFIX = ".sock"


def run_folder() -> Path:
    """It may not be there."""
    return rmcs_home().absolute() / "run"


def make_run_folder() -> Path:
    """For its owner only. Raises OSError, also when the folder belongs to somebody else."""
    folder = run_folder()
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def sockets() -> Iterator[tuple[int, Path]]:
    """Process id and socket of each control plane; those of processes that are gone are removed."""
    with suppress(OSError):  # no folder, no programs
        for path in sorted(run_folder().glob(f"*{SUFFIX}")):
            pid = path.name.partition("-")[0]
            if not pid.isdigit():
                continue
            if is_alive(int(pid)):
                yield int(pid), path
            else:
                with suppress(OSError):  # somebody else was faster
                    path.unlink()
