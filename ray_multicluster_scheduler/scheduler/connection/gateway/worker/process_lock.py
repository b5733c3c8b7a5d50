"""The lock file of an agent: proves to a control plane on the same machine that the agent and all its workers are dead.

The agent makes the file, locks it, and reports its path in HELLO. A worker locks it before it requests its first lease,
so no call of ours runs in a process without the lock. The operating system releases a lock when the last process that
holds it is dead, and not before: a stopped process keeps it. A process that then acquires the exclusive lock knows that
no call of this agent runs, or ever will. If a worker cannot lock the file, because it is on another machine, the agent
removes the file before it grants the lease; then there is no proof, and the lease decides.
"""

from __future__ import annotations

import fcntl
import os
import platform
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MAX_BYTES = 1000
_held: dict[str, int] = {}
"""Descriptors of the locked files by path, open until this process ends."""


def create(folder: str) -> str:
    """Make a file in this folder and lock it, for as long as this process lives. Returns its path. Raises OSError."""
    file, path = tempfile.mkstemp(prefix="rmcs-agent-", suffix=".lock", dir=folder)
    os.write(file, _machine())
    fcntl.flock(file, fcntl.LOCK_SH)
    _held[path] = file
    return path


def hold(path: str) -> bool:
    """Lock the file for as long as this process lives. False if it is not there, or was made on another machine."""
    if path in _held:
        return True
    file = _open(path)
    if file is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    _held[path] = file
    return True


def remove(path: str) -> None:
    """From now on the file proves nothing. Raises OSError if it cannot be removed."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def is_free(path: str) -> bool:
    """Whether every process that has locked the file is dead. False if that is not certain."""
    file = _open(path)
    if file is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.fstat(file).st_nlink > 0  # else it was removed after it was opened here
    except OSError:
        return False
    finally:
        os.close(file)


def _open(path: str) -> int | None:
    """None if the file is not there, or was made on another machine, whose locks are not seen here."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        same = os.read(file, _MAX_BYTES) == _machine()
    except OSError:
        same = False
    if not same:
        os.close(file)
        return None
    return file


def _machine() -> bytes:
    """Names this machine, and on Linux its running kernel: two containers on one kernel see each other's locks."""
    try:
        return _BOOT_ID.read_bytes()
    except OSError:
        return f"{platform.system()} {platform.node()} {uuid.getnode():x}".encode()
