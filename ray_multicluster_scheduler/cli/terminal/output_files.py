"""Files that a command writes: what is there stays, unless --force says otherwise, and only a file is ever replaced."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.common.exception import ConfigurationError


def check_new(path: Path, *, force: bool) -> None:
    """What is written may replace what somebody needs; a device or a folder is replaced by nobody. Raises
    ConfigurationError."""
    try:
        whole = path.resolve()  # of links that lead in a circle there is no end
        there, is_file = whole.exists(), whole.is_file()
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{path} cannot be written: {why}.", next_step="give another name") from None
    if there and not is_file:
        what = "a folder" if path.is_dir() else "not a regular file"
        raise ConfigurationError(f"{path} is {what}, and is not replaced.", next_step="give the name of a file")
    if there and not force:
        raise ConfigurationError(f"{path} is there already.", next_step="give another name, or --force")


def write_whole(path: Path, deed: Callable[[Path], object], *, private: bool = False) -> None:
    """``deed`` writes a file, and it takes this place when all of it is written: what was there before is there until
    then. ``private``: for its owner alone. Raises ConfigurationError where no file can be written, and SchedulerError
    where only the disk takes none."""
    try:
        _replace(path, deed, private=private)
    except OSError as error:
        if error.errno in exit_codes.NO_ROOM:
            raise exit_codes.no_room(path, error) from None
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}.", next_step="give a path in a folder that you may write to"
        ) from None


def _replace(path: Path, deed: Callable[[Path], object], *, private: bool) -> None:
    path = path.resolve()  # of a link, what it leads to is replaced
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(4)}")
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666))
    try:
        deed(draft)
        if not private and path.exists():
            draft.chmod(path.stat().st_mode & 0o777)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
