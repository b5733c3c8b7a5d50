"""Files and folders that only their owner may read (tokens, keys, state), written durably."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError

TOKEN_FILE = "token"  # nosec B105 # the name of the file
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk or an exhausted user quota."""
_MAX_BYTES = 4096


def make_folder(folder: Path) -> None:
    """Create a folder for its owner only, durably."""
    if not folder.is_dir():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_private(path: Path) -> str:
    """Read a short secret, without surrounding white space. Raises FileNotFoundError, and ConfigurationError for a file
    that others can read, that cannot be read, or that is empty."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}.", next_step="make it readable for you only"
        ) from error
    try:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode):
            raise ConfigurationError(f"{path} is not a regular file.", next_step="give a file that contains a token")
        if info.st_mode & 0o077:
            raise ConfigurationError(
                f"{path} is readable by other users, so its content is not secret.",
                next_step=f"chmod 600 {path}, and create a new token if another user may have read it",
            )
        if info.st_uid not in (os.geteuid(), 0):
            raise ConfigurationError(f"{path} belongs to another user.", next_step="use a file of your own")
        text = os.read(file, _MAX_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(file)
    if not text:
        raise ConfigurationError(f"{path} is empty.", next_step="write the token into it, or remove it")
    return text


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically and durably. Raises OSError."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, f"{text}\n".encode())
        os.fsync(file)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    sync_folder(path.parent)
