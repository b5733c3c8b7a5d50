"""The state folder (``$RMCS_HOME``), the sockets of running control planes in it, and home folders in paths."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError
from ray_multicluster_scheduler.common.process import is_alive

_VARIABLE = "RMCS_HOME"
SUFFIX = ".sock"


def rmcs_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The state folder: ``$RMCS_HOME``, by default ``~/.rmcs``. It need not exist. Raises ConfigurationError for one
    that cannot exist: of an unknown user, or with a name that is too long."""
    home = expanded(environ.get(_VARIABLE) or "~/.rmcs", _VARIABLE)
    try:
        home.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            message = f"{_VARIABLE} cannot be the name of a folder: {error.strerror}."
            raise ConfigurationError(message, next_step="give another one") from None
    return home


def expanded(path: str | Path, origin: str) -> Path:
    """Expand ``~`` and ``~ann``; ``origin`` names the setting. Raises ConfigurationError for unknown users."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        message = f"{origin} names {path}, but there is no user for {Path(path).parts[0]} on this machine."
        raise ConfigurationError(message, next_step="write the path in full") from None


def run_folder() -> Path:
    """``$RMCS_HOME/run``, which holds one socket per running control plane, named by its process. It may not exist."""
    return rmcs_home().absolute() / "run"


def make_run_folder() -> Path:
    """Create it for its owner only. Raises OSError, also when it belongs to another user."""
    folder = run_folder()
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.stat()
    if info.st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    if stat.S_IMODE(info.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def sockets() -> Iterator[tuple[int, Path]]:
    """Process id and socket of each running control plane; removes the sockets of processes that ended."""
    with suppress(OSError):  # there is no folder
        for path in sorted(run_folder().glob(f"*{SUFFIX}")):
            pid = path.name.partition("-")[0]
            if not pid.isdigit():
                continue
            if is_alive(int(pid)):
                yield int(pid), path
            else:
                with suppress(OSError):  # another process removed it
                    path.unlink()
