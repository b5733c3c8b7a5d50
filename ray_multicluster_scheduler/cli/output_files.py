"""Writes the files of commands: an existing file is replaced only with --force, and only as a whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

from ray_multicluster_scheduler.cli import exit_codes
from ray_multicluster_scheduler.common.exception import ConfigurationError


def check_new(path: Path, *, force: bool) -> None:
    """Raises ConfigurationError if the path exists, unless it is a regular file and ``force`` is set."""
    try:
        target = path.resolve()  # fails for links that form a loop
        exists, is_file = target.exists(), target.is_file()
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"{path} cannot be written: {why}.", next_step="give another name") from None
    if exists and not is_file:
        what = "a folder" if path.is_dir() else "not a regular file"
        raise ConfigurationError(f"{path} is {what}, and is not replaced.", next_step="give the name of a file")
    if exists and not force:
        raise ConfigurationError(f"{path} exists already.", next_step="give another name, or --force")


def write_file(path: Path, write: Callable[[Path], object], *, private: bool = False) -> None:
    """Let ``write`` fill a temporary file, then move that to this path; ``private``: readable by its owner only. Raises
    ConfigurationError if the path is not writable, and SchedulerError if the disk is full."""
    try:
        target = path.resolve()  # replaces the target of a link, not the link
        draft = target.with_name(f".{target.name[:100]}.{secrets.token_hex(4)}")
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666))
        try:
            write(draft)
            if not private and target.exists():
                draft.chmod(target.stat().st_mode & 0o777)
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno in exit_codes.DISK_ERRORS:
            raise exit_codes.disk_error(path, error) from None
        raise ConfigurationError(
            f"{path} cannot be written: {error.strerror}.", next_step="give a path in a folder that you may write to"
        ) from None
