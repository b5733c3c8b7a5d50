"""Files that only their owner may read: tokens and keys."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ray_multicluster_scheduler.common.exception import ConfigurationError

TOKEN_FILE = "token"  # nosec B105 # the name of the file
_MOST_BYTES = 4096


def read_private(path: Path) -> str:
    """What is in it, without the white space around it. Raises FileNotFoundError, and ConfigurationError for a file
    that others can read, or that cannot be read or is empty."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}.", next_step="make it readable for you, and for nobody else"
        ) from error
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ConfigurationError(f"{path} is no file.", next_step="name a file with a token in it")
        if about.st_mode & 0o077:
            raise ConfigurationError(
                f"{path} can be read by others than its owner, so what is in it is no secret.",
                next_step=f"chmod 600 {path}, and have a new token made if somebody may have read it",
            )
        if about.st_uid not in (os.geteuid(), 0):
            raise ConfigurationError(f"{path} belongs to somebody else.", next_step="use a file of your own")
        text = os.read(file, _MOST_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(file)
    if not text:
        raise ConfigurationError(f"{path} is empty.", next_step="write the token into it, or remove it")
    return text


def write_private(path: Path, text: str) -> None:
    """Durable when this returns, all of it or nothing; what was there before is replaced. Raises OSError."""
    from ray_multicluster_scheduler.control_plane.store.blob_files import sync_folder  # noqa: PLC0415 - not for who reads

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
